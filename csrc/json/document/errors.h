// Errors about schemas.
#pragma once

#include <stdexcept>
#include <string>

#include "base/limits.h"

namespace structout::json {

// kMalformed: the text is not JSON or not a JSON Schema. kUnsupported: a schema that this
// engine refuses. kImpossible: no value satisfies the schema.
enum class ErrorKind { kMalformed, kUnsupported, kImpossible };

class SchemaError : public std::runtime_error {
 public:
  // `pointer`: to the part of the schema that is at fault, such as #/properties/a.
  SchemaError(ErrorKind kind, const std::string& message, std::string pointer = "")
      : std::runtime_error(message), kind(kind), pointer(std::move(pointer)) {}

  ErrorKind kind;
  std::string pointer;
};

using engine::CacheFull;

}  // namespace structout::json
