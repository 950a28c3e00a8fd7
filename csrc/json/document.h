// A JSON Schema document: its draft, and where its references lead.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "json/value.h"

namespace structout::json {

class Document {
 public:
  // Throws SchemaError for what is no JSON text.
  explicit Document(const std::string& text);
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  const Value& root() const { return root_; }

  // The draft that $schema names, 2020 by default.
  int draft() const { return draft_; }

  // Whether the draft has a keyword. Drafts keep those of earlier ones, except for a few
  // that are still in use everywhere.
  bool has_keyword(std::string_view keyword) const;

  // The value of a keyword of an object schema, or null.
  const Value* find(const Value& schema, std::string_view keyword) const {
    const Value* value = schema.find(keyword);
    return value != nullptr && has_keyword(keyword) ? value : nullptr;
  }

  // The schema that a reference in `schema` leads to. Throws SchemaError if it is not in
  // the document.
  const Value& target(const Value& schema, const std::string& reference, bool is_dynamic) const;

  // A JSON pointer to a part of the document.
  std::string pointer_to(const Value& part) const;

 private:
  void find_identifiers(const Value& schema, const std::string& base);

  Value root_;
  int draft_;
  std::unordered_map<std::string, const Value*> by_identifier_;      // absolute ones, with anchors
  std::unordered_map<std::string, int> num_dynamic_anchors_;         // by name
  std::unordered_map<const Value*, std::string> bases_;              // of schemas with an identifier of their own
  std::unordered_map<const Value*, const Value*> enclosing_schema_;  // the innermost with such an identifier
};

}  // namespace structout::json
