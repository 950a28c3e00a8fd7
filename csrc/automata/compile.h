// Compiles regular expressions and lists of texts into automata.
#pragma once

#include <string>
#include <vector>

#include "automata/automaton.h"
#include "automata/character_graph.h"
#include "base/limits.h"

namespace structout::engine {

// The texts that the whole of a pattern matches.
Automaton compile_regex(const std::string& pattern, const Limits& limits);

// JSON strings whose value has min_length ... max_length characters, and in which every
// pattern matches somewhere. Values may be spelled with any escapes.
Automaton compile_json_string(const std::vector<std::string>& patterns, uint32_t min_length, uint32_t max_length,
                              const Limits& limits);

// The contents (the bytes between the quotes) of the JSON strings in canonical spelling
// (Spelling::kJsonCanonical) in whose value the pattern matches somewhere.
Automaton compile_string_content(const std::string& pattern, const Limits& limits);

// The contents of all strings in a spelling of JSON. The start is the only accepting state;
// all other states are in the middle of a character.
Automaton any_string_content(Spelling spelling);

// The content of one string. Throws std::invalid_argument for what is not UTF-8.
std::string spelled_canonically(const std::string& utf8);

// The content of each of the strings.
Automaton exact_string_contents(const std::vector<std::string>& values);

// The automaton of a list of texts, which may come in any order. Time after sorting is
// linear in their total length.
Automaton compile_choices(std::vector<std::string> texts);

}  // namespace structout::engine
