#include "bindings/token_logprobs_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

constexpr const char* kOp = "token_logprobs";

Strided<float> optional_temperature(const char* op, const OptionalTensor& temperature, const Tensor& leader,
                                    int64_t num_rows) {
  if (!temperature.has_value()) return {};
  return row_values<float>(op, "temperature", *temperature, ScalarType::Float, leader, num_rows);
}

const float* contiguous_floats(const char* name, const Tensor& tensor, const Tensor& leader, int64_t num_rows) {
  check_contiguous(kOp, name, tensor, ScalarType::Float, 1);
  check_one_per_row(kOp, name, tensor, leader, num_rows);
  return static_cast<const float*>(tensor.data_ptr());
}

}  // namespace

void check_top_n(const char* op, int64_t top_n) {
  if (top_n < 0 || top_n > kMaxTopTokens) {
    refuse(op, ": top_n must be in [0, ", kMaxTopTokens, "], got ", top_n);
  }
}

TopTokensParams top_tokens_params(const LogitsArgument& logits, const OptionalTensor& temperature,
                                  const Tensor& token_ids, int64_t num_top) {
  TopTokensParams params{logits.matrix};
  params.temperature = optional_temperature(logits.op, temperature, logits.tensor, params.num_rows);
  params.token_ids =
      row_values<int64_t>(logits.op, "token_ids", token_ids, ScalarType::Long, logits.tensor, params.num_rows);
  params.num_top = num_top;
  return params;
}

TopTokens make_top_tokens(const LogitsArgument& logits, const OptionalTensor& temperature, const Tensor& token_ids,
                          int64_t num_top) {
  TopTokensParams params = top_tokens_params(logits, temperature, token_ids, num_top);
  TopTokens top{torch::stable::new_empty(logits.tensor, {params.num_rows, num_top}, ScalarType::Long),
                torch::stable::new_empty(logits.tensor, {params.num_rows, num_top}, ScalarType::Float),
                torch::stable::new_empty(logits.tensor, {params.num_rows}, ScalarType::Float), params};
  top.params.top_ids = static_cast<int64_t*>(top.ids.data_ptr());
  top.params.top_logits = static_cast<float*>(top.logits.data_ptr());
  top.params.token_logits = static_cast<float*>(top.token_logits.data_ptr());
  return top;
}

RowTotals make_row_totals(const LogitsArgument& logits, const OptionalTensor& temperature, const Tensor& highest,
                          const Tensor& token_logits) {
  RowTotalsParams params{logits.matrix};
  params.temperature = optional_temperature(logits.op, temperature, logits.tensor, params.num_rows);
  params.highest = row_values<float>(kOp, "highest", highest, ScalarType::Float, logits.tensor, params.num_rows);
  params.token_logits = contiguous_floats("token_logits", token_logits, logits.tensor, params.num_rows);
  const auto totals = torch::stable::new_empty(logits.tensor, {2, params.num_rows}, ScalarType::Long);
  params.totals = static_cast<int64_t*>(totals.data_ptr());
  return {totals, params};
}

MergedTotals make_merged_totals(const Tensor& totals, const OptionalTensor& temperature, const Tensor& highest,
                                const Tensor& token_logits, const Tensor& top_logits) {
  check_contiguous(kOp, "totals", totals, ScalarType::Long, 3);
  MergeTotalsParams params{};
  params.num_shards = totals.size(0);
  params.num_rows = totals.size(2);
  if (totals.size(1) != 2) refuse(kOp, ": totals must be [shards, 2, rows], got ", shape_text(totals));
  check_contiguous(kOp, "top_logits", top_logits, ScalarType::Float, 2);
  check_same_device(kOp, "top_logits", top_logits, totals, "totals");
  if (top_logits.size(0) != params.num_rows) {
    refuse(kOp, ": top_logits must have ", params.num_rows, " rows, got ", shape_text(top_logits));
  }
  params.num_top = top_logits.size(1);
  params.totals = static_cast<const int64_t*>(totals.data_ptr());
  params.temperature = optional_temperature(kOp, temperature, totals, params.num_rows);
  params.highest = row_values<float>(kOp, "highest", highest, ScalarType::Float, totals, params.num_rows);
  params.token_logits = contiguous_floats("token_logits", token_logits, totals, params.num_rows);
  params.top_logits = static_cast<const float*>(top_logits.data_ptr());
  MergedTotals merged{torch::stable::new_empty(token_logits, {params.num_rows}),
                      torch::stable::new_empty(totals, {params.num_rows}),
                      torch::stable::new_empty(token_logits, {params.num_rows, params.num_top}), params};
  merged.params.logprobs = static_cast<float*>(merged.logprobs.data_ptr());
  merged.params.ranks = static_cast<int64_t*>(merged.ranks.data_ptr());
  merged.params.top_logprobs = static_cast<float*>(merged.top_logprobs.data_ptr());
  return merged;
}

}  // namespace structout
