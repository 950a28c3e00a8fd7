#include "token_masks/string_tokens.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "automata/compile.h"
#include "token_masks/character_classes.h"
#include "token_masks/vocabulary.h"

namespace structout::engine {

namespace {

constexpr uint32_t kBoundary = 0;  // the state of strings between two characters

}  // namespace

StringTokens::StringTokens(const VocabularyTrie& vocabulary)
    : inner_row(vocabulary.row_words()), canonical_row(vocabulary.row_words()), plain_row(vocabulary.row_words()) {
  const Automaton strings = any_string_content(Spelling::kJson);
  const Automaton canonical_strings = any_string_content(Spelling::kJsonCanonical);
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary.nodes();
  struct Reading {
    uint32_t state = kBoundary;      // of the automaton of strings; kDead after the string
    uint32_t canonical = kBoundary;  // the same of canonical strings, in the string
    bool is_plain = true;
    uint32_t last_bytes = 0;  // three of them
    uint32_t num_characters = 0;
    uint64_t character_class = 0;  // of the last one that is not in ASCII
    uint32_t exit_begin = 0;       // after the quote that ends the string, if one does
    uint32_t num_openings = 0;     // brackets, and commas and colons that do not follow one another
    bool is_after_separator = false;
  };
  std::vector<Reading> readings(vocabulary.max_depth() + 2);  // before each depth
  std::vector<uint8_t> is_special(nodes.size());
  std::vector<uint32_t> ancestors(vocabulary.max_depth() + 1);
  std::unordered_map<std::string, uint32_t> exit_numbers;
  std::vector<std::string> exit_texts;
  num_plain_before.push_back(0);
  rows_up_to.assign(kNumLengths, std::vector<uint32_t>(vocabulary.row_words()));
  for (uint32_t node = 0, position = 0; node < nodes.size(); ++node) {
    const uint32_t depth = nodes[node].depth;
    const uint8_t last_byte = nodes[node].byte;
    ancestors[depth] = node;
    Reading reading = readings[depth];
    is_after_plain.push_back(reading.state == kBoundary && reading.is_plain);
    bool breaks_character = last_byte < 0x80 && reading.state != kDead && reading.state != kBoundary;
    if (reading.state != kDead) {
      bool ends_string = last_byte == '"' && strings.accepts(reading.state);
      if (ends_string) {
        reading.exit_begin = depth + 1;
        max_before_end = std::max(max_before_end, reading.num_characters);
      }
      reading.state = strings.next(reading.state, last_byte);
      if (reading.canonical != kDead && !ends_string) {
        reading.canonical = canonical_strings.next(reading.canonical, last_byte);
      }
      reading.last_bytes = (reading.last_bytes << 8 | last_byte) & 0xFFFFFF;
      bool is_separator = reading.last_bytes == 0xE280A8 || reading.last_bytes == 0xE280A9;
      reading.is_plain = reading.is_plain && last_byte != '\\' && !is_separator;
      if (reading.state == kBoundary) ++reading.num_characters;
    }
    bool is_in_character = last_byte >= 0x80 && reading.state != kDead && reading.is_plain;
    if (is_in_character && last_byte >= 0xC0) reading.character_class = class_of_character(last_byte);
    uint64_t class_of_byte = is_in_character ? reading.character_class : class_of_ascii(last_byte);
    classes.push_back(breaks_character ? kOtherCharacters : class_of_byte);
    bool separates = last_byte == ',' || last_byte == ':';
    reading.num_openings += last_byte == '[' || (separates && !reading.is_after_separator);
    if (last_byte != ' ') reading.is_after_separator = separates;
    max_openings = std::max(max_openings, reading.num_openings);
    readings[depth + 1] = reading;
    for (; position < nodes[node].tokens_end; ++position) {
      uint32_t token = vocabulary.tokens()[position];
      bool is_inner_token = reading.state != kDead, is_plain = is_inner_token && reading.is_plain;
      if (reading.canonical != kDead) canonical_row[token >> 5] |= 1u << (token & 31);
      if (is_inner_token) {
        inner_row[token >> 5] |= 1u << (token & 31);
        if (reading.state != kBoundary) unfinished.push_back(token);
      } else if (reading.exit_begin == depth + 1) {
        tokens_that_end.push_back(token);
      } else if (reading.exit_begin != 0) {
        const uint8_t* exit = vocabulary.begin(token) + reading.exit_begin;
        auto [found, is_new] =
            exit_numbers.try_emplace(std::string(exit, vocabulary.end(token)), uint32_t(exit_texts.size()));
        if (is_new) {
          exit_texts.push_back(found->first);
          tokens_of_exit.emplace_back();
        }
        tokens_of_exit[found->second].push_back(token);
      }
      if (is_plain) {
        plain.push_back(token);
        plain_row[token >> 5] |= 1u << (token & 31);
      } else if (is_inner_token || reading.exit_begin != 0) {
        for (uint32_t above = 0; above <= depth; ++above) is_special[ancestors[above]] = 1;
      }
      num_plain_before.push_back(uint32_t(plain.size()));
      uint32_t length = reading.num_characters + (is_inner_token && reading.state != kBoundary);
      if (length < kNumLengths) {
        rows_up_to[length][token >> 5] |= 1u << (token & 31);
      } else {
        longer.emplace_back(length, token);
      }
    }
  }
  for (uint32_t length = 1; length < kNumLengths; ++length) {
    for (size_t i = 0; i < rows_up_to[length].size(); ++i) rows_up_to[length][i] |= rows_up_to[length - 1][i];
  }
  std::sort(longer.begin(), longer.end());
  exits = std::make_unique<const VocabularyTrie>(exit_texts, false);
  height.resize(nodes.size());
  for (uint32_t node = uint32_t(nodes.size()); node-- > 0;) {
    for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
      height[node] = std::max(height[node], height[child] + 1);
      classes[node] |= classes[child];
    }
  }
  for (uint32_t node = 0; node < nodes.size(); ++node) {
    num_special_before.push_back(uint32_t(special_nodes.size()));
    if (is_special[node]) special_nodes.push_back(node);
  }
  num_special_before.push_back(uint32_t(special_nodes.size()));
}

StringTokens::~StringTokens() = default;

size_t StringTokens::memory_bytes() const {
  size_t num_listed = inner_row.capacity() + canonical_row.capacity() + plain_row.capacity() +
                      tokens_that_end.capacity() + unfinished.capacity() + plain.capacity() +
                      num_plain_before.capacity() + height.capacity() + special_nodes.capacity() +
                      num_special_before.capacity() + rows_up_to.size() * inner_row.size() + 2 * longer.capacity();
  for (const std::vector<uint32_t>& tokens : tokens_of_exit) num_listed += tokens.capacity();
  return num_listed * sizeof(uint32_t) + classes.capacity() * sizeof(uint64_t) + is_after_plain.capacity() +
         exits->memory_bytes();
}

}  // namespace structout::engine
