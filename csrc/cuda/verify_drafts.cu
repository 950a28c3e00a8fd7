// verify_drafts after the draw: one thread per request, over 16 bytes of each of its rows.
#include "cuda/run_rows.cuh"
#include "cuda/verify_drafts.h"

namespace structout::cuda {

void verify_drafts(const VerifyDraftsParams& params, void* stream) { launch_rows(params, params.num_requests, stream); }

}  // namespace structout::cuda
