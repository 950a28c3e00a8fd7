// Calls the CPU kernels of the FSM ops on torch tensors.
#include "cpu/fsm_states.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "bindings/cpu/threads.h"
#include "bindings/fsm_states_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

constexpr int64_t kRowsPerTask = 4096;  // fewer take less time than waking a thread

// Calls run(begin, end) for parts of [0, count).
template <class Run>
void run_rows(int64_t count, const Run& run) {
  const int64_t num_tasks = (count + kRowsPerTask - 1) / kRowsPerTask;
  cpu::parallel_for(num_tasks, torch::stable::get_num_threads(),
                    [&](int64_t task) { run(task * kRowsPerTask, std::min(count, (task + 1) * kRowsPerTask)); });
}

void fsm_advance(const Tensor& states, const Tensor& tokens, const Tensor& transitions, const Tensor& state_flags,
                 const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  const auto params =
      fsm_advance_params(states, tokens, {transitions, state_flags, stop_tokens, token_bytes, token_begin});
  run_rows(params.num_rows, [&](int64_t begin, int64_t end) { cpu::fsm_advance(params, begin, end); });
}

void check_fsm_advance(const Tensor& states, const Tensor& tokens, const Tensor& transitions, const Tensor& state_flags,
                       const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  fsm_advance_params(states, tokens, {transitions, state_flags, stop_tokens, token_bytes, token_begin});
}

Tensor fsm_rows(const Tensor& states, const Tensor& masks, const Tensor& num_computed, const Tensor& mask_slots,
                const Tensor& transitions, const Tensor& state_flags, const Tensor& stop_tokens,
                const Tensor& token_bytes, const Tensor& token_begin, int64_t num_slots) {
  const auto params = fsm_rows_params(states, masks, num_computed, mask_slots,
                                      {transitions, state_flags, stop_tokens, token_bytes, token_begin}, num_slots);
  return make_rows(states, params, [](const FsmRowsParams& p) { cpu::fsm_rows(p, cpu::spread_over_threads); });
}

void check_fsm_rows(const Tensor& states, const Tensor& masks, const Tensor& num_computed, const Tensor& mask_slots,
                    const Tensor& transitions, const Tensor& state_flags, const Tensor& stop_tokens,
                    const Tensor& token_bytes, const Tensor& token_begin, int64_t num_slots) {
  fsm_rows_params(states, masks, num_computed, mask_slots,
                  {transitions, state_flags, stop_tokens, token_bytes, token_begin}, num_slots);
}

Tensor fsm_draft_states(const Tensor& states, const Tensor& drafts, const Tensor& row_indptr, const Tensor& transitions,
                        const Tensor& state_flags, const Tensor& stop_tokens, const Tensor& token_bytes,
                        const Tensor& token_begin) {
  const auto params = fsm_draft_states_params(states, drafts, row_indptr,
                                              {transitions, state_flags, stop_tokens, token_bytes, token_begin});
  return make_row_states(states, params, [](const FsmDraftStatesParams& p) {
    run_rows(p.num_requests + 1, [&](int64_t begin, int64_t end) {
      for (int64_t request = begin; request < end; ++request) p.run(request);
    });
  });
}

void check_fsm_draft_states(const Tensor& states, const Tensor& drafts, const Tensor& row_indptr,
                            const Tensor& transitions, const Tensor& state_flags, const Tensor& stop_tokens,
                            const Tensor& token_bytes, const Tensor& token_begin) {
  fsm_draft_states_params(states, drafts, row_indptr,
                          {transitions, state_flags, stop_tokens, token_bytes, token_begin});
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("fsm_advance", TORCH_BOX(&structout::fsm_advance));
  ops.impl("fsm_rows", TORCH_BOX(&structout::fsm_rows));
  ops.impl("fsm_draft_states", TORCH_BOX(&structout::fsm_draft_states));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, ops) {
  ops.impl("_check_fsm_advance", TORCH_BOX(&structout::check_fsm_advance));
  ops.impl("_check_fsm_rows", TORCH_BOX(&structout::check_fsm_rows));
  ops.impl("_check_fsm_draft_states", TORCH_BOX(&structout::check_fsm_draft_states));
}
