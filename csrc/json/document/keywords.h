// The keywords of the drafts of JSON Schema.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json/document/value.h"

namespace structout::json {

constexpr int kNewestDraft = 2020;

// The draft (3, 4, 6, 7, 2019 or 2020) that a schema names with $schema, or
// `by_default` if it names none of these.
int draft_of(const Value& schema, int by_default);

// False if a keyword is newer than the draft. A draft has all keywords of earlier ones,
// such as `definitions` in 2020-12, because schemas still use them, except for five that no
// later draft reads, such as `extends`. Unknown keywords count as old ones.
bool draft_has_keyword(int draft, std::string_view keyword);

// The vocabularies (groups of keywords, from draft 2019-09 on) that constrain values. All
// other keywords, such as `$ref` and `format`, are kOther.
enum class Vocabulary : uint8_t { kOther, kApplicator, kUnevaluated, kValidation };

// The vocabulary that defines a keyword in a draft.
Vocabulary vocabulary_of(std::string_view keyword, int draft);

// The common beginning of the URIs of a draft's vocabularies, for drafts from 2019-09 on.
std::string vocabulary_prefix(int draft);

// True for keywords that restrict no value, such as `title` or `$defs`.
bool is_annotation(std::string_view keyword);

// The way in which the value of a keyword contains subschemas.
enum class SubschemaForm : uint8_t {
  kNone,          // no schemas
  kSchemas,       // a schema, or an array of schemas
  kNamedSchemas,  // an object whose values are schemas
};

SubschemaForm subschema_form(std::string_view keyword, int draft);

// The schemas one level down in a schema of a draft. The list may have booleans and strings
// too, as from `properties` or `type`.
std::vector<const Value*> subschemas(const Value& schema, int draft);

}  // namespace structout::json
