// Which parts of a text were read as which rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "context_free/network.h"

namespace structout::context_free {

struct TokenText {
  uint32_t id;
  std::string bytes;
};

// A part of a text: bytes begin ... end.
struct Capture {
  uint32_t rule;  // a reference, as Rules::add_rule() returned it
  size_t begin, end;
};

// Finds them in texts that are complete. Networks do not know them: they join rules, and
// keep no more of a text than what may follow. So the text is parsed once more, by the
// rules as they are written (Earley, "An efficient context-free parsing algorithm", 1970).
//
// Threads may share it.
class CaptureParser {
 public:
  // `captured`: references of the rules whose texts are asked for.
  // Throws PatternError and LimitError.
  CaptureParser(const engine::Rules& rules, uint32_t root, const NetworkOptions& options,
                const std::vector<uint32_t>& captured, const engine::Limits& limits);

  // In the order in which they end, inner ones first. Nothing if the text is not complete.
  // An ambiguous text is read in one of its ways. Throws LimitError.
  std::optional<std::vector<Capture>> captures(const std::vector<TokenText>& text) const;

 private:
  class Parse;

  const engine::Limits limits_;
  std::vector<RuleNfa> rules_;      // the root's is the last
  Network network_;                 // of the terminals and the embedded languages
  std::vector<uint32_t> captured_;  // the reference, by rule; kNone if it is not asked for
};

}  // namespace structout::context_free
