// Reads texts of a grammar byte by byte.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "context_free/embedded_use.h"
#include "context_free/lexer.h"
#include "context_free/network.h"
#include "context_free/number_tables.h"
#include "context_free/stacks.h"

namespace structout::context_free {

// A set of stacks and a state of the lexer. Inside a lexeme, the stacks are those in
// front of it. Equality ignores `num_tokens`: of equal alternatives a place keeps the
// one with the fewest tokens.
struct LexerPlace {
  Node node = Stacks::kDead;
  uint32_t lexer_state = Lexer::kStuck;  // 0 without a lexer
  uint32_t num_tokens = 0;               // that have ended inside the lexeme, if the network limits them
  bool operator==(const LexerPlace& other) const { return node == other.node && lexer_state == other.lexer_state; }
};

// A text of an embedded language that has begun, and the stacks below it.
struct EmbeddedRun {
  std::shared_ptr<engine::EmbeddedCache> cache;
  engine::PositionPtr position;
  Node below;  // its end returns to these stacks: see Stacks::returned()
};

// The mask of a place inside embedded texts, once it has been found. `is_of_language`:
// true if it belongs to the cache of the first of these texts, which must expand it.
struct KnownMask {
  const engine::Mask* mask = nullptr;
  bool is_of_language = false;
};

// The alternatives of an ambiguous place: see Place::others.
struct OtherPlaces {
  std::vector<LexerPlace> lexer_places;  // beside the first: a lexeme here may be an embedded text there
  std::vector<EmbeddedRun> runs;
  mutable KnownMask known_mask{};
};

// The place of a text: its configuration. An ambiguous text has further lexer places,
// and embedded texts that have begun, as `others`. If an embedded text may end here,
// the place after it is among the lexer places already.
struct Place : LexerPlace {
  std::shared_ptr<const OtherPlaces> others{};  // null if there are none

  bool is_dead() const { return node == Stacks::kDead && others == nullptr; }

