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

// Stacks in which a text stands, and how far it is in a lexeme.
struct LexerPlace {
  Node node = Stacks::kDead;
  uint32_t lexer_state = Lexer::kStuck;  // 0 without a lexer
  uint32_t num_tokens = 0;               // that have ended inside the lexeme, if the network limits them
  bool operator==(const LexerPlace& other) const { return node == other.node && lexer_state == other.lexer_state; }
};

// A text of an embedded language that has begun, and the stacks below it.
struct EmbeddedRun {
  std::shared_ptr<engine::EmbeddedStates> states;
  engine::PositionPtr position;
  Node below;  // where its end returns to: see Stacks::returned()
};

// The mask of a place inside embedded texts, once it was found. `is_of_language`: whether
// it is kept by the states of the first of these texts.
struct KnownMask {
  const engine::Mask* mask = nullptr;
  bool is_of_language = false;
};

struct OtherPlaces {
  std::vector<LexerPlace> lexer_places;  // beside the first: a lexeme here may be an embedded text there
  std::vector<EmbeddedRun> runs;
  mutable KnownMask known_mask{};
};

// Where a text stands: in which stacks, and inside of which embedded texts. Where one of
// them may end, the stacks after it are among the others.
struct Place : LexerPlace {
  std::shared_ptr<const OtherPlaces> others{};  // null if there are none

  bool is_dead() const { return node == Stacks::kDead && others == nullptr; }

  // The embedded text in which the text stands, if it stands nowhere else.
  const EmbeddedRun* only_run() const {
    bool is_only =
        node == Stacks::kDead && others != nullptr && others->lexer_places.empty() && others->runs.size() == 1;
    return is_only ? others->runs.data() : nullptr;
  }
};

// Keys are the bytes of numbers.
template <typename Number>
void append_to_key(std::string& key, Number number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Different for places whose places in lexemes differ.
std::string lexer_key(const Place& place);

// Places are named by numbers of this reader's stacks and of a lexer that readers share.
class Reader {
 public:
  // `embedded`: null if the network has no embedded languages.
  Reader(const Network& network, Lexer& lexer, EmbeddedUse* embedded = nullptr);

  Place start(engine::Budget& budget);
  Place after(const Place& place, uint8_t byte, engine::Budget& budget) {
    if (place.others == nullptr && network_.embedded().empty()) return after_alone(place, byte, budget);
    return after_all(place, byte, budget);
  }

  // Bytes up to an end of an embedded text are read at once.
  Place after(Place place, const uint8_t* begin, const uint8_t* end, engine::Budget& budget);

  // After a token that the grammar reads by its id.
  Place after_token(const Place& place, uint32_t token, engine::Budget& budget);

  // Where a text stands that stands in one of two places.
  Place united(const Place& a, const Place& b, engine::Budget& budget);

  // The place without the embedded texts that cannot be completed, or for which `counts`
  // is false.
  template <typename Counts>
  Place with_ends(const Place& place, Counts counts);
  Place with_ends(const Place& place) {
    return with_ends(place, [](const EmbeddedRun&) { return true; });
  }

  // Whether a token may follow that is read by its id.
  bool reads_token(const Place& place, engine::Budget& budget);

  // After the end of an embedded text.
  LexerPlace after_embedded(Node below, engine::Budget& budget);

  bool may_end(const Place& place, engine::Budget& budget);

  // Whether a lexeme, an embedded text or a token may begin here, whatever follows.
  bool is_between(const LexerPlace& place) const {
    return !network_.has_lexer() || place.lexer_state == Lexer::kStuck || lexer_.is_fresh(place.lexer_state);
  }

  // The stacks in front of a token that is read by its id, or of the end of the text: a
  // lexeme ends there.
  Node before_token(const LexerPlace& place, engine::Budget& budget) {
    return is_between(place) ? place.node
                             : place_after_lexeme(place.node, lexer_.accepted(place.lexer_state), budget).node;
  }

  // Bytes that texts may consist of. One of each class of a lexer if nothing is embedded.
  const std::vector<uint8_t>& bytes_with_tokens() const { return bytes_with_tokens_; }

  // In front of the next lexeme, after one that all terminals of a set accept. After a
  // stop that belongs to what follows, the next lexeme has begun with it.
  LexerPlace place_after_lexeme(Node node, uint32_t set, engine::Budget& budget);

  // The stacks there, and whether something that is ignored may stand in front of them.
  Node after_lexeme(Node node, uint32_t set, engine::Budget& budget);
  bool may_ignore_after(uint32_t set) const {
    return !network_.ignores_once() || !lexer_.is_ignored(*lexer_.begin(set));
  }

  // The place at the end of a token: where a lexeme has taken as many tokens as it may, it
  // ends. `has_end(place)` tells whether texts can go on there; if not, it goes on.
  template <typename HasEnd>
  Place at_token_end(Place place, HasEnd has_end, engine::Budget& budget);

  // The state of the lexer in front of the next lexeme. `may_ignore`: whether something
  // that is ignored may stand there.
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
    return counts(run) && embedded_->held(run.states).has_end(*run.position);
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
