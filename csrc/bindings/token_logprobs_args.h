// The steps of token_logprobs on torch tensors: checks of their arguments, and their
// results.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "bindings/masked_sample_args.h"
#include "common/token_logprobs.h"

namespace structout {

using OptionalTensor = std::optional<torch::stable::Tensor>;

// The logits that a step reads, as a tensor and as the kernels see them.
struct LogitsArgument {
  const char* op;  // for error messages
  const torch::stable::Tensor& tensor;
  MaskedLogits matrix;
};

inline LogitsArgument shard_argument(const torch::stable::Tensor& logits, const OptionalTensor& bitmask,
                                     const OptionalTensor& rows, int64_t vocab_begin) {
  return {"sharded_token_logprobs", logits, masked_logits_of_shard(logits, bitmask, rows, vocab_begin)};
}

// Everything but the outputs.
TopTokensParams top_tokens_params(const LogitsArgument& logits, const OptionalTensor& temperature,
                                  const torch::stable::Tensor& token_ids, int64_t num_top);
void check_top_n(const char* op, int64_t top_n);

// The results of a step before it has run, and what its kernel takes.
struct TopTokens {
  torch::stable::Tensor ids, logits;   // [N, num_top]
  torch::stable::Tensor token_logits;  // [N]
  TopTokensParams params;
};

struct RowTotals {
  torch::stable::Tensor totals;  // [2, N]
  RowTotalsParams params;
};

struct MergedTotals {
  torch::stable::Tensor logprobs, ranks;  // [N]
  torch::stable::Tensor top_logprobs;     // [N, num_top]
  MergeTotalsParams params;
};

TopTokens make_top_tokens(const LogitsArgument& logits, const OptionalTensor& temperature,
                          const torch::stable::Tensor& token_ids, int64_t num_top);
RowTotals make_row_totals(const LogitsArgument& logits, const OptionalTensor& temperature,
                          const torch::stable::Tensor& highest, const torch::stable::Tensor& token_logits);
MergedTotals make_merged_totals(const torch::stable::Tensor& totals, const OptionalTensor& temperature,
                                const torch::stable::Tensor& highest, const torch::stable::Tensor& token_logits,
                                const torch::stable::Tensor& top_logits);

}  // namespace structout
