// The properties of a CUDA device, its current stream, and the kernels prepared for it.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include <array>
#include <mutex>

#include "bindings/tensor_checks.h"
#include "cuda/masked_sample.h"
#include "cuda/token_logprobs.h"

namespace structout {

using torch::stable::accelerator::DeviceGuard;

inline cuda::DeviceFacts query_device(int device) {
  const auto attribute = [device](cudaDeviceAttr what) {
    int value = 0;
    STD_CUDA_CHECK(cudaDeviceGetAttribute(&value, what, device));
    return value;
  };
  const int major = attribute(cudaDevAttrComputeCapabilityMajor), minor = attribute(cudaDevAttrComputeCapabilityMinor);
  return {attribute(cudaDevAttrMultiProcessorCount), 10 * major + minor,
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

constexpr int kMaxDevices = 64;

// Queried once per device: queries on every call would cost more than the launch.
inline const cuda::DeviceFacts& device_facts(int device) {
  static std::array<std::once_flag, kMaxDevices> queried;
  static std::array<cuda::DeviceFacts, kMaxDevices> facts;
  if (device >= kMaxDevices) refuse("structout supports CUDA devices 0 to ", kMaxDevices - 1, ", got cuda:", device);
  std::call_once(queried[device], [device] { facts[device] = query_device(device); });
  return facts[device];
}

inline void* current_stream(int device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return stream;
}

// Prepares the kernels that take a row by teams, once per device. `device` must be the
// current one.
inline const cuda::DeviceFacts& prepared_device(int device) {
  static std::array<std::once_flag, kMaxDevices> prepared;
  static std::array<cuda::DeviceFacts, kMaxDevices> facts;
  const cuda::DeviceFacts& queried = device_facts(device);
  std::call_once(prepared[device], [&] {
    facts[device] = queried;
    cuda::prepare_masked_sample(facts[device]);
    cuda::prepare_token_logprobs(facts[device]);
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return facts[device];
}

inline auto run_masked_sample_on(int device) {
  return [device](const MaskedSampleParams& params) {
    const DeviceGuard guard(device);
    cuda::masked_sample(params, prepared_device(device), current_stream(device));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  };
}

}  // namespace structout
