// Calls the CUDA kernels of the stack ops on torch tensors, on the stacks' device and its
// current stream.
#include "cuda/stack_tables.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include "bindings/cuda/device.h"
#include "bindings/stack_tables_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

// Calls launch(stream) on the stacks' device.
template <class Launch>
void launch_on_device_of(const Tensor& stacks, const Launch& launch) {
  const int device = stacks.get_device_index();
  const DeviceGuard guard(device);
  launch(current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor stack_advance(const Tensor& stacks, const Tensor& tokens, const Tensor& state_fields, const Tensor& class_maps,
                     const Tensor& cells, const Tensor& keys, const Tensor& stop_tokens, const Tensor& token_bytes,
                     const Tensor& token_begin) {
  const auto params = stack_advance_params(
      stacks, tokens, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
  return make_results(stacks, params, [&](const StackAdvanceParams& p) {
    launch_on_device_of(stacks, [&](void* stream) { cuda::stack_advance(p, stream); });
  });
}

Tensor stack_rows(const Tensor& stacks, const Tensor& state_fields, const Tensor& class_maps, const Tensor& cells,
                  const Tensor& keys, const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  const auto params =
      stack_rows_params(stacks, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
  return make_rows(stacks, params, [&](const StackRowsParams& p) {
    launch_on_device_of(stacks, [&](void* stream) { cuda::stack_rows(p, stream); });
  });
}

Tensor stack_draft_rows(const Tensor& stacks, const Tensor& drafts, const Tensor& row_indptr,
                        const Tensor& state_fields, const Tensor& class_maps, const Tensor& cells, const Tensor& keys,
                        const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  const auto params = stack_draft_rows_params(
      stacks, drafts, row_indptr, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
  return make_rows(stacks, params, [&](const StackDraftRowsParams& p) {
    launch_on_device_of(stacks, [&](void* stream) { cuda::stack_draft_rows(p, stream); });
  });
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("stack_advance", TORCH_BOX(&structout::stack_advance));
  ops.impl("stack_rows", TORCH_BOX(&structout::stack_rows));
  ops.impl("stack_draft_rows", TORCH_BOX(&structout::stack_draft_rows));
}
