#include "bindings/fsm_states_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

const int32_t* int32_data(const Tensor& tensor) { return static_cast<const int32_t*>(tensor.data_ptr()); }

// Refuses tables that are on another device than `states`, or do not fit each other.
FsmTables fsm_tables(const char* op, const Tensor& states, const FsmTableTensors& tables) {
  const auto check = [&](const char* name, const Tensor& tensor, ScalarType type, int64_t dim) {
    check_contiguous(op, name, tensor, type, dim);
    check_same_device(op, name, tensor, states, "states");
  };
  check("transitions", tables.transitions, ScalarType::Int, 2);
  check("state_flags", tables.state_flags, ScalarType::Int, 1);
  check("stop_tokens", tables.stop_tokens, ScalarType::Int, 2);
  check("token_bytes", tables.token_bytes, ScalarType::Byte, 1);
  check("token_begin", tables.token_begin, ScalarType::Int, 1);
  const int64_t num_states = tables.state_flags.size(0);
  if (tables.transitions.size(0) != num_states || tables.transitions.size(1) != kNumByteValues) {
    refuse(op, ": transitions must have one row per state and one column per byte, shape [", num_states, ", ",
           kNumByteValues, "], got ", shape_text(tables.transitions));
  }
  if (tables.token_begin.size(0) == 0) {
    refuse(op, ": token_begin must have one entry per token and one more, got shape [0]");
  }
  return {int32_data(tables.transitions), int32_data(tables.state_flags),
          int32_data(tables.stop_tokens), static_cast<const uint8_t*>(tables.token_bytes.data_ptr()),
          int32_data(tables.token_begin), num_states,
          tables.stop_tokens.size(0),     tables.stop_tokens.size(1),
          tables.token_bytes.size(0),     tables.token_begin.size(0) - 1};
}

void check_vector(const char* op, const char* name, const Tensor& tensor, const Tensor& states, int64_t size,
                  const char* meaning) {
  if (tensor.dim() != 1 || tensor.size(0) != size) {
    refuse(op, ": ", name, " must have ", meaning, ", shape [", size, "], got ", shape_text(tensor));
  }
  check_same_device(op, name, tensor, states, "states");
}

void check_states(const char* op, const Tensor& states) {
  check_dtype(op, "states", states, ScalarType::Int);
  if (states.dim() != 1) refuse(op, ": states must have 1 dimension, got ", states.dim());
}

}  // namespace

FsmAdvanceParams fsm_advance_params(const Tensor& states, const Tensor& tokens, const FsmTableTensors& tables) {
  constexpr const char* kOp = "fsm_advance";
  check_states(kOp, states);
  FsmAdvanceParams params{};
  params.tables = fsm_tables(kOp, states, tables);
  params.num_rows = states.size(0);
  params.states = static_cast<int32_t*>(states.data_ptr());
  params.states_stride = states.stride(0);
  if (params.num_rows > 1 && params.states_stride == 0) {
    refuse(kOp, ": states is written in place, but its entries overlap; use states.contiguous()");
  }
  check_integers(kOp, "tokens", tokens);
  check_vector(kOp, "tokens", tokens, states, params.num_rows, "one entry per state");
  params.tokens = strided_integers(tokens);
  return params;
}

FsmRowsParams fsm_rows_params(const Tensor& states, const Tensor& masks, const Tensor& num_computed,
                              const Tensor& mask_slots, const FsmTableTensors& tables, int64_t num_slots) {
  constexpr const char* kOp = "fsm_rows";
  check_states(kOp, states);
  FsmRowsParams params{};
  params.tables = fsm_tables(kOp, states, tables);
  params.num_rows = states.size(0);
  params.states = {int32_data(states), states.stride(0)};

  check_dtype(kOp, "masks", masks, ScalarType::Int);
  check_same_device(kOp, "masks", masks, states, "states");
  if (masks.dim() != 2) refuse(kOp, ": masks must have 2 dimensions, got ", masks.dim());
  const MatrixLayout layout = matrix_layout(kOp, "masks", masks);
  const int64_t num_words = words_for(params.tables.vocab_size);
  if (layout.num_columns != num_words) {
    refuse(kOp, ": masks must have ", num_words, " words per row for ", params.tables.vocab_size, " tokens, got ",
           layout.num_columns);
  }
  if (num_slots < 0 || layout.num_rows - num_slots < params.num_rows) {
    refuse(kOp, ": masks must have num_slots (", num_slots, ") rows and one more per state (", params.num_rows,
           "), got ", layout.num_rows, "; make the tables for more rows");
  }
  if (layout.num_rows > 1 && layout.row_stride < layout.num_columns) {
    refuse(kOp, ": masks is written in place, but its rows overlap (row stride ", layout.row_stride, ", row length ",
           layout.num_columns, "); use masks.contiguous()");
  }
  params.masks = static_cast<uint32_t*>(masks.data_ptr());
  params.words_per_row = layout.num_columns;
  params.row_stride = layout.row_stride;
  params.num_slots = num_slots;

  check_contiguous(kOp, "mask_slots", mask_slots, ScalarType::Int, 1);
  check_vector(kOp, "mask_slots", mask_slots, states, params.tables.num_states, "one entry per state of the tables");
  params.mask_slots = int32_data(mask_slots);
  check_dtype(kOp, "num_computed", num_computed, ScalarType::Long);
  check_vector(kOp, "num_computed", num_computed, states, 1, "one entry");
  params.num_computed = static_cast<int64_t*>(num_computed.data_ptr());
  return params;
}

FsmDraftStatesParams fsm_draft_states_params(const Tensor& states, const Tensor& drafts, const Tensor& row_indptr,
                                             const FsmTableTensors& tables) {
  constexpr const char* kOp = "fsm_draft_states";
  check_states(kOp, states);
  FsmDraftStatesParams params{};
  params.tables = fsm_tables(kOp, states, tables);
  params.num_requests = states.size(0);
  params.states = {int32_data(states), states.stride(0)};
  check_integers(kOp, "drafts", drafts);
  if (drafts.dim() != 1) refuse(kOp, ": drafts must have 1 dimension, got ", drafts.dim());
  check_same_device(kOp, "drafts", drafts, states, "states");
  params.num_rows = drafts.size(0);
  params.drafts = strided_integers(drafts);
  check_integers(kOp, "row_indptr", row_indptr);
  check_vector(kOp, "row_indptr", row_indptr, states, params.num_requests + 1, "one entry per state and one more");
  params.row_indptr = strided_integers(row_indptr);
  return params;
}

}  // namespace structout
