#include "json/schema_index.h"

#include <algorithm>
#include <cstring>

#include "fsm/unique_number.h"
#include "json/closure.h"

namespace structout::json {

using fsm::StringTokens;
using fsm::VocabularyTrie;

namespace {

constexpr uint32_t kBottom = UINT32_MAX;  // below the last frame
constexpr char kSpaces[] = {' ', '\n', '\t', '\r'};
constexpr size_t kBytesPerKey = 96;     // of the table, roughly
constexpr size_t kMaxDoubtful = 2'048;  // tokens that are followed one by one

}  // namespace

// Follows tokens from a position, without what it remembers.
class SchemaIndex::Walk {
 public:
  // `top`: the state in the place of the one on top.
  Walk(Machine& machine, const Position& position, State top) : machine_(machine) {
    frames_.push_back({top, 1, 0});
    for (const Frame* frame = position.below(); frame != nullptr; frame = frame->below.get()) {
      frames_.push_back({frame->state, uint32_t(frames_.size() + 1), 0});
    }
    frames_.back().below = kBottom;
    num_given_ = frames_.size();
  }

  // How many of the given frames, and what is below them, the walk has looked at.
  size_t num_looked_at() const { return num_looked_at_; }

  // The number of the frame on top after a byte, or kBottom if it is not allowed.
  uint32_t next(uint32_t top, uint8_t byte) {
    for (;;) {
      Action action = machine_.action(frames_[top].state, byte);
      switch (action.kind) {
        case Action::kFail:
          return kBottom;
        case Action::kReplace:
          return add({action.state, frames_[top].below, events_with(top, replacement_event(top, action.state))});
        case Action::kPush: {
          uint32_t event = memory(action.below) == Machine::Memory::kInsideItem ? kEntered : 0;
          uint32_t below = add({action.below, frames_[top].below, 0});
          return add({action.state, below, events_with(top, event)});
        }
        case Action::kPop:
        case Action::kPopBefore: {
          uint32_t below = frames_[top].below;
          look_at(below);
          State waiting = below == kBottom ? kNoState : frames_[below].state;
          State state = machine_.resume(waiting, action.state);
          if (state == kNoState) return kBottom;
          bool completes_item = waiting != kNoState && memory(waiting) == Machine::Memory::kInsideItem;
          uint32_t lower = below == kBottom ? kBottom : frames_[below].below;
          top = add({state, lower, events_with(top, completes_item ? kCompleted : 0)});
          if (action.kind == Action::kPop) return top;
        }
      }
    }
  }

  // Sets the bits of the tokens that are allowed, and lists the suspects among them.
  void fill(const VocabularyTrie& vocabulary, uint32_t* row, Suspects& suspects) {
    start(vocabulary, row, suspects);
    uint32_t num_nodes = uint32_t(vocabulary.nodes().size());
    if (machine_.is_free_text(frames_[0].state)) {
      fill_free_text(vocabulary.string_tokens());
    } else if (machine_.num_plain_bytes(frames_[0].state) >= vocabulary.max_depth()) {
      const StringTokens& strings = vocabulary.string_tokens();
      std::copy(strings.plain_row.begin(), strings.plain_row.end(), row_);
      fill_special(vocabulary, 0, num_nodes);
    } else {
      fill_below(vocabulary, VocabularyTrie::kRoot, 0);
    }
  }

  // Changes the row and the suspects of the state in which a key cannot become a named one.
  void fill_names(const VocabularyTrie& vocabulary, uint32_t* row, Suspects& suspects) {
    start(vocabulary, row, suspects);
    fill_names(vocabulary, VocabularyTrie::kRoot, 0);
  }

  // Changes the row of the state without its limit of the length. False if fill() is faster.
  bool forbid_longer(const VocabularyTrie& vocabulary, const Machine::LengthLimit& limit, uint32_t* row) {
    row_ = row;
    const std::vector<std::vector<uint32_t>>& rows_up_to = vocabulary.string_tokens().rows_up_to;
    const std::vector<uint32_t>& free = rows_up_to[std::min<size_t>(limit.num_free, rows_up_to.size() - 1)];
    std::vector<uint32_t> doubtful;
    for (uint32_t i = 0; i < free.size(); ++i) {
      if (limit.num_at_most < rows_up_to.size()) row[i] &= rows_up_to[limit.num_at_most][i];
      for (uint32_t bits = row[i] & ~free[i]; bits != 0; bits &= bits - 1) {
        doubtful.push_back(i << 5 | uint32_t(__builtin_ctz(bits)));
      }
    }
    if (doubtful.size() > kMaxDoubtful) return false;
    for (uint32_t token : doubtful) {
      uint32_t top = 0;
      for (const uint8_t* byte = vocabulary.begin(token); byte < vocabulary.end(token) && top != kBottom; ++byte) {
        top = next(top, *byte);
      }
      frames_.resize(num_given_);
      if (top == kBottom) forbid(token);
    }
    return true;
  }

 private:
  void start(const VocabularyTrie& vocabulary, uint32_t* row, Suspects& suspects) {
    suspects_ = &suspects;
    row_ = row;
    tops_.assign(vocabulary.max_depth() + 1, 0);
    sizes_.assign(vocabulary.max_depth() + 1, frames_.size());
    levels_.resize(vocabulary.max_depth() + 1);
  }

