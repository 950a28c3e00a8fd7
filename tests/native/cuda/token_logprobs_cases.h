// The CUDA kernels of token_logprobs on the CPU: as a function for the Python tests, and
// random cases in buffers of exactly the right size, compared with a sorted row.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "common/listed_logits.h"
#include "cuda/token_logprobs.cu"
#include "devices.h"

using namespace structout;

// Without a device each step is a launch of its own.
inline void token_logprobs_on(const cuda::DeviceFacts* device, const MaskedLogits& logits, Strided<float> temperature,
                              const int64_t* token_ids, int64_t top_n, float* logprobs, int64_t* ranks,
                              int64_t* top_ids, float* top_logprobs) {
  const int64_t num_rows = logits.num_rows, num_top = std::max<int64_t>(1, top_n);
  std::vector<int64_t> found_ids(num_rows * num_top), totals(2 * num_rows);
  std::vector<float> found_logits(num_rows * num_top), token_logits(num_rows);
  const Strided<float> highest{found_logits.data(), num_top};
  const TokenLogprobsParams params{
      {logits, temperature, {token_ids, 1}, num_top, found_ids.data(), found_logits.data(), token_logits.data()},
      {logits, temperature, highest, token_logits.data(), totals.data()},
      {totals.data(), 1, num_rows, top_n, temperature, highest, token_logits.data(), found_logits.data(), logprobs,
       ranks, top_logprobs}};
  if (device != nullptr) {
    cuda::token_logprobs(params, *device, nullptr);
  } else {
    cuda::top_tokens(params.top, device_with(80, 0), nullptr);
    cuda::row_totals(params.totals, nullptr);
    cuda::merge_totals(params.merged, nullptr);
  }
  if (top_n > 0) std::copy(found_ids.begin(), found_ids.end(), top_ids);
}

extern "C" void token_logprobs_on_host(const MaskedLogits* logits, Strided<float> temperature, const int64_t* token_ids,
                                       int64_t top_n, float* logprobs, int64_t* ranks, int64_t* top_ids,
                                       float* top_logprobs, int compute_capability, int shared_kilobytes) {
  const cuda::DeviceFacts device = device_with(compute_capability, shared_kilobytes);
  token_logprobs_on(&device, *logits, temperature, token_ids, top_n, logprobs, ranks, top_ids, top_logprobs);
}

namespace {

struct ListedToken {
  float x;
  int64_t id;
};

class RandomTokenLogprobs {
 public:
  explicit RandomTokenLogprobs(std::mt19937_64& rng) : rng_(rng) {}

  bool run_any_format() {
    const uint64_t format = rng_() % 3;
    return format == 0   ? run<FloatFormat::kFloat32>()
           : format == 1 ? run<FloatFormat::kFloat16>()
                         : run<FloatFormat::kBFloat16>();
  }

