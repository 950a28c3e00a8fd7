// Unit tests of token_masks/mask_row.h: a row that is written as what differs holds what a row that
// is written as a whole does.
#include "token_masks/mask_row.h"

#include <algorithm>
#include <random>
#include <vector>

#include "expect.h"

using namespace structout::engine;

namespace {

constexpr size_t kWords = 40;  // not a multiple of what is streamed at once
constexpr uint32_t kTokens = 32 * kWords;

struct KnownMask {
  RowKey key;
  BaseRow base;
  std::vector<uint32_t> flipped;
};

// Masks of four bases, some of which flip few tokens, others many, or the same but one.
std::vector<KnownMask> random_masks(std::mt19937& random, const std::vector<uint32_t>& dense,
                                    const std::vector<uint32_t>& sparse) {
  std::vector<KnownMask> masks;
  RowKey key = 100;
  for (BaseRow base : {kNoTokens, kAllTokens, BaseRow{10, dense.data()}, BaseRow{11, sparse.data()}}) {
    masks.push_back({base.key, base, {}});
    for (size_t most : {1, 3, 60, 400}) {
      std::vector<uint32_t> tokens(1 + random() % most);
      for (uint32_t& token : tokens) token = uint32_t(random() % kTokens);
      std::sort(tokens.begin(), tokens.end());
      tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
      masks.push_back({key++, base, tokens});
      tokens.erase(tokens.begin() + ptrdiff_t(random() % tokens.size()));
      masks.push_back({key++, base, tokens});
    }
  }
  return masks;
}

void test_random_writes(bool is_streamed) {
  std::mt19937 random(is_streamed);
  auto random_row = [&](uint32_t rarity) {
    std::vector<uint32_t> row(kWords);
    for (uint32_t& word : row) word = uint32_t(random()) & uint32_t(random() % rarity == 0 ? UINT32_MAX : 0);
    return row;
  };
  const std::vector<uint32_t> dense = random_row(1), sparse = random_row(8);
  const std::vector<KnownMask> masks = random_masks(random, dense, sparse);
  std::vector<uint32_t> row(kWords + 1, 0xDEADBEEF), scratch(kWords), whole(kWords);
  RowContent content;
  auto write = [&](MaskRow& to, const std::vector<uint32_t>* words, const KnownMask& mask) {
    if (words != nullptr) {
      std::copy(words->begin(), words->end(), to.overwrite());
    } else {
      to.write(mask.key, mask.base, mask.flipped);
    }
  };
  for (int step = 0; step < 20'000; ++step) {
    {
      MaskRow written(row.data(), kWords, &content, is_streamed ? scratch.data() : nullptr);
      MaskRow plain(whole.data(), kWords);
      // Some masks are written over others at once, as where a limit is met while one is written.
      for (size_t times = 1 + random() % 3; times > 0; --times) {
        std::vector<uint32_t> computed = random_row(2);
        const std::vector<uint32_t>* words = random() % 16 == 0 ? &computed : nullptr;
        const KnownMask& mask = masks[random() % masks.size()];
        write(written, words, mask);
        write(plain, words, mask);
        for (size_t i = 0; words == nullptr && i < mask.flipped.size(); ++i) {
          uint32_t token = mask.flipped[i], at = token >> 5;
          uint32_t word = mask.base.words == nullptr ? mask.base.filler() : mask.base.words[at];
          EXPECT(plain.allows(token) != (word >> (token & 31) & 1));
        }
        for (size_t count = random() % 4; count > 0; --count) {
          uint32_t token = uint32_t(random() % 64);
          bool is_allowed = random() % 2 != 0;
          written.set(token, is_allowed);
          plain.set(token, is_allowed);
          EXPECT(written.allows(token) == is_allowed);
        }
        EXPECT(written.allows_any() == plain.allows_any());
      }
    }
    EXPECT(std::equal(whole.begin(), whole.end(), row.begin()));
    EXPECT(row.back() == 0xDEADBEEF);
  }
}

// Words that do not differ are not written: a change that the row was not told of stays.
void test_only_what_differs_is_written() {
  std::vector<uint32_t> row(kWords);
  RowContent content;
  auto write = [&](RowKey key, const BaseRow& base, const std::vector<uint32_t>& flipped) {
    MaskRow(row.data(), kWords, &content).write(key, base, flipped);
  };
  write(20, kNoTokens, {5, 70, 300});
  row[4] = 1;
  write(20, kNoTokens, {5, 70, 300});
  write(21, kNoTokens, {5, 70, 301});
  EXPECT(row[4] == 1);
  content.forget();
  write(21, kNoTokens, {5, 70, 301});
  EXPECT(row[4] == 0);
}

}  // namespace

int main() {
  test_random_writes(false);
  test_random_writes(true);
  test_only_what_differs_is_written();
  return 0;
}