  // How a token may repeat something.
  enum class Suspicion : uint8_t {
    kNone,
    kOfEarlier,  // a key or item from before the token
    kOfItself,   // also one that the token itself has completed
  };

  // Follows the last byte of a node. False if it is not allowed.
  bool follow(const VocabularyTrie::Node& node) {
    frames_.resize(sizes_[node.depth]);
    uint32_t top = next(tops_[node.depth], node.byte);
    if (top == kBottom) return false;
    tops_[node.depth + 1] = top;
    sizes_[node.depth + 1] = frames_.size();
    return true;
  }

  // Follows the last byte of a node, and takes its tokens. False if it is not allowed.
  bool enter(const VocabularyTrie& vocabulary, uint32_t number) {
    const VocabularyTrie::Node& node = vocabulary.nodes()[number];
    if (!follow(node)) return false;
    uint32_t first = vocabulary.first_token(number);
    if (first == node.tokens_end) return true;
    Suspicion suspicion = this->suspicion(tops_[node.depth + 1]);
    for (uint32_t i = first; i < node.tokens_end; ++i) allow(vocabulary.tokens()[i], suspicion);
    return true;
  }

  // What may follow before a depth without a look at each byte.
  struct Level {
    uint32_t num_plain_bytes;
    uint64_t repeated_classes;
  };

  void open(uint32_t depth) {
    State state = frames_[tops_[depth]].state;
    levels_[depth].num_plain_bytes = machine_.num_plain_bytes(state);
    levels_[depth].repeated_classes = machine_.repeated_classes(state);
  }

  // Follows the tokens that go on from a node, or from the root, before `depth`.
  void fill_below(const VocabularyTrie& vocabulary, uint32_t node, uint32_t depth) {
    const std::vector<VocabularyTrie::Node>& nodes = vocabulary.nodes();
    const StringTokens& strings = vocabulary.string_tokens();
    open(depth);
    vocabulary.visit_below(node, [&](uint32_t number, uint8_t byte, uint32_t depth) {
      if (machine_.action(frames_[tops_[depth]].state, byte).kind == Action::kFail) return false;
      const Level& level = levels_[depth];
      if (level.num_plain_bytes > 0 && strings.is_after_plain[number] != 0 &&
          level.num_plain_bytes > strings.height[number]) {
        // Most tokens below need not be followed.
        uint32_t first_plain = strings.num_plain_before[vocabulary.first_token(number)];
        uint32_t last_plain = strings.num_plain_before[nodes[nodes[number].end - 1].tokens_end];
        for (uint32_t i = first_plain; i < last_plain; ++i) allow(strings.plain[i], Suspicion::kNone);
        fill_special(vocabulary, number, nodes[number].end);
        return false;
      }
      if (level.repeated_classes != 0 && (strings.classes[number] & ~level.repeated_classes) == 0) {
        Suspicion suspicion = this->suspicion(tops_[depth]);
        uint32_t last_token = nodes[nodes[number].end - 1].tokens_end;
        for (uint32_t i = vocabulary.first_token(number); i < last_token; ++i) {
          allow(vocabulary.tokens()[i], suspicion);
        }
        return false;
      }
      if (!enter(vocabulary, number)) return false;
      open(depth + 1);
      return true;
    });
  }

  // Follows the tokens of nodes first ... end that are not plain.
  void fill_special(const VocabularyTrie& vocabulary, uint32_t first, uint32_t end) {
    const StringTokens& strings = vocabulary.string_tokens();
    for (uint32_t i = strings.num_special_before[first]; i < strings.num_special_before[end];) {
      uint32_t number = strings.special_nodes[i];
      i = enter(vocabulary, number) ? i + 1 : strings.num_special_before[vocabulary.nodes()[number].end];
    }
  }

  // Takes the tokens of a string of which nothing is asked, from its present end on.
  void fill_free_text(const StringTokens& strings) {
    std::copy(strings.inner_row.begin(), strings.inner_row.end(), row_);
    uint32_t behind_quote = next(0, '"');
    if (behind_quote == kBottom) return;
    Suspicion suspicion = this->suspicion(behind_quote);
    for (uint32_t token : strings.tokens_that_end) allow(token, suspicion);
    tops_[0] = behind_quote;
    sizes_.assign(sizes_.size(), frames_.size());
    const std::vector<VocabularyTrie::Node>& nodes = strings.exits->nodes();
    for (uint32_t number = 0; number < nodes.size();) {
      if (!follow(nodes[number])) {
        number = nodes[number].end;
        continue;
      }
      suspicion = this->suspicion(tops_[nodes[number].depth + 1]);
      for (uint32_t i = strings.exits->first_token(number); i < nodes[number].tokens_end; ++i) {
        for (uint32_t token : strings.tokens_of_exit[strings.exits->tokens()[i]]) allow(token, suspicion);
      }
      ++number;
    }
  }

