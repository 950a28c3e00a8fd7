#include "automata/character_counts.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

namespace structout::engine {

namespace {

constexpr uint64_t kMaxCells = 2u << 20;

// A set of states, with a byte for each.
using States = std::string;

// The targets of a state by bytes that begin a character, and by those that do not.
struct Targets {
  std::vector<uint32_t> of_first, of_others;
};

std::vector<Targets> targets_of(const Automaton& automaton) {
  std::vector<Targets> targets(automaton.num_states());
  auto add = [](std::vector<uint32_t>& to, uint32_t target) {
    if (std::find(to.begin(), to.end(), target) == to.end()) to.push_back(target);
  };
  for (uint32_t state = 0; state < automaton.num_states(); ++state) {
    for (const Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      if (edge->first < 0x80 || edge->last >= 0xC0) add(targets[state].of_first, edge->target);
      if (edge->first < 0xC0 && edge->last >= 0x80) add(targets[state].of_others, edge->target);
    }
  }
  return targets;
}

bool leads_to(const std::vector<uint32_t>& targets, const States& set) {
  return std::any_of(targets.begin(), targets.end(), [&](uint32_t target) { return set[target] != 0; });
}

// Adds the states that lead into the set within a character.
void add_within_character(const std::vector<Targets>& targets, States& set) {
  for (bool has_grown = true; has_grown;) {
    has_grown = false;
    for (uint32_t state = 0; state < targets.size(); ++state) {
      if (set[state] != 0 || !leads_to(targets[state].of_others, set)) continue;
      set[state] = 1;
      has_grown = true;
    }
  }
}

}  // namespace

CharacterCounts::CharacterCounts(const Automaton& automaton, Budget& budget) : num_states_(automaton.num_states()) {
  if (num_states_ == 0) return;
  const std::vector<Targets> targets = targets_of(automaton);
  std::vector<const States*> sets;  // by number of characters
  std::map<States, uint32_t> known;
  States set(num_states_, 0);
  for (uint32_t state = 0; state < num_states_; ++state) set[state] = automaton.accepts(state);
  for (;;) {
    add_within_character(targets, set);
    auto [found, is_new] = known.try_emplace(set, uint32_t(sets.size()));
    if (!is_new) {
      num_irregular_ = found->second;
      period_ = uint32_t(sets.size()) - num_irregular_;
      break;
    }
    sets.push_back(&found->first);
    uint64_t cells = uint64_t(num_states_) * sets.size();
    if (cells > kMaxCells) throw LimitError("pattern_lengths", cells, kMaxCells);
    budget.spend(num_states_);
    for (uint32_t state = 0; state < num_states_; ++state) set[state] = leads_to(targets[state].of_first, found->first);
  }
  least_.assign(sets.size() * num_states_, kNone);
  for (uint32_t state = 0; state < num_states_; ++state) {
    uint32_t next = kNone;  // in the period after the next
    for (uint32_t count = num_irregular_ + period_; count-- > num_irregular_;) {
      if ((*sets[count])[state] != 0) next = count + period_;
    }
    for (uint32_t count = num_irregular_ + period_; count-- > 0;) {
      if ((*sets[count])[state] != 0) next = count;
      least_[size_t(count) * num_states_ + state] = next;
    }
    if (next != kNone) most_ = std::max(most_, next);
  }
}

uint32_t CharacterCounts::least(uint32_t state, uint32_t min) const {
  uint32_t num_skipped = 0;  // whole periods
  if (min >= num_irregular_ + period_) num_skipped = (min - num_irregular_) / period_ * period_;
  uint32_t least = least_[size_t(min - num_skipped) * num_states_ + state];
  return least == kNone ? kNone : least + num_skipped;
}

uint8_t CharacterCounts::byte_towards(const Automaton& automaton, uint32_t state, uint32_t num_characters) const {
  for (uint32_t i = 0; i < 256; ++i) {
    auto byte = uint8_t(i < 0x80 ? (i + '0') % 0x80 : i);
    uint32_t target = automaton.next(state, byte);
    if (target == kDead || num_characters < begins_character(byte)) continue;
    uint32_t left = num_characters - begins_character(byte);
    if (least(target, left) == left) return byte;
  }
  throw std::logic_error("no text has this number of characters");
}

}  // namespace structout::engine
