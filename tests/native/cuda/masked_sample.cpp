// The CUDA kernels of masked_sample and token_logprobs on the CPU: a library for the Python tests, and a
// program (COUNT SEED [SHAPES]) that runs random cases under sanitizers, in buffers of exactly
// the right size, and compares them with a plain loop over a sorted row. The program
// also checks the carries of the mass histogram, and the rounding of the cuts for top_p, which
// draws alone would hardly show.
#include "cuda/masked_sample.cu"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "add_weights.cu"
#include "cuda/shards.cu"
#include "token_logprobs_cases.h"

using namespace structout;

namespace {

[[maybe_unused]] const bool is_prepared = [] {
  cuda::DeviceFacts device = device_with(90, 200);
  cuda::prepare_masked_sample(device);
  cuda::prepare_token_logprobs(device);
  return true;
}();

}  // namespace

extern "C" void masked_sample_on_host(const MaskedSampleParams* params, int compute_capability, int shared_kilobytes) {
  cuda::masked_sample(*params, device_with(compute_capability, shared_kilobytes), nullptr);
}

extern "C" int masked_sample_times_shared_memory_was_allowed() { return simt::dynamic_shared_limits().count; }

#ifdef STRUCTOUT_COUNT_PATHS
extern "C" unsigned masked_sample_rows_of_path(int path) { return cuda::rows_of_path[path]; }
#endif

