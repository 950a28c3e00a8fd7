// Calls the CPU kernels of sharded_masked_sample on torch tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "bindings/cpu/threads.h"
#include "bindings/shard_args.h"
#include "bindings/tensor_checks.h"
#include "cpu/masked_sample.h"

namespace structout {
namespace {

void run_masked_sample(const MaskedSampleParams& params) {
  cpu::masked_sample(params, torch::stable::get_num_threads(), cpu::spread_over_threads);
}

template <class Params>
void run_rows(const Params& params) {
  for (int64_t row = 0; row < params.num_rows; ++row) params.run(row);
}

Tensor sample_shard(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                    const Tensor& temperature, const Tensor& seed, const Tensor& position, int64_t vocab_begin) {
  const std::optional<Tensor> no_filter;
  return draw_shard_result({logits, bitmask, rows, temperature, no_filter, no_filter, no_filter, seed, position},
                           vocab_begin, run_masked_sample);
}

std::tuple<Tensor, Tensor> merge_shard_results(const Tensor& shard_results, const Tensor& temperature) {
  return merge_results(shard_results, temperature, run_rows<MergeShardResultsParams>);
}

void check_sharded_masked_sample(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                                 const Tensor& temperature, std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                                 std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position,
                                 int64_t vocab_begin) {
  shard_params({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position}, vocab_begin);
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("_sample_shard", TORCH_BOX(&structout::sample_shard));
  ops.impl("_merge_shard_results", TORCH_BOX(&structout::merge_shard_results));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, checks) {
  checks.impl("_check_sharded_masked_sample", TORCH_BOX(&structout::check_sharded_masked_sample));
}
