// cpu/masked_sample.cpp without torch, as a library.
// tests/support/masked_sample_builds.py builds it and sets the include path to csrc, or
// to a changed copy of it.
#include "cpu/capability.cpp"
#include "cpu/masked_sample.cpp"

using namespace structout;

// Samples as if with `num_threads` threads, but runs the tasks one after another, the
// last first. Returns the number of tasks of the first parallel loop; 0 if there was
// none.
extern "C" int64_t masked_sample_on_cpu(const MaskedSampleParams* params, int64_t num_threads) {
  int64_t first_count = 0;
  cpu::masked_sample(*params, num_threads, [&](int64_t count, const std::function<void(int64_t)>& task) {
    if (first_count == 0) first_count = count;
    for (int64_t i = count; i-- > 0;) task(i);
  });
  return first_count;
}
