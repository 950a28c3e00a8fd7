#include "json/document/document.h"

#include <algorithm>
#include <array>

namespace structout::json {

namespace {

constexpr std::string_view kReferences[] = {"$ref", "$dynamicRef", "$recursiveRef"};

const Value* string_at(const Value& schema, std::string_view keyword, int draft) {
  const Value* value = schema.find(keyword);
  return value != nullptr && value->is_string() && draft_has_keyword(draft, keyword) ? value : nullptr;
}

// The own identifier of a schema of a draft, or null.
const Value* identifier_of(const Value& schema, int draft) {
  const Value* identifier = string_at(schema, draft <= 4 ? "id" : "$id", draft);
  bool is_ignored = draft <= 7 && schema.find("$ref") != nullptr;  // keywords beside $ref have no effect there
  return is_ignored ? nullptr : identifier;
}

// True if a keyword of the schema, in some draft, may require that another schema fails.
bool has_negation(const Value& schema) {
  static constexpr std::array<std::string_view, 5> kKeywords = {"not", "oneOf", "if", "maxContains", "disallow"};
  return std::any_of(kKeywords.begin(), kKeywords.end(), [&](auto keyword) { return schema.find(keyword) != nullptr; });
}

// The vocabularies that a metaschema with "$vocabulary" leaves out. Throws SchemaError if
// it requires an unknown one.
std::vector<Vocabulary> vocabularies_beyond(const Value& metaschema, int draft) {
  const Value* vocabularies = metaschema.find("$vocabulary");
  if (vocabularies == nullptr || !vocabularies->is_object() || draft < 2019) return {};
  const std::string prefix = vocabulary_prefix(draft);
  for (size_t i = 0; i < vocabularies->items.size(); ++i) {
    const std::string& name = vocabularies->names[i];
    bool is_known = name.compare(0, prefix.size(), prefix) == 0;
    if (is_known || vocabularies->items[i].kind != ValueKind::kTrue) continue;
    throw SchemaError(ErrorKind::kUnsupported, "its metaschema requires the unknown vocabulary " + name, "#/$schema");
  }
  std::vector<Vocabulary> beyond;
  for (auto [vocabulary, name] : {std::pair(Vocabulary::kApplicator, "applicator"),
                                  {Vocabulary::kUnevaluated, "unevaluated"},
                                  {Vocabulary::kValidation, "validation"}}) {
    if (vocabularies->find(prefix + name) == nullptr) beyond.push_back(vocabulary);
  }
  return beyond;
}

// Removes the keywords of some vocabularies from all schemas in a document.
void remove_keywords(Value& root, int draft, const std::vector<Vocabulary>& vocabularies) {
  std::vector<Value*> pending = {&root};
  while (!pending.empty()) {
    Value& schema = *pending.back();
    pending.pop_back();
    if (!schema.is_object()) continue;
    std::vector<std::string> removed;
    for (const std::string& keyword : schema.names) {
      bool is_beyond =
          std::find(vocabularies.begin(), vocabularies.end(), vocabulary_of(keyword, draft)) != vocabularies.end();
      if (is_beyond) removed.push_back(keyword);
    }
    remove_members(schema, removed);
    for (const Value* part : subschemas(schema, draft)) pending.push_back(const_cast<Value*>(part));
  }
}

}  // namespace

Document::Document(const std::string& text, const std::map<std::string, std::string>& others) : others_(others) {
  read_document("", text);
  while (!references_.empty()) {
    auto [schema, reference] = std::move(references_.back());
    references_.pop_back();
    read_referred(*schema, reference);
  }
  auto is_negating = [](const auto& known) { return has_negation(*known.first); };
  bool has_negating = std::any_of(resource_numbers_.begin(), resource_numbers_.end(), is_negating);
  may_differ_in_dependencies_ = has_late_dependencies_ && has_negating;
  if (has_negating && has_formats_) find_formats();
}

void Document::find_formats() {
  std::unordered_map<const Value*, std::vector<const Value*>> leading_to;
  std::vector<const Value*> pending;
  for (auto [schema, resource] : resource_numbers_) {
    int draft = resources_[resource].draft;
    for (const Value* part : subschemas(*schema, draft)) leading_to[part].push_back(schema);
    bool is_dynamic = false;
    for (std::string_view keyword : kReferences) {
      const Value* reference = string_at(*schema, keyword, draft);
      if (reference == nullptr) continue;
      is_dynamic = is_dynamic || keyword != "$ref";
      if (const Value* target = referred(*schema, reference->text)) leading_to[target].push_back(schema);
    }
    const Value* format = schema->find("format");
    if (is_dynamic || (format != nullptr && format->is_string())) pending.push_back(schema);
  }
  while (!pending.empty()) {
    const Value* schema = pending.back();
    pending.pop_back();
    if (!with_formats_.insert(schema).second) continue;
    for (const Value* other : leading_to[schema]) pending.push_back(other);
  }
}

bool Document::read_other(const std::string& uri) {
  auto found = others_.find(uri);
  if (found == others_.end()) return false;
  std::string text = std::move(found->second);
  others_.erase(found);
  try {
    read_document(uri, text);
  } catch (const SchemaError& error) {
    throw SchemaError(error.kind, "the document " + uri + ": " + error.what(), error.pointer);
  }
  return true;
}

void Document::read_document(const std::string& uri, const std::string& text) {
  documents_.push_back({uri, parse_value(text)});
  Text& document = documents_.back();
  int draft = read_dialect(document.root, resources_.empty() ? kNewestDraft : resources_[0].draft);
  resources_.push_back({&document.root, &document, uri, draft, {}});
  identify(uri, document.root);
  read_schemas(document.root, uint32_t(resources_.size() - 1));
}

// Returns the draft of a document. If its metaschema is among the other documents, the
// draft is that of the metaschema, and keywords of vocabularies that this leaves out are
// removed: they constrain nothing.
int Document::read_dialect(Value& root, int default_draft) {
  int draft = draft_of(root, 0);
  if (draft != 0) return draft;
  const Value* named = root.find("$schema");
  auto found = named == nullptr ? others_.end() : others_.find(parts_of(named->text).document);
  if (found == others_.end()) return default_draft;
  Value metaschema = parse_value(found->second);
  draft = draft_of(metaschema, default_draft);
  std::vector<Vocabulary> beyond = vocabularies_beyond(metaschema, draft);
  if (!beyond.empty()) remove_keywords(root, draft, beyond);
  return draft;
}

// Records an identifier. It becomes ambiguous, and references to it fail, once schemas with
// different texts have it.
void Document::identify(const std::string& identifier, const Value& schema) {
  auto [found, is_new] = by_identifier_.emplace(identifier, &schema);
  if (!is_new && !(*found->second == schema)) ambiguous_.insert(identifier);
}

// Records the identifiers and anchors of a schema. Returns the resource that it is part of,
// a new one if an inner schema has an identifier that is more than a fragment.
uint32_t Document::read_identifiers(const Value& schema, uint32_t resource) {
  int draft = resources_[resource].draft;
  const Value* identifier = identifier_of(schema, draft);
  bool is_root = resources_[resource].root == &schema;
  if (!is_root && schema.find("$schema") != nullptr) {
    int own_draft = draft_of(schema, draft);
    if (const Value* own = identifier_of(schema, own_draft)) identifier = own, draft = own_draft;
  }
  if (identifier != nullptr) {
    Reference parts = parts_of(identifier->text);
    if (!parts.document.empty()) {
      std::string base = resolved(resources_[resource].base, parts.document);
      if (is_root) {
        resources_[resource].base = base;
      } else {
        resources_.push_back({&schema, resources_[resource].document, base, draft, {}});
        resource = uint32_t(resources_.size() - 1);
      }
      identify(base, schema);
    }
    if (!parts.fragment.empty() && draft <= 7) identify(resources_[resource].base + "#" + parts.fragment, schema);
  }
  Resource& own = resources_[resource];
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const Value* anchor = string_at(schema, keyword, own.draft);
    if (anchor == nullptr) continue;
    identify(own.base + "#" + anchor->text, schema);
    if (keyword[1] == 'd') own.dynamic_anchors.emplace_back(anchor->text, &schema);
  }
  const Value* recursive = schema.find("$recursiveAnchor");
  bool is_recursive = recursive != nullptr && recursive->kind == ValueKind::kTrue && own.draft == 2019;
  if (is_recursive && own.root == &schema) own.dynamic_anchors.emplace_back("", &schema);
  return resource;
}

