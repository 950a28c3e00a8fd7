// Searches for values that complete a position.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "json/position.h"

namespace structout::json {

// True if the item that a frame waits for can be completed so that it differs from the
// earlier ones, in the array around it and in those inside of it. A search without a limit
// on its bytes, for positions that counts cannot decide (Position::outlook()).
bool can_complete(const Position& position, const Frame* item);

// Bytes that complete the text of a position, without spaces. None if none are found soon.
std::optional<std::string> some_completion(const Position& position);

// As some_completion(), but a shortest completion if a search breadth first finds it soon.
std::optional<std::string> short_completion(const Position& position);

// Counts the different values that go on from a state without a stack, up to `max`. Fewer
// if the search gives up.
size_t num_different_values(Machine& machine, State start, size_t max);

}  // namespace structout::json
