// A lock for what threads share, and an allowance may bound the work on.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

#include "base/limits.h"

namespace structout::engine {

// Holds a mutex, and lets a budget draw from the allowance of this thread. Unless the
// allowance may wait, it does not wait for a thread that takes long, but throws
// OverAllowance.
class AllowanceLock {
 public:
  AllowanceLock(std::mutex& mutex, Budget& budget) : lock_(mutex, std::defer_lock), budget_(budget) {
    WorkAllowance* allowance = WorkAllowance::present();
    if (allowance == nullptr || allowance->may_wait()) {
      lock_.lock();
    } else {
      for (int i = 0; !lock_.try_lock(); ++i) {
        if (i == kMaxTries) throw OverAllowance();
        std::this_thread::sleep_for(kBetweenTries);
      }
    }
    budget.draw_from(allowance);
  }
  ~AllowanceLock() { budget_.draw_from(nullptr); }
  AllowanceLock(const AllowanceLock&) = delete;

 private:
  static constexpr int kMaxTries = 20;
  static constexpr std::chrono::microseconds kBetweenTries{20};

  std::unique_lock<std::mutex> lock_;
  Budget& budget_;
};

}  // namespace structout::engine
