// csrc/cpu/masked_sample.cpp without torch, as a library that tests/support/masked_sample_builds.py makes. Its include path
// says where csrc is.
#include "cpu/capability.cpp"
#include "cpu/masked_sample.cpp"

using namespace structout;

// Pretends to have `num_threads`: what they would do at the same time is done one by one, the last first. Returns how
// many tasks there were when work was first given out; 0 if it never was.
extern "C" int64_t masked_sample_on_cpu(const MaskedSampleParams* params, int64_t num_threads) {
  int64_t first_count = 0;
  cpu::masked_sample(*params, num_threads, [&](int64_t count, const std::function<void(int64_t)>& task) {
    if (first_count == 0) first_count = count;
    for (int64_t i = count; i-- > 0;) task(i);
  });
  return first_count;
}
