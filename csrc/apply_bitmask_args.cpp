#include "apply_bitmask_args.h"

#include "tensor_checks.h"

namespace structout {
namespace {

constexpr const char* kOp = "apply_bitmask";

uint32_t neg_inf_bits(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return 0xff800000u;
    case ScalarType::Half:
      return 0xfc00u;
    case ScalarType::BFloat16:
      return 0xff80u;
    default:
      refuse(kOp, ": logits must be float32, float16 or bfloat16, got ", dtype_name(type),
             "; convert with logits.float()");
  }
}

RowMap row_map(const Tensor& rows, const Tensor& logits, int64_t num_rows) {
  const ScalarType type = rows.scalar_type();
  if (type != ScalarType::Int && type != ScalarType::Long) {
    refuse(kOp, ": rows must be int32 or int64, got ", dtype_name(type), "; convert with rows.int()");
  }
  if (rows.dim() != 1 || rows.size(0) != num_rows) {
    refuse(kOp, ": rows must have one entry per logits row, shape [", num_rows, "], got ", shape_text(rows));
  }
  check_same_device(kOp, "rows", rows, logits);
  return {rows.data_ptr(), rows.stride(0), type == ScalarType::Long};
}

void check_disjoint(const ApplyBitmaskParams& params, const MatrixLayout& logits, const MatrixLayout& bitmask) {
  const auto* logits_begin = static_cast<const char*>(params.logits);
  const auto* mask_begin = reinterpret_cast<const char*>(params.bitmask.words);
  const char* logits_end = logits_begin + byte_extent(logits, params.element_bytes);
  const char* mask_end = mask_begin + byte_extent(bitmask, sizeof(uint32_t));
  if (logits_begin < mask_end && mask_begin < logits_end) {
    refuse(kOp, ": logits and bitmask must not share memory; clone one of them");
  }
}

}  // namespace

ApplyBitmaskParams apply_bitmask_params(const Tensor& logits, const Tensor& bitmask,
                                        const std::optional<Tensor>& rows) {
  ApplyBitmaskParams params{};
  params.neg_inf = neg_inf_bits(logits.scalar_type());
  params.element_bytes = static_cast<int32_t>(logits.element_size());
  const MatrixLayout logits_layout = matrix_layout(kOp, "logits", logits);
  if (logits_layout.num_rows > 1 && logits_layout.row_stride < logits_layout.num_columns) {
    refuse(kOp, ": logits is written in place, but its rows overlap (row stride ", logits_layout.row_stride,
           ", row length ", logits_layout.num_columns, "); use logits.contiguous()");
  }
  if (bitmask.scalar_type() != ScalarType::Int) {
    refuse(kOp, ": bitmask must be int32, got ", dtype_name(bitmask.scalar_type()),
           "; pack a bool mask with structout.pack_bitmask");
  }
  const MatrixLayout mask_layout = matrix_layout(kOp, "bitmask", bitmask);
  check_same_device(kOp, "bitmask", bitmask, logits);

  if (rows.has_value()) {
    params.rows = row_map(*rows, logits, logits_layout.num_rows);
  } else if (mask_layout.num_rows != logits_layout.num_rows) {
    refuse(kOp, ": without rows, bitmask needs one row per logits row: logits has ", logits_layout.num_rows,
           " and bitmask has ", mask_layout.num_rows, "; pass rows to map them");
  }

  params.logits = logits.data_ptr();
  params.num_rows = logits_layout.num_rows;
  params.vocab_size = logits_layout.num_columns;
  params.row_stride = logits_layout.row_stride;
  params.bitmask = {static_cast<const uint32_t*>(bitmask.data_ptr()), mask_layout.num_rows, mask_layout.num_columns,
                    mask_layout.row_stride};
  check_disjoint(params, logits_layout, mask_layout);
  return params;
}

}  // namespace structout
