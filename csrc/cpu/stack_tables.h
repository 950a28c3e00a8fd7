// stack_advance and stack_rows on the CPU. stack_draft_rows is a loop over
// StackDraftRowsParams::run.
#pragma once

#include "common/stack_tables.h"

namespace structout::cpu {

// Rows [begin, end).
void stack_advance(const StackAdvanceParams& params, int64_t begin, int64_t end);
void stack_rows(const StackRowsParams& params, int64_t begin, int64_t end);

}  // namespace structout::cpu
