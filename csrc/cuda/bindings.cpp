// Torch tensors to CUDA kernels, on the logits' device and its current stream.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include <array>
#include <mutex>
#include <tuple>

#include "../apply_bitmask_args.h"
#include "../masked_sample_args.h"
#include "../push_args.h"
#include "../tensor_checks.h"
#include "apply_bitmask.h"
#include "masked_sample.h"
#include "push.h"

namespace structout {
namespace {

using torch::stable::Tensor;

using torch::stable::accelerator::DeviceGuard;

cuda::DeviceFacts ask_device(int device) {
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

// Asked once per device: property queries on every call would cost more than the launch.
const cuda::DeviceFacts& device_facts(int device) {
  static std::array<std::once_flag, kMaxDevices> asked;
  static std::array<cuda::DeviceFacts, kMaxDevices> facts;
  if (device >= kMaxDevices) refuse("structout serves up to ", kMaxDevices, " CUDA devices, got cuda:", device);
  std::call_once(asked[device], [device] { facts[device] = ask_device(device); });
  return facts[device];
}

void* current_stream(int device) {
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return stream;
}

void apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  const ApplyBitmaskParams params = apply_bitmask_params(logits, bitmask, rows);
  if (params.num_rows == 0 || params.vocab_size == 0) return;
  const int device = logits.get_device_index();
  const DeviceGuard guard(device);
  cuda::apply_bitmask(params, device_facts(device).num_sms, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// On the current device.
void prepare_masked_sample_once(int device, const cuda::DeviceFacts& facts) {
  static std::array<std::once_flag, kMaxDevices> prepared;
  std::call_once(prepared[device], [&] {
    cuda::prepare_masked_sample(facts);
    STD_CUDA_CHECK(cudaGetLastError());
  });
}

auto run_masked_sample_on(int device) {
  return [device](const MaskedSampleParams& params) {
    const DeviceGuard guard(device);
    const cuda::DeviceFacts& facts = device_facts(device);
    prepare_masked_sample_once(device, facts);
    cuda::masked_sample(params, facts, current_stream(device));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  };
}

Tensor masked_sample(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                     const Tensor& temperature, std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                     std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position) {
  return draw_ids({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position},
                  run_masked_sample_on(logits.get_device_index()));
}

std::tuple<Tensor, Tensor> masked_sample_logprobs(const Tensor& logits, std::optional<Tensor> bitmask,
                                                  std::optional<Tensor> rows, const Tensor& temperature,
                                                  std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                                                  std::optional<Tensor> min_p, const Tensor& seed,
                                                  const Tensor& position) {
  return draw_ids_and_logprobs({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position},
                               run_masked_sample_on(logits.get_device_index()));
}

void push_all_gather(const Tensor& shard, const Tensor& out, const Tensor& state, int64_t buffers, int64_t multicast,
                     int64_t rank, int64_t world_size, int64_t gather_capacity, int64_t token, int64_t timeout_ns,
                     int64_t fill_on_error) {
  const PushAllGatherParams params = push_all_gather_params(
      shard, out, state, {buffers, multicast, rank, world_size, gather_capacity, token, timeout_ns}, fill_on_error);
  const int device = shard.get_device_index();
  const DeviceGuard guard(device);
  cuda::push_all_gather(params, {}, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

void push_rows(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows, const Tensor& rows_out,
               const Tensor& state, int64_t buffers, int64_t rank, int64_t world_size, int64_t gather_capacity,
               int64_t token, int64_t timeout_ns, int64_t rows_capacity, int64_t vocab_begin, int64_t vocab_size) {
  const PushRowsParams params = push_rows_params(logits, bitmask, rows, rows_out, state,
                                                 {buffers, 0, rank, world_size, gather_capacity, token, timeout_ns},
                                                 rows_capacity, vocab_begin, vocab_size);
  const int device = logits.get_device_index();
  const DeviceGuard guard(device);
  cuda::push_rows(params, {}, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("apply_bitmask", TORCH_BOX(&structout::apply_bitmask));
  ops.impl("masked_sample", TORCH_BOX(&structout::masked_sample));
  ops.impl("masked_sample_logprobs", TORCH_BOX(&structout::masked_sample_logprobs));
  ops.impl("_push_all_gather", TORCH_BOX(&structout::push_all_gather));
  ops.impl("_push_rows", TORCH_BOX(&structout::push_rows));
}
