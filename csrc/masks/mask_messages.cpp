#include "masks/mask_messages.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace structout::engine {

namespace {

enum RowCode : uint32_t { kTold, kNew, kWhole, kRepeated };

constexpr size_t kBytesBesideTokens = 64;  // that a reader keeps for each mask
// The numbers of the bases that need not be told.
constexpr uint32_t kBaseOfNone = 0, kBaseOfAll = 1;

void append_tokens(std::vector<uint32_t>& message, const std::vector<uint32_t>& tokens) {
  message.push_back(uint32_t(tokens.size()));
  message.insert(message.end(), tokens.begin(), tokens.end());
}

// The rows of a message that are told as a whole, so that equal ones are told once.
class WholeRows {
 public:
  WholeRows(MaskBuffer& masks) : masks_(masks) {}

  void append(std::vector<uint32_t>& message, size_t i) {
    const uint32_t* row = masks_.row(i);
    const size_t num_words = masks_.row_words();
    const uint64_t hash = hash_words(row, num_words);
    auto [first, last] = by_hash_.equal_range(hash);
    for (auto known = first; known != last; ++known) {
      if (!std::equal(row, row + num_words, masks_.row(known->second))) continue;
      message.insert(message.end(), {kRepeated, uint32_t(known->second)});
      return;
    }
    by_hash_.emplace(hash, i);
    message.push_back(kWhole);
    message.insert(message.end(), row, row + num_words);
  }

 private:
  MaskBuffer& masks_;
  std::unordered_multimap<uint64_t, size_t> by_hash_;
};

// Reads the words of a message one after the other.
class Words {
 public:
  Words(const uint32_t* words, size_t size) : next_(words), end_(words + size) {}

  const uint32_t* take(size_t count) {
    if (size_t(end_ - next_) < count) throw std::invalid_argument("a message of masks ends too soon");
    const uint32_t* taken = next_;
    next_ += count;
    return taken;
  }
  uint32_t one() { return *take(1); }
  std::vector<uint32_t> tokens(size_t num_words) {
    const size_t count = one();
    const uint32_t* first = take(count);
    check(std::all_of(first, first + count, [&](uint32_t token) { return token / 32 < num_words; }));
    return {first, first + count};
  }
  static void check(bool is_right) {
    if (!is_right) throw std::invalid_argument("a message of masks has a number that is out of range");
  }

 private:
  const uint32_t* next_;
  const uint32_t* end_;
};

}  // namespace

void MaskSender::restart() {
  masks_.clear();
  bases_ = {{kRowOfNone, kBaseOfNone}, {kRowOfAll, kBaseOfAll}};
  bytes_ = 0;
  ++generation_;
}

std::vector<uint32_t> MaskSender::message(MaskBuffer& masks, size_t num_rows) {
  if (bases_.empty() || bytes_ > most_bytes_) restart();
  std::vector<uint32_t> message = {generation_, uint32_t(masks_.size()), uint32_t(num_rows)};
  WholeRows whole(masks);
  for (size_t i = 0; i < num_rows; ++i) {
    const RowContent& content = masks.content(i);
    if (content.mask == kNoRow) {
      whole.append(message, i);
      continue;
    }
    auto [known, is_new] = masks_.try_emplace(content.mask, uint32_t(masks_.size()));
    if (!is_new) {
      message.insert(message.end(), {kTold, known->second});
    } else {
      message.push_back(kNew);
      append_base(message, masks.row(i), masks.row_words(), content);
      append_tokens(message, content.flipped);
      bytes_ += content.flipped.size() * sizeof(uint32_t) + kBytesBesideTokens;
    }
    append_tokens(message, content.overruled);
  }
  return message;
}

void MaskSender::append_base(std::vector<uint32_t>& message, const uint32_t* row, size_t num_words,
                             const RowContent& content) {
  auto [known, is_new] = bases_.try_emplace(content.base, uint32_t(bases_.size()));
  message.push_back(known->second);
  if (!is_new) return;
  message.insert(message.end(), row, row + num_words);
  uint32_t* words = message.data() + message.size() - num_words;
  for (const std::vector<uint32_t>* tokens : {&content.flipped, &content.overruled}) {
    for (uint32_t token : *tokens) words[token >> 5] ^= 1u << (token & 31);
  }
  bytes_ += num_words * sizeof(uint32_t);
}

void MaskReceiver::begin(uint32_t generation) {
  generation_ = generation;
  number_ = unique_number();
  masks_.clear();
  bases_.clear();
  bases_.push_back({kRowOfNone, {}});
  bases_.push_back({kRowOfAll, {}});
}

void MaskReceiver::write(const uint32_t* message, size_t size, MaskBuffer& masks, size_t first_row) {
  Words words(message, size);
  const uint32_t generation = words.one(), num_before = words.one(), num_rows = words.one();
  if (generation != generation_ && num_before == 0) begin(generation);
  if (generation != generation_ || num_before != masks_.size()) throw MissedMasks();
  Words::check(first_row <= masks.num_rows() && num_rows <= masks.num_rows() - first_row);
  const size_t num_words = masks.row_words();
  std::vector<const uint32_t*> whole(num_rows);
  RowWriter writer(masks, num_rows);
  for (size_t i = 0; i < num_rows; ++i) {
    const uint32_t code = words.one();
    if (code == kWhole || code == kRepeated) {
      if (code == kWhole) {
        whole[i] = words.take(num_words);
      } else {
        const uint32_t earlier = words.one();
        Words::check(earlier < i && whole[earlier] != nullptr);
        whole[i] = whole[earlier];
      }
      writer.write(first_row + i, [&](MaskRow& row) {
        std::memcpy(row.overwrite(), whole[i], num_words * sizeof(uint32_t));
        return true;
      });
      continue;
    }
    Words::check(code == kTold || code == kNew);
    uint32_t number = uint32_t(masks_.size());
    if (code == kTold) {
      number = words.one();
      Words::check(number < masks_.size());
    } else {
      const uint32_t base = words.one();
      Words::check(base <= bases_.size());
      if (base == bases_.size()) {
        const uint32_t* first = words.take(num_words);
        bases_.push_back({RowKey{number_} << 32 | 2 * base, {first, first + num_words}});
      }
      std::vector<uint32_t> flipped = words.tokens(num_words);
      const RowKey key = flipped.empty() ? bases_[base].key : RowKey{number_} << 32 | (2 * number + 1);
      masks_.push_back({key, base, std::move(flipped)});
    }
    const std::vector<uint32_t> changed = words.tokens(num_words);
    writer.write(first_row + i, [&](MaskRow& row) {
      const KnownMask& mask = masks_[number];
      row.write(mask.key, bases_[mask.base].row(), mask.flipped);
      for (uint32_t token : changed) row.set(token, !row.allows(token));
      return true;
    });
  }
}

}  // namespace structout::engine
