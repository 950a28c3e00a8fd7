// A rehearsal of the values that texts of a schema may come to.
#pragma once

#include "json/machine.h"

namespace structout::json {

// Asks a machine, before the first text begins, what it will ask of values: a schema of
// which some value exceeds a limit is refused at once, not in the middle of a text. The
// work is bounded, and schemas whose conditions are too few for a limit cost none.
//
// Throws engine::LimitError, with the place in the schema.
void rehearse(Machine& machine);

}  // namespace structout::json
