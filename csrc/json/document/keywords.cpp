#include "json/document/keywords.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace structout::json {

namespace {

const std::unordered_map<std::string_view, int> kFirstDraft = {
    {"const", 6},
    {"contains", 6},
    {"propertyNames", 6},
    {"if", 7},
    {"then", 7},
    {"else", 7},
    {"$anchor", 2019},
    {"$recursiveAnchor", 2019},
    {"$recursiveRef", 2019},
    {"contentSchema", 2019},
    {"dependentRequired", 2019},
    {"dependentSchemas", 2019},
    {"maxContains", 2019},
    {"minContains", 2019},
    {"unevaluatedItems", 2019},
    {"unevaluatedProperties", 2019},
    {"$dynamicAnchor", 2020},
    {"$dynamicRef", 2020},
    {"prefixItems", 2020},
};

// The last draft that reads a keyword. Later drafts keep all others.
const std::unordered_map<std::string_view, int> kLastDraft = {
    {"disallow", 3}, {"divisibleBy", 3}, {"extends", 3}, {"$recursiveAnchor", 2019}, {"$recursiveRef", 2019},
};

const std::unordered_map<std::string_view, SubschemaForm> kSubschemaForms = [] {
  std::unordered_map<std::string_view, SubschemaForm> all;
  for (std::string_view keyword :
       {"additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema", "disallow", "else",
        "extends", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then", "type", "unevaluatedItems",
        "unevaluatedProperties"}) {
    all[keyword] = SubschemaForm::kSchemas;
  }
  for (std::string_view keyword :
       {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}) {
    all[keyword] = SubschemaForm::kNamedSchemas;
  }
  return all;
}();

const std::unordered_map<std::string_view, Vocabulary> kVocabularies = [] {
  std::unordered_map<std::string_view, Vocabulary> all;
  for (std::string_view name :
       {"additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "dependentSchemas", "else", "if",
        "items", "not", "oneOf", "patternProperties", "prefixItems", "properties", "propertyNames", "then"}) {
    all[name] = Vocabulary::kApplicator;
  }
  for (std::string_view name :
       {"const",     "dependentRequired", "enum",          "exclusiveMaximum", "exclusiveMinimum", "maxContains",
        "maxItems",  "maxLength",         "maxProperties", "maximum",          "minContains",      "minItems",
        "minLength", "minProperties",     "minimum",       "multipleOf",       "pattern",          "required",
        "type",      "uniqueItems"}) {
    all[name] = Vocabulary::kValidation;
  }
  all["unevaluatedItems"] = all["unevaluatedProperties"] = Vocabulary::kUnevaluated;
  return all;
}();

}  // namespace

int draft_of(const Value& schema, int by_default) {
  const Value* named = schema.find("$schema");
  if (named == nullptr || !named->is_string()) return by_default;
  static constexpr std::array<std::pair<std::string_view, int>, 6> kDrafts = {{{"draft-03", 3},
                                                                               {"draft-04", 4},
                                                                               {"draft-06", 6},
                                                                               {"draft-07", 7},
                                                                               {"draft/2019-09", 2019},
                                                                               {"draft/2020-12", 2020}}};
  for (auto [name, draft] : kDrafts) {
    if (named->text.find(name) != std::string::npos) return draft;
  }
  return by_default;
}

bool draft_has_keyword(int draft, std::string_view keyword) {
  auto first = kFirstDraft.find(keyword);
  if (first != kFirstDraft.end() && draft < first->second) return false;
  auto last = kLastDraft.find(keyword);
  return last == kLastDraft.end() || draft <= last->second;
}

Vocabulary vocabulary_of(std::string_view keyword, int draft) {
  auto found = kVocabularies.find(keyword);
  if (found == kVocabularies.end()) return Vocabulary::kOther;
  bool is_own = found->second != Vocabulary::kUnevaluated || draft >= 2020;
  return is_own ? found->second : Vocabulary::kApplicator;
}

std::string vocabulary_prefix(int draft) {
  return draft == 2019 ? "https://json-schema.org/draft/2019-09/vocab/"
                       : "https://json-schema.org/draft/2020-12/vocab/";
}

bool is_annotation(std::string_view keyword) {
  static const std::unordered_set<std::string_view> kAnnotations = {
      "$comment", "$defs",       "default",  "definitions", "deprecated",
      "examples", "description", "readOnly", "title",       "writeOnly"};
  return kAnnotations.count(keyword) > 0;
}

SubschemaForm subschema_form(std::string_view keyword, int draft) {
  auto known = kSubschemaForms.find(keyword);
  return known == kSubschemaForms.end() || !draft_has_keyword(draft, keyword) ? SubschemaForm::kNone : known->second;
}

std::vector<const Value*> subschemas(const Value& schema, int draft) {
  std::vector<const Value*> found;
  if (!schema.is_object()) return found;
  for (size_t i = 0; i < schema.items.size(); ++i) {
    const Value& value = schema.items[i];
    if (!value.is_object() && !value.is_array()) continue;
    SubschemaForm form = subschema_form(schema.names[i], draft);
    if (form == SubschemaForm::kNone) continue;
    bool is_named = form == SubschemaForm::kNamedSchemas;
    if (is_named && value.is_array()) continue;
    if (is_named || value.is_array()) {
      for (const Value& each : value.items) found.push_back(&each);
    } else {
      found.push_back(&value);
    }
  }
  return found;
}

}  // namespace structout::json
