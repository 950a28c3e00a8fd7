// Checks the JSON types of the values of keywords.
#pragma once

#include "json/document/document.h"
#include "json/document/value.h"

namespace structout::json {

// Throws SchemaError if the value of a keyword, or one of its elements, has a type that
// no draft gives it: {"minLength": "3"} is refused. Inner schemas are not checked.
void check_keyword_types(const Document& document, const Value& schema);

}  // namespace structout::json
