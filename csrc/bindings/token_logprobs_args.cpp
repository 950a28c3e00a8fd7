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

RowTotalsParams row_totals_params(const LogitsArgument& logits, const OptionalTensor& temperature,
                                  const Tensor& highest, const Tensor& token_logits) {
  RowTotalsParams params{logits.matrix};
  params.temperature = optional_temperature(logits.op, temperature, logits.tensor, params.num_rows);
  params.highest = row_values<float>(kOp, "highest", highest, ScalarType::Float, logits.tensor, params.num_rows);
  params.token_logits = contiguous_floats("token_logits", token_logits, logits.tensor, params.num_rows);
  return params;
}

MergeTotalsParams merge_totals_params(const Tensor& totals, const OptionalTensor& temperature, const Tensor& highest,
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
  return params;
}

}  // namespace structout
