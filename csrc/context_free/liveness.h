// Whether texts with a greedy lexer can be finished.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "context_free/network.h"
#include "context_free/reader.h"
#include "fsm/limits.h"

namespace structout::context_free {

// Whether a way to the end is known for every place that a text of the network can reach.
// Without a lexer there always is one. A greedy lexer may swallow what a rule needs next:
// "<" TEXT ">" with the terminal /[^<]+/ has no text, though each rule has one.
bool always_has_end(const Network& network, fsm::Budget& budget);

// Finds whether single places have a way to the end, by a search for a short one.
class EndSearch {
 public:
  explicit EndSearch(const Network& network);

  // False also if none is found among the first `kMaxPlaces` places.
  bool has_end(Reader& reader, Place place, fsm::Budget& budget);

 private:
  static constexpr uint32_t kMaxPlaces = 4'000;

  uint32_t distance(const Reader& reader, Node node);

  const Network& network_;
  std::vector<uint32_t> to_rule_end_;  // by state: symbols to the end of its rule, at least
  std::vector<uint32_t> distances_;    // by node: symbols to the end of the text, at least, as far as known
  PairTable results_;                  // by node and state of the lexer: 0 or 1
};

}  // namespace structout::context_free
