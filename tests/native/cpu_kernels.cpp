// masked_sample and apply_bitmask of csrc/cpu as a program, so that an emulator can run
// them for another processor, or sanitizers watch what they read.
// tests/support/cpu_programs.py writes the calls to its standard input: a header, then the
// arrays, all of them contiguous.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/apply_bitmask.h"
#include "cpu/masked_sample.h"

using namespace structout;

namespace {

struct Header {
  int64_t op, num_rows, vocab_size, row_stride, format, mask_rows, mask_words;
  int64_t has_mask, has_rows, has_top_k, has_top_p, has_min_p, num_threads;
};

constexpr int64_t kApplyBitmask = 0;

template <class T>
std::vector<T> read(int64_t count) {
  std::vector<T> values(count);
  if (count > 0 && fread(values.data(), sizeof(T), values.size(), stdin) != values.size()) abort();
  return values;
}

template <class T>
void write(const std::vector<T>& values) {
  if (!values.empty()) fwrite(values.data(), sizeof(T), values.size(), stdout);
}

template <class T>
Strided<T> strided(const std::vector<T>& values) {
  return {values.empty() ? nullptr : values.data(), 1};
}

StridedIntegers strided_integers(const std::vector<int64_t>& values) {
  return {values.empty() ? nullptr : values.data(), 1, true};
}

void run(const Header& header) {
  const int64_t n = header.num_rows;
  const int64_t element_bytes = header.format == 0 ? 4 : 2;
  auto logits = read<char>(n * header.row_stride * element_bytes);
  const auto words = read<uint32_t>(header.mask_rows * header.mask_words);
  const auto rows = read<int64_t>(header.has_rows ? n : 0);
  const Bitmask bitmask = {words.data(), header.mask_rows, header.mask_words, header.mask_words};
  if (header.op == kApplyBitmask) {
    const uint32_t neg_inf = header.format == 0 ? 0xff800000u : header.format == 1 ? 0xfc00u : 0xff80u;
    const cpu::ApplyBitmaskTiles tiles({logits.data(), n, header.vocab_size, header.row_stride,
                                        static_cast<int32_t>(element_bytes), neg_inf, bitmask, strided_integers(rows)},
                                       header.num_threads);
    for (int64_t i = tiles.size(); i-- > 0;) tiles.run(i);
    return write(logits);
  }
  const auto temperature = read<float>(n);
  const auto top_k = read<int64_t>(header.has_top_k ? n : 0);
  const auto top_p = read<float>(header.has_top_p ? n : 0), min_p = read<float>(header.has_min_p ? n : 0);
  const auto seed = read<int64_t>(n), position = read<int64_t>(n);
  std::vector<int64_t> ids(n);
  std::vector<float> logprobs(n);
  MaskedSampleParams params{};
  static_cast<MaskedLogits&>(params) = {logits.data(),
                                        n,
                                        0,
                                        header.vocab_size,
                                        header.row_stride,
                                        static_cast<FloatFormat>(header.format),
                                        header.has_mask != 0,
                                        bitmask,
                                        strided_integers(rows)};
  params.temperature = strided(temperature);
  params.top_k = strided_integers(top_k);
  params.top_p = strided(top_p);
  params.min_p = strided(min_p);
  params.seed = strided(seed);
  params.position = strided(position);
  params.ids = ids.data();
  params.logprobs = logprobs.data();
  cpu::masked_sample(params, header.num_threads, [](int64_t count, const std::function<void(int64_t)>& task) {
    for (int64_t i = count; i-- > 0;) task(i);
  });
  write(ids);
  write(logprobs);
}

}  // namespace

int main() {
  for (Header header; fread(&header, sizeof(header), 1, stdin) == 1;) {
    run(header);
    fflush(stdout);
  }
}
