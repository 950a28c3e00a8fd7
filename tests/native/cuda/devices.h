// The devices that the kernels which take a row by teams are launched for.
#pragma once

#include <algorithm>

#include "cuda/device_facts.h"
#include "simt/ptx_launch.h"

// With 0 KB of shared memory later passes read a row from global memory again; with 200
// KB they read the copy. Long rows are split over a cluster if the device has clusters
// and idle multiprocessors.
inline structout::cuda::DeviceFacts device_with(int compute_capability, int shared_kilobytes) {
  compute_capability = std::min(compute_capability, structout::simt::PtxBackend::get().max_compute_capability());
  if (compute_capability < 90) return {64, compute_capability, shared_kilobytes * 1024};
  return {64, compute_capability, shared_kilobytes * 1024, {32, 16, 8}};
}
