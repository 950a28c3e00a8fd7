// Calls the CPU kernels on torch tensors, on torch's own threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>

#include "bindings/apply_bitmask_args.h"
#include "bindings/cpu/threads.h"
#include "bindings/masked_sample_args.h"
#include "bindings/push_args.h"
#include "bindings/verify_drafts_args.h"
#include "cpu/apply_bitmask.h"
#include "cpu/capability.h"
#include "cpu/masked_sample.h"

namespace structout {
namespace {

using torch::stable::Tensor;

void apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  const ApplyBitmaskParams params = apply_bitmask_params(logits, bitmask, rows);
  if (params.num_rows == 0 || params.vocab_size == 0) return;
  const cpu::ApplyBitmaskTiles tiles(params, torch::stable::get_num_threads());
  cpu::parallel_for(tiles.size(), tiles.num_threads(), [&](int64_t tile) { tiles.run(tile); });
}

void check_apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  apply_bitmask_params(logits, bitmask, rows);
}

void run_masked_sample(const MaskedSampleParams& params) {
  cpu::masked_sample(params, torch::stable::get_num_threads(), cpu::spread_over_threads);
}

Tensor masked_sample(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                     const Tensor& temperature, std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                     std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position) {
  return draw_ids({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position}, run_masked_sample);
}

std::tuple<Tensor, Tensor> masked_sample_logprobs(const Tensor& logits, std::optional<Tensor> bitmask,
                                                  std::optional<Tensor> rows, const Tensor& temperature,
                                                  std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                                                  std::optional<Tensor> min_p, const Tensor& seed,
                                                  const Tensor& position) {
  return draw_ids_and_logprobs({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position},
                               run_masked_sample);
}

void check_masked_sample(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                         const Tensor& temperature, std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                         std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position) {
  masked_sample_params({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position});
}

void run_verify_drafts(const VerifyDraftsParams& params) {
  for (int64_t request = 0; request < params.num_requests; ++request) params.run(request);
}

std::tuple<Tensor, Tensor> verify_drafts(const Tensor& logits, std::optional<Tensor> bitmask,
                                         std::optional<Tensor> rows, const Tensor& temperature,
                                         std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                                         std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position,
                                         const Tensor& drafts, const Tensor& row_indptr) {
  return draw_and_verify({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position}, drafts, row_indptr,
                         run_masked_sample, run_verify_drafts);
}

Tensor accept_drafts(Tensor ids, const Tensor& drafts, const Tensor& row_indptr) {
  return verify_drawn(ids, drafts, row_indptr, run_verify_drafts);
}

void check_verify_drafts(const Tensor& leader, const Tensor& drafts, const Tensor& row_indptr) {
  verify_drafts_params(leader, drafts, row_indptr, leader.dim() == 1 ? 1 : leader.size(0));
}

void check_push_all_gather(const Tensor& shard, const Tensor& out, const Tensor& state, int64_t buffers,
                           int64_t multicast, int64_t rank, int64_t world_size, int64_t gather_capacity, int64_t token,
                           int64_t timeout_ns, int64_t fill_on_error) {
  push_all_gather_params(shard, out, state, {buffers, multicast, rank, world_size, gather_capacity, token, timeout_ns},
                         fill_on_error);
}

void check_push_rows(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                     const Tensor& rows_out, const Tensor& state, int64_t buffers, int64_t rank, int64_t world_size,
                     int64_t gather_capacity, int64_t token, int64_t timeout_ns, int64_t rows_capacity,
                     int64_t vocab_begin, int64_t vocab_size) {
  push_rows_params(logits, bitmask, rows, rows_out, state,
                   {buffers, 0, rank, world_size, gather_capacity, token, timeout_ns}, rows_capacity, vocab_begin,
                   vocab_size);
}

std::tuple<int64_t, int64_t> push_buffer(int64_t world_size, int64_t gather_capacity, int64_t rows_capacity) {
  const PushLayout layout = push_layout("push_buffer", world_size, gather_capacity);
  return {layout.rows(), layout.size(rows_capacity)};
}

std::string cpu_capability() { return cpu::capability_name(cpu::capability()); }

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("apply_bitmask", TORCH_BOX(&structout::apply_bitmask));
  ops.impl("masked_sample", TORCH_BOX(&structout::masked_sample));
  ops.impl("masked_sample_logprobs", TORCH_BOX(&structout::masked_sample_logprobs));
  ops.impl("verify_drafts", TORCH_BOX(&structout::verify_drafts));
  ops.impl("_accept_drafts", TORCH_BOX(&structout::accept_drafts));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, ops) {
  ops.impl("_check_apply_bitmask", TORCH_BOX(&structout::check_apply_bitmask));
  ops.impl("_check_masked_sample", TORCH_BOX(&structout::check_masked_sample));
  ops.impl("_check_verify_drafts", TORCH_BOX(&structout::check_verify_drafts));
  ops.impl("_check_push_all_gather", TORCH_BOX(&structout::check_push_all_gather));
  ops.impl("_check_push_rows", TORCH_BOX(&structout::check_push_rows));
  ops.impl("_push_buffer", TORCH_BOX(&structout::push_buffer));
  ops.impl("_cpu_capability", TORCH_BOX(&structout::cpu_capability));
}
