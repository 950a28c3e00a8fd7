// Converts tensors to the params of the stack ops and refuses bad input. Shared by the CPU
// and CUDA bindings.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "common/stack_tables.h"

namespace structout {

struct StackTableTensors {
  const torch::stable::Tensor& state_fields;
  const torch::stable::Tensor& class_maps;
  const torch::stable::Tensor& cells;
  const torch::stable::Tensor& keys;
  const torch::stable::Tensor& stop_tokens;
  const torch::stable::Tensor& token_bytes;
  const torch::stable::Tensor& token_begin;
};

// Everything but the results.
StackAdvanceParams stack_advance_params(const torch::stable::Tensor& stacks, const torch::stable::Tensor& tokens,
                                        const StackTableTensors& tables);
StackRowsParams stack_rows_params(const torch::stable::Tensor& stacks, const StackTableTensors& tables);
StackDraftRowsParams stack_draft_rows_params(const torch::stable::Tensor& stacks, const torch::stable::Tensor& drafts,
                                             const torch::stable::Tensor& row_indptr, const StackTableTensors& tables);

// Runs `write(params)` and returns the results.
template <class Write>
torch::stable::Tensor make_results(const torch::stable::Tensor& stacks, StackAdvanceParams params, const Write& write) {
  auto results = torch::stable::new_empty(stacks, {params.num_rows});
  auto scratch = torch::stable::new_empty(stacks, {params.num_rows, kScratchColumns});
  params.scratch = static_cast<int32_t*>(scratch.data_ptr());
  params.results = static_cast<int32_t*>(results.data_ptr());
  if (params.num_rows > 0) write(params);
  return results;
}

// Runs `write(params)` and returns the rows.
template <class Write>
torch::stable::Tensor make_rows(const torch::stable::Tensor& stacks, StackRowsParams params, const Write& write) {
  auto rows = torch::stable::new_empty(stacks, {params.num_rows});
  params.rows = static_cast<int32_t*>(rows.data_ptr());
  if (params.num_rows > 0) write(params);
  return rows;
}

// The same, with a copy of the stacks that goes along the drafts.
template <class Write>
torch::stable::Tensor make_rows(const torch::stable::Tensor& stacks, StackDraftRowsParams params, const Write& write) {
  auto rows = torch::stable::new_empty(stacks, {params.num_rows});
  auto scratch = torch::stable::new_empty(stacks, {params.num_requests, stacks.size(1) + kScratchColumns});
  params.rows = static_cast<int32_t*>(rows.data_ptr());
  params.scratch = static_cast<int32_t*>(scratch.data_ptr());
  if (params.num_rows > 0) write(params);
  return rows;
}

}  // namespace structout
