#include "bindings/masked_sample_args.h"

#include "bindings/mask_args.h"

namespace structout {
namespace {

constexpr const char* kShardOp = "sharded_masked_sample";

MaskedLogits columns_from(const char* op, const Tensor& logits, const std::optional<Tensor>& bitmask,
                          const std::optional<Tensor>& rows, int64_t vocab_begin) {
  MaskedLogits matrix{};
  matrix.format = float_format(op, logits.scalar_type());
  const MatrixLayout layout = matrix_layout(op, "logits", logits);
  matrix.logits = logits.data_ptr();
  matrix.num_rows = layout.num_rows;
  matrix.vocab_begin = vocab_begin;
  matrix.vocab_end = vocab_begin + layout.num_columns;
  matrix.row_stride = layout.row_stride;

  if (bitmask.has_value()) {
    const MaskArgs mask = mask_args(op, *bitmask, rows, logits, layout.num_rows);
    matrix.has_mask = true;
    matrix.bitmask = mask.bitmask;
    matrix.rows = mask.rows;
  } else if (rows.has_value()) {
    refuse(op, ": rows maps logits rows to bitmask rows, but there is no bitmask; pass both or neither");
  }
  return matrix;
}

void add_row_values(const char* op, const MaskedSampleTensors& in, MaskedSampleParams& params) {
  const Tensor& logits = in.logits;
  const int64_t rows = params.num_rows;
  params.temperature = row_values<float>(op, "temperature", in.temperature, ScalarType::Float, logits, rows);
  if (in.top_k.has_value()) params.top_k = row_integers(op, "top_k", *in.top_k, logits, rows);
  if (in.top_p.has_value()) params.top_p = row_values<float>(op, "top_p", *in.top_p, ScalarType::Float, logits, rows);
  if (in.min_p.has_value()) params.min_p = row_values<float>(op, "min_p", *in.min_p, ScalarType::Float, logits, rows);
  params.seed = row_values<int64_t>(op, "seed", in.seed, ScalarType::Long, logits, rows);
  params.position = row_values<int64_t>(op, "position", in.position, ScalarType::Long, logits, rows);
}

}  // namespace

MaskedLogits masked_logits(const char* op, const Tensor& logits, const std::optional<Tensor>& bitmask,
                           const std::optional<Tensor>& rows) {
  const MaskedLogits matrix = columns_from(op, logits, bitmask, rows, 0);
  if (matrix.num_columns() > kMaxSampledVocab) {
    refuse(op, ": logits must have at most ", kMaxSampledVocab, " columns, got ", matrix.num_columns());
  }
  if (matrix.num_columns() == 0 && matrix.num_rows > 0) {
    refuse(op, ": logits must have at least one column, got shape ", shape_text(logits));
  }
  return matrix;
}

MaskedLogits masked_logits_of_shard(const Tensor& logits, const std::optional<Tensor>& bitmask,
                                    const std::optional<Tensor>& rows, int64_t vocab_begin) {
  if (vocab_begin < 0 || vocab_begin > kMaxSampledVocab) {
    refuse(kShardOp, ": vocab_begin must be in [0, ", kMaxSampledVocab, "], got ", vocab_begin);
  }
  const MaskedLogits shard = columns_from(kShardOp, logits, bitmask, rows, vocab_begin);
  if (shard.vocab_end > kMaxSampledVocab) {
    refuse(kShardOp, ": the vocabulary must have at most ", kMaxSampledVocab, " tokens, got a shard that ends at ",
           shard.vocab_end);
  }
  return shard;
}

MaskedSampleParams masked_sample_params(const MaskedSampleTensors& in) {
  constexpr const char* kOp = "masked_sample";
  MaskedSampleParams params{masked_logits(kOp, in.logits, in.bitmask, in.rows)};
  add_row_values(kOp, in, params);
  return params;
}

MaskedSampleParams shard_params(const MaskedSampleTensors& in, int64_t vocab_begin) {
  MaskedSampleParams params{masked_logits_of_shard(in.logits, in.bitmask, in.rows, vocab_begin)};
  add_row_values(kShardOp, in, params);
  return params;
}

}  // namespace structout
