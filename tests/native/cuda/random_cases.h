// Random cases of a program of this folder, whose command line is COUNT SEED.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

// Runs `run_case` with a generator. It returns whether the kernels do as they should.
template <class RunCase>
int run_random_cases(int argc, char** argv, RunCase run_case) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  std::mt19937_64 rng(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  for (int i = 0; i < count; ++i) {
    if (run_case(rng)) continue;
    std::printf("case %d differs\n", i);
    return 1;
  }
  std::printf("%d cases agree\n", count);
  return 0;
}