void Document::read_schemas(const Value& start, uint32_t start_resource) {
  std::vector<std::pair<const Value*, uint32_t>> pending = {{&start, start_resource}};
  while (!pending.empty()) {
    auto [value, outer] = pending.back();
    pending.pop_back();
    if (!value->is_object() || resource_numbers_.count(value) > 0) continue;
    uint32_t resource = read_identifiers(*value, outer);
    resource_numbers_[value] = resource;
    int draft = resources_[resource].draft;
    has_late_dependencies_ = has_late_dependencies_ || (draft > 7 && value->find("dependencies") != nullptr);
    has_formats_ = has_formats_ || value->find("format") != nullptr;
    for (std::string_view keyword : kReferences) {
      if (const Value* reference = string_at(*value, keyword, draft)) references_.emplace_back(value, reference->text);
    }
    for (const Value* part : subschemas(*value, draft)) pending.emplace_back(part, resource);
  }
}

// Reads the target of a reference, if it is not read yet: another document, or a schema
// under a keyword that holds no schemas, as in "#/components/schemas/a".
void Document::read_referred(const Value& schema, const std::string& reference) {
  Found found = find_target(schema, reference);
  if (found.schema == nullptr) {
    std::string document = resolved(resources_[resource_of(schema)].base, parts_of(reference).document);
    if (by_identifier_.count(document) > 0 || !read_other(document)) return;
    found = find_target(schema, reference);
  }
  if (found.schema != nullptr) read_schemas(*found.schema, found.resource);
}

