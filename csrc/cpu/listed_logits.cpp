#include "cpu/listed_logits.h"

#include "cpu/keep_denormals.h"
#include "cpu/widen.h"

namespace structout::cpu {
namespace {

void narrow(float x, float& to) { to = x; }
void narrow(float x, Half& to) { to.bits = half_bits(x); }
void narrow(float x, BFloat16& to) { to.bits = bfloat16_bits(x); }

template <class T, class Params>
void change_row(const Params& params, int64_t row) {
  T* logits = static_cast<T*>(params.logits) + row * params.row_stride;
  const auto [begin, end] = params.lists.entries(row);
  if (begin >= end) return;
  const auto values = params.row_values(row);
  for (int64_t entry = begin; entry < end; ++entry) {
    const int64_t token = params.lists.token_ids.at(entry);
    if (token < 0 || token >= params.vocab_size) continue;
    narrow(params.changed(widen(logits[token]), entry, values), logits[token]);
  }
}

template <class Params>
void change_row_of_format(const Params& params, int64_t row) {
  const KeepDenormals keep_denormals;
  switch (params.format) {
    case FloatFormat::kFloat32:
      return change_row<float>(params, row);
    case FloatFormat::kFloat16:
      return change_row<Half>(params, row);
    case FloatFormat::kBFloat16:
      return change_row<BFloat16>(params, row);
  }
}

}  // namespace

void apply_penalties(const PenaltiesParams& params, int64_t row) { change_row_of_format(params, row); }

void apply_logit_bias(const LogitBiasParams& params, int64_t row) { change_row_of_format(params, row); }

}  // namespace structout::cpu
