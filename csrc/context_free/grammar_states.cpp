#include "context_free/grammar_states.h"

#include <algorithm>
#include <utility>

namespace structout::context_free {

SharedParts::SharedParts(std::shared_ptr<const Network> given, const engine::Limits& limits,
                         std::shared_ptr<const engine::VocabularyTrie> trie)
    : network(std::move(given)),
      vocabulary(std::move(trie)),
      budget(limits),
      lexer(*network),
      sure_ways(*network, lexer),
      masks(*network, lexer, sure_ways, vocabulary) {}

GrammarStates::GrammarStates(std::shared_ptr<SharedParts> parts)
    : parts_(std::move(parts)),
      reader_(*parts_->network, parts_->lexer),
      end_search_(*parts_->network, parts_->sure_ways) {}

size_t GrammarStates::size_in_bytes() const {
  return reader_.memory_bytes() + states_.memory_bytes() + numbers_.memory_bytes();
}

uint32_t GrammarStates::number_of(Place place) {
  uint32_t known = numbers_.find(place.node, place.lexer_state);
  if (known != PairTable::kMissing) return known;
  uint32_t number = states_.add();
  states_[number].place = place;
  numbers_.add(place.node, place.lexer_state, number);
  return number;
}

std::optional<std::string> GrammarStates::shortest_end(uint32_t state) {
  Lock lock(*this);
  return end_search_.shortest(reader_, states_[state].place, budget());
}

uint32_t GrammarStates::start() {
  Lock lock(*this);
  Place place = reader_.start(budget());
  return place.is_dead() || !has_end(place) ? kNone : number_of(place);
}

uint32_t GrammarStates::after(uint32_t state, const uint8_t* begin, const uint8_t* end) {
  Lock lock(*this);
  size_t bytes = size_in_bytes();
  if (bytes > kMaxBytes) throw engine::LimitError("grammar_state_bytes", bytes, kMaxBytes);
  Place place = states_[state].place;
  for (const uint8_t* byte = begin; byte < end; ++byte) {
    place = reader_.after(place, *byte, budget());
    if (place.is_dead()) return kNone;
  }
  return has_end(place) ? number_of(place) : kNone;
}

bool GrammarStates::may_end(uint32_t state) {
  State& asked = states_[state];
  if (asked.may_end == MayEnd::kUnknown) {
    Lock lock(*this);
    asked.may_end = reader_.may_end(asked.place, budget()) ? MayEnd::kYes : MayEnd::kNo;
  }
  return asked.may_end == MayEnd::kYes;
}

std::string GrammarStates::forced(uint32_t state) {
  Lock lock(*this);
  std::string bytes;
  Place place = states_[state].place;
  while (bytes.size() < kMaxForcedBytes && !reader_.may_end(place, budget())) {
    Place only;
    int forced_byte = -1;
    for (int byte = 0; byte < 256; ++byte) {
      Place next = reader_.after(place, uint8_t(byte), budget());
      if (next.is_dead() || !has_end(next)) continue;
      if (forced_byte >= 0) return bytes;
      forced_byte = byte;
      only = next;
    }
    if (forced_byte < 0) return bytes;
    bytes.push_back(char(forced_byte));
    place = only;
  }
  return bytes;
}

void GrammarStates::fill_by_walk(Place place, uint32_t* row) {
  parts_->masks.fill_by_walk(reader_, place, budget(), [this](Place next) { return has_end(next); }, row);
}

const engine::Mask* GrammarStates::mask(uint32_t state) {
  State& asked = states_[state];
  if (asked.mask == nullptr) {
    Lock lock(*this);
    asked.mask = parts_->masks.mask(reader_, asked.place, budget(), [this](Place next) { return has_end(next); });
  }
  return asked.mask;
}

bool GrammarStates::fill(uint32_t state, uint32_t* row) {
  if (const engine::Mask* known = mask(state)) {
    parts_->masks.store().expand(*known, row);
    return !known->is_empty();
  }
  Lock lock(*this);
  fill_by_walk(states_[state].place, row);
  return std::any_of(row, row + parts_->vocabulary->row_words(), [](uint32_t word) { return word != 0; });
}

std::vector<Item> GrammarStates::items(uint32_t state) {
  Lock lock(*this);
  return reader_.stacks().items(states_[state].place.node);
}

std::vector<uint32_t> GrammarStates::walked_row(uint32_t state) {
  Lock lock(*this);
  std::vector<uint32_t> row(parts_->vocabulary->row_words());
  fill_by_walk(states_[state].place, row.data());
  return row;
}

std::vector<uint32_t> GrammarStates::copied(GrammarStates& from, const std::vector<uint32_t>& states) {
  Lock lock(*this);
  size_t bytes_before = size_in_bytes();
  PairTable copies;
  std::vector<uint32_t> result;
  for (uint32_t state : states) {
    Place place = from.states_[state].place;
    place.node = reader_.stacks().copied(place.node, from.reader_.stacks(), copies);
    result.push_back(number_of(place));
    states_[result.back()].mask = from.states_[state].mask.load();
  }
  moved_bytes_ += size_in_bytes() - bytes_before;
  return result;
}

uint32_t GrammarStates::num_states() {
  Lock lock(*this);
  return states_.size();
}

}  // namespace structout::context_free
