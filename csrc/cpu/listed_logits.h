// apply_penalties and apply_logit_bias on the CPU: one row, for threads that share the
// rows.
#pragma once

#include "common/listed_logits.h"

namespace structout::cpu {

void apply_penalties(const PenaltiesParams& params, int64_t row);
void apply_logit_bias(const LogitBiasParams& params, int64_t row);

}  // namespace structout::cpu
