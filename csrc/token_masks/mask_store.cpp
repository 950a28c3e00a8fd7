#include "token_masks/mask_store.h"

#include <algorithm>

#include "base/hash.h"

namespace structout::engine {

namespace {

constexpr size_t kMaxKeptBytes = 64u << 20;   // masks beyond are computed each time
constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words
constexpr size_t kManyListedTokens = 256;     // it pays to look for another form
constexpr size_t kBytesPerKeptMask = 128;     // of the deque and the table, roughly

// Lists the set bits of word(0) ... word(count - 1). False if there are more than `most`.
template <typename Word>
bool list_bits(uint32_t count, size_t most, Word word, std::vector<uint32_t>& bits) {
  auto list = [&](uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      for (uint32_t left = word(i); left != 0; left &= left - 1) {
        if (bits.size() == most) return false;
        bits.push_back(i << 5 | uint32_t(__builtin_ctz(left)));
      }
    }
    return true;
  };
  constexpr uint32_t kBlock = 8;  // words, which compilers read as vectors
  uint32_t begin = 0;
  for (; begin + kBlock <= count; begin += kBlock) {
    uint32_t any = 0;
    for (uint32_t i = 0; i < kBlock; ++i) any |= word(begin + i);
    if (any != 0 && !list(begin, begin + kBlock)) return false;
  }
  return list(begin, count);
}

}  // namespace

Mask MaskStore::smallest_form(const uint32_t* row) {
  uint32_t words = vocabulary_->row_words();
  size_t most = words / kWordsPerListedToken;
  Mask smallest{MaskKind::kRow, {}};
  std::vector<uint32_t> bits;
  auto is_large = [&] { return smallest.kind == MaskKind::kRow || smallest.words.size() > kManyListedTokens; };
  auto try_form = [&](MaskKind kind, const Mask* base, auto word) {
    bits.clear();
    if (!list_bits(words, most, word, bits)) return false;
    bool is_smaller = smallest.kind == MaskKind::kRow || bits.size() < smallest.words.size();
    if (is_smaller) smallest = {kind, bits, base};
    most = smallest.words.size();
    return is_smaller;
  };
  const std::vector<uint32_t>& text = vocabulary_->text_row();
  try_form(MaskKind::kAllowed, nullptr, [&](uint32_t i) { return row[i]; });
  if (is_large()) try_form(MaskKind::kDiffering, nullptr, [&](uint32_t i) { return text[i] ^ row[i]; });
  size_t used = bases_.size();
  for (size_t i = 0; i < bases_.size() && is_large(); ++i) {
    const std::vector<uint32_t>& base = bases_[i]->words;
    if (try_form(MaskKind::kDiffering, bases_[i], [&](uint32_t at) { return base[at] ^ row[at]; })) used = i;
  }
  if (used < bases_.size()) {
    std::rotate(bases_.begin(), bases_.begin() + ptrdiff_t(used), bases_.begin() + ptrdiff_t(used) + 1);
  }
  if (smallest.kind == MaskKind::kRow) smallest.words.assign(row, row + words);
  return smallest;
}

bool MaskStore::are_equal(const Mask& mask, const uint32_t* row) {
  expanded_.resize(vocabulary_->row_words());
  expand(mask, expanded_.data());
  return std::equal(expanded_.begin(), expanded_.end(), row);
}

void MaskStore::expand(const Mask& mask, MaskRow& row) const {
  switch (mask.kind) {
    case MaskKind::kRow:
      row.write({key(mask), mask.words.data()});
      break;
    case MaskKind::kAllowed:
      row.write(key(mask), kNoTokens, mask.words);
      break;
    case MaskKind::kDiffering:
      row.write(key(mask),
                mask.base == nullptr ? vocabulary_->text_base() : BaseRow{key(*mask.base), mask.base->words.data()},
                mask.words);
      break;
  }
}

const Mask* MaskStore::add(const uint32_t* row) {
  uint64_t hash = hash_words(row, vocabulary_->row_words());
  std::lock_guard<std::mutex> lock(mutex_);
  auto [first, last] = by_hash_.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    if (are_equal(*found->second, row)) return found->second;
  }
  Mask mask = smallest_form(row);
  size_t size = mask.words.size() * sizeof(uint32_t);
  if (bytes_ + size > kMaxKeptBytes) return nullptr;
  bytes_ += size + kBytesPerKeptMask;
  mask.slot = uint32_t(masks_.size());
  masks_.push_back(std::move(mask));
  const Mask* added = &masks_.back();
  by_hash_.emplace(hash, added);
  if (added->kind == MaskKind::kRow) {
    bases_.insert(bases_.begin(), added);
    if (bases_.size() > kMaxCompared) bases_.pop_back();
  }
  return added;
}

uint32_t MaskStore::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return uint32_t(masks_.size());
}

size_t MaskStore::memory_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace structout::engine
