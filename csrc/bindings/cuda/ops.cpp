// Calls the CUDA kernels on torch tensors, on the logits' device and its current
// stream.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include <tuple>

#include "bindings/apply_bitmask_args.h"
#include "bindings/cuda/device.h"
#include "bindings/masked_sample_args.h"
#include "bindings/verify_drafts_args.h"
#include "cuda/apply_bitmask.h"
#include "cuda/verify_drafts.h"

namespace structout {
namespace {

using torch::stable::Tensor;

void apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  const ApplyBitmaskParams params = apply_bitmask_params(logits, bitmask, rows);
  if (params.num_rows == 0 || params.vocab_size == 0) return;
  const int device = logits.get_device_index();
  const DeviceGuard guard(device);
  cuda::apply_bitmask(params, device_facts(device).num_sms, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor masked_sample(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows,
                     const Tensor& temperature, std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                     std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position) {
  return draw_ids({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position},
                  run_masked_sample_on(logits.get_device_index()));
}

std::tuple<Tensor, Tensor> masked_sample_logprobs(const Tensor& logits, std::optional<Tensor> bitmask,
                                                  std::optional<Tensor> rows, const Tensor& temperature,
                                                  std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                                                  std::optional<Tensor> min_p, const Tensor& seed,
                                                  const Tensor& position) {
  return draw_ids_and_logprobs({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position},
                               run_masked_sample_on(logits.get_device_index()));
}

auto run_verify_drafts_on(int device) {
  return [device](const VerifyDraftsParams& params) {
    const DeviceGuard guard(device);
    cuda::verify_drafts(params, current_stream(device));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  };
}

std::tuple<Tensor, Tensor> verify_drafts(const Tensor& logits, std::optional<Tensor> bitmask,
                                         std::optional<Tensor> rows, const Tensor& temperature,
                                         std::optional<Tensor> top_k, std::optional<Tensor> top_p,
                                         std::optional<Tensor> min_p, const Tensor& seed, const Tensor& position,
                                         const Tensor& drafts, const Tensor& row_indptr) {
  const int device = logits.get_device_index();
  return draw_and_verify({logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position}, drafts, row_indptr,
                         run_masked_sample_on(device), run_verify_drafts_on(device));
}

Tensor accept_drafts(Tensor ids, const Tensor& drafts, const Tensor& row_indptr) {
  return verify_drawn(ids, drafts, row_indptr, run_verify_drafts_on(ids.get_device_index()));
}

std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t> cuda_device_facts(int64_t index) {
  const int device = static_cast<int>(index);
  const DeviceGuard guard(device);
  const cuda::DeviceFacts& facts = prepared_device(device);
  const int* clusters = facts.max_clusters;
  return {facts.num_sms, facts.compute_capability, facts.max_shared_bytes_a_block, clusters[0], clusters[1],
          clusters[2]};
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("apply_bitmask", TORCH_BOX(&structout::apply_bitmask));
  ops.impl("masked_sample", TORCH_BOX(&structout::masked_sample));
  ops.impl("masked_sample_logprobs", TORCH_BOX(&structout::masked_sample_logprobs));
  ops.impl("verify_drafts", TORCH_BOX(&structout::verify_drafts));
  ops.impl("_accept_drafts", TORCH_BOX(&structout::accept_drafts));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, facts) {
  facts.impl("_cuda_device_facts", TORCH_BOX(&structout::cuda_device_facts));
}
