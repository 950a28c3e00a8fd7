// The CUDA kernel of apply_bitmask on the CPU: a library for the Python tests, and a
// program (COUNT SEED) that runs random cases under sanitizers, in buffers of exactly
// the right size.
#include "cuda/apply_bitmask.cu"

#include <vector>

#include "random_cases.h"

using namespace structout;

extern "C" void apply_bitmask_on_host(const ApplyBitmaskParams* params, int num_sms) {
  cuda::apply_bitmask(*params, num_sms, nullptr);
}

template <class T>
bool run_random_case(std::mt19937_64& rng, T neg_inf) {
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); };
  const bool has_many_rows = below(12) == 0;
  const int64_t num_rows = has_many_rows ? 50 + below(60) : 1 + below(3), num_masks = 1 + below(3);
  const int64_t vocab_size = 1 + below(below(4) || has_many_rows ? 600 : 9000);
  const int64_t words = std::max<int64_t>(0, words_for(vocab_size) + below(5) - 2);
  const int64_t row_stride = vocab_size + (below(2) ? below(20) : 0), mask_stride = words + (below(2) ? below(5) : 0);
  const int64_t offset = below(2) ? below(9) : 0;

  std::vector<T> logits(offset + (num_rows - 1) * row_stride + vocab_size);
  for (T& logit : logits) logit = static_cast<T>(rng());
  std::vector<uint32_t> mask((num_masks - 1) * mask_stride + words);
  const int64_t density = below(3);  // any; lone disallowed tokens; nearly nothing allowed
  for (uint32_t& word : mask) {
    word = below(4) == 0 ? 0 : below(3) == 0 ? ~0u : static_cast<uint32_t>(rng());
    if (density == 1) word = below(20) == 0 ? static_cast<uint32_t>(rng()) : below(3) == 0 ? ~(1u << below(32)) : ~0u;
    if (density == 2) word = below(200) == 0 ? 1u << below(32) : 0;
  }
  // Row ids of either width, or none: row i has mask i.
  const bool has_rows = below(5) != 0, is_int64 = below(2);
  std::vector<int64_t> rows(num_rows);
  for (int64_t& row : rows) row = has_rows ? below(num_masks + 3) - 2 : &row - rows.data();
  const std::vector<int32_t> narrow_rows(rows.begin(), rows.end());

  ApplyBitmaskParams params{};
  params.logits = logits.data() + offset;
  params.num_rows = num_rows;
  params.vocab_size = vocab_size;
  params.row_stride = row_stride;
  params.element_bytes = sizeof(T);
  params.neg_inf = neg_inf;
  params.bitmask = {mask.data(), num_masks, words, mask_stride};
  if (has_rows) params.rows = {is_int64 ? static_cast<const void*>(rows.data()) : narrow_rows.data(), 1, is_int64};

  std::vector<T> expected = logits;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (rows[row] == -1) continue;
    const bool known = rows[row] >= 0 && rows[row] < num_masks;
    for (int64_t token = 0; token < vocab_size; ++token) {
      const bool covered = known && token / 32 < words;
      if (!covered || !(mask[rows[row] * mask_stride + token / 32] >> (token % 32) & 1))
        expected[offset + row * row_stride + token] = neg_inf;
    }
  }
  cuda::apply_bitmask(params, static_cast<int>(below(2)), nullptr);  // for 0 multiprocessors no batch is small
  return logits == expected;
}

int main(int argc, char** argv) {
  return run_random_cases(argc, argv, [](std::mt19937_64& rng) {
    return rng() % 2 ? run_random_case<uint32_t>(rng, 0xff800000u) : run_random_case<uint16_t>(rng, 0xfc00);
  });
}
