// Converts tensors to the params of the FSM ops and refuses bad input. Shared by the CPU
// and CUDA bindings.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "common/fsm_states.h"

namespace structout {

struct FsmTableTensors {
  const torch::stable::Tensor& transitions;
  const torch::stable::Tensor& state_flags;
  const torch::stable::Tensor& stop_tokens;
  const torch::stable::Tensor& token_bytes;
  const torch::stable::Tensor& token_begin;
};

FsmAdvanceParams fsm_advance_params(const torch::stable::Tensor& states, const torch::stable::Tensor& tokens,
                                    const FsmTableTensors& tables);

// Everything but the result.
FsmRowsParams fsm_rows_params(const torch::stable::Tensor& states, const torch::stable::Tensor& masks,
                              const torch::stable::Tensor& num_computed, const torch::stable::Tensor& mask_slots,
                              const FsmTableTensors& tables, int64_t num_slots);

// Everything but the result.
FsmDraftStatesParams fsm_draft_states_params(const torch::stable::Tensor& states, const torch::stable::Tensor& drafts,
                                             const torch::stable::Tensor& row_indptr, const FsmTableTensors& tables);

// Runs `write_rows(params)` and returns the rows.
template <class WriteRows>
torch::stable::Tensor make_rows(const torch::stable::Tensor& states, FsmRowsParams params,
                                const WriteRows& write_rows) {
  auto rows = torch::stable::new_empty(states, {params.num_rows});
  params.rows = static_cast<int32_t*>(rows.data_ptr());
  if (params.num_rows > 0) write_rows(params);
  return rows;
}

// Runs `write_states(params)` and returns the states of the rows.
template <class WriteStates>
torch::stable::Tensor make_row_states(const torch::stable::Tensor& states, FsmDraftStatesParams params,
                                      const WriteStates& write_states) {
  auto row_states = torch::stable::new_empty(states, {params.num_rows});
  params.row_states = static_cast<int32_t*>(row_states.data_ptr());
  if (params.num_rows > 0) write_states(params);
  return row_states;
}

}  // namespace structout
