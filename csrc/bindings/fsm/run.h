// Python's global lock. Work that may take long releases it; lookups keep it, because
// getting it back may take milliseconds.
#pragma once

#include <pybind11/pybind11.h>

namespace structout::fsm {

// Runs `work`, without Python's global lock if it is long.
template <typename Work>
auto run(bool is_long, Work work) {
  if (!is_long) return work();
  pybind11::gil_scoped_release released;
  return work();
}

}  // namespace structout::fsm
