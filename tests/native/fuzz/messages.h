// Messages of masks from other processes, as they may be damaged: a reader throws, or writes
// the same rows over what it has written before as to memory that it does not know.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "masks/mask_messages.h"
#include "texts.h"

namespace structout::fuzz {

constexpr size_t kMessageRows = 6, kMessageWords = 3;

// A reader, and the rows that it writes to.
struct MessageReader {
  std::vector<uint32_t> memory = std::vector<uint32_t>(kMessageRows * kMessageWords, 0xDEADBEEF);
  engine::MaskBuffer masks{reinterpret_cast<uintptr_t>(memory.data()), kMessageWords * sizeof(uint32_t), kMessageRows};
  engine::MaskReceiver receiver;

  bool read(const std::vector<uint32_t>& message) {
    try {
      receiver.write(message.data(), message.size(), masks, 1);
    } catch (const std::invalid_argument&) {
      return false;
    } catch (const engine::MissedMasks&) {
      return false;
    }
    return true;
  }
};

// A byte is a word, or the begin of one of four bytes. A message is its size and its words.
inline std::vector<std::vector<uint32_t>> messages_of(const uint8_t* bytes, size_t size) {
  std::vector<uint32_t> words;
  for (size_t i = 0; i < size; ++i) {
    words.push_back(bytes[i]);
    if (bytes[i] < 0xF0) continue;
    for (size_t end = std::min(size - 1, i + 3); i < end;) words.back() = words.back() << 8 | bytes[++i];
  }
  std::vector<std::vector<uint32_t>> messages;
  for (size_t i = 0; i < words.size();) {
    const size_t asked = words[i++];
    const size_t count = std::min(asked, words.size() - i);
    messages.emplace_back(words.begin() + ptrdiff_t(i), words.begin() + ptrdiff_t(i + count));
    i += count;
  }
  return messages;
}

inline void fuzz_messages(const uint8_t* bytes, size_t size) {
  MessageReader known, other;
  for (const std::vector<uint32_t>& message : messages_of(bytes, size)) {
    other.masks.forget(0, kMessageRows);
    const bool is_read = known.read(message);
    check(other.read(message) == is_read, "two readers of the same messages agree");
    const size_t num_rows = is_read ? message[2] : 0;
    const auto first = ptrdiff_t(kMessageWords), end = first + ptrdiff_t(num_rows * kMessageWords);
    check(std::equal(known.memory.begin() + first, known.memory.begin() + end, other.memory.begin() + first),
          "rows are the same over what is known and over what is not");
    check(known.memory[0] == 0xDEADBEEF, "a message writes to no row in front of its own");
  }
}

}  // namespace structout::fuzz
