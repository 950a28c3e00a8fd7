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

// Runs `work`, which may turn out to be long: it starts again without Python's global lock
// then. What ends with OverAllowance must have changed nothing.
template <typename Work>
auto run_short_first(Work work) {
  try {
    WorkAllowance allowance(kShortWork);
    return work();
  } catch (const OverAllowance&) {
  }
  return run(true, work);
}

}  // namespace structout::engine
