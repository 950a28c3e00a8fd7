// fsm_rows on the CPU. The other FSM ops are loops over the params of common/fsm_states.h.
#pragma once

#include "common/fsm_states.h"
#include "cpu/parallel_for.h"

namespace structout::cpu {

// Threads share the masks that have to be computed, also where there is only one.
void fsm_rows(const FsmRowsParams& params, const ParallelFor& parallel_for);

}  // namespace structout::cpu
