// Files of automata and token indices, as they may be damaged: a loader throws, or returns
// what would be saved as the same bytes.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "automata/automaton.h"
#include "base/byte_stream.h"
#include "draws.h"
#include "language/index_matcher.h"
#include "texts.h"
#include "token_masks/token_index.h"

namespace structout::fuzz {

inline void load_automaton(const std::string& bytes, Draws& draws) try {
  engine::Automaton automaton = engine::Automaton::deserialize(bytes);
  check(automaton.serialize() == bytes, "an automaton that is loaded is saved as the same bytes");
  if (automaton.num_states() == 0) return;
  auto index = std::make_shared<engine::TokenIndex>(automaton, vocabulary());
  check(engine::TokenIndex::deserialize(index->serialize(), vocabulary())->automaton() == automaton,
        "a saved token index is loaded as it was");
  engine::IndexMatcher matcher(index, {stop_token()});
  read_text(matcher, draws);
} catch (const std::invalid_argument&) {
}

inline void load_index(const std::string& bytes) try {
  std::shared_ptr<engine::TokenIndex> index = engine::TokenIndex::deserialize(bytes, vocabulary());
  check(index->serialize() == bytes, "a token index that is loaded is saved as the same bytes");
} catch (const std::invalid_argument&) {
}

// With the checksum that the bytes should have, so that damage comes to what is behind it.
inline std::string with_checksum(const std::string& bytes) {
  engine::ByteWriter writer;
  writer.write(bytes);
  return writer.finished();
}

// The first byte tells what the others are: a file, or one without its checksum.
inline void fuzz_saved(const uint8_t* bytes, size_t size) {
  if (size == 0) return;
  std::string rest(reinterpret_cast<const char*>(bytes + 1), size - 1);
  Draws draws(rest);
  switch (bytes[0] % 4) {
    case 0:
      return load_automaton(rest, draws);
    case 1:
      return load_automaton(with_checksum(rest), draws);
    case 2:
      return load_index(rest);
    default:
      return load_index(with_checksum(rest));
  }
}

}  // namespace structout::fuzz
