#include "json/uri.h"

#include <algorithm>
#include <cctype>

namespace structout::json {

namespace {

// Where the scheme of a URI ends, after its colon; 0 if it has none.
size_t end_of_scheme(const std::string& uri) {
  size_t colon = uri.find(':'), other = uri.find_first_of("/?#");
  return colon != std::string::npos && (other == std::string::npos || colon < other) ? colon + 1 : 0;
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

}  // namespace

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

std::vector<std::string> pointer_parts(const std::string& pointer) {
  std::vector<std::string> parts;
  for (size_t begin = 1; begin <= pointer.size();) {
    size_t end = std::min(pointer.find('/', begin), pointer.size());
    parts.push_back(unescaped(pointer.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::string pointer_part(const std::string& name) {
  std::string part;
  for (char byte : name) part += byte == '~' ? "~0" : byte == '/' ? "~1" : std::string(1, byte);
  return part;
}

}  // namespace structout::json