namespace {

struct Token {
  float x, t, z;
  int64_t mass, id;
};

struct Sampled {
  int64_t id;
  float logprob;
};

constexpr Sampled kNothing = {-1, -INFINITY};

// Samples one row of allowed tokens as docs/sampling_contract.md says.
Sampled sample(std::vector<Token> row, float temperature, int64_t top_k, float top_p, float min_p, int64_t seed,
               int64_t position) {
  if (!(temperature >= 0 && temperature < INFINITY && top_p >= 0 && min_p >= 0)) return kNothing;
  for (const Token& token : row) {
    if (std::isnan(token.x)) return kNothing;
  }
  row.erase(std::remove_if(row.begin(), row.end(), [](const Token& token) { return token.x == -INFINITY; }), row.end());
  if (row.empty()) return kNothing;
  std::stable_sort(row.begin(), row.end(), [](const Token& a, const Token& b) { return a.x > b.x; });

  const float inverse = temperature == 0 ? 1.0f : 1.0f / temperature, highest = row[0].x;
  int64_t total = 0;
  for (Token& token : row) {
    token.z = token.x * inverse;
    token.t = token.z - highest * inverse;
    if (!std::isfinite(highest * inverse)) token.z = token.t = token.x == highest ? 0 : -INFINITY;
    token.mass = mass(token.t);
    total += token.mass;
  }
  Token chosen = row[0];  // the lowest id of ties, because the sort is stable
  if (temperature != 0) {
    const auto keep_down_to = [&](float x) {
      while (row.back().x < x) row.pop_back();
    };
    while (min_p >= kSmallestMinP && row.back().t < log_float(std::min(min_p, 1.0f))) row.pop_back();
    if (0 < top_k && top_k < static_cast<int64_t>(row.size())) keep_down_to(row[static_cast<size_t>(top_k) - 1].x);
    if (top_p < 1) {
      int64_t kept = 0, reached = 0;
      for (const Token& token : row) kept += token.mass;
      const auto wanted = static_cast<int64_t>(top_p * static_cast<float>(kept));
      const int64_t target = std::min(kept, std::max<int64_t>(1, wanted));
      size_t last = 0;
      while ((reached += row[last].mass) < target) ++last;
      keep_down_to(row[last].x);
    }
    float best = -INFINITY;
    for (const Token& token : row) {
      const float score = token.z + gumbel(noise_bits(seed, position, static_cast<uint32_t>(token.id)));
      if (score > best || (score == best && token.id < chosen.id)) {
        best = score;
        chosen = token;
      }
    }
  }
  return {chosen.id, chosen.t - log_of_mass(total)};
}

// What random cases hardly ever have together, so that all code of each kernel runs: rows
// that end in any load of a round or group, in blocks and in clusters of two sizes, logits
// and masks that are not aligned to 16 bytes, masks that are much narrower than the row,
// rows that do not begin at token 0.
constexpr int64_t kShapeSizes[] = {300'000, 9000, 150'000, 40'000, 210'000, 75'000};
struct Shape {
  int64_t vocab_size;
  bool has_filters, is_sparse;
  int compute_capability;
};

class RandomCase {
 public:
  explicit RandomCase(std::mt19937_64& rng, const Shape* shape = nullptr) : rng_(rng), shape_(shape) {}

  template <FloatFormat kFormat>
  bool run() {
    using V = cuda::Vector<kFormat>;
    const int64_t num_rows = 1 + below(2), num_masks = 1 + below(2);
    // PTX runs faster than fibers unless it looks for races, so that it gets more long
    // rows. A huge row allows few tokens: the rounds in which the mask is read.
    const bool is_fast = simt::PtxBackend::get().is_on() && !simt::PtxBackend::get().finds_races();
    const bool is_huge = below(is_fast ? 12 : 60) == 0, is_long = below(is_fast ? 2 : 12) == 0;
    const bool is_sparse = shape_ != nullptr ? shape_->is_sparse : is_huge;
    const int64_t vocab_size = shape_ != nullptr ? shape_->vocab_size - below(600)
                                                 : 1 + below(is_huge    ? 700'000
                                                             : is_long  ? 40'000
                                                             : below(3) ? 700
                                                                        : 9000);
    const int64_t vocab_begin = shape_ != nullptr && below(2) ? below(400) : 0, num_columns = vocab_size - vocab_begin;
    const bool is_narrow = shape_ != nullptr && below(3) == 0;
    const int64_t words =
        is_narrow ? below(words_for(vocab_size)) : std::max<int64_t>(0, words_for(vocab_size) + below(5) - 2);
    const int64_t row_stride = num_columns + (below(2) ? below(20) : 0),
                  mask_stride = words + (below(2) ? below(5) : 0);
    const int64_t offset = below(2) ? below(9) : vocab_begin % V::kTokens;

    std::vector<typename V::Element> logits(offset + (num_rows - 1) * row_stride + num_columns);
    const uint64_t distinct = below(3) == 0 ? 12 : 1u << 16;
    for (auto& logit : logits) logit = random_logit<kFormat>(distinct);
    if (below(10) == 0)
      logits[below(logits.size())] =
          static_cast<typename V::Element>(kFormat == FloatFormat::kFloat32 ? 0x7fc00000u : 0x7fffu);
    std::vector<uint32_t> mask((num_masks - 1) * mask_stride + words);
    const int64_t sparsity = !is_sparse ? below(4) : shape_ != nullptr && below(2) ? 5 + below(2) : 4;
    for (uint32_t& word : mask) {
      word = static_cast<uint32_t>(rng_());
      if (sparsity == 0) word |= static_cast<uint32_t>(rng_()) | static_cast<uint32_t>(rng_());
      if (sparsity == 1) word = below(vocab_size / 16 + 1) == 0 ? 1u << below(32) : 0;
      if (sparsity == 2 && below(3)) word = 0;
      if (sparsity == 4) word &= below(100) == 0 ? static_cast<uint32_t>(rng_()) : 0;
      if (sparsity > 4) word = 0;
    }
    if (sparsity == 5 && !mask.empty()) mask[below(mask.size())] = 1u << below(32);
    // Row ids of either width, or none: row i has mask i.
    const bool has_rows = below(6) != 0, has_mask = is_sparse || below(8) != 0;
    std::vector<int64_t> rows(num_rows);
    for (int64_t& row : rows) row = !has_mask ? -1 : has_rows ? below(num_masks + 3) - 2 : &row - rows.data();
    const std::vector<int32_t> narrow_rows(rows.begin(), rows.end());
    // Parameters of each row, or one for all.
    const auto each = [&](auto choices) {
      decltype(choices) values(num_rows);
      for (auto& value : values) value = choices[below(choices.size())];
      if (below(2)) std::fill(values.begin(), values.end(), values[0]);
      return values;
    };
    const auto are_all = [](const auto& values, auto wanted) {
      return std::all_of(values.begin(), values.end(), [&](auto value) { return value == wanted; });
    };
    const auto strided = [&](const auto& values) {
      return Strided<std::decay_t<decltype(values[0])>>{values.data(), are_all(values, values[0]) ? 0 : 1};
    };
    const std::vector<float> temperature =
        each(shape_ != nullptr ? std::vector<float>{0, 1, 0.7f, 1e-40f}
                               : std::vector<float>{0, 1, 0.7f, 1.3f, 1e-3f, 50, 1e-40f, -1});
    const bool has_filters = shape_ != nullptr ? shape_->has_filters : below(3) != 0, return_logprobs = below(2);
    std::vector<float> top_p(num_rows, 1), min_p(num_rows, 0);
    std::vector<int64_t> top_k(num_rows, 0);
    const uint64_t filters_off = shape_ != nullptr ? 2 : 4;  // one of so many: what draws without a list
    if (has_filters && below(filters_off)) top_p = each(std::vector<float>{1, 0.9f, 0.5f, 0, 2});
    if (has_filters && below(filters_off)) min_p = each(std::vector<float>{0, 0.05f, 0.5f, 3});
    if (has_filters && below(filters_off)) top_k = each(std::vector<int64_t>{0, 1, 5, 50, 2000, int64_t{1} << 30});
    const std::vector<int32_t> narrow_top_k(top_k.begin(), top_k.end());
    const std::vector<int64_t> seed(num_rows, static_cast<int64_t>(rng_())), position{static_cast<int64_t>(rng_())};
    std::vector<int64_t> ids(num_rows, 7);
    std::vector<float> logprobs(num_rows, 7);

    MaskedSampleParams params{};
    params.logits = logits.data() + offset;
    params.num_rows = num_rows;
    params.vocab_begin = vocab_begin;
    params.vocab_end = vocab_size;
    params.row_stride = row_stride;
    params.format = kFormat;
    params.has_mask = has_mask;
    params.bitmask = {mask.data(), num_masks, words, mask_stride};
    if (has_rows) params.rows = either(rows, narrow_rows);
    params.temperature = strided(temperature);
    if (has_filters) {
      // An argument that is absent filters nothing. At least one is there.
      if (!are_all(top_k, 0) || below(2)) params.top_k = either(top_k, narrow_top_k);
      if (!are_all(min_p, 0) || below(2)) params.min_p = strided(min_p);
      const bool has_others = params.top_k.values != nullptr || params.min_p.values != nullptr;
      if (!are_all(top_p, 1) || !has_others) params.top_p = strided(top_p);
    }
    params.seed = strided(seed);
    params.position = {position.data(), 0};
    params.ids = ids.data();
    params.logprobs = return_logprobs ? logprobs.data() : nullptr;
    cuda::masked_sample(params, random_device(), nullptr);

    for (int64_t row = 0; row < num_rows; ++row) {
      const bool is_known = rows[row] >= 0 && rows[row] < num_masks;
      std::vector<Token> allowed;
      for (int64_t token = vocab_begin; token < vocab_size; ++token) {
        const bool is_covered = is_known && token / 32 < words;
        if (rows[row] == -1 || (is_covered && mask[rows[row] * mask_stride + token / 32] >> (token % 32) & 1)) {
          allowed.push_back({V::widen(logits[offset + row * row_stride + token - vocab_begin]), 0, 0, 0, token});
        }
      }
      const Sampled expected =
          sample(allowed, temperature[row], top_k[row], top_p[row], min_p[row], seed[row], position[0]);
      if (ids[row] != expected.id) return false;
      if (return_logprobs && bits_of_float(logprobs[row]) != bits_of_float(expected.logprob)) return false;
    }
    return has_filters || !return_logprobs || shards_agree<kFormat>(params);
  }

  // Splits the columns at random places and copies each shard into its own memory.
  template <FloatFormat kFormat>
  bool shards_agree(const MaskedSampleParams& whole) {
    using Element = typename cuda::Vector<kFormat>::Element;
    const int64_t num_shards = 1 + below(9), num_rows = whole.num_rows;
    std::vector<int64_t> cuts{whole.vocab_begin, whole.vocab_end};
    for (int64_t i = 1; i < num_shards; ++i) cuts.push_back(whole.vocab_begin + below(whole.num_columns() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::vector<Element>> logits(num_shards);
    std::vector<MaskedSampleParams> shards(num_shards, whole);
    std::vector<int32_t> shard_results(num_shards * kShardResultFields * num_rows, 7),
        merged(kShardResultFields * num_rows, 7);
    for (int64_t i = 0; i < num_shards; ++i) {
      MaskedSampleParams& shard = shards[i];
      shard.vocab_begin = cuts[i];
      shard.vocab_end = cuts[i + 1];
      for (int64_t row = 0; row < num_rows; ++row) {
        const auto* from = whole.token_0<Element>(row);
        logits[i].insert(logits[i].end(), from + shard.vocab_begin, from + shard.vocab_end);
      }
      shard.logits = logits[i].data();
      shard.row_stride = shard.num_columns();
      shard.shard_results = shard_results.data() + i * kShardResultFields * num_rows;
      cuda::masked_sample(shard, random_device(), nullptr);
    }
    std::vector<int64_t> ids(num_rows, 7), totals(num_shards * 2 * num_rows, 7), ranks(num_rows, 7);
    std::vector<float> logprobs(num_rows, 7);
    cuda::merge_shard_results(
        {shard_results.data(), num_shards, kShardResultFields, num_rows, whole.temperature, ids.data(), merged.data()},
        nullptr);
    const auto* highest = reinterpret_cast<const float*>(merged.data());
    const float* token_logits = highest + 3 * num_rows;
    for (int64_t i = 0; i < num_shards; ++i) {
      cuda::row_totals({shards[i], whole.temperature, {highest, 1}, token_logits, totals.data() + i * 2 * num_rows},
                       nullptr);
    }
    cuda::merge_totals({totals.data(),
                        num_shards,
                        num_rows,
                        0,
                        whole.temperature,
                        {highest, 1},
                        token_logits,
                        nullptr,
                        logprobs.data(),
                        ranks.data(),
                        nullptr},
                       nullptr);
    return std::equal(ids.begin(), ids.end(), whole.ids) &&
           std::equal(logprobs.begin(), logprobs.end(), whole.logprobs);
  }

  // Checks rare values of merge_shard_results against the function that it runs.
  bool merges() {
    const int64_t num_rows = 1 + below(70), num_shards = 1 + below(9), num_fields = kShardResultFields - below(2);
    std::vector<int32_t> shard_results(num_shards * num_fields * num_rows);
    const float values[] = {1, 2, -3, -INFINITY, 3e38f, INFINITY, -3e38f, 0};
    for (int32_t& field : shard_results)
      field = static_cast<int32_t>(bits_of_float(below(300) ? values[below(8)] : NAN));
    const std::vector<float> temperatures{0, 1, 0.1f, 1e-40f};
    const float temperature = temperatures[below(4)];
    std::vector<int64_t> ids(num_rows, 7), expected_ids(num_rows, 8);
    std::vector<int32_t> merged(kShardResultFields * num_rows, 7), expected(kShardResultFields * num_rows, 8);
    MergeShardResultsParams params{shard_results.data(), num_shards, num_fields,   num_rows,
                                   {&temperature, 0},    ids.data(), merged.data()};
    cuda::merge_shard_results(params, nullptr);
    params.ids = expected_ids.data();
    params.merged = expected.data();
    for (int64_t row = 0; row < num_rows; ++row) params.run(row);
    const auto is_same = [](int32_t a, int32_t b) {  // a GPU's NaN has other bits
      const float x = float_of_bits(static_cast<uint32_t>(a)), y = float_of_bits(static_cast<uint32_t>(b));
      return a == b || (x != x && y != y);
    };
    return ids == expected_ids && std::equal(merged.begin(), merged.end(), expected.begin(), is_same);
  }

 private:
  int64_t below(uint64_t bound) { return static_cast<int64_t>(rng_() % bound); }

  cuda::DeviceFacts random_device() {
    const int compute_capability = below(2) ? 80 : 90, shared_kilobytes = below(2) ? 200 : 0;
    if (shape_ == nullptr) return device_with(compute_capability, shared_kilobytes);
    cuda::DeviceFacts device = device_with(shape_->compute_capability, shared_kilobytes);
    if (below(2)) device.max_clusters[1] = device.max_clusters[2] = 0;  // too few multiprocessors for more than pairs
    return device;
  }

  StridedIntegers either(const std::vector<int64_t>& wide, const std::vector<int32_t>& narrow) {
    return below(2) ? StridedIntegers{wide.data(), 1, true} : StridedIntegers{narrow.data(), 1, false};
  }

  template <FloatFormat kFormat>
  uint32_t random_logit(uint64_t distinct) {
    const float value = (static_cast<float>(rng_() % distinct) / static_cast<float>(distinct) - 0.5f) * 16;
    if (kFormat == FloatFormat::kFloat32) return bits_of_float(value);
    if (kFormat == FloatFormat::kBFloat16) return bits_of_float(value) >> 16;
    const uint32_t bits = bits_of_float(value * 0x1p-112f);  // |value| <= 8: the exponent fits
    return (bits >> 13 & 0x7fffu) | (bits >> 16 & 0x8000u);
  }

  std::mt19937_64& rng_;
  const Shape* shape_;
};

bool run_any_format(RandomCase random_case, uint64_t format) {
  return format == 0   ? random_case.run<FloatFormat::kFloat32>()
         : format == 1 ? random_case.run<FloatFormat::kFloat16>()
                       : random_case.run<FloatFormat::kBFloat16>();
}

bool run_shapes(int count, std::mt19937_64& rng) {
  for (int i = 0; i < count; ++i) {
    for (int kind = 0; kind < 48; ++kind) {
      const int turn = kind / 6;  // clusters take three of four, because their code is the longest
      const Shape shape{kShapeSizes[i % std::size(kShapeSizes)], kind / 3 % 2 == 0, turn < 4, turn % 4 == 0 ? 80 : 90};
      if (run_any_format(RandomCase(rng, &shape), static_cast<uint64_t>(kind % 3))) continue;
      std::printf("shape %d differs, the %d-th time\n", kind, i);
      return false;
    }
  }
  return true;
}

bool histogram_is_exact(std::mt19937_64& rng) {
  std::vector<int64_t> weights(500);
  uint64_t expected[2] = {}, sums[2] = {};
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<int64_t>(rng() >> 23 >> rng() % 12);  // up to 2^41; a mass is at most 2^40
    expected[i & 1] += static_cast<uint64_t>(weights[i]);
  }
  const cuda::Additions additions{weights.data(), static_cast<int>(weights.size()), sums};
  simt::launch(dim3(1), dim3(64), 0, cuda::add_weights, additions);
  return sums[0] == expected[0] && sums[1] == expected[1];
}

// Whether no token above a cut has a key below that of the cut, whatever the rounding.
bool cuts_are_bounds(std::mt19937_64& rng) {
  const auto random_float = [&] { return float_of_bits(static_cast<uint32_t>(rng())); };
  for (int i = 0; i < 20'000; ++i) {
    const float temperature = rng() % 2 ? 0.7f : fabsf(random_float());
    float highest = rng() % 2 ? random_float() : static_cast<float>(static_cast<int64_t>(rng() % 2000) - 1000) / 16;
    if (!(fabsf(highest) <= FLT_MAX) || !(temperature > 0 && temperature <= FLT_MAX)) continue;
    const Scale scale(highest, 1.0f / temperature);
    const int cut = static_cast<int>(rng() % cuda::kNumCuts);
    const float t = cuda::t_of_cut(cut) * (0.98f + static_cast<float>(rng() % 1000) * 3e-5f);
    const float x = (scale.z_of_highest + t) / scale.inverse;
    if (scale.has_overflown || !(x <= highest)) continue;
    const bool is_above = mass(scale.t(x)) >> cuda::kCutShift >= cuda::weight_of_cut(cut);
    if (is_above && order_key(x) < cuda::key_of_cut(scale, cuda::t_of_cut(cut))) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  std::mt19937_64 rng(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  if (!histogram_is_exact(rng)) {
    std::printf("the histogram loses weight\n");
    return 1;
  }
  if (!cuts_are_bounds(rng)) {
    std::printf("a token above a cut has a lower key\n");
    return 1;
  }
  if (argc > 3 && !run_shapes(std::atoi(argv[3]), rng)) return 1;
  for (int i = 0; i < count; ++i) {
    RandomCase random_case(rng);
    const bool is_same = run_any_format(random_case, rng() % 3);
    const bool is_merged = i % 8 != 1 || random_case.merges();
    if (!is_same || !is_merged || !RandomTokenLogprobs(rng).run_any_format()) {
      std::printf("case %d differs%s\n", i, !is_same ? " (sample)" : !is_merged ? " (merge)" : " (logprobs)");
      return 1;
    }
  }
  std::printf("%d cases agree\n", count);
  return 0;
}
