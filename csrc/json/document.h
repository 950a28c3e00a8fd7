// JSON Schema documents: their drafts, and where their references lead.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/errors.h"
#include "json/keywords.h"
#include "json/uri.h"
#include "json/value.h"

namespace structout::json {

// The number of a dynamic scope: for each name of a dynamic anchor, the schema that has
// it in the outermost of the resources on the way to some schema. 0 is the empty one.
using Scope = uint32_t;

class Document {
 public:
  // `others`: texts of further documents by their URIs. Those that no reference leads to
  // are not read. Throws SchemaError for what is no JSON text.
  Document(const std::string& text, const std::map<std::string, std::string>& others);
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  const Value& root() const { return documents_.front().root; }

  // The draft that a schema is written in: that of the resource it is part of.
  int draft(const Value& schema) const { return resources_[resource_of(schema)].draft; }

  // The value of a keyword of an object schema, or null.
  const Value* find(const Value& schema, std::string_view keyword) const {
    const Value* value = schema.find(keyword);
    return value != nullptr && draft_has_keyword(draft(schema), keyword) ? value : nullptr;
  }

  // The schema that the reference in `keyword` of `schema` leads to. Throws SchemaError
  // if there is none.
  const Value& target(const Value& schema, std::string_view keyword, const std::string& reference, Scope scope) const;

  // The schema that "$ref" leads to, or null.
  const Value* referred(const Value& schema, const std::string& reference) const {
    return find_target(schema, reference).schema;
  }

  // The dynamic scope of a schema that is reached in another scope.
  Scope entered(Scope scope, const Value& schema);

  // Whether validators differ about the keyword `dependencies`, so that it matters:
  // drafts from 2019-09 on do not have it, and some keyword asks that a schema fails.
  bool may_differ_in_dependencies() const { return may_differ_in_dependencies_; }

  // Whether validators that read `format` as an annotation may differ about a schema from
  // those that assert it: a format stands in it or where its references lead, and some
  // keyword asks that a schema fails.
  bool may_differ_in_formats(const Value& schema) const { return with_formats_.count(&schema) > 0; }

  // A JSON pointer to a part of the documents. The URI stands before it in all but the
  // first.
  std::string pointer_to(const Value& part) const;

 private:
  struct Text {
    std::string uri;
    Value root;
  };
  // A schema with an identifier of its own, or a document.
  struct Resource {
    const Value* root;
    const Text* document;
    std::string base;  // the URI that references are relative to
    int draft;
    std::vector<std::pair<std::string, const Value*>> dynamic_anchors;  // "": by $recursiveAnchor
  };
  struct Found {
    const Value* schema;  // null: there is none, for this reason
    ErrorKind kind = ErrorKind::kMalformed;
    std::string cause;
    uint32_t resource = 0;
    std::string anchor = "";  // by which it was found
  };
  using ScopeAnchors = std::map<std::string, const Value*>;

  uint32_t resource_of(const Value& schema) const {
    auto found = resource_numbers_.find(&schema);
    return found == resource_numbers_.end() ? 0 : found->second;
  }
  // Reads a document of `others`. Returns false if there is none.
  bool read_other(const std::string& uri);
  void read_document(const std::string& uri, const std::string& text);
  void find_formats();
  void read_schemas(const Value& start, uint32_t resource);
  void read_referred(const Value& schema, const std::string& reference);
  uint32_t read_identifiers(const Value& schema, uint32_t resource);
  void identify(const std::string& identifier, const Value& schema);
  int read_dialect(Value& root, int default_draft);
  Found find_target(const Value& schema, const std::string& reference) const;
  Found find_pointer(uint32_t resource, const Value& root, const std::string& pointer) const;

  std::map<std::string, std::string> others_;  // that are not read yet
  std::deque<Text> documents_;
  std::vector<Resource> resources_;
  std::unordered_map<const Value*, uint32_t> resource_numbers_;   // of all object schemas
  std::unordered_map<std::string, const Value*> by_identifier_;   // absolute ones, with anchors
  std::unordered_set<std::string> ambiguous_;                     // identifiers of several schemas
  std::vector<std::pair<const Value*, std::string>> references_;  // whose targets are not read yet
  std::vector<ScopeAnchors> scopes_ = {{}};
  std::map<ScopeAnchors, Scope> scope_numbers_ = {{{}, 0}};
  std::unordered_map<uint64_t, Scope> entered_;  // by scope and resource
  bool has_late_dependencies_ = false, may_differ_in_dependencies_ = false;
  std::unordered_set<const Value*> with_formats_;  // schemas that lead to a format
};

}  // namespace structout::json
