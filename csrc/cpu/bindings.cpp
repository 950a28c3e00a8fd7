// Torch tensors to CPU kernels, spread over torch's own threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <string>

#include "../apply_bitmask_args.h"
#include "apply_bitmask.h"
#include "capability.h"

namespace structout {
namespace {

using torch::stable::Tensor;

// Threads take the next tile when they are done with one: rows differ a hundredfold in cost.
template <class Tiles>
void run_in_parallel(const Tiles& tiles) {
  std::atomic<int64_t> next{0};
  const auto take_tiles = [&](int64_t, int64_t) {
    for (int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < tiles.size();) tiles.run(tile);
  };
  if (tiles.num_threads() == 1) return take_tiles(0, 1);
  torch::stable::parallel_for(0, tiles.num_threads(), 1, take_tiles);
}

void apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  const ApplyBitmaskParams params = apply_bitmask_params(logits, bitmask, rows);
  if (params.num_rows == 0 || params.vocab_size == 0) return;
  run_in_parallel(cpu::ApplyBitmaskTiles(params, torch::stable::get_num_threads()));
}

void check_apply_bitmask(const Tensor& logits, const Tensor& bitmask, std::optional<Tensor> rows) {
  apply_bitmask_params(logits, bitmask, rows);
}

std::string cpu_capability() { return cpu::capability_name(cpu::capability()); }

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) { ops.impl("apply_bitmask", TORCH_BOX(&structout::apply_bitmask)); }

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, ops) {
  ops.impl("_check_apply_bitmask", TORCH_BOX(&structout::check_apply_bitmask));
  ops.impl("_cpu_capability", TORCH_BOX(&structout::cpu_capability));
}
