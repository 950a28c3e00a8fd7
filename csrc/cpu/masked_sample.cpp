// What the rows of masked_sample are made of, and the choice of instructions. The algorithm is in masked_sample_row.h.
#include "masked_sample.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "../sampling_math.h"
#include "capability.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace structout::cpu {
namespace {

constexpr int64_t kFewTokens = 4096;     // a list of so many stays in the first-level cache
constexpr int64_t kWorthSharing = 1024;  // blocks of a row, below which one thread is faster than two

// -- logits -----------------------------------------------------------------------------------------------------------

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(BFloat16 x) { return float_of_bits(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const float scaled = float_of_bits(magnitude << 13) * 0x1p112f;  // exact, also for subnormals
  const uint32_t bits = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : bits_of_float(scaled);
  return float_of_bits(bits | static_cast<uint32_t>(x.bits & 0x8000u) << 16);
}

// -- a row's settings and state ---------------------------------------------------------------------------------------

struct Scale {
  float inverse;
  float highest;
  float highest_z;
  bool is_finite;

  Scale(float temperature, float highest_logit) : highest(highest_logit) {
    inverse = temperature == 0 ? 1.0f : 1.0f / temperature;
    highest_z = highest * inverse;
    is_finite = std::fabs(highest_z) < std::numeric_limits<float>::infinity();
  }
  // Where the largest logit overflows, only those equal to it can be drawn.
  float z(float x) const {
    const float only_highest = x == highest ? 0.0f : -std::numeric_limits<float>::infinity();
    return is_finite ? x * inverse : only_highest;
  }
  float t(float x) const { return is_finite ? z(x) - highest_z : z(x); }
};

// The tokens that the filters leave: their logit reaches one threshold, their t another.
struct Kept {
  float at_least = -std::numeric_limits<float>::infinity();
  float t_at_least = -std::numeric_limits<float>::infinity();

  bool has(const Scale& scale, float x) const { return x >= at_least && scale.t(x) >= t_at_least; }
};

struct RowSettings {
  float temperature, top_p, min_p;
  int64_t top_k, seed, position;
  bool are_valid;

  bool is_greedy() const { return temperature == 0; }
  bool has_top_k_or_top_p() const { return top_k > 0 || top_p < 1; }
  Kept kept_by_min_p() const {
    Kept kept;
    if (min_p >= kSmallestMinP) kept.t_at_least = log_float(std::min(min_p, 1.0f));
    return kept;
  }
};

RowSettings row_settings(const MaskedSampleParams& params, int64_t row) {
  RowSettings s;
  s.temperature = params.temperature.at(row);
  s.top_p = params.top_p.at(row, 1.0f);
  s.min_p = params.min_p.at(row, 0.0f);
  s.top_k = params.top_k.values == nullptr ? 0 : params.top_k.at(row);
  s.seed = params.seed.at(row);
  s.position = params.position.at(row);
  const bool temperature_is_valid = s.temperature >= 0 && s.temperature < std::numeric_limits<float>::infinity();
  s.are_valid = temperature_is_valid && s.top_p >= 0 && s.min_p >= 0;
  return s;
}

// Some tokens of a row, ascending, with their logits. Readers may take 16 at a time: what fills up the last 16 has the
// logit -inf.
struct Candidates {
  std::vector<int32_t> tokens;
  std::vector<float> x;
  int64_t count = 0;

  void clear(int64_t capacity) {
    count = 0;
    if (static_cast<int64_t>(tokens.size()) >= capacity + 16) return;
    tokens.resize(capacity + 16);
    x.resize(capacity + 16);
  }
  void push(int64_t token, float logit) {
    tokens[count] = static_cast<int32_t>(token);
    x[count++] = logit;
  }
  void fill_up() {
    std::fill_n(tokens.begin() + count, 16, 0);
    std::fill_n(x.begin() + count, 16, -std::numeric_limits<float>::infinity());
  }
  void keep(const Scale& scale, const Kept& kept) {
    const int64_t listed = std::exchange(count, 0);
    for (int64_t i = 0; i < listed; ++i) {
      if (kept.has(scale, x[i])) push(tokens[i], x[i]);
    }
    fill_up();
  }
};

struct Workspace {
  std::vector<float> block_maxima;
  std::vector<float> sorted;
  Candidates candidates;
};

struct Scan {
  bool has_nan = false;
  float highest = -std::numeric_limits<float>::infinity();

  void operator+=(const Scan& other) {
    has_nan |= other.has_nan;
    highest = std::max(highest, other.highest);
  }
};

struct Winner {
  float score = -std::numeric_limits<float>::infinity();
  int64_t token = -1;
  float x = 0;

  void challenge(float other_score, int64_t other_token, float other_x) {
    if (other_score > score || (other_score == score && other_token < token))
      *this = {other_score, other_token, other_x};
  }
  void operator+=(const Winner& other) {
    if (other.token >= 0) challenge(other.score, other.token, other.x);
  }
};

struct Drawn {
  int64_t token = -1;
  float logprob = -std::numeric_limits<float>::infinity();
};

float logprob(const Scale& scale, float x, int64_t total_mass) {
  return total_mass == 0 ? 0.0f : scale.t(x) - log_of_mass(total_mass);
}

// Denormals count here, whatever torch.set_flush_denormal says of this thread.
class KeepDenormals {
 public:
#if defined(__x86_64__)
  KeepDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(saved_); }
  KeepDenormals(const KeepDenormals&) = delete;

 private:
  unsigned saved_;
#endif
};

// The threads that share a row: one, unless rows are too few to go round.
class Team {
 public:
  Team(int64_t size, const ParallelFor& parallel_for) : size_(size), parallel_for_(parallel_for) {}

