#include "context_free/stack_grammar.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/room.h"

namespace structout::context_free {

using engine::StackAction;
using engine::StackMask;
using engine::StackPlace;

namespace {

// Where an action leads that reads no byte.
int64_t state_of(const StackAction& action) {
  using Language = engine::StackLanguage;
  if (action.kind == StackAction::kReplace) return action.state;
  return action.kind == StackAction::kFail ? int64_t{Language::kRefused} : int64_t{Language::kAsked};
}

}  // namespace

bool StackGrammar::may_have_tables(const Network& network, const std::vector<uint32_t>& stop_tokens) {
  std::set<uint32_t> tokens;
  for (uint32_t state = 0; state < network.num_states(); ++state) {
    for (auto edge = network.tokens_begin(state); edge < network.tokens_end(state); ++edge) {
      for (uint32_t symbol = edge->first; symbol <= edge->last && tokens.size() <= size_t(kMaxPairs); ++symbol) {
        tokens.insert(symbol - kFirstToken);
      }
    }
  }
  // A token ends the text or belongs to it.
  return !network.has_token_limits() && tokens.size() <= size_t(kMaxPairs) &&
         std::none_of(stop_tokens.begin(), stop_tokens.end(), [&](uint32_t stop) { return tokens.count(stop) != 0; });
}

StackGrammar::StackGrammar(std::shared_ptr<GrammarIndex> index)
    : index_(std::move(index)), grammar_(index_->own_states()) {
  for (uint32_t i = 0; i < index_->parts().network->embedded().size(); ++i) {
    embedded_.push_back(grammar_->embedded_.current(i));
    languages_.push_back(embedded_[i]->stack_language());
  }
}

// -- numbers of states --------------------------------------------------------------

uint32_t StackGrammar::number_of(const State& state) {
  auto known = numbers_.find(state);
  if (known != numbers_.end()) return known->second;
  states_.push_back(state);  // first: if the next line fails, no number leads there
  return numbers_.emplace(state, uint32_t(states_.size() - 1)).first->second;
}

std::optional<uint32_t> StackGrammar::number_of_place(const KnownPlace& place) {
  if (place.number) return number_of({State::kPlace, 0, *place.number});
  if (!place.key) return std::nullopt;
  auto found = places_by_key_.find(*place.key);
  if (found == places_by_key_.end()) {
    if (place_bytes_ > kMaxPlaceBytes) return std::nullopt;
    auto number = uint32_t(places_.size());
    places_.push_back({place.place, number, std::nullopt, place.may_end, place.reads_tokens, place.is_live});
    found = places_by_key_.emplace(*place.key, number).first;
    place_bytes_ += sizeof(KnownPlace) + sizeof(std::string) + place.key->size();
  }
  return number_of({State::kPlace, 0, found->second});
}

StackGrammar::KnownPlace StackGrammar::described(Place place) {
  KnownPlace result{std::move(place)};
  if (result.place.is_dead()) return result;
  result.key = grammar_->key_of(result.place);
  if (result.key) {
    auto found = places_by_key_.find(*result.key);
    if (found != places_by_key_.end()) return places_[found->second];
  }
  engine::Budget& budget = grammar_->budget();
  result.may_end = grammar_->reader_.may_end(result.place, budget);
  result.reads_tokens = grammar_->reader_.reads_token(result.place, budget);
  result.is_live = !grammar_->finishable(result.place).is_dead();
  return result;
}

template <typename Read>
std::optional<StackGrammar::KnownPlace> StackGrammar::described_after(Read read) {
  try {
    GrammarStates::Lock lock(*grammar_);  // not for longer: texts of the engine may wait for it
    grammar_->check_room();
    return described(read());
  } catch (const engine::LimitError&) {
    return std::nullopt;
  }
}

std::optional<uint32_t> StackGrammar::language_around(const Place& place) {
  const EmbeddedRun* run = place.only_run();
  if (run == nullptr) return std::nullopt;
  auto language = uint32_t(std::find(embedded_.begin(), embedded_.end(), run->states) - embedded_.begin());
  bool is_around = language < languages_.size() && languages_[language] != nullptr &&
                   languages_[language]->is_delimited(*run->position);
  return is_around ? std::optional(language) : std::nullopt;
}

uint32_t StackGrammar::start() {
  std::lock_guard<std::mutex> guard(mutex_);
  GrammarStates::Lock lock(*grammar_);
  return *number_of_place(described(grammar_->reader_.start(grammar_->budget())));
}

// -- what states do -----------------------------------------------------------------

bool StackGrammar::accepts(uint32_t number) {
  std::lock_guard<std::mutex> guard(mutex_);
  const State& state = states_[number];
  return state.kind == State::kPlace && places_[state.number].may_end;
}

bool StackGrammar::keeps_names(uint32_t number) {
  std::lock_guard<std::mutex> guard(mutex_);
  const State& state = states_[number];
  return state.kind == State::kInside && languages_[state.language]->keeps_names(state.number);
}

bool StackGrammar::is_live(uint32_t number) {
  std::lock_guard<std::mutex> guard(mutex_);
  const State& state = states_[number];
  return state.kind != State::kPlace || places_[state.number].is_live;
}

bool StackGrammar::reads_tokens(uint32_t number) {
  std::lock_guard<std::mutex> guard(mutex_);
  const State& state = states_[number];
  return state.kind == State::kPlace && places_[state.number].reads_tokens;
}

StackAction StackGrammar::action_to(const std::optional<KnownPlace>& next) {
  if (!next) return {StackAction::kAsk};
  if (next->place.is_dead()) return {};
  // If the place is inside of a value, nothing after it can be finished.
  if (!next->is_live && language_around(next->place)) return {};
  StackPlace place;
  if (!find_place(*next, place) || place.frames.size() > 2) return {StackAction::kAsk};
  if (place.frames.size() == 1) return {StackAction::kReplace, place.frames[0].state};
  return {StackAction::kPush, place.frames[1].state, place.frames[0].state};
}

void StackGrammar::list_actions(uint32_t number, StackAction* actions) {
  std::lock_guard<std::mutex> guard(mutex_);
  const State state = states_[number];
  if (state.kind == State::kInside) {
    languages_[state.language]->list_actions(state.number, actions);
    for (int byte = 0; byte < 256; ++byte) {
      StackAction& action = actions[byte];
      bool leads_to_state = action.kind == StackAction::kReplace || action.kind == StackAction::kPush;
      if (leads_to_state) action.state = number_inside(state.language, action.state);
      if (action.kind == StackAction::kPush) action.below = number_inside(state.language, action.below);
    }
    return;
  }
  const Place place = places_[state.number].place;
  for (int byte = 0; byte < 256; ++byte) {
    actions[byte] =
        action_to(described_after([&] { return grammar_->reader_.after(place, uint8_t(byte), grammar_->budget()); }));
  }
}

std::vector<std::pair<uint32_t, int64_t>> StackGrammar::list_tokens(uint32_t number) {
  std::lock_guard<std::mutex> guard(mutex_);
  const Place place = places_[states_[number].number].place;
  std::set<uint32_t> tokens;
  {
    GrammarStates::Lock lock(*grammar_);
    tokens = grammar_->reader_.read_tokens(place, grammar_->budget());
  }
  std::vector<std::pair<uint32_t, int64_t>> list;
  for (uint32_t token : tokens) {
    StackAction action = action_to(described_after([&] { return grammar_->held_after_token(place, token, false); }));
    list.push_back({token, state_of(action)});
  }
  return list;
}

int64_t StackGrammar::resume(uint32_t waiting, uint32_t verdicts) {
  std::lock_guard<std::mutex> guard(mutex_);
  const State state = states_[waiting];
  engine::EmbeddedStackLanguage& language = *languages_[state.language];
  if (state.kind == State::kInside) {
    int64_t next = language.resume(state.number, verdicts);
    return next < 0 ? next : int64_t{number_inside(state.language, uint32_t(next))};
  }
  int64_t end = language.resume(kBottom, verdicts);
  if (end < 0) return end;
  return state_of(action_to(
      described_after([&] { return Place{grammar_->reader_.after_embedded(state.number, grammar_->budget())}; })));
}

// -- masks --------------------------------------------------------------------------

StackMask StackGrammar::fill(const StackPlace& place, uint32_t* row) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (place.frames.size() > 1) return fill_inside(place, row);
  TextPlace text;
  std::optional<uint32_t> state;
  {
    GrammarStates::Lock lock(*grammar_);
    text = grammar_->finishable(places_[states_[place.frames[0].state].number].place);
    state = number_of_place(described(grammar_->place_of(text)));
  }
  engine::MaskRow to(row, vocabulary().row_words());
  grammar_->fill(text, to);
  StackMask mask;
  mask.state = state.value_or(place.frames[0].state);
  return mask;
}

