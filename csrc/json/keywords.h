// The keywords of JSON Schema's drafts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json/value.h"

namespace structout::json {

constexpr int kNewestDraft = 2020;

// The draft (3, 4, 6, 7, 2019 or 2020) that a schema names with $schema, or
// `by_default` if it names none of these.
int draft_of(const Value& schema, int by_default);

// Whether a draft has a keyword. Drafts keep those of earlier ones, even some that they
// have given up, because they are still in use everywhere.
bool draft_has_keyword(int draft, std::string_view keyword);

// The vocabularies of drafts from 2019-09 on that say which texts are valid.
enum class Vocabulary : uint8_t { kOther, kApplicator, kUnevaluated, kValidation };

// The vocabulary that defines a keyword in a draft.
Vocabulary vocabulary_of(std::string_view keyword, int draft);

// Where the names of a draft's vocabularies begin.
std::string vocabulary_prefix(int draft);

// Whether a keyword asks nothing of a value, as `title` does, or `$defs`.
bool is_annotation(std::string_view keyword);

// What the value of a keyword holds.
enum class Held : uint8_t {
  kNothing,       // no schemas
  kSchemas,       // a schema, or an array of schemas
  kNamedSchemas,  // an object whose values are schemas
};

Held held_by(std::string_view keyword, int draft);

// The schemas that stand in a schema of a draft, one level down.
std::vector<const Value*> subschemas(const Value& schema, int draft);

}  // namespace structout::json
