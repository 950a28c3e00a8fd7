// Converts tensors to VerifyDraftsParams and refuses bad input. Shared by the CPU and
// CUDA bindings.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <tuple>

#include "bindings/masked_sample_args.h"
#include "common/verify_drafts.h"

namespace structout {

// Everything but the ids and num_accepted. `leader` has a row for each entry of drafts.
VerifyDraftsParams verify_drafts_params(const torch::stable::Tensor& leader, const torch::stable::Tensor& drafts,
                                        const torch::stable::Tensor& row_indptr, int64_t num_rows);

// Runs `verify(params)` on ids that have been drawn. Returns num_accepted.
template <class Verify>
torch::stable::Tensor verify_drawn(torch::stable::Tensor& ids, const torch::stable::Tensor& drafts,
                                   const torch::stable::Tensor& row_indptr, const Verify& verify) {
  VerifyDraftsParams params = verify_drafts_params(ids, drafts, row_indptr, ids.size(0));
  auto num_accepted = torch::stable::new_empty(ids, {params.num_requests}, torch::headeronly::ScalarType::Int);
  params.ids = static_cast<int64_t*>(ids.data_ptr());
  params.num_accepted = static_cast<int32_t*>(num_accepted.data_ptr());
  if (params.num_requests > 0) verify(params);
  return num_accepted;
}

// Draws with `draw(params)`, then compares with `verify(params)`.
template <class Draw, class Verify>
std::tuple<torch::stable::Tensor, torch::stable::Tensor> draw_and_verify(const MaskedSampleTensors& tensors,
                                                                         const torch::stable::Tensor& drafts,
                                                                         const torch::stable::Tensor& row_indptr,
                                                                         const Draw& draw, const Verify& verify) {
  const torch::stable::Tensor& logits = tensors.logits;
  verify_drafts_params(logits, drafts, row_indptr, logits.dim() == 2 ? logits.size(0) : 1);  // before anything is drawn
  auto ids = draw_ids(tensors, draw);
  return {ids, verify_drawn(ids, drafts, row_indptr, verify)};
}

}  // namespace structout
