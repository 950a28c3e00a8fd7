// JSON Schema documents: their drafts, and the targets of their references.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/document/errors.h"
#include "json/document/keywords.h"
#include "json/document/uri.h"
#include "json/document/value.h"

namespace structout::json {

// The number of a dynamic scope, which maps the name of each dynamic anchor to the schema
// that has it in the outermost of the resources on the way to some schema. `$dynamicRef`
// leads there. 0 is the empty scope.
using Scope = uint32_t;

// A schema with all documents that its references need. A resource is a document, or a
// schema with an identifier of its own (`$id`): references inside are relative to it, and
// it may have another draft than the document around it.
class Document {
 public:
  // `others`: texts of further documents by their URIs. A document that no reference and no
  // "$schema" leads to is not parsed. Throws SchemaError if a text is not JSON.
  Document(const std::string& text, const std::map<std::string, std::string>& others);
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  const Value& root() const { return documents_.front().root; }

  // The draft of a schema is that of the resource that it is part of.
  int draft(const Value& schema) const { return resources_[resource_of(schema)].draft; }

  // The value of a keyword of an object schema. Null if its draft has no such keyword.
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

  // True if validators may disagree because of `dependencies`, which drafts from 2019-09 on
  // do not define: a schema of such a draft has it, and some keyword, such as `not`,
  // requires that a schema fails.
  bool may_differ_in_dependencies() const { return may_differ_in_dependencies_; }

  // True if validators that read `format` as an annotation may disagree about a schema with
  // those that assert it: the schema, one inside of it or a target of references has a
  // format, and some keyword of the documents requires that a schema fails. A dynamic
  // reference counts as a format.
  bool may_differ_in_formats(const Value& schema) const { return with_formats_.count(&schema) > 0; }

  // A JSON pointer to a part of the documents, for messages: finding it takes a search of
  // all values. In documents other than the first, the URI precedes the pointer.
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
    const Value* schema;  // null: there is none, and `cause` tells why
    ErrorKind kind = ErrorKind::kMalformed;
    std::string cause;
    uint32_t resource = 0;
    std::string anchor = "";  // the fragment, if it is an anchor
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

  std::map<std::string, std::string> others_;  // documents that are not parsed yet, by URI
  std::deque<Text> documents_;
  std::vector<Resource> resources_;
  std::unordered_map<const Value*, uint32_t> resource_numbers_;   // of all object schemas
  std::unordered_map<std::string, const Value*> by_identifier_;   // absolute URIs, some with anchors
  std::unordered_set<std::string> ambiguous_;                     // identifiers of several schemas
  std::vector<std::pair<const Value*, std::string>> references_;  // with targets to be read
  std::vector<ScopeAnchors> scopes_ = {{}};
  std::map<ScopeAnchors, Scope> scope_numbers_ = {{{}, 0}};
  std::unordered_map<uint64_t, Scope> entered_;  // by scope and resource
  bool has_late_dependencies_ = false, may_differ_in_dependencies_ = false, has_formats_ = false;
  std::unordered_set<const Value*> with_formats_;  // schemas that lead to a format
};

}  // namespace structout::json
