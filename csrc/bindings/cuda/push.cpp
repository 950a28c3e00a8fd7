// Calls the push collectives on torch tensors, on the tensors' device and its current
// stream.
#include "cuda/push.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>

#include "bindings/cuda/device.h"
#include "bindings/push_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

void push_all_gather(const Tensor& shard, const Tensor& out, const Tensor& state, int64_t buffers, int64_t multicast,
                     int64_t rank, int64_t world_size, int64_t gather_capacity, int64_t token, int64_t timeout_ns,
                     int64_t fill_on_error) {
  const PushAllGatherParams params = push_all_gather_params(
      shard, out, state, {buffers, multicast, rank, world_size, gather_capacity, token, timeout_ns}, fill_on_error);
  const int device = shard.get_device_index();
  const DeviceGuard guard(device);
  cuda::push_all_gather(params, {}, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

void push_rows(const Tensor& logits, std::optional<Tensor> bitmask, std::optional<Tensor> rows, const Tensor& rows_out,
               const Tensor& state, int64_t buffers, int64_t rank, int64_t world_size, int64_t gather_capacity,
               int64_t token, int64_t timeout_ns, int64_t rows_capacity, int64_t vocab_begin, int64_t vocab_size) {
  const PushRowsParams params = push_rows_params(logits, bitmask, rows, rows_out, state,
                                                 {buffers, 0, rank, world_size, gather_capacity, token, timeout_ns},
                                                 rows_capacity, vocab_begin, vocab_size);
  const int device = logits.get_device_index();
  const DeviceGuard guard(device);
  cuda::push_rows(params, {}, current_stream(device));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CUDA, ops) {
  ops.impl("_push_all_gather", TORCH_BOX(&structout::push_all_gather));
  ops.impl("_push_rows", TORCH_BOX(&structout::push_rows));
}
