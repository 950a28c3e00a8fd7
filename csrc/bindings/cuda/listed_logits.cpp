// Calls the CUDA kernels of apply_penalties and apply_logit_bias on torch tensors, on the
// logits' device and its current stream.
#include "cuda/listed_logits.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include "bindings/cuda/device.h"
#include "bindings/listed_logits_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

template <class Params>
void launch(const Tensor& logits, const Params& params, void (*kernel)(const Params&, void*)) {
  const int device = logits.get_device_index();
  const DeviceGuard guard(device);
  kernel(params, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

void apply_penalties(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids, const Tensor& output_counts,
                     const Tensor& repetition, const Tensor& frequency, const Tensor& presence) {
  launch(logits, penalties_params(logits, indptr, token_ids, output_counts, repetition, frequency, presence),
         cuda::apply_penalties);
}

void apply_logit_bias(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids, const Tensor& bias) {
  launch(logits, logit_bias_params(logits, indptr, token_ids, bias), cuda::apply_logit_bias);
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("apply_penalties", TORCH_BOX(&structout::apply_penalties));
  ops.impl("apply_logit_bias", TORCH_BOX(&structout::apply_logit_bias));
}
