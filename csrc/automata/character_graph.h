// The spellings of one character of a set as an automaton: UTF-8, or JSON escapes such
// as \u00e9.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "automata/automaton.h"
#include "automata/code_points.h"

namespace structout::engine {

enum class Spelling : uint8_t {
  kUtf8,
  kJson,  // inside a JSON string: UTF-8, or any escape
  // Inside a JSON string, in one way: UTF-8, but \" \\ \b \f \n \r \t for these
  // characters, and \u00 with two lower-case digits for the other ones below U+0020.
  kJsonCanonical,
};

constexpr uint32_t kExit = UINT32_MAX;

// An acyclic automaton: deterministic, with shared ends. The last node is the entry;
// edges lead to earlier nodes, or to kExit after the character. Empty if there is no
// spelling.
using CharacterGraph = std::vector<std::vector<Edge>>;

// The graph of all characters of a normalized set.
CharacterGraph character_graph(const CodePointSet& set, Spelling spelling);

// The canonical spelling of a character of ASCII.
std::string canonical_spelling(char character);

}  // namespace structout::engine
