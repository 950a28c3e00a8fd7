// A lock for what threads share, and an allowance may bound the work on.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

#include "base/limits.h"

namespace structout::engine {

// Holds a mutex. Unless the allowance of this thread may wait, it does not wait for a thread
// that takes long, but throws OverAllowance.
class LookupLock {
 public:
  explicit LookupLock(std::mutex& mutex) : lock_(mutex, std::defer_lock) {
    WorkAllowance* allowance = WorkAllowance::present();
    if (allowance == nullptr || allowance->may_wait()) {
      lock_.lock();
    } else {
      for (int i = 0; !lock_.try_lock(); ++i) {
        if (i == kMaxTries) throw OverAllowance();
        std::this_thread::sleep_for(kBetweenTries);
      }
    }
  }

 private:
  static constexpr int kMaxTries = 20;
  static constexpr std::chrono::microseconds kBetweenTries{20};

  std::unique_lock<std::mutex> lock_;
};

// One that lets a budget draw from the allowance.
class AllowanceLock {
 public:
  AllowanceLock(std::mutex& mutex, Budget& budget) : lock_(mutex), budget_(budget) {
    budget.draw_from(WorkAllowance::present());
  }
  ~AllowanceLock() { budget_.draw_from(nullptr); }
  AllowanceLock(const AllowanceLock&) = delete;

 private:
  LookupLock lock_;
  Budget& budget_;
};

}  // namespace structout::engine
