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

std::tuple<Tensor, Tensor> merge_shard_results(const Tensor& shard_results, const Tensor& temperature) {
  const int device = shard_results.get_device_index();
  return merge_results(shard_results, temperature, [device](const MergeShardResultsParams& params) {
    const DeviceGuard guard(device);
    cuda::merge_shard_results(params, current_stream(device));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("_sample_shard", TORCH_BOX(&structout::sample_shard));
  ops.impl("_merge_shard_results", TORCH_BOX(&structout::merge_shard_results));
}