 private:
  template <FloatFormat kFormat>
  bool run() {
    using V = cuda::Vector<kFormat>;
    const bool is_huge = below(12) == 0;  // and allows few tokens
    const int64_t num_rows = 1 + below(2), vocab_size = 1 + below(is_huge    ? 400'000
                                                                  : below(3) ? (below(4) ? 600 : 40)
                                                                  : below(3) ? 7000
                                                                             : 40'000);
    const int64_t words = words_for(vocab_size);
    const int64_t vocab_begin = below(3) ? 0 : below(std::min<int64_t>(vocab_size, 400));
    const int64_t num_columns = vocab_size - vocab_begin;
    const int64_t offset = below(2) ? below(9) : vocab_begin % V::kTokens;
    std::vector<typename V::Element> logits(offset + num_rows * num_columns);
    const uint64_t distinct = below(3) == 0 ? 3 : 1u << 20;
    const bool has_nan = below(4) == 0;
    for (auto& logit : logits) {
      const float x = static_cast<float>(rng_() % distinct) / static_cast<float>(distinct) * 9 - 5;
      logit = to_element<kFormat>(has_nan && below(vocab_size) == 0 ? NAN : x);
    }
    const int64_t mask_offset = below(2) ? below(4) : 0;
    std::vector<uint32_t> mask(mask_offset + num_rows * words);
    const bool is_sparse = below(2);
    for (uint32_t& word : mask) {
      word = static_cast<uint32_t>(rng_());
      if (is_sparse && below(4)) word = 0;
      if (is_huge) word &= below(60) == 0 ? static_cast<uint32_t>(rng_()) : 0;
    }
    const float temperatures[] = {0, 0.7f, 1e-40f, NAN}, temperature = temperatures[below(10) ? below(3) : 3];
    const bool has_temperature = below(4) != 0, is_valid = !has_temperature || temperature >= 0;
    std::vector<int64_t> token_ids(num_rows);
    for (int64_t& token : token_ids) token = below(vocab_size + 2) - 1;
    const int64_t top_n = std::vector<int64_t>{0, 1, 5, 64}[below(4)];

    MaskedLogits matrix{};
    matrix.logits = logits.data() + offset;
    matrix.format = kFormat;
    matrix.num_rows = num_rows;
    matrix.vocab_begin = vocab_begin;
    matrix.vocab_end = vocab_size;
    matrix.row_stride = num_columns;
    matrix.has_mask = is_huge || below(3);
    const int64_t num_words = below(3) ? words : below(words + 1);  // a mask may be narrower than the row
    matrix.bitmask = {mask.data() + mask_offset, num_rows, num_words, words};
    std::vector<int64_t> rows(num_rows);
    const bool has_rows = below(2), is_int64 = below(2);
    for (int64_t& row : rows) row = has_rows ? below(num_rows + 3) - 2 : &row - rows.data();
    const std::vector<int32_t> narrow_rows(rows.begin(), rows.end());
    if (has_rows) {
      matrix.rows = {is_int64 ? static_cast<const void*>(rows.data()) : narrow_rows.data(), 1, is_int64};
    }
    std::vector<float> logprobs(num_rows), top_logprobs(num_rows * top_n);
    std::vector<int64_t> ranks(num_rows), top_ids(num_rows * top_n);
    const Strided<float> temperature_of{has_temperature ? &temperature : nullptr, 0};
    const cuda::DeviceFacts device = device_with(below(2) ? 80 : 90, below(2) ? 200 : 0);
    token_logprobs_on(below(4) ? &device : nullptr, matrix, temperature_of, token_ids.data(), top_n, logprobs.data(),
                      ranks.data(), top_ids.data(), top_logprobs.data());

    for (int64_t row = 0; row < num_rows; ++row) {
      std::vector<ListedToken> tokens;
      for (int64_t token = vocab_begin; token < vocab_size; ++token) {
        const bool is_known = rows[row] >= 0 && rows[row] < num_rows && token / 32 < num_words;
        const bool is_allowed = !matrix.has_mask || rows[row] == -1 ||
                                (is_known && mask[mask_offset + rows[row] * words + token / 32] >> (token % 32) & 1);
        const float x = V::widen(logits[offset + row * num_columns + token - vocab_begin]);
        if (is_allowed && x > -INFINITY && token_ids[row] >= 0 && is_valid) tokens.push_back({x, token});
      }
      std::stable_sort(tokens.begin(), tokens.end(),
                       [](const ListedToken& a, const ListedToken& b) { return a.x > b.x; });
      const Scale scale = scale_of(tokens.empty() ? 0 : tokens[0].x, has_temperature ? temperature : 1);
      int64_t total = 0;
      for (const ListedToken& token : tokens) total += mass(scale.t(token.x));
      const auto logprob = [&](float x) { return scale.t(x) - log_of_mass(total); };
      for (int64_t place = 0; place < top_n; ++place) {
        const bool has_token = place < static_cast<int64_t>(tokens.size());
        if (top_ids[row * top_n + place] != (has_token ? tokens[place].id : -1)) return false;
        if (top_logprobs[row * top_n + place] != (has_token ? logprob(tokens[place].x) : -INFINITY)) return false;
      }
      int64_t rank = 0;
      float expected = -INFINITY;
      for (const ListedToken& token : tokens) {
        if (token.id != token_ids[row]) continue;
        expected = logprob(token.x);
        rank = 1 +
               std::count_if(tokens.begin(), tokens.end(), [&](const ListedToken& other) { return other.x > token.x; });
      }
      if (logprobs[row] != expected || ranks[row] != rank) return false;
    }
    return true;
  }

  template <FloatFormat kFormat>
  static auto to_element(float x) {
    if constexpr (kFormat == FloatFormat::kFloat32)
      return bits_of_float(x);
    else
      return x != x ? uint16_t{0x7fff} : kFormat == FloatFormat::kFloat16 ? half_bits(x) : bfloat16_bits(x);
  }

  int64_t below(uint64_t bound) { return static_cast<int64_t>(rng_() % bound); }

  std::mt19937_64& rng_;
};

}  // namespace
