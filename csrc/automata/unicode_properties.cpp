#include "automata/unicode_properties.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "automata/unicode_categories.h"

namespace structout::engine {

namespace {

struct Property {
  std::string_view names;  // between slashes
  bool is_script;
  std::string_view bounds;      // packed, as those below
  std::string_view extensions;  // of a script: where Script_Extensions begins or ends otherwise
};

constexpr Property kProperties[] = {
#include "automata/unicode_properties.inc"
};

const Property* find_property(const std::string& name, bool is_script) {
  if (name.empty() || name.find('/') != std::string::npos) return nullptr;
  const std::string whole = "/" + name + "/";
  for (const Property& property : kProperties) {
    if (property.is_script == is_script && property.names.find(whole) != std::string_view::npos) return &property;
  }
  return nullptr;
}

// Decodes a list of increasing bounds, stored as distances in groups of five bits, low
// bits first. A character from '0' on has five bits, and more follow; one from ']' on
// has the last five.
std::vector<uint32_t> unpacked(std::string_view packed) {
  std::vector<uint32_t> bounds;
  uint32_t bound = 0, shift = 0;
  for (char character : packed) {
    bool is_last = character >= ']';
    bound += uint32_t(character - (is_last ? ']' : '0')) << shift;
    shift = is_last ? 0 : shift + 5;
    if (is_last) bounds.push_back(bound);
  }
  return bounds;
}

// The set that begins at bounds[0], ends before bounds[1], begins again at bounds[2], and
// so on.
CodePointSet between(const std::vector<uint32_t>& bounds) {
  CodePointSet set;
  for (size_t i = 0; i < bounds.size(); i += 2) {
    set.add(bounds[i], i + 1 < bounds.size() ? bounds[i + 1] - 1 : kLastCodePoint);
  }
  return set;
}

}  // namespace

std::optional<CodePointSet> characters_of_property(const std::string& name) {
  size_t equals = name.find('=');
  if (equals == std::string::npos) {
    if (auto characters = characters_of_category(name)) return characters;
    const Property* property = find_property(name, false);
    return property == nullptr ? std::nullopt : std::optional(between(unpacked(property->bounds)));
  }
  const std::string kind = name.substr(0, equals), value = name.substr(equals + 1);
  if (kind == "gc" || kind == "General_Category") {
    bool is_binary = value == "Any" || value == "ASCII" || value == "Assigned";
    return is_binary ? std::nullopt : characters_of_category(value);
  }
  bool has_extensions = kind == "scx" || kind == "Script_Extensions";
  if (!has_extensions && kind != "sc" && kind != "Script") return std::nullopt;
  const Property* script = find_property(value, true);
  if (script == nullptr) return std::nullopt;
  std::vector<uint32_t> bounds = unpacked(script->bounds), others;
  if (!has_extensions) return between(bounds);
  const std::vector<uint32_t> changes = unpacked(script->extensions);
  std::set_symmetric_difference(bounds.begin(), bounds.end(), changes.begin(), changes.end(),
                                std::back_inserter(others));
  return between(others);
}

bool is_script(const std::string& name) { return find_property(name, true) != nullptr; }

}  // namespace structout::engine
