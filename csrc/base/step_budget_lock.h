// Locks for data that threads share, which respect the StepBudget of the thread.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

#include "base/limits.h"

namespace structout::engine {

// Holds a mutex. If this thread has a StepBudget that may not wait, it throws
// StepBudgetExceeded after 20 tries, 20 microseconds apart.
class LookupLock {
 public:
  explicit LookupLock(std::mutex& mutex) : lock_(mutex, std::defer_lock) {
    StepBudget* step_budget = StepBudget::present();
    if (step_budget == nullptr || step_budget->may_wait()) {
      lock_.lock();
    } else {
      for (int i = 0; !lock_.try_lock(); ++i) {
        if (i == kMaxTries) throw StepBudgetExceeded();
        std::this_thread::sleep_for(kBetweenTries);
      }
    }
  }

 private:
  static constexpr int kMaxTries = 20;
  static constexpr std::chrono::microseconds kBetweenTries{20};

  std::unique_lock<std::mutex> lock_;
};

// A LookupLock under which the steps of a budget count against the StepBudget of this
// thread.
class StepBudgetLock {
 public:
  StepBudgetLock(std::mutex& mutex, Budget& budget) : lock_(mutex), budget_(budget) {
    budget.draw_from(StepBudget::present());
  }
  ~StepBudgetLock() { budget_.draw_from(nullptr); }
  StepBudgetLock(const StepBudgetLock&) = delete;

 private:
  LookupLock lock_;
  Budget& budget_;
};

}  // namespace structout::engine
