// Finds values that go on from a position.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "json/position.h"

namespace structout::json {

// Whether the item that a frame waits for can be completed so that it differs from the
// earlier ones, in the array around it and in those inside of it.
bool can_complete(const Position& position, const Frame* item);

// Bytes that complete the text of a position, without spaces. None if none are found soon.
std::optional<std::string> some_completion(const Position& position);

// The same, and the shortest ones if they are found soon: always, but where keys or items
// are remembered.
std::optional<std::string> short_completion(const Position& position);

// How many different values go on from a state without a stack, up to `max`.
size_t num_different_values(Machine& machine, State start, size_t max);

}  // namespace structout::json
