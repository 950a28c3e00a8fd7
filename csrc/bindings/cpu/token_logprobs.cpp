// Registers the CPU kernels of token_logprobs and masked_sample_topn.
#include "cpu/token_logprobs.h"

#include <torch/csrc/stable/library.h>

#include "bindings/cpu/threads.h"
#include "bindings/token_logprobs_ops.h"
#include "cpu/masked_sample.h"

namespace structout {
namespace {

using torch::stable::Tensor;

struct CpuKernels {
  explicit CpuKernels(const Tensor&) {}

  void draw(const MaskedSampleParams& params) const {
    cpu::masked_sample(params, torch::stable::get_num_threads(), cpu::spread_over_threads);
  }
  void token_logprobs(const TokenLogprobsParams& params) const {
    top_tokens(params.top);
    row_totals(params.totals);
    merge_totals(params.merged);
  }
  void top_tokens(const TopTokensParams& params) const {
    cpu::top_tokens(params, torch::stable::get_num_threads(), cpu::spread_over_threads);
  }
  void row_totals(const RowTotalsParams& params) const {
    cpu::row_totals(params, torch::stable::get_num_threads(), cpu::spread_over_threads);
  }
  void merge_totals(const MergeTotalsParams& params) const {
    for (int64_t row = 0; row < params.num_rows; ++row) params.run(row);
  }
};

using Ops = TokenLogprobsOps<CpuKernels>;

void check_token_logprobs(const Tensor& logits, OptionalTensor bitmask, OptionalTensor rows, OptionalTensor temperature,
                          const Tensor& token_ids, int64_t top_n) {
  constexpr const char* kOp = "token_logprobs";
  check_top_n(kOp, top_n);
  top_tokens_params({kOp, logits, masked_logits(kOp, logits, bitmask, rows)}, temperature, token_ids, top_n);
}

void check_sharded_token_logprobs(const Tensor& logits, OptionalTensor bitmask, OptionalTensor rows,
                                  OptionalTensor temperature, const Tensor& token_ids, int64_t vocab_begin,
                                  int64_t top_n) {
  check_top_n("sharded_token_logprobs", top_n);
  top_tokens_params(shard_argument(logits, bitmask, rows, vocab_begin), temperature, token_ids, top_n);
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("token_logprobs", TORCH_BOX(&structout::Ops::token_logprobs));
  ops.impl("masked_sample_topn", TORCH_BOX(&structout::Ops::masked_sample_topn));
  ops.impl("_top_tokens", TORCH_BOX(&structout::Ops::top_tokens));
  ops.impl("_row_totals", TORCH_BOX(&structout::Ops::row_totals));
  ops.impl("_merge_totals", TORCH_BOX(&structout::Ops::merge_totals));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, ops) {
  ops.impl("_check_token_logprobs", TORCH_BOX(&structout::check_token_logprobs));
  ops.impl("_check_sharded_token_logprobs", TORCH_BOX(&structout::check_sharded_token_logprobs));
}
