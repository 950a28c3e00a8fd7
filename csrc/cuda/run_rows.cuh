// Launches params.run(i) for i from 0 on, one thread each.
#pragma once

#include "cuda/compat.h"

namespace structout::cuda {

constexpr int kThreadsOfRows = 128;

template <class Params>
__global__ void run_rows(Params params, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) params.run(i);
}

template <class Params>
void launch_rows(const Params& params, int64_t count, void* stream) {
  if (count == 0) return;
  const auto num_blocks = static_cast<unsigned>((count + kThreadsOfRows - 1) / kThreadsOfRows);
  STRUCTOUT_LAUNCH(run_rows<Params>, dim3(num_blocks), dim3(kThreadsOfRows), static_cast<cudaStream_t>(stream), params,
                   count);
}

}  // namespace structout::cuda
