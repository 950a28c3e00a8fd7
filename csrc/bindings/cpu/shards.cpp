// Calls the CPU kernels of sharded_masked_sample on torch tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>
#include <vector>

#include "bindings/cpu/threads.h"
#include "bindings/shard_args.h"
#include "bindings/tensor_checks.h"
#include "cpu/allowed_logits.h"
#include "cpu/masked_sample.h"

namespace structout {
namespace {

void run_masked_sample(const MaskedSampleParams& params) {
  cpu::masked_sample(params, torch::stable::get_num_threads(), cpu::spread_over_threads);
}

constexpr const char* kOp = "sharded_masked_sample";

void check_packed(const Tensor& packed, const Tensor& logits) {
  if (packed.dim() != 1 || !packed.is_contiguous() || packed.scalar_type() != logits.scalar_type()) {
    refuse(kOp, ": packed must be contiguous ", dtype_name(logits.scalar_type()), " of one dimension, got ",
           dtype_name(packed.scalar_type()), " ", shape_text(packed));
  }
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

int64_t pack_allowed(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                     int64_t vocab_begin, const Tensor& packed) {
  const MaskedLogits shard = masked_logits_of_shard(logits, bitmask, rows, vocab_begin);
  const std::vector<int64_t> offsets = cpu::packed_offsets(shard, cpu::spread_over_threads);
  check_packed(packed, logits);
  if (packed.size(0) < offsets.back()) {
    refuse(kOp, ": packed must have room for ", offsets.back(), " logits, got shape ", shape_text(packed));
  }
  if (offsets.back() > 0) cpu::pack_allowed(shard, offsets, packed.data_ptr(), cpu::spread_over_threads);
  return offsets.back();
}

void unpack_allowed(const Tensor& logits, const Tensor& packed, std::optional<Tensor> bitmask,
                    std::optional<Tensor> rows, int64_t vocab_begin) {
  const MaskedLogits shard = masked_logits_of_shard(logits, bitmask, rows, vocab_begin);
  const std::vector<int64_t> offsets = cpu::packed_offsets(shard, cpu::spread_over_threads);
  check_packed(packed, logits);
  if (packed.size(0) != offsets.back()) {
    refuse(kOp, ": packed must have the ", offsets.back(), " logits that the mask selects, got ", packed.size(0),
           "; pass the same bitmask and rows on all ranks");
  }
  if (offsets.back() > 0) {
    cpu::unpack_allowed(shard, logits.data_ptr(), offsets, packed.data_ptr(), cpu::spread_over_threads);
  }
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
  ops.impl("_pack_allowed", TORCH_BOX(&structout::pack_allowed));
  ops.impl("_unpack_allowed", TORCH_BOX(&structout::unpack_allowed));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, checks) {
  checks.impl("_check_sharded_masked_sample", TORCH_BOX(&structout::check_sharded_masked_sample));
}
