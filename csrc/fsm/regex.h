// Parses regular expressions as ECMA-262 reads them. docs/fsm.md has the dialect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsm/code_points.h"
#include "fsm/limits.h"

namespace structout::fsm {

enum class PartKind : uint8_t { kEmpty, kSet, kSequence, kAlternatives, kRepetition, kStart, kEnd, kLookahead };

constexpr uint32_t kUnbounded = UINT32_MAX;

// A node of the syntax tree.
struct Part {
  PartKind kind;
  bool is_negative = false;          // of a lookahead
  uint32_t min = 0, max = 0;         // of a repetition
  uint32_t set = 0;                  // index into Pattern::sets
  std::vector<uint32_t> children{};  // indices into Pattern::parts
};

struct Pattern {
  std::vector<Part> parts;
  std::vector<CodePointSet> sets;  // normalized
  uint32_t root = 0;
};

// Throws PatternError, and LimitError if groups are nested too deep.
Pattern parse_regex(const std::string& text, const Limits& limits);

}  // namespace structout::fsm
