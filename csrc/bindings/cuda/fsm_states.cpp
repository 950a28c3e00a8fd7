// Calls the CUDA kernels of the FSM ops on torch tensors, on the states' device and its
// current stream.
#include "cuda/fsm_states.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include "bindings/cuda/device.h"
#include "bindings/fsm_states_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

// Calls launch(stream) on the states' device.
template <class Launch>
void launch_on_device_of(const Tensor& states, const Launch& launch) {
  const int device = states.get_device_index();
  const DeviceGuard guard(device);
  launch(current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

void fsm_advance(const Tensor& states, const Tensor& tokens, const Tensor& transitions, const Tensor& state_flags,
                 const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  const auto params =
      fsm_advance_params(states, tokens, {transitions, state_flags, stop_tokens, token_bytes, token_begin});
  launch_on_device_of(states, [&](void* stream) { cuda::fsm_advance(params, stream); });
}

Tensor fsm_rows(const Tensor& states, const Tensor& masks, const Tensor& num_computed, const Tensor& mask_slots,
                const Tensor& transitions, const Tensor& state_flags, const Tensor& stop_tokens,
                const Tensor& token_bytes, const Tensor& token_begin, int64_t num_slots) {
  const auto params = fsm_rows_params(states, masks, num_computed, mask_slots,
                                      {transitions, state_flags, stop_tokens, token_bytes, token_begin}, num_slots);
  return make_rows(states, params, [&](const FsmRowsParams& p) {
    const int num_sms = device_facts(states.get_device_index()).num_sms;
    launch_on_device_of(states, [&](void* stream) { cuda::fsm_rows(p, num_sms, stream); });
  });
}

Tensor fsm_draft_states(const Tensor& states, const Tensor& drafts, const Tensor& row_indptr, const Tensor& transitions,
                        const Tensor& state_flags, const Tensor& stop_tokens, const Tensor& token_bytes,
                        const Tensor& token_begin) {
  const auto params = fsm_draft_states_params(states, drafts, row_indptr,
                                              {transitions, state_flags, stop_tokens, token_bytes, token_begin});
  return make_row_states(states, params, [&](const FsmDraftStatesParams& p) {
    launch_on_device_of(states, [&](void* stream) { cuda::fsm_draft_states(p, stream); });
  });
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("fsm_advance", TORCH_BOX(&structout::fsm_advance));
  ops.impl("fsm_rows", TORCH_BOX(&structout::fsm_rows));
  ops.impl("fsm_draft_states", TORCH_BOX(&structout::fsm_draft_states));
}
