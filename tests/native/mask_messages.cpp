// Unit tests of masks/mask_messages.h: rows that come as messages are the rows that were sent.
#include "masks/mask_messages.h"

#include <algorithm>
#include <random>

#include "expect.h"

using namespace structout::engine;

namespace {

constexpr size_t kWords = 40, kRows = 12;
constexpr uint32_t kTokens = 32 * kWords;

// A buffer with its memory.
struct Rows {
  std::vector<uint32_t> memory = std::vector<uint32_t>(kWords * kRows, 0xDEADBEEF);
  MaskBuffer masks{reinterpret_cast<uintptr_t>(memory.data()), kWords * sizeof(uint32_t), kRows};
};

std::vector<uint32_t> random_tokens(std::mt19937& random, size_t most) {
  std::vector<uint32_t> tokens(random() % (most + 1));
  for (uint32_t& token : tokens) token = uint32_t(random() % kTokens);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

std::vector<uint32_t> random_words(std::mt19937& random) {
  std::vector<uint32_t> words(kWords);
  for (uint32_t& word : words) word = uint32_t(random());
  return words;
}

struct KnownMask {
  RowKey key;
  size_t base;
  std::vector<uint32_t> flipped;
};

// Writes rows as steps do: masks that were seen before and new ones, with and without tokens
// that are set later, and rows of unknown contents, some of which are equal.
class Steps {
 public:
  explicit Steps(unsigned seed) : random(seed) {}

  void write(Rows& rows) {
    const std::vector<uint32_t> computed = random_words(random);
    for (size_t i = 0; i < kRows; ++i) {
      MaskRow row(rows.masks.row(i), kWords, &rows.masks.content(i));
      if (random() % 6 == 0) {
        const std::vector<uint32_t> words = random() % 2 == 0 ? computed : random_words(random);
        std::copy(words.begin(), words.end(), row.overwrite());
        continue;
      }
      if (masks_.size() < 4 || random() % 4 == 0) add_mask();
      const KnownMask& mask = masks_[random() % masks_.size()];
      row.write(mask.key, base(mask.base), mask.flipped);
      for (size_t count = random() % 4; count > 0; --count) row.set(uint32_t(random() % 64), random() % 2 != 0);
    }
  }

  std::mt19937 random;

 private:
  BaseRow base(size_t i) const {
    return i == 0 ? kNoTokens : i == 1 ? kAllTokens : BaseRow{10 + i, bases_[i - 2].data()};
  }

  void add_mask() {
    if (random() % 8 == 0) bases_.push_back(random_words(random));
    const size_t chosen = random() % (bases_.size() + 2);
    std::vector<uint32_t> flipped = random_tokens(random, random() % 2 == 0 ? 0 : 30);
    RowKey key = flipped.empty() ? base(chosen).key : 1000 + masks_.size();
    masks_.push_back({key, chosen, flipped});
  }

  std::vector<std::vector<uint32_t>> bases_;
  std::vector<KnownMask> masks_;
};

void test_rows_arrive_as_they_were_sent() {
  Steps steps(1);
  MaskSender sender(4'000);  // restarts now and then
  MaskReceiver all, some;
  bool has_missed = false;
  size_t num_missed = 0, num_read = 0;
  Rows sent, of_all, of_some;
  for (size_t step = 0; step < 3'000; ++step) {
    steps.write(sent);
    const size_t num_rows = steps.random() % (kRows + 1), first_row = steps.random() % (kRows - num_rows + 1);
    const std::vector<uint32_t> message = sender.message(sent.masks, num_rows);
    auto expect_rows = [&](const Rows& rows) {
      EXPECT(std::equal(sent.memory.begin(), sent.memory.begin() + ptrdiff_t(num_rows * kWords),
                        rows.memory.begin() + ptrdiff_t(first_row * kWords)));
    };
    all.write(message.data(), message.size(), of_all.masks, first_row);
    expect_rows(of_all);
    if (steps.random() % 50 == 0) continue;  // the other one misses it
    try {
      some.write(message.data(), message.size(), of_some.masks, first_row);
      expect_rows(of_some);
      has_missed = false;
      ++num_read;
    } catch (const MissedMasks&) {
      ++num_missed;
      if (has_missed) sender.restart();  // it has asked for that
      has_missed = !has_missed;
    } catch (const std::invalid_argument&) {
      EXPECT(!"a sender's message is refused");
    }
  }
  EXPECT(num_missed > 20 && num_read > 2'000);
}

void test_masks_are_told_once() {
  Steps steps(2);
  MaskSender sender;
  Rows sent;
  steps.write(sent);
  for (size_t i = 0; i < kRows; ++i) {
    const uint32_t token = uint32_t(i);
    MaskRow(sent.masks.row(i), kWords, &sent.masks.content(i)).write(2000 + i / 2, kNoTokens, {token / 2});
  }
  const size_t first = sender.message(sent.masks, kRows).size(), again = sender.message(sent.masks, kRows).size();
  EXPECT(first == 3 + kRows / 2 * (5 + 3) && again == 3 + kRows * 3);
  MaskRow(sent.masks.row(0), kWords, &sent.masks.content(0)).overwrite()[0] ^= 1;
  const size_t whole = sender.message(sent.masks, kRows).size();
  EXPECT(whole == again - 3 + 1 + kWords);
}

void test_no_message_is_refused_without_harm() {
  Steps steps(3);
  MaskSender sender;
  size_t num_refused = 0;
  for (size_t step = 0; step < 3'000; ++step) {
    Rows sent, received;
    steps.write(sent);
    sender.restart();
    std::vector<uint32_t> message = sender.message(sent.masks, kRows);
    MaskReceiver receiver;
    receiver.write(message.data(), message.size(), received.masks, 0);
    message = sender.message(sent.masks, kRows);
    for (size_t count = 1 + steps.random() % 3; count > 0; --count) {
      uint32_t& word = message[steps.random() % message.size()];
      word = steps.random() % 2 == 0 ? uint32_t(steps.random()) : word + uint32_t(steps.random() % 3) - 1;
    }
    if (steps.random() % 4 == 0) message.resize(steps.random() % message.size());
    const std::vector<uint32_t> exact(message);  // nothing to read past its end
    try {
      receiver.write(exact.data(), exact.size(), received.masks, 0);
    } catch (const std::invalid_argument&) {
      ++num_refused;
    } catch (const MissedMasks&) {
      ++num_refused;
    }
  }
  EXPECT(num_refused > 1'000);
}

}  // namespace

int main() {
  test_rows_arrive_as_they_were_sent();
  test_masks_are_told_once();
  test_no_message_is_refused_without_harm();
  return 0;
}