  // Returns the embedded text that has begun, if it is the only alternative, else null.
  const EmbeddedRun* only_run() const {
    bool is_only =
        node == Stacks::kDead && others != nullptr && others->lexer_places.empty() && others->runs.size() == 1;
    return is_only ? others->runs.data() : nullptr;
  }
};

// Appends the bytes of a number to a key.
template <typename Number>
void append_to_key(std::string& key, Number number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Returns a key that differs for places with different lexer places. Embedded texts do
// not affect it.
std::string lexer_key(const Place& place);

// Computes the next place of a text after bytes and tokens. Places are numbers of this
// reader's stacks and of a lexer that readers share. Without embedded languages a known
// step within a lexeme costs one table lookup, and so does a known byte without a
// lexer.
class Reader {
 public:
  // `embedded`: null if the network has no embedded languages.
  Reader(const Network& network, Lexer& lexer, EmbeddedUse* embedded = nullptr);

  Place start(engine::Budget& budget);
  Place after(const Place& place, uint8_t byte, engine::Budget& budget) {
    if (place.others == nullptr && network_.embedded().empty()) return after_alone(place, byte, budget);
    return after_all(place, byte, budget);
  }

  // Reads bytes. If the text is inside a single embedded text, that one reads all bytes
  // up to its next possible end at once.
  Place after(Place place, const uint8_t* begin, const uint8_t* end, engine::Budget& budget);

  // The place after a token that the grammar matches by its id.
  Place after_token(const Place& place, uint32_t token, engine::Budget& budget);

  // The union: the place of a text that is in one of two places.
  Place united(const Place& a, const Place& b, engine::Budget& budget);

  // The place without the embedded texts that cannot be completed, or for which
  // `counts` is false.
  template <typename Counts>
  Place with_ends(const Place& place, Counts counts);
  Place with_ends(const Place& place) {
    return with_ends(place, [](const EmbeddedRun&) { return true; });
  }

  // True if a token may follow that the grammar matches by its id.
  bool reads_token(const Place& place, engine::Budget& budget);

  // The place after the end of an embedded text.
  LexerPlace after_embedded(Node below, engine::Budget& budget);

  bool may_end(const Place& place, engine::Budget& budget);

  // True if a lexeme, an embedded text or a token may begin here, since no lexeme has
  // begun yet. Always true without a lexer.
  bool is_between(const LexerPlace& place) const {
    return !network_.has_lexer() || place.lexer_state == Lexer::kStuck || lexer_.is_fresh(place.lexer_state);
  }

  // The stacks in front of a token matched by its id, or of the end of the text. The
  // present lexeme ends there: the result is dead if it cannot.
  Node before_token(const LexerPlace& place, engine::Budget& budget) {
    return is_between(place) ? place.node
                             : place_after_lexeme(place.node, lexer_.accepted(place.lexer_state), budget).node;
  }

  // The bytes that texts may consist of. With a lexer and without embedded languages,
  // only one byte of each class.
  const std::vector<uint8_t>& bytes_with_tokens() const { return bytes_with_tokens_; }

  // The place in front of the next lexeme, after one that all terminals of a set
  // accept. If they have a stop that the next lexeme can begin with, the place is after
  // the stop, inside the next lexeme.
  LexerPlace place_after_lexeme(Node node, uint32_t set, engine::Budget& budget);

  // The stacks in front of the next lexeme. may_ignore_after() is true if that lexeme
  // may be an ignored one.
  Node after_lexeme(Node node, uint32_t set, engine::Budget& budget);
  bool may_ignore_after(uint32_t set) const {
    return !network_.ignores_once() || !lexer_.is_ignored(*lexer_.begin(set));
  }

  // The place at the end of a token, where max_tokens takes effect. Terminals that have
  // used it up leave the lexeme or, if texts cannot be finished so, end it; if that
  // fails too, the lexeme goes on. `has_end(place)` is true if texts can be finished
  // from a place.
  template <typename HasEnd>
  Place at_token_end(Place place, HasEnd has_end, engine::Budget& budget);

  // The state of the lexer in front of the next lexeme. `may_ignore`: true if that may
  // be an ignored one.
  uint32_t lexer_start(Node node, bool may_ignore = true);

  const Network& network() const { return network_; }
  Lexer& lexer() { return lexer_; }
  Stacks& stacks() { return stacks_; }
  const Stacks& stacks() const { return stacks_; }
  EmbeddedUse& embedded() { return *embedded_; }
  size_t memory_bytes() const {
    size_t num_starts = 0;
    for (const auto* starts : {&lexer_starts_, &starts_of_tops_}) {
      num_starts += (*starts)[0].capacity() + (*starts)[1].capacity();
    }
    return stacks_.memory_bytes() + after_lexeme_.memory_bytes() + top_numbers_.memory_bytes() +
           num_starts * sizeof(uint32_t);
  }

 private:
  class PlaceBuilder;

  std::vector<uint32_t> allowed_terminals(const std::vector<uint32_t>& states) const;
  uint32_t computed_lexer_start(const std::vector<uint32_t>& states, bool may_ignore);
  Place after_alone(const LexerPlace& place, uint8_t byte, engine::Budget& budget);
  Place after_all(const Place& place, uint8_t byte, engine::Budget& budget);
  template <typename Visit>
  static void visit_lexer_places(const Place& place, Visit visit);
  void read_run(const EmbeddedRun& run, const uint8_t*& at, const uint8_t* end, PlaceBuilder& builder,
                engine::Budget& budget);

  const Network& network_;
  Lexer& lexer_;
  EmbeddedUse* const embedded_;
  Stacks stacks_;
  std::vector<uint8_t> bytes_with_tokens_;
  PairTable after_lexeme_;                             // by node and set of terminals
  std::array<std::vector<uint32_t>, 2> lexer_starts_;  // by may_ignore and node, as far as known
  ListNumbers<uint32_t> top_numbers_;                  // of lists of states
  std::array<std::vector<uint32_t>, 2> starts_of_tops_;
  std::vector<uint32_t> tops_;  // of the present node
};

template <typename Counts>
Place Reader::with_ends(const Place& place, Counts counts) {
  if (place.others == nullptr || place.others->runs.empty()) return place;
  auto has_end = [&](const EmbeddedRun& run) {
    return counts(run) && embedded_->locked(run.cache).has_end(*run.position);
  };
  const std::vector<EmbeddedRun>& runs = place.others->runs;
  if (std::all_of(runs.begin(), runs.end(), has_end)) return place;
  Place result = place;
  OtherPlaces others{place.others->lexer_places, {}};
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(others.runs), has_end);
  bool is_empty = others.runs.empty() && others.lexer_places.empty();
  result.others = is_empty ? nullptr : std::make_shared<const OtherPlaces>(std::move(others));
  return result;
}

template <typename HasEnd>
Place Reader::at_token_end(Place place, HasEnd has_end, engine::Budget& budget) {
  auto limit = [&](LexerPlace& each) {
    if (is_between(each) || !lexer_.exceeds_limit(each.lexer_state, ++each.num_tokens)) return;
    Lexer::Limited limited = lexer_.limited(each.lexer_state, each.num_tokens);
    LexerPlace without = {each.node, limited.state, each.num_tokens};
    LexerPlace after = place_after_lexeme(each.node, limited.accepted, budget);
    if (limited.state != Lexer::kStuck && has_end(without)) {
      each = without;
    } else if (after.node != Stacks::kDead && has_end(after)) {
      each = after;
    }
  };
  if (place.node != Stacks::kDead) limit(place);
  if (place.others == nullptr || place.others->lexer_places.empty()) return place;
  OtherPlaces others{place.others->lexer_places, place.others->runs};
  for (LexerPlace& each : others.lexer_places) limit(each);
  place.others = std::make_shared<const OtherPlaces>(std::move(others));
  return place;
}

template <typename Visit>
void Reader::visit_lexer_places(const Place& place, Visit visit) {
  if (place.node != Stacks::kDead) visit(static_cast<const LexerPlace&>(place));
  if (place.others == nullptr) return;
  for (const LexerPlace& other : place.others->lexer_places) visit(other);
}

}  // namespace structout::context_free
