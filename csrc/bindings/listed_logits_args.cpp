#include "bindings/listed_logits_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

void check_entries(const char* op, const char* name, const Tensor& tensor, const Tensor& logits, int64_t count,
                   const char* meaning) {
  if (tensor.dim() != 1 || tensor.size(0) != count) {
    refuse(op, ": ", name, " must have ", meaning, ", shape [", count, "], got ", shape_text(tensor));
  }
  check_same_device(op, name, tensor, logits);
}

// The logits and their lists, without what the lists' entries do.
void set_lists(const char* op, const Tensor& logits, const Tensor& indptr, const Tensor& token_ids,
               ListedLogits& params) {
  params.format = float_format(op, logits.scalar_type());
  const MatrixLayout layout = matrix_layout(op, "logits", logits);
  check_rows_apart(op, layout);
  if (layout.num_columns > kMaxSampledVocab) {
    refuse(op, ": logits must have at most ", kMaxSampledVocab, " columns, got ", layout.num_columns);
  }
  check_integers(op, "indptr", indptr);
  check_integers(op, "token_ids", token_ids);
  check_entries(op, "indptr", indptr, logits, layout.num_rows + 1, "one entry per logits row and one more");
  if (token_ids.dim() != 1) {
    refuse(op, ": token_ids must have 1 dimension, got ", token_ids.dim(), "; concatenate the lists of all rows");
  }
  check_same_device(op, "token_ids", token_ids, logits);
  params.logits = logits.data_ptr();
  params.num_rows = layout.num_rows;
  params.vocab_size = layout.num_columns;
  params.row_stride = layout.row_stride;
  params.lists = {strided_integers(indptr), strided_integers(token_ids), token_ids.size(0)};
}

}  // namespace

PenaltiesParams penalties_params(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids,
                                 const Tensor& output_counts, const Tensor& repetition, const Tensor& frequency,
                                 const Tensor& presence) {
  constexpr const char* kOp = "apply_penalties";
  PenaltiesParams params{};
  set_lists(kOp, logits, indptr, token_ids, params);
  check_integers(kOp, "output_counts", output_counts);
  check_entries(kOp, "output_counts", output_counts, logits, params.lists.num_entries, "one entry per listed token");
  params.output_counts = strided_integers(output_counts);
  const auto per_row = [&](const char* name, const Tensor& values) {
    return row_values<float>(kOp, name, values, ScalarType::Float, logits, params.num_rows);
  };
  params.repetition = per_row("repetition", repetition);
  params.frequency = per_row("frequency", frequency);
  params.presence = per_row("presence", presence);
  return params;
}

LogitBiasParams logit_bias_params(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids,
                                  const Tensor& bias) {
  constexpr const char* kOp = "apply_logit_bias";
  LogitBiasParams params{};
  set_lists(kOp, logits, indptr, token_ids, params);
  check_dtype(kOp, "bias", bias, ScalarType::Float);
  check_entries(kOp, "bias", bias, logits, params.lists.num_entries, "one entry per listed token");
  params.bias = {static_cast<const float*>(bias.data_ptr()), bias.stride(0)};
  return params;
}

}  // namespace structout