Document::Found Document::find_pointer(uint32_t resource, const Value& root, const std::string& pointer) const {
  const Value* value = &root;
  for (const std::string& part : pointer_parts(pointer)) {
    if (value->is_array()) {
      bool is_index = !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == std::string::npos;
      size_t index = is_index ? std::stoul(part) : value->items.size();
      value = index < value->items.size() ? &value->items[index] : nullptr;
    } else {
      value = value->find(part);
    }
    if (value == nullptr) return {nullptr, ErrorKind::kMalformed, "there is nothing in that place"};
    auto known = resource_numbers_.find(value);
    if (known != resource_numbers_.end()) resource = known->second;
  }
  return {value, {}, "", resource};
}

Document::Found Document::find_target(const Value& schema, const std::string& reference) const {
  uint32_t resource = resource_of(schema);
  Reference parts = parts_of(reference);
  std::string document = resolved(resources_[resource].base, parts.document);
  std::string fragment = without_percent_escapes(parts.fragment);
  auto is_ambiguous = [this](const std::string& identifier) { return ambiguous_.count(identifier) > 0; };
  const Found ambiguous = {nullptr, ErrorKind::kMalformed, "several schemas have this identifier"};
  const Value* root = resources_[resource].root;
  if (!parts.document.empty()) {
    if (is_ambiguous(document)) return ambiguous;
    auto found = by_identifier_.find(document);
    if (found == by_identifier_.end()) {
      std::string cause = "it leaves the document, and no schema is given for " + document;
      return {nullptr, ErrorKind::kUnsupported, cause};
    }
    root = found->second;
    resource = resource_of(*root);
  }
  if (fragment.empty()) return {root, {}, "", resource};
  if (fragment[0] == '/') {
    Found found = find_pointer(resource, *root, fragment);
    const Value& whole = resources_[resource].document->root;  // many schemas give pointers from here instead
    return found.schema != nullptr ? found : find_pointer(resource_of(whole), whole, fragment);
  }
  std::string identifier = resources_[resource].base + "#" + fragment;
  if (is_ambiguous(identifier)) return ambiguous;
  auto anchored = by_identifier_.find(identifier);
  if (anchored == by_identifier_.end()) return {nullptr, ErrorKind::kMalformed, "there is nothing in that place"};
  return {anchored->second, {}, "", resource_of(*anchored->second), fragment};
}

const Value& Document::target(const Value& schema, std::string_view keyword, const std::string& reference,
                              Scope scope) const {
  Found found = find_target(schema, reference);
  if (found.schema == nullptr) {
    throw SchemaError(found.kind, "cannot follow the reference " + reference + ": " + found.cause,
                      pointer_to(schema) + "/" + std::string(keyword));
  }
  std::string name = keyword == "$dynamicRef" ? found.anchor : "";
  const auto& anchors = resources_[found.resource].dynamic_anchors;
  bool is_dynamic = keyword == "$recursiveRef" || !name.empty();
  if (!is_dynamic || std::find(anchors.begin(), anchors.end(), std::pair(name, found.schema)) == anchors.end()) {
    return *found.schema;
  }
  auto outermost = scopes_[scope].find(name);
  return outermost == scopes_[scope].end() ? *found.schema : *outermost->second;
}

Scope Document::entered(Scope scope, const Value& schema) {
  uint32_t resource = resource_of(schema);
  const auto& anchors = resources_[resource].dynamic_anchors;
  if (anchors.empty()) return scope;
  const uint64_t key = uint64_t(scope) << 32 | resource;
  auto known = entered_.find(key);
  if (known != entered_.end()) return known->second;
  ScopeAnchors all = scopes_[scope];
  all.insert(anchors.begin(), anchors.end());  // anchors of outer resources win
  auto number = scope_numbers_.find(all);
  if (number == scope_numbers_.end()) {
    scopes_.push_back(all);
    number = scope_numbers_.emplace(std::move(all), Scope(scopes_.size() - 1)).first;
  }
  return entered_[key] = number->second;
}

std::string Document::pointer_to(const Value& part) const {
  struct Visit {
    const Value* value;
    std::string pointer;
  };
  for (const Text& document : documents_) {
    std::vector<Visit> pending = {{&document.root, document.uri + "#"}};
    while (!pending.empty()) {
      Visit visit = std::move(pending.back());
      pending.pop_back();
      if (visit.value == &part) return visit.pointer;
      for (size_t i = 0; i < visit.value->items.size(); ++i) {
        std::string name = visit.value->is_object() ? pointer_part(visit.value->names[i]) : std::to_string(i);
        pending.push_back({&visit.value->items[i], visit.pointer + "/" + name});
      }
    }
  }
  return "#";
}

}  // namespace structout::json
