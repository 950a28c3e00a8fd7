// Finds out if a text can be finished although its lexer is greedy.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "grammar/completability/completability.h"
#include "grammar/gss/reader.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// Finds paths from configurations to the end of a text. Without a lexer there always is
// one. A greedy lexer may swallow what a rule needs next: `"<" TEXT ">"` with the terminal
// TEXT = /[^<]+/ has no text, though each part has one: TEXT takes the ">" too.
//
// Most configurations are settled by Completability, which looks at the state of the lexer
// alone; the others by at_a_glance() or, at last, by a best-first search among single
// configurations. Results are cached by configuration, together with the path that the
// search has found.
class EndSearch {
 public:
  EndSearch(const Network& network, Completability& completability);

  // True if there is a path to the end. Conservatively false if the search among single
  // configurations gives up, after `kMaxConfigs` configurations or `kMaxWork` steps.
  bool has_end(Reader& reader, const LexerConfiguration& config, engine::Budget& budget) {
    if (!network_.has_lexer() || completability_.is_completable(config.lexer_state, budget)) return true;
    return searched_has_end(reader, config, budget);
  }

  // If another search has found that a configuration has an end, copies this result and the
  // path to it. A new search from here may give up, since it knows fewer paths.
  // `copied(node)` returns the copy of a node.
  template <typename Copied>
  void take_over(const EndSearch& other, LexerConfiguration config, Copied copied);

  // A configuration on a path, and the bytes that lead to it from the one before.
  struct Part {
    LexerConfiguration config;
    std::string bytes;
  };
  using IsEnd = std::function<bool(const LexerConfiguration&)>;

  // Returns a shortest path that the search finds to the end of the text, or to a
  // configuration for which `is_known_end` is true. It uses no tokens matched by their ids,
  // and no lexemes that end only because of max_tokens; it is empty if there is none without
  // these. Embedded texts end as EmbeddedCache::short_end() tells.
  std::vector<Part> path(Reader& reader, const Configuration& config, const IsEnd& is_known_end,
                         engine::Budget& budget);

  // Returns the bytes of a path() to the end of the text.
  std::optional<std::string> shortest(Reader& reader, const Configuration& config, engine::Budget& budget);

  size_t memory_bytes() const {
    return results_.memory_bytes() + next_on_paths_.capacity() * sizeof(LexerConfiguration) +
           (to_rule_end_.capacity() + distances_.capacity()) * sizeof(uint32_t);
  }

 private:
  static constexpr uint32_t kMaxConfigs = 4'000;
  static constexpr uint64_t kMaxWork = 1 << 18;        // of a budget
  static constexpr uint64_t kMaxWorkOfEnds = 1 << 22;  // of embedded texts

  // A cached result: one of these, or kOnPath plus an index into `next_on_paths_`, the next
  // configuration on a path to the end.
  enum Result : uint32_t { kNoEnd, kEnd, kOnPath };

  // A configuration that the search has reached from the step `before`, by `bytes` or by a
  // token without them. `length` counts the bytes of the whole path so far.
  struct Step {
    LexerConfiguration config;
    uint32_t before, length;
    std::string bytes;
  };

  // Best-first search: expands the configuration first for which the bytes so far plus
  // distance() are fewest. Returns the number of a step where the text may end or
  // `is_known_end(config)` is true, or kNone, and true if it has tried all configurations
  // in vain. `by_bytes`: true if paths must consist of bytes, as for shortest().
  template <typename IsKnownEnd>
  std::pair<uint32_t, bool> search(Reader& reader, const Configuration& config, bool by_bytes, IsKnownEnd is_known_end,
                                   std::vector<Step>& steps, engine::Budget& budget);
  uint32_t distance(const Reader& reader, GssNode node);
  bool searched_has_end(Reader& reader, const LexerConfiguration& config, engine::Budget& budget);
  uint32_t result_of(const LexerConfiguration& config) const { return results_.find(config.node, config.lexer_state); }
  static bool is_end(uint32_t result) { return result != kNoEnd && result != PairTable::kMissing; }
  void note(const LexerConfiguration& config, uint32_t result) {
    if (result_of(config) == PairTable::kMissing) results_.add(config.node, config.lexer_state, result);
  }
  void note_path(const LexerConfiguration& config, const LexerConfiguration& next) {
    if (result_of(config) != PairTable::kMissing) return;
    next_on_paths_.push_back(next);
    results_.add(config.node, config.lexer_state, uint32_t(kOnPath + next_on_paths_.size() - 1));
  }

  // Decides by the ends of the present lexeme alone: true if there is a completable path
  // after one, false if nothing can follow any of them, nothing if it takes a search.
  std::optional<bool> at_a_glance(Reader& reader, const LexerConfiguration& config, engine::Budget& budget);

  const Network& network_;
  Completability& completability_;
  std::vector<uint32_t> to_rule_end_;  // by state: symbols to the end of its rule, at least
  std::vector<uint32_t> distances_;    // by node: symbols to the end of the text, at least, as far as known
  PairTable results_;                  // by node and state of the lexer
  std::vector<LexerConfiguration>
      next_on_paths_;  // configurations that come next on paths to the end; they have results
};

template <typename Copied>
void EndSearch::take_over(const EndSearch& other, LexerConfiguration config, Copied copied) {
  for (;;) {
    LexerConfiguration here = config;
    here.node = copied(config.node);
    uint32_t result = other.result_of(config);
    if (!is_end(result) || result_of(here) != PairTable::kMissing) return;
    if (result == kEnd) return note(here, kEnd);
    config = other.next_on_paths_[result - kOnPath];
    LexerConfiguration next = config;
    next.node = copied(config.node);
    note_path(here, next);
  }
}

}  // namespace structout::context_free
