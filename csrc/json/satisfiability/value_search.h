// Searches for values that complete a configuration.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "json/automaton/configuration.h"

namespace structout::json {

// True if the item that a frame waits for can be completed so that it differs from the
// earlier ones, in the array around it and in those inside of it. A search without a limit
// on its bytes, for configurations that counts cannot decide (Configuration::outlook()).
bool can_complete(const Configuration& config, const Frame* item);

// Allowed bytes that complete the text of a configuration, without spaces. None if `max_reads`
// of them do not lead there.
std::optional<std::string> some_completion(const Configuration& config, uint64_t max_reads = 1 << 16);

// As some_completion(), but a shortest completion if a search breadth first finds it soon.
std::optional<std::string> short_completion(const Configuration& config);

// Counts the different values that continue from a state without a stack, up to `max`.
// Fewer if the search gives up.
size_t num_different_values(SchemaAutomaton& automaton, State start, size_t max);

}  // namespace structout::json
