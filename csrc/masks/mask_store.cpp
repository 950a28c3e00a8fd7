#include "masks/mask_store.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace structout::engine {

namespace {

constexpr size_t kMaxKeptBytes = 64u << 20;   // masks beyond are computed each time
constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words
constexpr size_t kBytesPerKeptMask = 128;     // of the deque and the table, roughly

// Lists the set bits of word(0) ... word(count - 1). False if there are more than `most`.
template <typename Word>
bool list_bits(uint32_t count, size_t most, Word word, std::vector<uint32_t>& bits) {
  constexpr uint32_t kBlock = 16;
  for (uint32_t begin = 0; begin < count; begin += kBlock) {
    uint32_t end = std::min(count, begin + kBlock), any = 0;
    for (uint32_t i = begin; i < end; ++i) any |= word(i);
    for (uint32_t i = begin; i < end && any != 0; ++i) {
      for (uint32_t left = word(i); left != 0; left &= left - 1) {
        if (bits.size() == most) return false;
        bits.push_back(i << 5 | uint32_t(__builtin_ctz(left)));
      }
    }
  }
  return true;
}

}  // namespace

Mask MaskStore::smallest_form(const uint32_t* row) const {
  uint32_t words = vocabulary_->row_words();
  size_t most = words / kWordsPerListedToken;
  const std::vector<uint32_t>& text = vocabulary_->text_row();
  std::vector<uint32_t> allowed, differing;
  bool is_short = list_bits(words, most, [&](uint32_t i) { return row[i]; }, allowed);
  if (is_short) most = allowed.size();
  bool is_other_shorter = list_bits(words, most, [&](uint32_t i) { return text[i] ^ row[i]; }, differing);
  if (is_other_shorter && !(is_short && allowed.size() <= differing.size())) {
    differing.shrink_to_fit();
    return {MaskKind::kDiffering, std::move(differing)};
  }
  if (!is_short) return {MaskKind::kRow, std::vector<uint32_t>(row, row + words)};
  allowed.shrink_to_fit();
  return {MaskKind::kAllowed, std::move(allowed)};
}

void MaskStore::expand(const Mask& mask, uint32_t* row) const {
  size_t row_bytes = vocabulary_->row_words() * sizeof(uint32_t);
  switch (mask.kind) {
    case MaskKind::kRow:
      std::memcpy(row, mask.words.data(), row_bytes);
      break;
    case MaskKind::kAllowed:
      std::memset(row, 0, row_bytes);
      for (uint32_t token : mask.words) row[token >> 5] |= 1u << (token & 31);
      break;
    case MaskKind::kDiffering:
      std::memcpy(row, vocabulary_->text_row().data(), row_bytes);
      for (uint32_t token : mask.words) row[token >> 5] ^= 1u << (token & 31);
      break;
  }
}

const Mask* MaskStore::add(const uint32_t* row) {
  Mask mask = smallest_form(row);
  size_t size = mask.words.size() * sizeof(uint32_t);
  uint64_t hash = mix(hash_bytes(reinterpret_cast<const uint8_t*>(mask.words.data()), size), uint64_t(mask.kind));
  std::lock_guard<std::mutex> lock(mutex_);
  auto [first, last] = by_hash_.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    if (found->second->kind == mask.kind && found->second->words == mask.words) return found->second;
  }
  if (bytes_ + size > kMaxKeptBytes) return nullptr;
  bytes_ += size + kBytesPerKeptMask;
  mask.slot = uint32_t(masks_.size());
  masks_.push_back(std::move(mask));
  by_hash_.emplace(hash, &masks_.back());
  return &masks_.back();
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
