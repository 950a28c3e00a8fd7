// verify_drafts on CUDA, after the draw: one kernel launch on raw pointers.
#pragma once

#include "common/verify_drafts.h"

namespace structout::cuda {

// Launches asynchronously on `stream` (a cudaStream_t). The caller checks
// cudaGetLastError.
void verify_drafts(const VerifyDraftsParams& params, void* stream);

}  // namespace structout::cuda
