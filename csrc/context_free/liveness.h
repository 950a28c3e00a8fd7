// Whether texts with a greedy lexer can be finished.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "context_free/network.h"
#include "context_free/reader.h"

namespace structout::context_free {

// Whether a way to the end is known for every place that a text of the network can reach.
// Without a lexer there always is one. A greedy lexer may swallow what a rule needs next:
// "<" TEXT ">" with the terminal /[^<]+/ has no text, though each rule has one.
bool always_has_end(const Network& network, engine::Budget& budget);

// Finds ways from single places to the end of a text.
class EndSearch {
 public:
  explicit EndSearch(const Network& network);

  // Whether there is a way. False also if none is found among the first `kMaxPlaces` places.
  bool has_end(Reader& reader, const LexerPlace& place, engine::Budget& budget);

  // The bytes of a shortest way. Nothing if none is found, or if none does without tokens
  // that are read by their ids. Embedded texts on the way may have shorter ends.
  std::optional<std::string> shortest(Reader& reader, const Place& place, engine::Budget& budget);

 private:
  static constexpr uint32_t kMaxPlaces = 4'000;

  // A place that was reached from another, by a byte, by an embedded text or by a token.
  struct Step {
    LexerPlace place;
    uint32_t before, length;
    std::string bytes;
  };

  // Reaches places, those first that promise to be nearest to the end. Returns the number
  // of the step that ends the text, or kNone, and whether all places were tried.
  // `is_known_end(place)` ends the search, too. `by_bytes`: whether the ways must have
  // bytes.
  template <typename IsKnownEnd>
  std::pair<uint32_t, bool> search(Reader& reader, const Place& place, bool by_bytes, IsKnownEnd is_known_end,
                                   std::vector<Step>& steps, engine::Budget& budget);
  uint32_t distance(const Reader& reader, Node node);

  const Network& network_;
  std::vector<uint32_t> to_rule_end_;  // by state: symbols to the end of its rule, at least
  std::vector<uint32_t> distances_;    // by node: symbols to the end of the text, at least, as far as known
  PairTable results_;                  // by node and state of the lexer: whether it has an end, 0 or 1
};

}  // namespace structout::context_free