StackMask StackGrammar::fill_inside(const StackPlace& place, uint32_t* row) {
  const State waiting = states_[place.frames[0].state];
  engine::EmbeddedStackLanguage& language = *languages_[waiting.language];
  StackPlace inside;
  for (size_t i = 1; i < place.frames.size(); ++i) {
    inside.frames.push_back({states_[place.frames[i].state].number, place.frames[i].names});
  }
  StackMask mask = language.fill(inside, row);
  const uint32_t state = mask.state;
  mask.state = number_inside(waiting.language, state);
  // A token may lead out of the value.
  const bool looks_at_grammar = mask.num_frames > inside.frames.size();
  if (mask.is_asked || !looks_at_grammar) return mask;
  mask.is_asked = language.has_remembered_text(inside);
  if (mask.is_asked) return mask;
  fill_across(waiting, inside, row);
  // By now it is known how far tokens look on their way out, which may depend on names.
  mask.num_frames = language.num_mask_frames(state);
  mask.conditions.clear();
  mask.frames_with_names.clear();
  for (uint32_t i = 0; i < inside.frames.size(); ++i) {
    bool keeps_names = language.keeps_names(inside.frames[inside.frames.size() - 1 - i].state);
    if (keeps_names) mask.frames_with_names.push_back(i);
  }
  return mask;
}

