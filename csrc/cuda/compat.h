// Lets one kernel source be compiled by nvcc, and by a C++ compiler over csrc/testing/host_simt.h.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define STRUCTOUT_LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#else
#include "../testing/host_simt.h"
#define STRUCTOUT_LAUNCH(kernel, grid, block, stream, ...) structout::simt::launch(grid, block, 0, kernel, __VA_ARGS__)
#endif
