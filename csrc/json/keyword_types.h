// The types of the values that keywords have.
#pragma once

#include "json/document.h"
#include "json/value.h"

namespace structout::json {

// Throws SchemaError if the value of a keyword, or one of its elements, has a type that
// no draft gives it. Does not look into inner schemas.
void check_keyword_types(const Document& document, const Value& schema);

}  // namespace structout::json
