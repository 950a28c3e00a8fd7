#include "json/schema_index.h"

#include <algorithm>
#include <cstring>

#include "fsm/unique_number.h"
#include "json/closure.h"

namespace structout::json {

using fsm::VocabularyTrie;

namespace {

constexpr char kSpaces[] = {' ', '\n', '\t', '\r'};
constexpr size_t kBytesPerKey = 96;  // of the table, roughly

}  // namespace

SchemaIndex::SchemaIndex(std::unique_ptr<Machine> machine, std::shared_ptr<const VocabularyTrie> vocabulary)
    : machine_(std::move(machine)),
      vocabulary_(std::move(vocabulary)),
      store_(vocabulary_),
      row_(vocabulary_->row_words()) {}

Position SchemaIndex::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  return Position(*machine_);
}

bool SchemaIndex::read(Position& position, uint32_t token) {
  const uint8_t *begin = vocabulary_->begin(token), *end = vocabulary_->end(token);
  return begin != end && read(position, begin, end);
}

bool SchemaIndex::read(Position& position, const std::string& bytes) {
  const uint8_t* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return read(position, begin, begin + bytes.size());
}

bool SchemaIndex::read(Position& position, const uint8_t* begin, const uint8_t* end) {
  std::lock_guard<std::mutex> lock(mutex_);
  machine_->schema().budget().restart();
  return position.read(begin, end) && position.has_unused();
}

bool SchemaIndex::is_complete(const Position& position) {
  std::lock_guard<std::mutex> lock(mutex_);
  return position.is_complete();
}

std::string SchemaIndex::forced(const Position& position) {
  std::lock_guard<std::mutex> lock(mutex_);
  machine_->schema().budget().restart();
  return position.forced();
}

size_t SchemaIndex::num_states() {
  std::lock_guard<std::mutex> lock(mutex_);
  return machine_->num_states();
}

size_t SchemaIndex::memory_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return machine_->memory_bytes() + store_.memory_bytes() + masks_.size() * kBytesPerKey + suspect_bytes_;
}

std::optional<fsm::Automaton> SchemaIndex::closed(const fsm::Limits& limits) try {
  std::lock_guard<std::mutex> lock(mutex_);
  machine_->schema().budget().restart();
  fsm::Budget budget(limits);
  return closure(*machine_, budget);
} catch (const fsm::LimitError&) {
  return std::nullopt;
}

uint32_t SchemaIndex::number_with(const std::vector<uint32_t>& stop_tokens) {
  std::string key(reinterpret_cast<const char*>(stop_tokens.data()), stop_tokens.size() * sizeof(uint32_t));
  std::lock_guard<std::mutex> lock(mutex_);
  auto [found, is_new] = numbers_.try_emplace(key, 0);
  if (is_new) found->second = fsm::unique_number();
  return found->second;
}

// The state on top, or one with the same mask.
State SchemaIndex::mask_state(const Position& position) {
  State state = position.state();
  if (mask_states_.size() <= state) mask_states_.resize(machine_->num_states(), kNoState);
  if (mask_states_[state] == kNoState) {
    mask_states_[state] = machine_->without_far_limits(state, vocabulary_->max_depth());
  }
  return mask_states_[state];
}

// The states on top of the stack that masks with the same top have looked at so far.
std::string SchemaIndex::key_of(const Position& position, State top) const {
  size_t num_frames = top < num_frames_.size() ? num_frames_[top] : 1;
  std::string key(reinterpret_cast<const char*>(&top), sizeof top);
  const Frame* frame = position.below();
  for (size_t i = 1; i < num_frames; ++i) {
    State state = frame == nullptr ? kNoState : frame->state;
    key.append(reinterpret_cast<const char*>(&state), sizeof state);
    if (frame == nullptr) break;
    frame = frame->below.get();
  }
  return key;
}

const SchemaIndex::Entry* SchemaIndex::known_entry(const Position& position, State top) const {
  auto found = masks_.find(key_of(position, top));
  return found == masks_.end() ? nullptr : &found->second;
}

// Leaves the row of the mask in row_.
const SchemaIndex::Entry& SchemaIndex::computed_entry(const Position& position, State top) {
  machine_->schema().budget().restart();
  std::optional<Machine::LengthLimit> limit = machine_->length_limit(top);
  std::optional<State> similar = limit ? limit->without : machine_->state_without_name(top);
  const Entry* base = nullptr;
  if (similar) {
    base = known_entry(position, *similar);
    if (base == nullptr) base = &computed_entry(position, *similar);
    if (base->mask == nullptr) base = nullptr;
  }
  TokenWalk walk(*machine_, position, top);
  Suspects suspects;
  bool is_filled = base != nullptr;
  if (is_filled) {
    store_.expand(*base->mask, row_.data());
    suspects = base->suspects;
    if (limit) {
      is_filled = walk.forbid_longer(*vocabulary_, *limit, row_.data());
    } else {
      walk.fill_names(*vocabulary_, row_.data(), suspects);
    }
  }
  if (!is_filled) {
    std::fill(row_.begin(), row_.end(), 0);
    suspects = {};
    walk.fill(*vocabulary_, row_.data(), suspects);
  }
  last_.suspects = std::move(suspects);
  if (num_frames_.size() <= top) num_frames_.resize(top + 1, 1);
  num_frames_[top] = std::max(num_frames_[top], uint32_t(walk.num_looked_at()));
  if (similar) num_frames_[top] = std::max(num_frames_[top], num_frames_[*similar]);
  last_.mask = store_.add(row_.data());
  if (last_.mask == nullptr) return last_;
  suspect_bytes_ += (last_.suspects.of_earlier.size() + last_.suspects.of_themselves.size()) * sizeof(uint32_t);
  return masks_.emplace(key_of(position, top), last_).first->second;
}

