#include "bindings/mask_args.h"

namespace structout {

MaskArgs mask_args(const char* op, const Tensor& bitmask, const std::optional<Tensor>& rows, const Tensor& logits,
                   int64_t num_rows) {
  if (bitmask.scalar_type() != ScalarType::Int) {
    refuse(op, ": bitmask must be int32, got ", dtype_name(bitmask.scalar_type()),
           "; pack a bool mask with structout.pack_bitmask");
  }
  const MatrixLayout layout = matrix_layout(op, "bitmask", bitmask);
  check_same_device(op, "bitmask", bitmask, logits);
  MaskArgs args{};
  args.bitmask = {static_cast<const uint32_t*>(bitmask.data_ptr()), layout.num_rows, layout.num_columns,
                  layout.row_stride};
  if (rows.has_value()) {
    args.rows = row_integers(op, "rows", *rows, logits, num_rows);
  } else if (layout.num_rows != num_rows) {
    refuse(op, ": without rows, bitmask must have one row per logits row, ", num_rows, ", got ", layout.num_rows,
           "; pass rows to map logits rows to bitmask rows");
  }
  return args;
}

}  // namespace structout
