#include "fsm/mask_store.h"

#include <algorithm>
#include <cstring>

#include "fsm/hash.h"

namespace structout::fsm {

namespace {

constexpr size_t kMaxKeptBytes = 64u << 20;   // masks beyond are computed each time
constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words
constexpr size_t kBytesPerKeptMask = 128;     // of the deque and the table, roughly

// Without the processor's own instruction, which not all have, __builtin_popcount is a
// call. This adds the bits of many words byte by byte.
uint32_t num_bits(const uint32_t* words, size_t count) {
  constexpr uint64_t kOdd = 0x5555555555555555u, kPairs = 0x3333333333333333u, kNibbles = 0x0F0F0F0F0F0F0F0Fu;
  constexpr size_t kMaxAdded = 31;  // bytes of at most 8 bits each
  uint64_t total = 0;
  for (size_t i = 0; i < count;) {
    uint64_t sums = 0;
    for (size_t end = std::min(count, i + 2 * kMaxAdded); i < end; i += 2) {
      uint64_t bits = words[i] | (i + 1 < count ? uint64_t(words[i + 1]) << 32 : 0);
      if (bits == 0) continue;
      bits -= bits >> 1 & kOdd;
      bits = (bits & kPairs) + (bits >> 2 & kPairs);
      sums += (bits + (bits >> 4)) & kNibbles;
    }
    constexpr uint64_t kEvenBytes = 0x00FF00FF00FF00FFu;
    total += ((sums & kEvenBytes) + (sums >> 8 & kEvenBytes)) * 0x0001000100010001u >> 48;
  }
  return uint32_t(total);
}

}  // namespace

Mask MaskStore::smallest_form(const uint32_t* row) const {
  uint32_t words = vocabulary_->row_words(), most = words / kWordsPerListedToken;
  const std::vector<uint32_t>& text = vocabulary_->text_row();
  uint32_t num_allowed = num_bits(row, words);
  uint32_t num_forbidden = uint32_t(vocabulary_->tokens().size()) - num_allowed;
  if (std::min(num_allowed, num_forbidden) > most) return {MaskKind::kRow, std::vector<uint32_t>(row, row + words)};
  bool lists_allowed = num_allowed <= num_forbidden;
  Mask mask{lists_allowed ? MaskKind::kAllowed : MaskKind::kForbidden, {}};
  mask.words.reserve(std::min(num_allowed, num_forbidden));
  for (uint32_t i = 0; i < words; ++i) {
    for (uint32_t bits = lists_allowed ? row[i] : text[i] & ~row[i]; bits != 0; bits &= bits - 1) {
      mask.words.push_back(i << 5 | uint32_t(__builtin_ctz(bits)));
    }
  }
  return mask;
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
    case MaskKind::kForbidden:
      std::memcpy(row, vocabulary_->text_row().data(), row_bytes);
      for (uint32_t token : mask.words) row[token >> 5] &= ~(1u << (token & 31));
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

}  // namespace structout::fsm
