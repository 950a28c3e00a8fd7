// Calls the CPU kernels of apply_penalties and apply_logit_bias on torch tensors.
#include "cpu/listed_logits.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "bindings/cpu/threads.h"
#include "bindings/listed_logits_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

constexpr int64_t kMinEntriesPerThread = 4096;  // fewer take less time than waking a thread

template <class Params>
void change_rows(const Params& params, void (*change_row)(const Params&, int64_t)) {
  const int64_t num_threads =
      std::clamp<int64_t>(params.lists.num_entries / kMinEntriesPerThread, 1, torch::stable::get_num_threads());
  if (params.lists.num_entries == 0 || params.num_rows == 0) return;
  cpu::parallel_for(params.num_rows, num_threads, [&](int64_t row) { change_row(params, row); });
}

void apply_penalties(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids, const Tensor& output_counts,
                     const Tensor& repetition, const Tensor& frequency, const Tensor& presence) {
  change_rows(penalties_params(logits, indptr, token_ids, output_counts, repetition, frequency, presence),
              cpu::apply_penalties);
}

void check_apply_penalties(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids,
                           const Tensor& output_counts, const Tensor& repetition, const Tensor& frequency,
                           const Tensor& presence) {
  penalties_params(logits, indptr, token_ids, output_counts, repetition, frequency, presence);
}

void apply_logit_bias(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids, const Tensor& bias) {
  change_rows(logit_bias_params(logits, indptr, token_ids, bias), cpu::apply_logit_bias);
}

void check_apply_logit_bias(const Tensor& logits, const Tensor& indptr, const Tensor& token_ids, const Tensor& bias) {
  logit_bias_params(logits, indptr, token_ids, bias);
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("apply_penalties", TORCH_BOX(&structout::apply_penalties));
  ops.impl("apply_logit_bias", TORCH_BOX(&structout::apply_logit_bias));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, ops) {
  ops.impl("_check_apply_penalties", TORCH_BOX(&structout::check_apply_penalties));
  ops.impl("_check_apply_logit_bias", TORCH_BOX(&structout::check_apply_logit_bias));
}
