// A kernel of the program masked_sample.cpp: adds weights to two bins of a histogram.
#include "cuda/select.cuh"

namespace structout::cuda {

struct Additions {
  const int64_t* weights;
  int count;
  uint64_t* sums;  // [2], one per bin
};

__global__ void add_weights(Additions additions) {
  __shared__ Histogram histogram;
  histogram.clear();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < additions.count; i += static_cast<int>(blockDim.x)) {
    histogram.add(i & 1, additions.weights[i]);
  }
  __syncthreads();
  if (threadIdx.x < 2) additions.sums[threadIdx.x] = histogram.sum(threadIdx.x);
}

}  // namespace structout::cuda
