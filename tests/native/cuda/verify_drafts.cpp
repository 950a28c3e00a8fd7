// The CUDA kernel of verify_drafts on the CPU: a program (COUNT SEED) that runs random
// cases in buffers of exactly the right size.
#include "cuda/verify_drafts.cu"

#include <vector>

#include "random_cases.h"

using namespace structout;

bool run_random_case(std::mt19937_64& rng) {
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); };
  const int64_t num_requests = below(300), stride = 1 + below(2);
  const bool is_int64 = below(2);
  std::vector<int32_t> ends{0};
  for (int64_t i = 0; i < num_requests; ++i) ends.push_back(ends.back() + static_cast<int32_t>(below(6)));
  const int64_t num_tokens = ends.back();
  if (below(4) == 0) ends[below(num_requests + 1)] = static_cast<int32_t>(below(2000) - 1000);  // out of range
  const std::vector<int64_t> wide_ends(ends.begin(), ends.end());
  std::vector<int64_t> ids(num_tokens), drafts(num_tokens * stride);
  for (int64_t& id : ids) id = below(3) - (below(5) == 0);
  for (int64_t& draft : drafts) draft = below(3);
  if (below(2)) {
    for (int64_t i = 0; i < num_tokens; ++i) drafts[i * stride] = ids[i];
  }
  std::vector<int64_t> expected_ids = ids;
  std::vector<int32_t> accepted(num_requests, 77), expected_accepted(num_requests, 77);
  const void* indptr = is_int64 ? static_cast<const void*>(wide_ends.data()) : ends.data();
  VerifyDraftsParams params{num_requests,          num_tokens,
                            expected_ids.data(),   {drafts.data(), stride},
                            {indptr, 1, is_int64}, expected_accepted.data()};
  // Ranges that overlap, which only a damaged row_indptr has, are not compared: requests
  // run in no order.
  bool is_damaged = false;
  for (int64_t i = 0; i < num_requests; ++i)
    is_damaged |= ends[i] > ends[i + 1] || ends[i] < 0 || ends[i + 1] > num_tokens;
  for (int64_t i = 0; i < num_requests; ++i) params.run(i);
  params.ids = ids.data();
  params.num_accepted = accepted.data();
  if (is_damaged) return true;
  cuda::verify_drafts(params, nullptr);
  return ids == expected_ids && accepted == expected_accepted;
}

int main(int argc, char** argv) { return run_random_cases(argc, argv, run_random_case); }
