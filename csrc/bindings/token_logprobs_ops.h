// The ops token_logprobs and masked_sample_topn, and the steps that ranks take on their
// shards. The CPU and CUDA bindings register them with their kernels.
#pragma once

#include "bindings/token_logprobs_args.h"

namespace structout {

// Kernels(tensor) makes the kernels for the device of a tensor. They are called as
// kernels.draw(params), .token_logprobs(params) with all steps, and .top_tokens(params),
// .row_totals(params) and .merge_totals(params) with one each.
template <class Kernels>
struct TokenLogprobsOps {
  using Tensor = torch::stable::Tensor;

  // Returns logprobs, ranks, top_ids and top_logprobs.
  static std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits, OptionalTensor bitmask,
                                                                   OptionalTensor rows, OptionalTensor temperature,
                                                                   const Tensor& token_ids, int64_t top_n) {
    constexpr const char* kOp = "token_logprobs";
    check_top_n(kOp, top_n);
    const Kernels kernels(logits);
    const LogitsArgument argument{kOp, logits, masked_logits(kOp, logits, bitmask, rows)};
    const int64_t num_rows = argument.matrix.num_rows;
    const TopTokens top = make_top_tokens(argument, temperature, token_ids, std::max<int64_t>(1, top_n));
    const Tensor highest = torch::stable::select(top.logits, 1, 0);
    const RowTotals totals = make_row_totals(argument, temperature, highest, top.token_logits);
    const Tensor top_ids = top_n > 0 ? top.ids : torch::stable::new_empty(top.ids, {num_rows, 0});
    const Tensor top_logits = top_n > 0 ? top.logits : torch::stable::new_empty(top.logits, {num_rows, 0});
    const MergedTotals merged = make_merged_totals(torch::stable::view(totals.totals, {1, 2, num_rows}), temperature,
                                                   highest, top.token_logits, top_logits);
    if (num_rows > 0) kernels.token_logprobs({top.params, totals.params, merged.params});
    return {merged.logprobs, merged.ranks, top_ids, merged.top_logprobs};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> masked_sample_topn(
      const Tensor& logits, OptionalTensor bitmask, OptionalTensor rows, const Tensor& temperature,
      OptionalTensor top_k, OptionalTensor top_p, OptionalTensor min_p, const Tensor& seed, const Tensor& position,
      int64_t top_n, bool raw) {
    check_top_n("masked_sample_topn", top_n);
    const Kernels kernels(logits);
    const Tensor ids = draw_ids({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position},
                                [&](const MaskedSampleParams& params) { kernels.draw(params); });
    const OptionalTensor none;
    return std::tuple_cat(std::make_tuple(ids), raw ? token_logprobs(logits, none, none, none, ids, top_n)
                                                    : token_logprobs(logits, bitmask, rows, temperature, ids, top_n));
  }

  static std::tuple<Tensor, Tensor, Tensor> top_tokens(const Tensor& logits, OptionalTensor bitmask,
                                                       OptionalTensor rows, OptionalTensor temperature,
                                                       const Tensor& token_ids, int64_t vocab_begin, int64_t num_top) {
    const TopTokens top =
        make_top_tokens(shard_argument(logits, bitmask, rows, vocab_begin), temperature, token_ids, num_top);
    if (top.params.num_rows > 0) Kernels(logits).top_tokens(top.params);
    return {top.ids, top.logits, top.token_logits};
  }

  static Tensor row_totals(const Tensor& logits, OptionalTensor bitmask, OptionalTensor rows,
                           OptionalTensor temperature, const Tensor& highest, const Tensor& token_logits,
                           int64_t vocab_begin) {
    const RowTotals totals =
        make_row_totals(shard_argument(logits, bitmask, rows, vocab_begin), temperature, highest, token_logits);
    if (totals.params.num_rows > 0) Kernels(logits).row_totals(totals.params);
    return totals.totals;
  }

  static std::tuple<Tensor, Tensor, Tensor> merge_totals(const Tensor& totals, OptionalTensor temperature,
                                                         const Tensor& highest, const Tensor& token_logits,
                                                         const Tensor& top_logits) {
    const MergedTotals merged = make_merged_totals(totals, temperature, highest, token_logits, top_logits);
    if (merged.params.num_rows > 0) Kernels(totals).merge_totals(merged.params);
    return {merged.logprobs, merged.ranks, merged.top_logprobs};
  }
};

}  // namespace structout
