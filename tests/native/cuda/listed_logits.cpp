// The CUDA kernels of apply_penalties and apply_logit_bias on the CPU: a library for the
// Python tests, and a program (COUNT SEED) that runs random cases under sanitizers, in
// buffers of exactly the right size.
#include "cuda/listed_logits.cu"

#include <vector>

#include "random_cases.h"

using namespace structout;

extern "C" {
void apply_penalties_on_host(const PenaltiesParams* params) { cuda::apply_penalties(*params, nullptr); }
void apply_logit_bias_on_host(const LogitBiasParams* params) { cuda::apply_logit_bias(*params, nullptr); }
}

template <FloatFormat kFormat>
bool run_random_case(std::mt19937_64& rng) {
  using V = cuda::Vector<kFormat>;
  using Element = typename V::Element;
  const auto rounded = [](float x) {
    if constexpr (kFormat == FloatFormat::kFloat32)
      return bits_of_float(x);
    else
      return kFormat == FloatFormat::kFloat16 ? half_bits(x) : bfloat16_bits(x);
  };
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); };
  // Never 0, so that no float32 becomes NaN, whose bits a GPU chooses by itself. Some
  // values overflow or lose bits in 16 bits, where a NaN of every origin is the same.
  const float scale = below(4) ? 0.01f : below(2) ? 300.0f : 1e-9f;
  const auto real = [&] { return (static_cast<float>(below(2001) - 1000) + 0.5f) * scale; };
  const int64_t num_rows = 1 + below(3), vocab_size = 1 + below(below(3) ? 100 : 3000);
  const int64_t row_stride = vocab_size + below(5);
  std::vector<Element> logits((num_rows - 1) * row_stride + vocab_size);
  for (Element& x : logits) x = static_cast<Element>(rounded(real()));
  if (kFormat != FloatFormat::kFloat32 && below(4) == 0)
    logits[below(logits.size())] = static_cast<Element>(rounded(NAN));
  std::vector<int32_t> indptr(num_rows + 1);
  for (int64_t i = 0; i < num_rows; ++i) indptr[i + 1] = indptr[i] + static_cast<int32_t>(below(below(2) ? 40 : 1300));
  std::vector<int64_t> token_ids(indptr[num_rows]), counts(indptr[num_rows]);
  // Most lists repeat no token; ids outside of the vocabulary are ignored.
  const bool repeats = below(3) == 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int32_t i = indptr[row]; i < indptr[row + 1]; ++i) {
      token_ids[i] = repeats ? below(vocab_size + 2) - 1 : i - indptr[row];
    }
  }
  for (int64_t& count : counts) count = below(4);
  std::vector<float> values(3 * num_rows), bias(token_ids.size());
  for (float& value : values) value = real();
  for (float& value : bias) value = real();
  if (below(8) == 0)
    indptr[below(num_rows + 1)] = static_cast<int32_t>(below(5000) - 2000);  // out of range, or decreasing

  // Integers of either width.
  const std::vector<int64_t> wide_indptr(indptr.begin(), indptr.end());
  const std::vector<int32_t> narrow_ids(token_ids.begin(), token_ids.end()),
      narrow_counts(counts.begin(), counts.end());
  const auto either = [&](const std::vector<int64_t>& wide, const std::vector<int32_t>& narrow) {
    return below(2) ? StridedIntegers{wide.data(), 1, true} : StridedIntegers{narrow.data(), 1, false};
  };
  const TokenLists lists{either(wide_indptr, indptr), either(token_ids, narrow_ids),
                         static_cast<int64_t>(token_ids.size())};
  const ListedLogits listed{logits.data(), num_rows, vocab_size, row_stride, kFormat, lists};
  const PenaltiesParams penalties{listed,
                                  either(counts, narrow_counts),
                                  {values.data(), 1},
                                  {values.data() + num_rows, 1},
                                  {values.data() + 2 * num_rows, 1}};
  const LogitBiasParams biases{listed, {bias.data(), 1}};

  std::vector<Element> expected = logits;
  const auto apply = [&](const auto& params) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const auto [begin, end] = lists.entries(row);
      for (int64_t i = begin; i < end; ++i) {
        if (token_ids[i] < 0 || token_ids[i] >= vocab_size) continue;
        Element& x = expected[row * row_stride + token_ids[i]];
        x = static_cast<Element>(rounded(params.changed(V::widen(x), i, params.row_values(row))));
      }
    }
  };
  if (below(2)) {
    cuda::apply_penalties(penalties, nullptr);
    apply(penalties);
  } else {
    cuda::apply_logit_bias(biases, nullptr);
    apply(biases);
  }
  return memcmp(logits.data(), expected.data(), logits.size() * sizeof(Element)) == 0;
}

int main(int argc, char** argv) {
  return run_random_cases(argc, argv, [](std::mt19937_64& rng) {
    const uint64_t format = rng() % 3;
    return format == 0   ? run_random_case<FloatFormat::kFloat32>(rng)
           : format == 1 ? run_random_case<FloatFormat::kFloat16>(rng)
                         : run_random_case<FloatFormat::kBFloat16>(rng);
  });
}
