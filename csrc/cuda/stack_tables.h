// The stack ops on CUDA: each is one kernel launch on raw pointers.
#pragma once

#include "common/stack_tables.h"

namespace structout::cuda {

// Launch asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError.
void stack_advance(const StackAdvanceParams& params, void* stream);
void stack_rows(const StackRowsParams& params, void* stream);
void stack_draft_rows(const StackDraftRowsParams& params, void* stream);

}  // namespace structout::cuda