const fsm::Mask* SchemaIndex::mask(const Position& position) {
  if (position.has_used()) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  State top = mask_state(position);
  const Entry* known = known_entry(position, top);
  const Entry& entry = known != nullptr ? *known : computed_entry(position, top);
  return entry.suspects.of_themselves.empty() ? entry.mask : nullptr;
}

std::vector<State> SchemaIndex::control_state(const Position& position) {
  std::lock_guard<std::mutex> lock(mutex_);
  State top = mask_state(position);
  if (known_entry(position, top) == nullptr) computed_entry(position, top);
  std::string key = key_of(position, top);
  std::vector<State> states(key.size() / sizeof(State));
  std::memcpy(states.data(), key.data(), key.size());
  return states;
}

bool SchemaIndex::has_mask(const Position& position) {
  if (position.has_used()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry* known = known_entry(position, mask_state(position));
  return known != nullptr && known->suspects.of_themselves.empty();
}

bool SchemaIndex::fill(const Position& position, uint32_t* row) {
  std::lock_guard<std::mutex> lock(mutex_);
  State top = mask_state(position);
  const Entry* known = known_entry(position, top);
  const Entry& entry = known != nullptr ? *known : computed_entry(position, top);
  if (entry.mask == nullptr) {
    std::copy(row_.begin(), row_.end(), row);
  } else {
    store_.expand(*entry.mask, row);
  }
  bool remembers = position.has_used(), depends_on_text = remembers || !entry.suspects.of_themselves.empty();
  if (depends_on_text) {
    forbid_used(position, remembers ? entry.suspects.of_earlier : entry.suspects.of_themselves, row);
  }
  if (entry.mask != nullptr && !depends_on_text) return !entry.mask->is_empty();
  return std::any_of(row, row + row_.size(), [](uint32_t word) { return word != 0; });
}

// Takes tokens out of a row that would repeat a key or an item: the suspects, and those
// that complete a key or an item that has begun.
void SchemaIndex::forbid_used(const Position& position, const std::vector<uint32_t>& suspects, uint32_t* row) {
  machine_->schema().budget().restart();
  auto try_token = [&](uint32_t token) {
    uint32_t bit = 1u << (token & 31);
    if ((row[token >> 5] & bit) == 0) return;
    Position next = position;
    if (!next.read(vocabulary_->begin(token), vocabulary_->end(token)) || !next.has_unused()) row[token >> 5] &= ~bit;
  };
  if (position.is_among_few_values()) {
    for (uint32_t i = 0; i < vocabulary_->row_words(); ++i) {
      for (uint32_t bits = row[i]; bits != 0; bits &= bits - 1) try_token(i << 5 | uint32_t(__builtin_ctz(bits)));
    }
    return;
  }
  for (uint32_t token : suspects) try_token(token);
  // The way of each used text through the vocabulary, and what goes on behind it. A key
  // has one spelling, so no token is allowed that completes a used one.
  bool is_key = machine_->memory(position.state()) == Machine::Memory::kInsideKey;
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  auto follow = [&](auto& self, const std::string& end, uint32_t node) -> void {
    for (char space : kSpaces) {  // in front of an item
      uint32_t next = is_key ? VocabularyTrie::kNone : vocabulary_->child(node, uint8_t(space));
      if (next != VocabularyTrie::kNone) self(self, end, next);
    }
    for (size_t length = 0; length < end.size(); ++length) {
      node = vocabulary_->child(node, uint8_t(end[length]));
      if (node == VocabularyTrie::kNone) break;
      bool is_whole = length + 1 == end.size();
      uint32_t last = is_whole ? nodes[node].end - 1 : node;
      for (uint32_t i = vocabulary_->first_token(node); i < nodes[last].tokens_end; ++i) {
        uint32_t token = vocabulary_->tokens()[i];
        if (is_key && is_whole) {
          row[token >> 5] &= ~(1u << (token & 31));
        } else {
          try_token(token);
        }
      }
    }
  };
  for (const std::string& end : position.used_ends()) follow(follow, end, VocabularyTrie::kRoot);
}

}  // namespace structout::json
