// Calls the CUDA kernels of sharded_masked_sample on torch tensors, on the logits'
// device and its current stream.
#include "cuda/shards.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include <optional>
#include <tuple>

#include "bindings/cuda/device.h"
#include "bindings/shard_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

Tensor sample_shard(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                    const Tensor& temperature, const Tensor& seed, const Tensor& position, int64_t vocab_begin) {
  const std::optional<Tensor> no_filter;
  return draw_shard_result({logits, bitmask, rows, temperature, no_filter, no_filter, no_filter, seed, position},
                           vocab_begin, run_masked_sample_on(logits.get_device_index()));
}

Tensor shard_mass(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                  const Tensor& temperature, const Tensor& seed, const Tensor& position, int64_t vocab_begin,
                  const Tensor& merged) {
  const std::optional<Tensor> no_filter;
  const MaskedSampleParams params =
      shard_params({logits, bitmask, rows, temperature, no_filter, no_filter, no_filter, seed, position}, vocab_begin);
  const float* highest = highest_logits(merged, logits, params.num_rows);
  auto masses = torch::stable::new_empty(logits, {params.num_rows}, torch::headeronly::ScalarType::Long);
  const int device = logits.get_device_index();
  const DeviceGuard guard(device);
  cuda::shard_mass(params, highest, static_cast<int64_t*>(masses.data_ptr()), current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return masses;
}

std::tuple<Tensor, Tensor> merge_shard_results(const Tensor& shard_results, const Tensor& temperature) {
  const int device = shard_results.get_device_index();
  return merge_results(shard_results, temperature, [device](const MergeShardResultsParams& params) {
    const DeviceGuard guard(device);
    cuda::merge_shard_results(params, current_stream(device));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

Tensor merge_masses(const Tensor& masses, const Tensor& merged, const Tensor& temperature) {
  const int device = masses.get_device_index();
  return merge_logprobs(masses, merged, temperature, [device](const MergeMassesParams& params) {
    const DeviceGuard guard(device);
    cuda::merge_masses(params, current_stream(device));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("_sample_shard", TORCH_BOX(&structout::sample_shard));
  ops.impl("_merge_shard_results", TORCH_BOX(&structout::merge_shard_results));
  ops.impl("_shard_mass", TORCH_BOX(&structout::shard_mass));
  ops.impl("_merge_masses", TORCH_BOX(&structout::merge_masses));
}
