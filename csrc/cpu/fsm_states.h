// fsm_advance and fsm_rows on the CPU. fsm_draft_states is a loop over
// FsmDraftStatesParams::run.
#pragma once

#include "common/fsm_states.h"
#include "cpu/parallel_for.h"

namespace structout::cpu {

// Advances rows [begin, end).
void fsm_advance(const FsmAdvanceParams& params, int64_t begin, int64_t end);

// Threads share the masks that have to be computed, also where there is only one.
void fsm_rows(const FsmRowsParams& params, const ParallelFor& parallel_for);

}  // namespace structout::cpu
