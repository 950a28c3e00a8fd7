// The threads that share a row: one, unless rows are too few to go round.
#pragma once

#include <vector>

#include "cpu/keep_denormals.h"
#include "cpu/masked_sample.h"

namespace structout::cpu {

constexpr int64_t kBlock = 64;           // tokens that are looked at, or passed over, together
constexpr int64_t kWorthSharing = 1024;  // blocks of a row, below which one thread is faster than two

class Team {
 public:
  Team(int64_t size, const ParallelFor& parallel_for) : size_(size), parallel_for_(parallel_for) {}

  // Adds up part(begin, end) over blocks [0, count).
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

}  // namespace structout::cpu
