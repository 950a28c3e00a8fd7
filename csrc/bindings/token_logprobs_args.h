// The steps of token_logprobs on torch tensors. They check their arguments, allocate the
// results and call kernels that the CPU and CUDA bindings pass.
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

struct TopTokens {
  torch::stable::Tensor ids, logits;   // [N, num_top]
  torch::stable::Tensor token_logits;  // [N]
};

// Everything but the outputs.
TopTokensParams top_tokens_params(const LogitsArgument& logits, const OptionalTensor& temperature,
                                  const torch::stable::Tensor& token_ids, int64_t num_top);
RowTotalsParams row_totals_params(const LogitsArgument& logits, const OptionalTensor& temperature,
                                  const torch::stable::Tensor& highest, const torch::stable::Tensor& token_logits);
MergeTotalsParams merge_totals_params(const torch::stable::Tensor& totals, const OptionalTensor& temperature,
                                      const torch::stable::Tensor& highest, const torch::stable::Tensor& token_logits,
                                      const torch::stable::Tensor& top_logits);
void check_top_n(const char* op, int64_t top_n);

template <class Kernels>
TopTokens find_top_tokens(const LogitsArgument& logits, const OptionalTensor& temperature,
                          const torch::stable::Tensor& token_ids, int64_t num_top, const Kernels& kernels) {
  using torch::headeronly::ScalarType;
  TopTokensParams params = top_tokens_params(logits, temperature, token_ids, num_top);
  TopTokens found{torch::stable::new_empty(logits.tensor, {params.num_rows, num_top}, ScalarType::Long),
                  torch::stable::new_empty(logits.tensor, {params.num_rows, num_top}, ScalarType::Float),
                  torch::stable::new_empty(logits.tensor, {params.num_rows}, ScalarType::Float)};
  params.top_ids = static_cast<int64_t*>(found.ids.data_ptr());
  params.top_logits = static_cast<float*>(found.logits.data_ptr());
  params.token_logits = static_cast<float*>(found.token_logits.data_ptr());
  if (params.num_rows > 0) kernels.top_tokens(params);
  return found;
}

template <class Kernels>
torch::stable::Tensor sum_rows(const LogitsArgument& logits, const OptionalTensor& temperature,
                               const torch::stable::Tensor& highest, const torch::stable::Tensor& token_logits,
                               const Kernels& kernels) {
  RowTotalsParams params = row_totals_params(logits, temperature, highest, token_logits);
  auto totals = torch::stable::new_empty(logits.tensor, {2, params.num_rows}, torch::headeronly::ScalarType::Long);
  params.totals = static_cast<int64_t*>(totals.data_ptr());
  if (params.num_rows > 0) kernels.row_totals(params);
  return totals;
}

// Returns logprobs [N], ranks [N] and top_logprobs [N, num_top].
template <class Kernels>
std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> merge_totals(
    const torch::stable::Tensor& totals, const OptionalTensor& temperature, const torch::stable::Tensor& highest,
    const torch::stable::Tensor& token_logits, const torch::stable::Tensor& top_logits, const Kernels& kernels) {
  MergeTotalsParams params = merge_totals_params(totals, temperature, highest, token_logits, top_logits);
  auto logprobs = torch::stable::new_empty(token_logits, {params.num_rows});
  auto ranks = torch::stable::new_empty(totals, {params.num_rows});
  auto top_logprobs = torch::stable::new_empty(token_logits, {params.num_rows, params.num_top});
  params.logprobs = static_cast<float*>(logprobs.data_ptr());
  params.ranks = static_cast<int64_t*>(ranks.data_ptr());
  params.top_logprobs = static_cast<float*>(top_logprobs.data_ptr());
  if (params.num_rows > 0) kernels.merge_totals(params);
  return {logprobs, ranks, top_logprobs};
}

}  // namespace structout
