#include "bindings/stack_tables_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

const int32_t* int32_data(const Tensor& tensor) { return static_cast<const int32_t*>(tensor.data_ptr()); }
const uint8_t* uint8_data(const Tensor& tensor) { return static_cast<const uint8_t*>(tensor.data_ptr()); }

// Refuses tables that are on another device than `stacks`, or whose shapes are wrong.
StackTables stack_tables(const char* op, const Tensor& stacks, const StackTableTensors& tables) {
  const auto check = [&](const char* name, const Tensor& tensor, ScalarType type, int64_t dim, int64_t num_columns) {
    check_contiguous(op, name, tensor, type, dim);
    if (num_columns >= 0 && tensor.size(1) != num_columns) {
      refuse(op, ": ", name, " must have ", num_columns, " columns, got ", shape_text(tensor));
    }
    check_same_device(op, name, tensor, stacks, "stacks");
  };
  check("state_fields", tables.state_fields, ScalarType::Int, 2, kStateFields);
  check("class_maps", tables.class_maps, ScalarType::Byte, 2, 256);
  check("cells", tables.cells, ScalarType::Int, 1, -1);
  check("keys", tables.keys, ScalarType::Int, 2, kKeyColumns);
  check("stop_tokens", tables.stop_tokens, ScalarType::Int, 2, -1);
  check("token_bytes", tables.token_bytes, ScalarType::Byte, 1, -1);
  check("token_begin", tables.token_begin, ScalarType::Int, 1, -1);
  const int64_t num_keys = tables.keys.size(0);
  if (num_keys == 0 || (num_keys & (num_keys - 1)) != 0) {
    refuse(op, ": the number of keys must be a power of 2, got ", shape_text(tables.keys));
  }
  if (tables.token_begin.size(0) == 0) {
    refuse(op, ": token_begin must have one entry per token and one more, got shape [0]");
  }
  return {int32_data(tables.state_fields),
          uint8_data(tables.class_maps),
          int32_data(tables.cells),
          int32_data(tables.keys),
          int32_data(tables.stop_tokens),
          uint8_data(tables.token_bytes),
          int32_data(tables.token_begin),
          tables.state_fields.size(0),
          tables.class_maps.size(0),
          tables.cells.size(0),
          num_keys,
          tables.stop_tokens.size(0),
          tables.stop_tokens.size(1),
          tables.token_bytes.size(0),
          tables.token_begin.size(0) - 1};
}

// The frames that fit into the columns of stacks.
int64_t max_depth_of(const char* op, const Tensor& stacks) {
  check_dtype(op, "stacks", stacks, ScalarType::Int);
  if (stacks.dim() != 2) refuse(op, ": stacks must have 2 dimensions, got ", stacks.dim());
  const int64_t num_frame_columns = stacks.size(1) - kFramesColumn;
  if (num_frame_columns < 0 || num_frame_columns % kFrameColumns != 0) {
    refuse(op, ": stacks must have ", kFramesColumn, " columns and ", kFrameColumns, " for each frame, got ",
           shape_text(stacks));
  }
  return num_frame_columns / kFrameColumns;
}

void check_vector(const char* op, const char* name, const Tensor& tensor, const Tensor& stacks, int64_t size,
                  const char* meaning) {
  check_integers(op, name, tensor);
  if (tensor.dim() != 1 || tensor.size(0) != size) {
    refuse(op, ": ", name, " must have ", meaning, ", shape [", size, "], got ", shape_text(tensor));
  }
  check_same_device(op, name, tensor, stacks, "stacks");
}

}  // namespace

StackAdvanceParams stack_advance_params(const Tensor& stacks, const Tensor& tokens, const StackTableTensors& tables) {
  constexpr const char* kOp = "stack_advance";
  StackAdvanceParams params{};
  params.max_depth = max_depth_of(kOp, stacks);
  params.tables = stack_tables(kOp, stacks, tables);
  params.num_rows = stacks.size(0);
  params.stacks = static_cast<int32_t*>(stacks.data_ptr());
  params.row_stride = stacks.stride(0);
  params.column_stride = stacks.stride(1);
  const int64_t num_columns = stacks.size(1), rows = params.num_rows;
  const bool are_rows_apart = rows <= 1 || params.row_stride >= (num_columns - 1) * params.column_stride + 1;
  const bool are_columns_apart = params.column_stride >= (rows - 1) * params.row_stride + 1;
  if (params.column_stride < 1 || (!are_rows_apart && (params.row_stride < 1 || !are_columns_apart))) {
    refuse(kOp, ": stacks is written in place, but its entries overlap (strides ", params.row_stride, ", ",
           params.column_stride, "); use stacks.contiguous()");
  }
  check_vector(kOp, "tokens", tokens, stacks, params.num_rows, "one entry per stack");
  params.tokens = strided_integers(tokens);
  return params;
}

StackRowsParams stack_rows_params(const Tensor& stacks, const StackTableTensors& tables) {
  constexpr const char* kOp = "stack_rows";
  StackRowsParams params{};
  params.max_depth = max_depth_of(kOp, stacks);
  params.tables = stack_tables(kOp, stacks, tables);
  params.num_rows = stacks.size(0);
  params.stacks = static_cast<int32_t*>(stacks.data_ptr());
  params.row_stride = stacks.stride(0);
  params.column_stride = stacks.stride(1);
  return params;
}

StackDraftRowsParams stack_draft_rows_params(const Tensor& stacks, const Tensor& drafts, const Tensor& row_indptr,
                                             const StackTableTensors& tables) {
  constexpr const char* kOp = "stack_draft_rows";
  StackDraftRowsParams params{};
  params.max_depth = max_depth_of(kOp, stacks);
  params.tables = stack_tables(kOp, stacks, tables);
  params.num_requests = stacks.size(0);
  params.stacks = int32_data(stacks);
  params.row_stride = stacks.stride(0);
  params.column_stride = stacks.stride(1);
  check_integers(kOp, "drafts", drafts);
  if (drafts.dim() != 1) refuse(kOp, ": drafts must have 1 dimension, got ", drafts.dim());
  check_same_device(kOp, "drafts", drafts, stacks, "stacks");
  params.num_rows = drafts.size(0);
  params.drafts = strided_integers(drafts);
  check_vector(kOp, "row_indptr", row_indptr, stacks, params.num_requests + 1, "one entry per stack and one more");
  params.row_indptr = strided_integers(row_indptr);
  return params;
}

}  // namespace structout
