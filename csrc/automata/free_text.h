// Free text up to a tag or another stop text, as an automaton.
#pragma once

#include <string>
#include <vector>

#include "automata/branching.h"
#include "base/limits.h"

namespace structout::tags {

// Any UTF-8 text up to the first place where one of `stops` ends. None of `excluded` is in
// it in front of that stop; a stop itself may contain one. Exit `i` is open after the stop
// `i`; those that follow the stops, `num_anywhere` of them, are open wherever no character
// is begun, no stop has ended and no excluded text has.
//
// If several stops end at one place, the longest counts. A stop that ends earlier ends
// the search: the stop "<f=" is never found if "<f" is a stop too.
//
// The states are those of Aho and Corasick, "Efficient string matching: an aid to
// bibliographic search" (1975). Inside a character a state also has the UTF-8 state of
// its remaining bytes.
//
// Throws std::invalid_argument for texts that are empty or not UTF-8, and LimitError.
engine::Branching free_text(const std::vector<std::string>& stops, const std::vector<std::string>& excluded,
                            uint32_t num_anywhere, engine::Budget& budget);

}  // namespace structout::tags
