// Tests common/draw_bound.h on random tokens: a token that the bound rules out must
// have a score below it. Arguments: COUNT.
#include "common/draw_bound.h"

#include <cstdio>
#include <cstdlib>
#include <random>

using namespace structout;

int main(int, char** arguments) {
  const long count = std::atol(arguments[1]);
  std::mt19937_64 rng(0);
  for (long i = 0; i < count; ++i) {
    const float magnitude = std::ldexp(1.99f, static_cast<int>(rng() % 148) - 20);
    const float z = (static_cast<float>(rng() % 2000001) * 1e-6f - 1) * magnitude;
    // Small bits, which give high noise; the largest bits; and both sides of powers of
    // two, where the bound is tight.
    uint32_t bits = static_cast<uint32_t>(rng()) >> rng() % 32;
    if (rng() % 8 == 0) bits = ~static_cast<uint32_t>(rng() % 8);
    if (rng() % 4 == 0) bits = (1u << rng() % 32) + static_cast<uint32_t>(rng() % 5) - 2;
    const float score = z + gumbel(bits);
    const DrawBound bound(rng() % 2 ? score : std::nextafter(score, rng() % 2 ? INFINITY : -INFINITY));
    if (score < bound.score()) continue;
    const float log_limit = bound.log_limit(z);
    if (DrawBound::can_win(log_limit) && bits <= DrawBound::max_winning_bits(log_limit) &&
        bits >> 16 <= DrawBound::max_winning_coarse_bits(log_limit) && DrawBound::may_win(log_limit, bits >> 16))
      continue;
    std::printf("z %a, random bits %08x: passed over, but its score %a reaches the bound %a\n", z, bits, score,
                bound.score());
    return 1;
  }
  std::puts("ok");
}
