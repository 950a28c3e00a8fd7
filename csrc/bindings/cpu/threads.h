// Parallel loops on torch's own threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace structout::cpu {

// Each thread takes the next task when it has finished one, because the cost of tasks
// differs a hundredfold.
template <class Task>
void parallel_for(int64_t count, int64_t num_threads, const Task& task) {
  std::atomic<int64_t> next{0};
  const auto take_tasks = [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(i);
  };
  if (num_threads == 1 || count == 1) return take_tasks(0, 1);
  torch::stable::parallel_for(0, std::min(num_threads, count), 1, take_tasks);
}

inline void spread_over_threads(int64_t count, const std::function<void(int64_t)>& task) {
  parallel_for(count, torch::stable::get_num_threads(), task);
}

}  // namespace structout::cpu
