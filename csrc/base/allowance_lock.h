// Locks for data that threads share, which respect the WorkAllowance of the thread.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

#include "base/limits.h"

namespace structout::engine {

// Holds a mutex. If this thread has an allowance that may not wait, it throws
// OverAllowance after 20 tries, 20 microseconds apart.
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

// A LookupLock under which the steps of a budget count against the allowance of this
// thread.
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
