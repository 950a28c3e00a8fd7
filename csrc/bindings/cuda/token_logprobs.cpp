// Registers the CUDA kernels of token_logprobs and masked_sample_topn. They run on the
// logits' device and its current stream.
#include "cuda/token_logprobs.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include "bindings/cuda/device.h"
#include "bindings/token_logprobs_ops.h"

namespace structout {
namespace {

using torch::stable::Tensor;

class CudaKernels {
 public:
  explicit CudaKernels(const Tensor& leader) : device_(leader.get_device_index()) {}

  void draw(const MaskedSampleParams& params) const { run_masked_sample_on(device_)(params); }
  void token_logprobs(const TokenLogprobsParams& params) const { launch_teams(params, cuda::token_logprobs); }
  void top_tokens(const TopTokensParams& params) const { launch_teams(params, cuda::top_tokens); }
  void row_totals(const RowTotalsParams& params) const { launch(params, cuda::row_totals); }
  void merge_totals(const MergeTotalsParams& params) const { launch(params, cuda::merge_totals); }

 private:
  template <class Params>
  void launch_teams(const Params& params, void (*kernel)(const Params&, const cuda::DeviceFacts&, void* stream)) const {
    const DeviceGuard guard(device_);
    kernel(params, prepared_device(device_), current_stream(device_));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  template <class Params>
  void launch(const Params& params, void (*kernel)(const Params&, void* stream)) const {
    const DeviceGuard guard(device_);
    kernel(params, current_stream(device_));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }

  int device_;
};

using Ops = TokenLogprobsOps<CudaKernels>;

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("token_logprobs", TORCH_BOX(&structout::Ops::token_logprobs));
  ops.impl("masked_sample_topn", TORCH_BOX(&structout::Ops::masked_sample_topn));
  ops.impl("_top_tokens", TORCH_BOX(&structout::Ops::top_tokens));
  ops.impl("_row_totals", TORCH_BOX(&structout::Ops::row_totals));
  ops.impl("_merge_totals", TORCH_BOX(&structout::Ops::merge_totals));
}
