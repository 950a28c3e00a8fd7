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
#include "context_free/sure_ways.h"

namespace structout::context_free {

// Finds ways from places to the end of a text. Without a lexer there always is one. A
// greedy lexer may swallow what a rule needs next: "<" TEXT ">" with the terminal /[^<]+/
// has no text, though each rule has one.
class EndSearch {
 public:
  EndSearch(const Network& network, SureWays& sure_ways);

  // Whether there is a way. False also if a search among single places gives up, after
  // `kMaxPlaces` of them or so much work.
  bool has_end(Reader& reader, const LexerPlace& place, engine::Budget& budget) {
    if (!network_.has_lexer() || sure_ways_.is_safe(place.lexer_state, budget)) return true;
    return searched_has_end(reader, place, budget);
  }

  // Takes over that a place of another search has an end, if it was found there, and the way
  // to it. A search from here alone may give up, since it knows fewer ways. `copied(node)`:
  // the node here.
  template <typename Copied>
  void take_over(const EndSearch& other, LexerPlace place, Copied copied);

  // The bytes of a shortest way. Nothing if none is found, or if none does without tokens
  // that are read by their ids, or without lexemes that end because they have taken as
  // many tokens as they may. Of embedded texts: see EmbeddedStates::short_end().
  std::optional<std::string> shortest(Reader& reader, const Place& place, engine::Budget& budget);

  size_t memory_bytes() const {
    return results_.memory_bytes() + ways_.capacity() * sizeof(LexerPlace) +
           (to_rule_end_.capacity() + distances_.capacity()) * sizeof(uint32_t);
  }

 private:
  static constexpr uint32_t kMaxPlaces = 4'000;
  static constexpr uint64_t kMaxWork = 1 << 18;        // of a budget
  static constexpr uint64_t kMaxWorkOfEnds = 1 << 22;  // of embedded texts

  // What is known of a place: one of these, or kWay and an index of `ways_`.
  enum Result : uint32_t { kNoEnd, kEnd, kWay };

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
  bool searched_has_end(Reader& reader, const LexerPlace& place, engine::Budget& budget);
  uint32_t result_of(const LexerPlace& place) const { return results_.find(place.node, place.lexer_state); }
  static bool is_end(uint32_t result) { return result != kNoEnd && result != PairTable::kMissing; }
  void note(const LexerPlace& place, uint32_t result) {
    if (result_of(place) == PairTable::kMissing) results_.add(place.node, place.lexer_state, result);
  }
  void note_way(const LexerPlace& place, const LexerPlace& next) {
    if (result_of(place) != PairTable::kMissing) return;
    ways_.push_back(next);
    results_.add(place.node, place.lexer_state, uint32_t(kWay + ways_.size() - 1));
  }

  // What the ends of the present lexeme tell, if they do: there is a sure way after one,
  // or no byte can follow any.
  std::optional<bool> at_a_glance(Reader& reader, const LexerPlace& place, engine::Budget& budget);

  const Network& network_;
  SureWays& sure_ways_;
  std::vector<uint32_t> to_rule_end_;  // by state: symbols to the end of its rule, at least
  std::vector<uint32_t> distances_;    // by node: symbols to the end of the text, at least, as far as known
  PairTable results_;                  // by node and state of the lexer
  std::vector<LexerPlace> ways_;       // places that come next on ways to the end; they have results
};

template <typename Copied>
void EndSearch::take_over(const EndSearch& other, LexerPlace place, Copied copied) {
  for (;;) {
    LexerPlace here = place;
    here.node = copied(place.node);
    uint32_t result = other.result_of(place);
    if (!is_end(result) || result_of(here) != PairTable::kMissing) return;
    if (result == kEnd) return note(here, kEnd);
    place = other.ways_[result - kWay];
    LexerPlace next = place;
    next.node = copied(place.node);
    note_way(here, next);
  }
}

}  // namespace structout::context_free
