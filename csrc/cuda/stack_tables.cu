// The stack ops: one thread per text. A byte takes three dependent loads, of the state's
// fields, of the byte's class and of its action; a value that ends takes the list of the
// frame below. The frames that a token pushes are in local memory until it is known to be
// allowed.
//
// Bytes moved per token of 4 bytes: about 4 (20 + 1 + 4) of tables, 36 of a key, and what
// changes of the stack.
#include "cuda/run_rows.cuh"
#include "cuda/stack_tables.h"

namespace structout::cuda {

void stack_advance(const StackAdvanceParams& params, void* stream) { launch_rows(params, params.num_rows, stream); }

void stack_rows(const StackRowsParams& params, void* stream) { launch_rows(params, params.num_rows, stream); }

void stack_draft_rows(const StackDraftRowsParams& params, void* stream) {
  if (params.num_rows > 0) launch_rows(params, params.num_requests + 1, stream);
}

}  // namespace structout::cuda
