#include "bindings/apply_bitmask_args.h"

#include "bindings/mask_args.h"

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

struct Bytes {
  const char* begin;
  int64_t size;
};

void check_disjoint(const Bytes& logits, const char* name, const Bytes& other) {
  if (logits.begin < other.begin + other.size && other.begin < logits.begin + logits.size) {
    refuse(kOp, ": logits is written in place, but its address range overlaps that of ", name, "; clone one of them");
  }
}

void check_disjoint(const ApplyBitmaskParams& params) {
  const auto bytes = [](const void* begin, const MatrixLayout& layout, int64_t element_bytes) {
    return Bytes{static_cast<const char*>(begin), byte_extent(layout, element_bytes)};
  };
  const Bytes logits =
      bytes(params.logits, {params.num_rows, params.vocab_size, params.row_stride}, params.element_bytes);
  const Bitmask& mask = params.bitmask;
  check_disjoint(logits, "bitmask", bytes(mask.words, {mask.num_rows, mask.words_per_row, mask.row_stride}, 4));
  const StridedIntegers& rows = params.rows;
  if (rows.values == nullptr) return;
  check_disjoint(logits, "rows", bytes(rows.values, {params.num_rows, 1, rows.stride}, rows.is_int64 ? 8 : 4));
}

}  // namespace

ApplyBitmaskParams apply_bitmask_params(const Tensor& logits, const Tensor& bitmask,
                                        const std::optional<Tensor>& rows) {
  ApplyBitmaskParams params{};
  params.neg_inf = neg_inf_bits(logits.scalar_type());
  params.element_bytes = static_cast<int32_t>(logits.element_size());
  const MatrixLayout logits_layout = matrix_layout(kOp, "logits", logits);
  check_rows_apart(kOp, logits_layout);
  const MaskArgs mask = mask_args(kOp, bitmask, rows, logits, logits_layout.num_rows);

  params.logits = logits.data_ptr();
  params.num_rows = logits_layout.num_rows;
  params.vocab_size = logits_layout.num_columns;
  params.row_stride = logits_layout.row_stride;
  params.bitmask = mask.bitmask;
  params.rows = mask.rows;
  check_disjoint(params);
  return params;
}

}  // namespace structout