  // Follows the tokens that go on from a node, before `depth`, with a name or the end of
  // the key. The row already has the others.
  void fill_names(const VocabularyTrie& vocabulary, uint32_t node, uint32_t depth) {
    const std::vector<VocabularyTrie::Node>& nodes = vocabulary.nodes();
    std::vector<uint8_t> bytes = machine_.name_bytes(frames_[tops_[depth]].state);
    bytes.push_back('"');
    for (uint8_t byte : bytes) {
      uint32_t number = vocabulary.child(node, byte);
      if (number == VocabularyTrie::kNone) continue;
      bool is_allowed = follow(nodes[number]);
      if (is_allowed && byte != '"' && machine_.state_without_name(frames_[tops_[depth + 1]].state)) {
        enter(vocabulary, number);
        fill_names(vocabulary, number, depth + 1);
        continue;
      }
      uint32_t last_token = nodes[nodes[number].end - 1].tokens_end;
      for (uint32_t i = vocabulary.first_token(number); i < last_token; ++i) forbid(vocabulary.tokens()[i]);
      if (!is_allowed) continue;
      enter(vocabulary, number);
      fill_below(vocabulary, number, depth + 1);
    }
  }

  void allow(uint32_t token, Suspicion suspicion) {
    row_[token >> 5] |= 1u << (token & 31);
    if (suspicion != Suspicion::kNone) suspects_->of_earlier.push_back(token);
    if (suspicion == Suspicion::kOfItself) suspects_->of_themselves.push_back(token);
  }

  void forbid(uint32_t token) { row_[token >> 5] &= ~(1u << (token & 31)); }

  // What the present token has done to keys and items that are remembered.
  static constexpr uint32_t kEntered = 1, kCompleted = 2, kEnteredAnother = 4, kCompletedAnother = 8;
  static constexpr uint32_t kCompletedPresentKey = 16;  // the one that had begun before the token

  struct WalkFrame {
    State state;
    uint32_t below;
    uint32_t events;
  };

  uint32_t events_with(uint32_t top, uint32_t event) const {
    uint32_t before = frames_[top].events;
    if ((event & kEntered) != 0 && (before & kCompleted) != 0) event |= kEnteredAnother;
    if ((event & kCompleted) != 0 && (before & kEnteredAnother) != 0) event |= kCompletedAnother;
    return before | event;
  }

  Machine::Memory memory(State state) const { return machine_.memory(state); }

  uint32_t replacement_event(uint32_t top, State next) {
    bool was_inside = memory(frames_[top].state) == Machine::Memory::kInsideKey;
    bool is_inside = memory(next) == Machine::Memory::kInsideKey;
    if (is_inside) return was_inside ? 0 : kEntered;
    if (!was_inside || !machine_.ends_free_key(frames_[top].state)) return 0;
    return frames_[top].events == 0 ? kCompleted | kCompletedPresentKey : kCompleted;
  }

  Suspicion suspicion(uint32_t top) {
    const WalkFrame& frame = frames_[top];
    if (frame.events == 0) return Suspicion::kNone;
    if ((frame.events & kCompletedAnother) != 0) return Suspicion::kOfItself;
    if ((frame.events & kEnteredAnother) != 0 && is_in_compound_item(frame)) return Suspicion::kOfItself;
    bool is_in_item = frame.below != kBottom && memory(frames_[frame.below].state) == Machine::Memory::kInsideItem;
    bool is_inside = is_in_item || memory(frame.state) == Machine::Memory::kInsideKey;
    bool may_be_exhausted = is_inside && machine_.num_plain_bytes(frame.state) == 0;
    if (may_be_exhausted && (frame.events & kEnteredAnother) != 0) return Suspicion::kOfItself;
    // forbid_used() finds the tokens that complete the present key and do no more.
    bool completes_more = (frame.events & kCompleted) != 0 && frame.events != (kCompleted | kCompletedPresentKey);
    return may_be_exhausted || completes_more ? Suspicion::kOfEarlier : Suspicion::kNone;
  }

  // Whether an array or object around a frame is an item that must differ from others.
  bool is_in_compound_item(const WalkFrame& frame) {
    if (frame.below == kBottom) return false;
    for (uint32_t below = frames_[frame.below].below; below != kBottom; below = frames_[below].below) {
      look_at(below);
      if (memory(frames_[below].state) == Machine::Memory::kInsideItem) return true;
    }
    return false;
  }

  uint32_t add(WalkFrame frame) {
    frames_.push_back(frame);
    return uint32_t(frames_.size() - 1);
  }

  void look_at(uint32_t frame) {
    if (frame == kBottom) num_looked_at_ = num_given_ + 1;
    if (frame < num_given_) num_looked_at_ = std::max(num_looked_at_, size_t(frame) + 1);
  }

  Machine& machine_;
  std::vector<WalkFrame> frames_;
  size_t num_given_;
  size_t num_looked_at_ = 1;
  Suspects* suspects_ = nullptr;
  uint32_t* row_ = nullptr;
  // Where the bytes before each depth lead, and how many frames there are then.
  std::vector<uint32_t> tops_;
  std::vector<size_t> sizes_;
  std::vector<Level> levels_;
};

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
  Walk walk(*machine_, position, top);
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
