// The FSM ops on CUDA: each is one kernel launch on raw pointers.
#pragma once

#include "common/fsm_states.h"

namespace structout::cuda {

// Launch asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError.
void fsm_advance(const FsmAdvanceParams& params, void* stream);
void fsm_rows(const FsmRowsParams& params, int num_sms, void* stream);
void fsm_draft_states(const FsmDraftStatesParams& params, void* stream);

}  // namespace structout::cuda
