// The masks of a step as a message to other processes, which have read all earlier ones.
//
// A mask is told once, as its base and the tokens that differ, and a base once as its words;
// after that both are numbers. Readers know each mask's base, so they too write only what
// differs. After a restart all masks are told again, under a new generation.
//
//   message   generation, the number of masks told before, the number of rows, the rows
//   row       kTold, number of a mask, changes
//             kNew, base, tokens that differ from it, changes: the next mask
//             kWhole, words
//             kRepeated, index of an earlier row of this message that is kWhole
//   base      a number; the next one is followed by the base's words
//   changes   tokens whose bits differ from the mask in this row only
//   tokens    how many there are, and these
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "masks/mask_buffer.h"
#include "masks/mask_row.h"
#include "masks/unique_number.h"

namespace structout::engine {

// A message tells of masks that its reader has not read of. It can go on after a restart.
struct MissedMasks : std::runtime_error {
  MissedMasks() : std::runtime_error("the message refers to masks of a message that was not read") {}
};

class MaskSender {
 public:
  // `most_bytes`: of masks that each reader keeps, above which the next message is a restart.
  explicit MaskSender(size_t most_bytes = 32 << 20) : most_bytes_(most_bytes) {}

  // The first rows of a buffer.
  std::vector<uint32_t> message(MaskBuffer& masks, size_t num_rows);

  // Lets the next message be one that all can read.
  void restart();

 private:
  void append_base(std::vector<uint32_t>& message, const uint32_t* row, size_t num_words, const RowContent& content);

  const size_t most_bytes_;
  size_t bytes_ = 0;
  uint32_t generation_ = 1;
  std::unordered_map<RowKey, uint32_t> masks_, bases_;  // their numbers
};

// Reads the messages of one sender.
class MaskReceiver {
 public:
  // Writes the rows of a message to a buffer, from `first_row` on. Throws MissedMasks, or
  // std::invalid_argument for what is no message; rows may have been written by then.
  void write(const uint32_t* message, size_t size, MaskBuffer& masks, size_t first_row);

 private:
  struct KnownMask {
    RowKey key;
    uint32_t base;
    std::vector<uint32_t> flipped;
  };
  struct KnownBase {
    RowKey key;
    std::vector<uint32_t> words;  // empty for those of no and of all tokens
    BaseRow row() const { return {key, words.empty() ? nullptr : words.data()}; }
  };

  void begin(uint32_t generation);

  uint32_t generation_ = 0;
  uint32_t number_ = 0;  // of the generation, in this process
  std::vector<KnownMask> masks_;
  std::vector<KnownBase> bases_;
};

}  // namespace structout::engine
