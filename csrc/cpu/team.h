// The threads that sample one row together. There is more than one if there are fewer
// rows than threads.
#pragma once

#include <vector>

#include "cpu/keep_denormals.h"
#include "cpu/parallel_for.h"

namespace structout::cpu {

constexpr int64_t kBlock = 128;            // tokens that are read or skipped together
constexpr int64_t kMinSharedBlocks = 512;  // a row of fewer blocks is faster on one thread than on two

class Team {
 public:
  Team(int64_t size, const ParallelFor& parallel_for) : size_(size), parallel_for_(parallel_for) {}

  // The sum of part(begin, end) over blocks [0, count), split among the threads.
  template <class Result, class Part>
  Result reduce(int64_t count, const Part& part) const {
    if (size_ == 1 || count < kMinSharedBlocks) return part(0, count);
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
