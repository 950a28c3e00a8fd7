// Captures: the parts of a complete text that were parsed as given rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

struct TokenText {
  uint32_t id;
  std::string bytes;
};

// A part of a text that was parsed as a rule: its bytes from `begin` up to, not including,
// `end`.
struct Capture {
  uint32_t rule;  // a reference, as Rules::add_rule() returned it
  size_t begin, end;
};

// Finds the captures of complete texts. A network cannot do it: it merges rules into their
// callers, and its stacks hold only what may follow. So the text is parsed once more, by
// the rules as they are written, with an Earley parser (Earley, "An efficient context-free
// parsing algorithm", 1970).
//
// Threads may share it: each call of captures() parses with a chart of its own.
class CaptureParser {
 public:
  // `captured`: references of the rules to report. Throws PatternError and LimitError.
  CaptureParser(const engine::Rules& rules, uint32_t root, const NetworkOptions& options,
                const std::vector<uint32_t>& captured, const engine::Limits& limits);

  // Returns the captures in the order in which they end, inner ones first, or nothing if
  // the text is not complete. For an ambiguous text they are those of one parse. Throws
  // LimitError.
  std::optional<std::vector<Capture>> captures(const std::vector<TokenText>& text) const;

 private:
  class Parse;

  const engine::Limits limits_;
  std::vector<RuleNfa> rules_;      // the root's is the last
  Network network_;                 // of the terminals and the embedded languages
  std::vector<uint32_t> captured_;  // by rule: its reference, or kNone if it is not reported
};

}  // namespace structout::context_free
