#include "json/document/uri.h"

#include <algorithm>
#include <cctype>

namespace structout::json {

namespace {

// The end of the scheme of a URI, after its colon; 0 if it has none.
size_t end_of_scheme(const std::string& uri) {
  size_t colon = uri.find(':'), other = uri.find_first_of("/?#");
  return colon != std::string::npos && (other == std::string::npos || colon < other) ? colon + 1 : 0;
}

// The begin of the path of a URI.
size_t begin_of_path(const std::string& uri) {
  size_t begin = end_of_scheme(uri);
  if (uri.compare(begin, 2, "//") != 0) return begin;
  return std::min(uri.find_first_of("/?", begin + 2), uri.size());
}

// Resolves the segments . and .. in the path of a URI (RFC 3986, section 5.2.4).
std::string without_dots(const std::string& uri) {
  size_t begin = begin_of_path(uri), end = std::min(uri.find('?', begin), uri.size());
  bool is_absolute = begin < end && uri[begin] == '/';
  std::vector<std::string> segments;
  bool is_folder = false;  // the segments so far end with . or ..
  for (size_t at = begin + is_absolute; at <= end;) {
    size_t next = std::min(uri.find('/', at), end);
    std::string segment = uri.substr(at, next - at);
    at = next + 1;
    is_folder = segment == "." || segment == "..";
    if (segment == ".." && !segments.empty()) segments.pop_back();
    if (!is_folder) segments.push_back(std::move(segment));
  }
  if (is_folder) segments.emplace_back();
  std::string path = is_absolute ? "/" : "";
  for (size_t i = 0; i < segments.size(); ++i) path += (i > 0 ? "/" : "") + segments[i];
  return uri.substr(0, begin) + path + uri.substr(end);
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
  if (end_of_scheme(reference) > 0) return without_dots(reference);
  size_t path = begin_of_path(base), query = std::min(base.find('?', path), base.size());
  if (reference.compare(0, 2, "//") == 0) return without_dots(base.substr(0, end_of_scheme(base)) + reference);
  if (reference[0] == '/') return without_dots(base.substr(0, path) + reference);
  if (reference[0] == '?') return base.substr(0, query) + reference;
  size_t last_slash = base.rfind('/', query);
  bool has_folder = last_slash != std::string::npos && last_slash >= path && path < query;
  if (has_folder) return without_dots(base.substr(0, last_slash + 1) + reference);
  return without_dots(base.substr(0, path) + (path > 0 ? "/" : "") + reference);
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
