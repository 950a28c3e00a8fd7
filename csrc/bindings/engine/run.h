// Python's global lock. Work that may take long releases it; lookups keep it, because
// getting it back may take milliseconds.
#pragma once

#include <pybind11/pybind11.h>

#include "base/limits.h"

namespace structout::engine {

constexpr uint64_t kShortWork = 3'000;  // steps of a Budget: about 0.1 ms

// Runs `work`, without Python's global lock if it is long.
template <typename Work>
auto run(bool is_long, Work work) {
  if (!is_long) return work();
  pybind11::gil_scoped_release released;
  return work();
}

// Runs `work` for at most kShortWork steps, about 0.1 ms, and starts it again without
// Python's global lock if that is not enough. So `work` must change nothing if it
// throws StepBudgetExceeded.
template <typename Work>
auto run_short_first(Work work) {
  try {
    StepBudget step_budget(kShortWork);
    return work();
  } catch (const StepBudgetExceeded&) {
  }
  return run(true, work);
}

}  // namespace structout::engine
