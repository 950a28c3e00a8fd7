// Plans the values of a schema before the first text begins.
#pragma once

#include "json/automaton/schema_automaton.h"

namespace structout::json {

// Visits values, objects and arrays of a schema breadth first, and makes the plans of their
// keys and items: so a schema with a value that exceeds a limit is refused at once, not in
// the middle of a text. The work is bounded, and schemas with few conditions are not
// rehearsed.
//
// Throws engine::LimitError, with the JSON pointer in the schema.
void rehearse(SchemaAutomaton& automaton);

}  // namespace structout::json