  // Adds up part(begin, end) over [0, count).
  template <class Result, class Part>
  Result reduce(int64_t count, const Part& part) const {
    if (size_ == 1 || count < kWorthSharing) return part(0, count);
    std::vector<Result> results(size_);
    parallel_for_(size_, [&](int64_t i) {
      const KeepDenormals keep_denormals;
      results[i] = part(count * i / size_, count * (i + 1) / size_);
    });
    for (int64_t i = 1; i < size_; ++i) results[0] += results[i];
    return results[0];
  }

 private:
  int64_t size_;
  const ParallelFor& parallel_for_;
};

// -- one namespace for each set of instructions -----------------------------------------------------------------------

namespace plain {
#define STRUCTOUT_VECTOR_BITS 0
#include "masked_sample_lanes.h"
#include "masked_sample_row.h"
#undef STRUCTOUT_VECTOR_BITS
}  // namespace plain

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,popcnt,bmi,bmi2,lzcnt")
namespace avx2 {
#define STRUCTOUT_VECTOR_BITS 256
#include "masked_sample_lanes.h"
#include "masked_sample_row.h"
#undef STRUCTOUT_VECTOR_BITS
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,popcnt,bmi,bmi2,lzcnt,prefer-vector-width=512")
namespace avx512 {
#define STRUCTOUT_VECTOR_BITS 512
#include "masked_sample_lanes.h"
#include "masked_sample_row.h"
#undef STRUCTOUT_VECTOR_BITS
}  // namespace avx512
#pragma GCC pop_options
#endif

using SampleRow = Drawn (*)(const MaskedSampleParams&, int64_t, Workspace&, const Team&);

SampleRow sample_row() {
#if defined(__x86_64__)
  switch (capability()) {
    case Capability::kAvx512:
      return avx512::sample_row;
    case Capability::kAvx2:
      return avx2::sample_row;
    default:
      break;
  }
#endif
  return plain::sample_row;
}

}  // namespace

void masked_sample(const MaskedSampleParams& params, int64_t num_threads, const ParallelFor& parallel_for) {
  const SampleRow sample = sample_row();
  const auto draw_row = [&](int64_t row, const Team& team) {
    thread_local Workspace workspace;
    const KeepDenormals keep_denormals;
    const Drawn drawn = sample(params, row, workspace, team);
    params.ids[row] = drawn.token;
    if (params.logprobs != nullptr) params.logprobs[row] = drawn.logprob;
  };
  if (params.num_rows < num_threads) {
    const Team all(num_threads, parallel_for);
    for (int64_t row = 0; row < params.num_rows; ++row) draw_row(row, all);
  } else {
    const Team alone(1, parallel_for);
    parallel_for(params.num_rows, [&](int64_t row) { draw_row(row, alone); });
  }
}

}  // namespace structout::cpu
