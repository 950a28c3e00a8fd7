#include "bindings/push_args.h"

#include "bindings/mask_args.h"

namespace structout {
namespace {

constexpr const char* kAllGather = "push_all_gather";
constexpr const char* kRows = "push_rows";

int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

void check_contiguous(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor.is_contiguous()) refuse(op, ": ", name, " must be contiguous; use ", name, ".contiguous()");
}

void check_at_least(const char* op, const char* name, int64_t value, int64_t minimum) {
  if (value < minimum) refuse(op, ": ", name, " must be at least ", minimum, ", got ", value);
}

constexpr int64_t kStateWords = sizeof(PushState) / sizeof(int64_t);

PushGroup push_group(const char* op, const Tensor& state, const PushGroupNumbers& numbers) {
  if (state.scalar_type() != ScalarType::Long || state.dim() != 1 || state.size(0) != kStateWords) {
    refuse(op, ": state must be int64 of shape [", kStateWords, "], got ", dtype_name(state.scalar_type()), " ",
           shape_text(state));
  }
  check_contiguous(op, "state", state);
  PushGroup group{};
  group.layout = push_layout(op, numbers.world_size, numbers.gather_capacity);
  if (numbers.rank < 0 || numbers.rank >= numbers.world_size) {
    refuse(op, ": rank must be in [0, ", numbers.world_size, "), got ", numbers.rank);
  }
  if (numbers.buffers == 0) {
    refuse(op,
           ": buffers must be the address of the ranks' buffer addresses in device memory, got 0; pass "
           "buffer_ptrs_dev of the symmetric memory handle");
  }
  check_at_least(op, "timeout_ns", numbers.timeout_ns, 1);
  group.buffers = reinterpret_cast<const uint64_t*>(numbers.buffers);
  group.multicast = reinterpret_cast<char*>(numbers.multicast);
  group.state = static_cast<PushState*>(state.data_ptr());
  group.rank = static_cast<int32_t>(numbers.rank);
  group.token = static_cast<uint64_t>(numbers.token);
  group.timeout_ns = numbers.timeout_ns;
  return group;
}

}  // namespace

PushLayout push_layout(const char* op, int64_t world_size, int64_t gather_capacity) {
  if (world_size < 1 || world_size > kMaxRanks) {
    refuse(op, ": world_size must be in [1, ", kMaxRanks, "], got ", world_size);
  }
  check_at_least(op, "gather_capacity", gather_capacity, 0);
  return {world_size, gather_capacity};
}

PushAllGatherParams push_all_gather_params(const Tensor& shard, const Tensor& out, const Tensor& state,
                                           const PushGroupNumbers& numbers, int64_t fill_on_error) {
  PushAllGatherParams params{};
  params.group = push_group(kAllGather, state, numbers);
  check_contiguous(kAllGather, "shard", shard);
  check_contiguous(kAllGather, "out", out);
  check_same_device(kAllGather, "out", out, shard, "shard");
  check_same_device(kAllGather, "state", state, shard, "shard");
  if (out.scalar_type() != shard.scalar_type()) {
    refuse(kAllGather, ": out must have the dtype of shard, ", dtype_name(shard.scalar_type()), ", got ",
           dtype_name(out.scalar_type()), "; create it with shard.new_empty");
  }
  if (out.numel() != numbers.world_size * shard.numel()) {
    refuse(kAllGather, ": out must have room for ", numbers.world_size, " shards of shape ", shape_text(shard),
           ", got shape ", shape_text(out));
  }
  params.shard = static_cast<const char*>(shard.data_ptr());
  params.bytes = bytes_of(shard);
  params.out = static_cast<char*>(out.data_ptr());
  if (params.bytes > numbers.gather_capacity) {
    refuse(kAllGather, ": gather_capacity must be at least the ", params.bytes, " bytes of shard, got ",
           numbers.gather_capacity, "; allocate a larger buffer");
  }
  if (params.shard < params.out + bytes_of(out) && params.out < params.shard + params.bytes) {
    refuse(kAllGather, ": out is written, but its address range overlaps that of shard; clone one of them");
  }
  if (fill_on_error < 0 || fill_on_error > 255) {
    refuse(kAllGather, ": fill_on_error must be a byte, in [0, 255], got ", fill_on_error);
  }
  params.fill_on_error = static_cast<uint32_t>(fill_on_error);
  return params;
}

PushRowsParams push_rows_params(const Tensor& logits, const std::optional<Tensor>& bitmask,
                                const std::optional<Tensor>& rows, const Tensor& rows_out, const Tensor& state,
                                const PushGroupNumbers& numbers, int64_t rows_capacity, int64_t vocab_begin,
                                int64_t vocab_size) {
  PushRowsParams params{};
  params.group = push_group(kRows, state, numbers);
  check_same_device(kRows, "state", state, logits);
  const ScalarType type = logits.scalar_type();
  if (type != ScalarType::Float && type != ScalarType::Half && type != ScalarType::BFloat16) {
    refuse(kRows, ": logits must be float32, float16 or bfloat16, got ", dtype_name(type),
           "; convert with logits.float()");
  }
  const MatrixLayout layout = matrix_layout(kRows, "logits", logits);
  check_at_least(kRows, "vocab_begin", vocab_begin, 0);
  if (vocab_begin + layout.num_columns > vocab_size) {
    refuse(kRows, ": vocab_size must be at least ", vocab_begin + layout.num_columns, ", because logits has ",
           layout.num_columns, " columns from token ", vocab_begin, " on, got ", vocab_size);
  }
  params.logits = static_cast<const char*>(logits.data_ptr());
  params.num_rows = layout.num_rows;
  params.width = layout.num_columns;
  params.row_stride = layout.row_stride;
  params.vocab_begin = vocab_begin;
  params.vocab_size = vocab_size;
  params.element_bytes = static_cast<int32_t>(logits.element_size());

  const int64_t max_rows = (layout.num_rows + numbers.world_size - 1) / numbers.world_size;
  const int64_t bytes = max_rows * whole_vectors(vocab_size * params.element_bytes);
  if (bytes > rows_capacity) {
    refuse(kRows, ": rows_capacity must be at least ", bytes, ", the bytes of the rows that a rank may own, got ",
           rows_capacity, "; allocate a larger buffer");
  }
  if (bitmask.has_value()) {
    const MaskArgs mask = mask_args(kRows, *bitmask, rows, logits, layout.num_rows);
    params.has_mask = true;
    params.bitmask = mask.bitmask;
    params.rows = mask.rows;
  } else if (rows.has_value()) {
    refuse(kRows, ": rows maps logits rows to bitmask rows, but there is no bitmask; pass both or neither");
  }

  const int64_t owned = first_row_of(numbers.rank + 1, numbers.world_size, layout.num_rows) -
                        first_row_of(numbers.rank, numbers.world_size, layout.num_rows);
  if (rows_out.scalar_type() != ScalarType::Long || rows_out.dim() != 1 || rows_out.size(0) != owned) {
    refuse(kRows, ": rows_out must be int64 with one entry per owned row, shape [", owned, "], got ",
           dtype_name(rows_out.scalar_type()), " ", shape_text(rows_out));
  }
  check_contiguous(kRows, "rows_out", rows_out);
  check_same_device(kRows, "rows_out", rows_out, logits);
  params.rows_out = static_cast<int64_t*>(rows_out.data_ptr());
  return params;
}

}  // namespace structout
