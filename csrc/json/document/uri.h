// References: URIs (RFC 3986) and JSON pointers (RFC 6901).
#pragma once

#include <string>
#include <vector>

namespace structout::json {

struct Reference {
  std::string document, fragment;  // the parts before and after #
};

Reference parts_of(const std::string& reference);

// The absolute form of a reference without a fragment (RFC 3986, section 5.2).
std::string resolved(const std::string& base, const std::string& reference);

std::string without_percent_escapes(const std::string& text);

// The parts of a JSON pointer, without its escapes.
std::vector<std::string> pointer_parts(const std::string& pointer);

// A name as one part of a JSON pointer.
std::string pointer_part(const std::string& name);

}  // namespace structout::json