// Fills a row with the tokens inside of an embedded text, and those that lead out of it.
void StackGrammar::fill_across(const State& waiting, const StackPlace& inside, uint32_t* row) {
  EmbeddedRun run = {embedded_[waiting.language], languages_[waiting.language]->position(inside), waiting.number};
  Place place;
  place.others = std::make_shared<const OtherPlaces>(OtherPlaces{{}, {std::move(run)}});
  TextPlace text;
  {
    GrammarStates::Lock lock(*grammar_);
    text = grammar_->finishable(std::move(place));
  }
  engine::MaskRow to(row, vocabulary().row_words());
  grammar_->fill(text, to);
}

// -- texts --------------------------------------------------------------------------

bool StackGrammar::find_place(const KnownPlace& known, StackPlace& place) {
  if (std::optional<uint32_t> language = language_around(known.place)) {
    const EmbeddedRun& run = *known.place.only_run();
    StackPlace inside;
    if (!languages_[*language]->find_place(*run.position, inside)) return false;
    place.frames.push_back({number_of({State::kWaiting, *language, run.below}), 0});
    for (const StackPlace::Frame& frame : inside.frames) {
      place.frames.push_back({number_inside(*language, frame.state), frame.names});
    }
    return true;
  }
  std::optional<uint32_t> state = number_of_place(known);
  if (state) place.frames = {{*state, 0}};
  return state.has_value();
}

// A text on the states of the tables. Where they are full, it goes on by itself.
class StackGrammar::GrammarText final : public engine::StackLanguage::Text {
 public:
  explicit GrammarText(std::shared_ptr<StackGrammar> language)
      : language_(std::move(language)), states_(language_->grammar_), place_(states_->start()) {}

  std::unique_ptr<Text> copy() const override { return std::make_unique<GrammarText>(*this); }

  bool read(uint32_t token) override {
    engine::make_room(tokens_);
    std::shared_ptr<GrammarStates> states = states_;
    TextPlace next;
    try {
      next = states->after_token(place_, token, false);
    } catch (const engine::RoomError&) {
      if (states_ != language_->grammar_) throw;
      states = language_->index_->own_states();
      next = states->start();
      for (size_t i = 0; i <= tokens_.size() && !next.is_dead(); ++i) {
        next = states->after_token(next, i < tokens_.size() ? tokens_[i] : token, false);
      }
    }
    if (next.is_dead()) return false;
    states_ = std::move(states);
    place_ = std::move(next);
    tokens_.push_back(token);
    return true;
  }

  bool is_complete() override { return states_->may_end(place_); }

  void fill(uint32_t* row) override {
    engine::MaskRow to(row, language_->vocabulary().row_words());
    states_->fill(place_, to);
  }

  bool find_place(StackPlace& place) override {
    if (states_ != language_->grammar_) return false;
    std::lock_guard<std::mutex> guard(language_->mutex_);
    std::optional<KnownPlace> known;
    {
      GrammarStates::Lock lock(*states_);
      known = language_->described(states_->place_of(place_));
    }
    return language_->find_place(*known, place);
  }

 private:
  std::shared_ptr<StackGrammar> language_;
  std::shared_ptr<GrammarStates> states_;
  std::vector<uint32_t> tokens_;
  TextPlace place_;
};

std::unique_ptr<engine::StackLanguage::Text> StackGrammar::text() {
  return std::make_unique<GrammarText>(shared_from_this());
}

}  // namespace structout::context_free
