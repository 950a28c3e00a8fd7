// Torch tensors to CUDA kernels, on the logits' device and its current stream.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include <array>
#include <atomic>

#include "../apply_bitmask_args.h"
#include "apply_bitmask.h"

namespace structout {
namespace {

using torch::stable::Tensor;

// Asked once per device: a property query on every call would cost more than the launch.
int num_sms(int device) {
  constexpr int kMaxDevices = 64;
  static std::array<std::atomic<int>, kMaxDevices> known{};
  int count = device < kMaxDevices ? known[device].load(std::memory_order_relaxed) : 0;
  if (count == 0) {
    STD_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    if (device < kMaxDevices) known[device].store(count, std::memory_order_relaxed);
  }
  return count;
}

void apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  const ApplyBitmaskParams params = apply_bitmask_params(logits, bitmask, rows);
  if (params.num_rows == 0 || params.vocab_size == 0) return;
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  cuda::apply_bitmask(params, num_sms(device), stream);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) { ops.impl("apply_bitmask", TORCH_BOX(&structout::apply_bitmask)); }
