// Signals between processes, through a word in shared memory. A reader that has waited
// for a value sees everything that was written before the value was posted.
#include <sched.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int64_t>& atomic_word(const Tensor& word) {
  static_assert(sizeof(std::atomic<int64_t>) == sizeof(int64_t) && std::atomic<int64_t>::is_always_lock_free);
  if (word.scalar_type() != ScalarType::Long || word.numel() != 1) {
    refuse("word must be a tensor of one int64, got ", dtype_name(word.scalar_type()), " ", shape_text(word));
  }
  return *static_cast<std::atomic<int64_t>*>(word.data_ptr());
}

void post_word(const Tensor& word, int64_t value) { atomic_word(word).store(value, std::memory_order_release); }

// Returns false if the word was still less than `value` after timeout_us. Posts usually
// come within microseconds, so the thread yields at first and sleeps only later.
bool await_word(const Tensor& word, int64_t value, int64_t timeout_us) {
  constexpr auto kYieldTime = std::chrono::milliseconds(2);
  constexpr auto kSleepTime = std::chrono::microseconds(50);
  const std::atomic<int64_t>& shared = atomic_word(word);
  const Clock::time_point begin = Clock::now();
  while (shared.load(std::memory_order_acquire) < value) {
    const auto waited = Clock::now() - begin;
    if (waited > std::chrono::microseconds(timeout_us)) return false;
    if (waited < kYieldTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleepTime);
    }
  }
  return true;
}

}  // namespace
}  // namespace structout

STABLE_TORCH_LIBRARY_IMPL(structout, CPU, ops) {
  ops.impl("_post_word", TORCH_BOX(&structout::post_word));
  ops.impl("_await_word", TORCH_BOX(&structout::await_word));
}
