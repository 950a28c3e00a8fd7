// A word in memory that processes share: what was written before it was posted is there for whoever has waited for it.
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
    refuse("a shared word must be one int64, got ", dtype_name(word.scalar_type()), " ", shape_text(word));
  }
  return *static_cast<std::atomic<int64_t>*>(word.data_ptr());
}

void post_word(const Tensor& word, int64_t value) { atomic_word(word).store(value, std::memory_order_release); }

// False: the word was still less when the time was up. Others are expected within microseconds, so at first this thread
// only lets others go first; after that it sleeps.
bool await_word(const Tensor& word, int64_t value, int64_t timeout_us) {
  constexpr auto kWakeful = std::chrono::milliseconds(2);
  constexpr auto kNap = std::chrono::microseconds(50);
  const std::atomic<int64_t>& shared = atomic_word(word);
  const Clock::time_point begin = Clock::now();
  while (shared.load(std::memory_order_acquire) < value) {
    const auto waited = Clock::now() - begin;
    if (waited > std::chrono::microseconds(timeout_us)) return false;
    if (waited < kWakeful) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
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
