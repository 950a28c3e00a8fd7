#include "masked_sample_args.h"

#include "mask_args.h"

namespace structout {
namespace {

constexpr const char* kOp = "masked_sample";

FloatFormat float_format(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return FloatFormat::kFloat32;
    case ScalarType::Half:
      return FloatFormat::kFloat16;
    case ScalarType::BFloat16:
      return FloatFormat::kBFloat16;
    default:
      refuse(kOp, ": logits must be float32, float16 or bfloat16, got ", dtype_name(type),
             "; convert with logits.float()");
  }
}

template <class T>
Strided<T> row_values(const char* name, const Tensor& tensor, ScalarType type, const Tensor& logits, int64_t num_rows) {
  if (tensor.scalar_type() != type) {
    refuse(kOp, ": ", name, " must be ", dtype_name(type), ", got ", dtype_name(tensor.scalar_type()));
  }
  check_one_per_row(kOp, name, tensor, logits, num_rows);
  return {static_cast<const T*>(tensor.data_ptr()), tensor.stride(0)};
}

}  // namespace

MaskedSampleParams masked_sample_params(const MaskedSampleTensors& in) {
  MaskedSampleParams params{};
  const Tensor& logits = in.logits;
  params.format = float_format(logits.scalar_type());
  const MatrixLayout layout = matrix_layout(kOp, "logits", logits);
  if (layout.num_columns > kMaxSampledVocab) {
    refuse(kOp, ": logits may have up to ", kMaxSampledVocab, " columns, got ", layout.num_columns);
  }
  if (layout.num_columns == 0 && layout.num_rows > 0) {
    refuse(kOp, ": logits has rows but no columns (shape ", shape_text(logits), "); there is nothing to draw from");
  }
  params.logits = logits.data_ptr();
  params.num_rows = layout.num_rows;
  params.vocab_size = layout.num_columns;
  params.row_stride = layout.row_stride;

  if (in.bitmask.has_value()) {
    const MaskArgs mask = mask_args(kOp, *in.bitmask, in.rows, logits, layout.num_rows);
    params.has_mask = true;
    params.bitmask = mask.bitmask;
    params.rows = mask.rows;
  } else if (in.rows.has_value()) {
    refuse(kOp,
           ": rows says which row of bitmask governs each logits row, but there is no bitmask; pass both or neither");
  }

  const int64_t rows = layout.num_rows;
  params.temperature = row_values<float>("temperature", in.temperature, ScalarType::Float, logits, rows);
  if (in.top_k.has_value()) params.top_k = row_integers(kOp, "top_k", *in.top_k, logits, rows);
  if (in.top_p.has_value()) params.top_p = row_values<float>("top_p", *in.top_p, ScalarType::Float, logits, rows);
  if (in.min_p.has_value()) params.min_p = row_values<float>("min_p", *in.min_p, ScalarType::Float, logits, rows);
  params.seed = row_values<int64_t>("seed", in.seed, ScalarType::Long, logits, rows);
  params.position = row_values<int64_t>("position", in.position, ScalarType::Long, logits, rows);
  return params;
}

}  // namespace structout
