#include "json/document.h"

#include <algorithm>
#include <array>
#include <optional>

#include "json/errors.h"

namespace structout::json {

namespace {

constexpr int kNewestDraft = 2020;

int draft_of(const Value& root) {
  const Value* schema = root.find("$schema");
  if (schema == nullptr || !schema->is_string()) return kNewestDraft;
  static constexpr std::array<std::pair<std::string_view, int>, 6> kDrafts = {{{"draft-03", 3},
                                                                               {"draft-04", 4},
                                                                               {"draft-06", 6},
                                                                               {"draft-07", 7},
                                                                               {"draft/2019-09", 2019},
                                                                               {"draft/2020-12", 2020}}};
  for (auto [name, draft] : kDrafts) {
    if (schema->text.find(name) != std::string::npos) return draft;
  }
  return kNewestDraft;
}

const std::unordered_map<std::string_view, int> kDraftOfKeyword = {
    {"const", 6},
    {"contains", 6},
    {"propertyNames", 6},
    {"if", 7},
    {"then", 7},
    {"else", 7},
    {"$recursiveRef", 2019},
    {"dependentRequired", 2019},
    {"maxContains", 2019},
    {"dependentSchemas", 2019},
    {"minContains", 2019},
    {"unevaluatedItems", 2019},
    {"$dynamicRef", 2020},
    {"$anchor", 2019},
    {"unevaluatedProperties", 2019},
    {"prefixItems", 2020},
};

// Names below these keywords are not keywords themselves.
bool holds_named_schemas(std::string_view keyword) {
  static constexpr std::array<std::string_view, 6> kKeywords = {"properties",  "patternProperties", "$defs",
                                                                "definitions", "dependentSchemas",  "dependencies"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

bool holds_data(std::string_view keyword) {
  static constexpr std::array<std::string_view, 5> kKeywords = {"const", "enum", "default", "examples", "example"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

size_t end_of_scheme(const std::string& uri) {
  size_t colon = uri.find(':'), other = uri.find_first_of("/?#");
  return colon != std::string::npos && (other == std::string::npos || colon < other) ? colon + 1 : 0;
}

// The absolute form of a reference without a fragment (RFC 3986, section 5.2).
std::string resolved(const std::string& base, const std::string& reference) {
  if (reference.empty()) return base;
  if (end_of_scheme(reference) > 0) return reference;
  size_t scheme_end = end_of_scheme(base), path = scheme_end;
  if (base.compare(scheme_end, 2, "//") == 0) {
    path = base.find('/', scheme_end + 2);
    if (path == std::string::npos) path = base.size();
  }
  if (reference.compare(0, 2, "//") == 0) return base.substr(0, scheme_end) + reference;
  if (reference[0] == '/') return base.substr(0, path) + reference;
  size_t query = base.find('?', path), last_slash = base.rfind('/', query);
  bool has_directory = last_slash != std::string::npos && last_slash >= path;
  std::string full =
      (has_directory ? base.substr(0, last_slash + 1) : base.substr(0, path) + (path > 0 ? "/" : "")) + reference;
  for (size_t at; (at = full.find("/./")) != std::string::npos;) full.erase(at, 2);
  for (size_t at; (at = full.find("/../")) != std::string::npos;) {
    size_t before = at == 0 ? std::string::npos : full.rfind('/', at - 1);
    if (before == std::string::npos || before < path) break;
    full.erase(before, at + 3 - before);
  }
  return full;
}

struct Reference {
  std::string document, fragment;
};

Reference parts_of(const std::string& reference) {
  size_t hash = reference.find('#');
  if (hash == std::string::npos) return {reference, ""};
  return {reference.substr(0, hash), reference.substr(hash + 1)};
}

std::string without_percent_escapes(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && isxdigit(uint8_t(text[i + 1])) && isxdigit(uint8_t(text[i + 2]))) {
      plain.push_back(char(std::stoi(text.substr(i + 1, 2), nullptr, 16)));
      i += 2;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

// One part of a JSON pointer: ~1 is /, ~0 is ~.
std::string unescaped(const std::string& part) {
  std::string name;
  for (size_t i = 0; i < part.size(); ++i) {
    bool is_escape = part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1');
    name.push_back(is_escape ? (part[++i] == '0' ? '~' : '/') : part[i]);
  }
  return name;
}

std::string escaped(const std::string& name) {
  std::string part;
  for (char byte : name) part += byte == '~' ? "~0" : byte == '/' ? "~1" : std::string(1, byte);
  return part;
}

const Value* at_pointer(const Value& root, const std::string& pointer) {
  const Value* value = &root;
  for (size_t begin = 1; begin <= pointer.size() && value != nullptr;) {
    size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string part = unescaped(pointer.substr(begin, end - begin));
    begin = end + 1;
    if (value->is_array()) {
      bool is_index = !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == std::string::npos;
      size_t index = is_index ? std::stoul(part) : value->items.size();
      value = index < value->items.size() ? &value->items[index] : nullptr;
    } else {
      value = value->find(part);
    }
  }
  return value;
}

}  // namespace

Document::Document(const std::string& text) : root_(parse_value(text)), draft_(draft_of(root_)) {
  find_identifiers(root_, "");
  by_identifier_.emplace("", &root_);
}

bool Document::has_keyword(std::string_view keyword) const {
  auto found = kDraftOfKeyword.find(keyword);
  return found == kDraftOfKeyword.end() || found->second <= draft_;
}

void Document::find_identifiers(const Value& start, const std::string& start_base) {
  struct Place {
    const Value* value;
    std::string base;
    const Value* resource;  // the innermost schema with an identifier
  };
  std::vector<Place> pending = {{&start, start_base, &start}};
  bases_[&start] = start_base;
  while (!pending.empty()) {
    Place place = std::move(pending.back());
    pending.pop_back();
    const Value& value = *place.value;
    if (value.is_array()) {
      for (const Value& item : value.items) pending.push_back({&item, place.base, place.resource});
      continue;
    }
    if (!value.is_object()) continue;
    // Beside $ref the other keywords of these drafts count for nothing.
    bool has_identifier = draft_ > 7 || value.find("$ref") == nullptr;
    for (const char* keyword : {"id", "$id"}) {
      const Value* identifier = value.find(keyword);
      if (identifier == nullptr || !identifier->is_string() || !has_identifier) continue;
      Reference parts = parts_of(identifier->text);
      if (!parts.document.empty()) {
        place.base = resolved(place.base, parts.document);
        place.resource = &value;
        bases_[&value] = place.base;
        by_identifier_.emplace(place.base, &value);
      }
      if (!parts.fragment.empty()) by_identifier_.emplace(place.base + "#" + parts.fragment, &value);
    }
    for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
      const Value* anchor = value.find(keyword);
      if (anchor == nullptr || !anchor->is_string()) continue;
      by_identifier_.emplace(place.base + "#" + anchor->text, &value);
      if (keyword[1] == 'd') ++num_dynamic_anchors_[anchor->text];
    }
    enclosing_schema_[&value] = place.resource;
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (holds_data(value.names[i])) continue;
      if (holds_named_schemas(value.names[i]) && value.items[i].is_object()) {
        for (const Value& named : value.items[i].items) pending.push_back({&named, place.base, place.resource});
      } else {
        pending.push_back({&value.items[i], place.base, place.resource});
      }
    }
  }
}

const Value& Document::target(const Value& schema, const std::string& reference, bool is_dynamic) const {
  auto enclosing = enclosing_schema_.find(&schema);
  const Value* resource = enclosing == enclosing_schema_.end() ? &root_ : enclosing->second;
  const std::string& base = bases_.at(resource);
  Reference parts = parts_of(reference);
  std::string document = resolved(base, parts.document), fragment = without_percent_escapes(parts.fragment);
  const char* keyword = is_dynamic ? "$dynamicRef" : "$ref";
  auto refuse = [&](ErrorKind kind, const std::string& cause) -> const Value& {
    throw SchemaError(kind, "cannot follow the reference " + reference + ": " + cause,
                      pointer_to(schema) + "/" + keyword);
  };
  if (is_dynamic && !fragment.empty() && fragment[0] != '/') {
    auto found = num_dynamic_anchors_.find(fragment);
    if (found != num_dynamic_anchors_.end() && found->second > 1) {
      return refuse(ErrorKind::kUnsupported, "several schemas have this dynamic anchor");
    }
  }
  const Value* found_root = resource;
  if (!parts.document.empty()) {
    auto found = by_identifier_.find(document);
    if (found == by_identifier_.end()) return refuse(ErrorKind::kUnsupported, "it leaves the document");
    found_root = found->second;
  }
  if (fragment.empty()) return *found_root;
  const Value* found = nullptr;
  if (fragment[0] == '/') {
    found = at_pointer(*found_root, fragment);
    if (found == nullptr) found = at_pointer(root_, fragment);
  } else {
    auto anchored = by_identifier_.find(document + "#" + fragment);
    found = anchored == by_identifier_.end() ? nullptr : anchored->second;
  }
  if (found == nullptr) return refuse(ErrorKind::kMalformed, "there is nothing in that place");
  return *found;
}

std::string Document::pointer_to(const Value& part) const {
  struct Place {
    const Value* value;
    std::string pointer;
  };
  std::vector<Place> pending = {{&root_, "#"}};
  while (!pending.empty()) {
    Place place = std::move(pending.back());
    pending.pop_back();
    if (place.value == &part) return place.pointer;
    for (size_t i = 0; i < place.value->items.size(); ++i) {
      std::string name = place.value->is_object() ? escaped(place.value->names[i]) : std::to_string(i);
      pending.push_back({&place.value->items[i], place.pointer + "/" + name});
    }
  }
  return "#";
}

}  // namespace structout::json
