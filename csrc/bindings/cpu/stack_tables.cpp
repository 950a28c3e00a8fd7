// Calls the CPU kernels of the stack ops on torch tensors.
#include "cpu/stack_tables.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "bindings/cpu/threads.h"
#include "bindings/stack_tables_args.h"

namespace structout {
namespace {

using torch::stable::Tensor;

constexpr int64_t kRowsPerTask = 1024;  // fewer take less time than waking a thread

// Calls run(begin, end) for parts of [0, count).
template <class Run>
void run_rows(int64_t count, const Run& run) {
  const int64_t num_tasks = (count + kRowsPerTask - 1) / kRowsPerTask;
  cpu::parallel_for(num_tasks, torch::stable::get_num_threads(),
                    [&](int64_t task) { run(task * kRowsPerTask, std::min(count, (task + 1) * kRowsPerTask)); });
}

Tensor stack_advance(const Tensor& stacks, const Tensor& tokens, const Tensor& state_fields, const Tensor& class_maps,
                     const Tensor& cells, const Tensor& keys, const Tensor& stop_tokens, const Tensor& token_bytes,
                     const Tensor& token_begin) {
  const auto params = stack_advance_params(
      stacks, tokens, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
  return make_results(stacks, params, [](const StackAdvanceParams& p) {
    run_rows(p.num_rows, [&](int64_t begin, int64_t end) { cpu::stack_advance(p, begin, end); });
  });
}

void check_stack_advance(const Tensor& stacks, const Tensor& tokens, const Tensor& state_fields,
                         const Tensor& class_maps, const Tensor& cells, const Tensor& keys, const Tensor& stop_tokens,
                         const Tensor& token_bytes, const Tensor& token_begin) {
  stack_advance_params(stacks, tokens, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
}

Tensor stack_rows(const Tensor& stacks, const Tensor& state_fields, const Tensor& class_maps, const Tensor& cells,
                  const Tensor& keys, const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  const auto params =
      stack_rows_params(stacks, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
  return make_rows(stacks, params, [](const StackRowsParams& p) {
    run_rows(p.num_rows, [&](int64_t begin, int64_t end) { cpu::stack_rows(p, begin, end); });
  });
}

void check_stack_rows(const Tensor& stacks, const Tensor& state_fields, const Tensor& class_maps, const Tensor& cells,
                      const Tensor& keys, const Tensor& stop_tokens, const Tensor& token_bytes,
                      const Tensor& token_begin) {
  stack_rows_params(stacks, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
}

Tensor stack_draft_rows(const Tensor& stacks, const Tensor& drafts, const Tensor& row_indptr,
                        const Tensor& state_fields, const Tensor& class_maps, const Tensor& cells, const Tensor& keys,
                        const Tensor& stop_tokens, const Tensor& token_bytes, const Tensor& token_begin) {
  const auto params = stack_draft_rows_params(
      stacks, drafts, row_indptr, {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
  return make_rows(stacks, params, [](const StackDraftRowsParams& p) {
    run_rows(p.num_requests + 1, [&](int64_t begin, int64_t end) {
      for (int64_t request = begin; request < end; ++request) p.run(request);
    });
  });
}

void check_stack_draft_rows(const Tensor& stacks, const Tensor& drafts, const Tensor& row_indptr,
                            const Tensor& state_fields, const Tensor& class_maps, const Tensor& cells,
                            const Tensor& keys, const Tensor& stop_tokens, const Tensor& token_bytes,
                            const Tensor& token_begin) {
  stack_draft_rows_params(stacks, drafts, row_indptr,
                          {state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin});
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("stack_advance", TORCH_BOX(&structout::stack_advance));
  ops.impl("stack_rows", TORCH_BOX(&structout::stack_rows));
  ops.impl("stack_draft_rows", TORCH_BOX(&structout::stack_draft_rows));
}

STABLE_TORCH_LIBRARY_IMPL(structout, CompositeExplicitAutograd, ops) {
  ops.impl("_check_stack_advance", TORCH_BOX(&structout::check_stack_advance));
  ops.impl("_check_stack_rows", TORCH_BOX(&structout::check_stack_rows));
  ops.impl("_check_stack_draft_rows", TORCH_BOX(&structout::check_stack_draft_rows));
}
