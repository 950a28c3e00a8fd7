#include "json/schema_cache.h"

#include <algorithm>
#include <cstring>

#include "json/closure.h"
#include "json/rehearsal.h"
#include "masks/unique_number.h"

namespace structout::json {

using engine::VocabularyTrie;

namespace {

constexpr size_t kBytesPerKey = 96;  // of the table, roughly

}  // namespace

SchemaCache::SchemaCache(std::unique_ptr<Machine> machine, std::shared_ptr<const VocabularyTrie> vocabulary)
    : machine_(std::move(machine)),
      vocabulary_(std::move(vocabulary)),
      store_(vocabulary_),
      number_(engine::unique_number()),
      row_(vocabulary_->row_words()),
      memory_bytes_(size_in_bytes()) {}

SchemaCache::Lock::Lock(SchemaCache& cache) : cache_(cache), lock_(cache.mutex_, cache.machine_->schema().budget()) {
  cache.machine_->schema().budget().restart();  // its clock may be another thread's
}

SchemaCache::Lock::~Lock() { cache_.memory_bytes_ = cache_.size_in_bytes(); }

void SchemaCache::rehearse() {
  Lock lock(*this);
  json::rehearse(*machine_);
}

PlacePtr SchemaCache::start() {
  Lock lock(*this);
  return places_.of(Position(*machine_));
}

PlacePtr SchemaCache::after(const Place& place, uint32_t token) {
  if (place.is_shared()) {
    engine::LookupLock lock(mutex_);
    PlacePtr known = places_.after(place, token);
    if (known != nullptr) return known;
  }
  const uint8_t *begin = vocabulary_->begin(token), *end = vocabulary_->end(token);
  if (begin == end) return nullptr;
  Lock lock(*this);
  PlacePtr next = read(place, begin, end);
  if (next != nullptr) places_.add_move(place, token, *next);
  return next;
}

PlacePtr SchemaCache::after(const Place& place, const std::string& bytes) {
  const uint8_t* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  Lock lock(*this);
  return read(place, begin, begin + bytes.size());
}

PlacePtr SchemaCache::read(const Place& place, const uint8_t* begin, const uint8_t* end) {
  Position next = place.position;
  if (!next.read(begin, end) || !next.has_unused()) return nullptr;
  return places_.of(std::move(next));
}

std::string SchemaCache::forced(const Place& place) {
  Lock lock(*this);
  return place.position.forced();
}

uint64_t SchemaCache::work() {
  Lock lock(*this);
  return machine_->schema().budget().total();
}

size_t SchemaCache::num_states() {
  Lock lock(*this);
  return machine_->num_states();
}

size_t SchemaCache::size_in_bytes() const {
  return machine_->memory_bytes() + store_.memory_bytes() + masks_.size() * kBytesPerKey + suspect_bytes_ +
         places_.memory_bytes();
}

std::optional<engine::Automaton> SchemaCache::closed(const engine::Limits& limits) try {
  Lock lock(*this);
  engine::Budget budget(limits);
  return closure(*machine_, budget);
} catch (const engine::LimitError&) {
  return std::nullopt;
}

// The state on top, or one with the same mask that more positions share: without a
// maximum length that no token of the vocabulary can reach.
State SchemaCache::mask_state(const Position& position) {
  State state = position.state();
  if (mask_states_.size() <= state) mask_states_.resize(machine_->num_states(), kNoState);
  if (mask_states_[state] == kNoState) {
    mask_states_[state] = machine_->hints().without_far_limits(state, vocabulary_->max_depth());
  }
  return mask_states_[state];
}

// The cache key of a mask: the states from the top of the stack down, as far as masks
// with the same top have looked so far.
std::string SchemaCache::key_of(const Position& position, State top) const {
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

const SchemaCache::Entry* SchemaCache::known_entry(const Position& position, State top) const {
  auto found = masks_.find(key_of(position, top));
  return found == masks_.end() ? nullptr : &found->second;
}

// Computes a mask on a cache miss, and leaves its row in row_. A string with a maximum
// length, or a key that may still become a named one, starts from the mask of a similar
// state and changes only the tokens that may differ. All others walk through the
// vocabulary.
const SchemaCache::Entry& SchemaCache::computed_entry(const Position& position, State top) {
  machine_->schema().budget().restart();
  std::optional<WalkHints::LengthLimit> limit;
  if (!machine_->has_unique_items()) limit = machine_->hints().length_limit(top);  // strings with a limit may run out
  std::optional<State> similar = limit ? limit->without : machine_->hints().state_without_name(top);
  const Entry* base = nullptr;
  if (similar) {
    base = known_entry(position, *similar);
    if (base == nullptr) base = &computed_entry(position, *similar);
    if (base->mask == nullptr) base = nullptr;
  }
  TokenWalk walk(*machine_, position, top);
  Suspects suspects;
  Conditions conditions;
  bool is_filled = base != nullptr;
  if (is_filled) {
    store_.expand(*base->mask, row_.data());
    suspects = base->suspects;
    conditions = base->conditions;
    if (limit) {
      is_filled = walk.forbid_longer(*vocabulary_, *limit, row_.data());
    } else {
      walk.fill_names(*vocabulary_, row_.data(), suspects, conditions);
    }
  }
  if (!is_filled) {
    std::fill(row_.begin(), row_.end(), 0);
    suspects = {};
    conditions = {};
    walk.fill(*vocabulary_, row_.data(), suspects, conditions);
  }
  last_.suspects = std::move(suspects);
  last_.conditions = std::move(conditions);
  if (num_frames_.size() <= top) num_frames_.resize(top + 1, 1);
  num_frames_[top] = std::max(num_frames_[top], uint32_t(walk.num_looked_at()));
  if (similar) num_frames_[top] = std::max(num_frames_[top], num_frames_[*similar]);
  last_.mask = store_.add(row_.data());
  last_.exits = nullptr;
  last_.number = engine::EmbeddedView::kNoEntry;
  if (last_.mask == nullptr) return last_;
  last_.number = uint32_t(masks_.size());
  suspect_bytes_ += (last_.suspects.of_earlier.size() + last_.suspects.of_themselves.size()) * sizeof(uint32_t) +
                    last_.conditions.tokens.size() * sizeof(last_.conditions.tokens[0]) +
                    last_.conditions.all.size() * sizeof(last_.conditions.all[0]);
  return masks_.emplace(key_of(position, top), last_).first->second;
}

const engine::Mask* SchemaCache::keep(const Place& place, const engine::Mask* mask) {
  if (mask != nullptr) place.mask.store(mask, std::memory_order_release);
  return mask;
}

bool SchemaCache::find_exits(const Position& position, State top, const Entry& entry) {
  auto exits = std::make_shared<Exits>();
  std::vector<std::pair<uint32_t, uint32_t>> nodes;
  machine_->schema().budget().restart();
  TokenWalk walk(*machine_, position, top);
  walk.list_exits(*vocabulary_, nodes, exits->conditions);
  if (walk.num_looked_at() > num_frames_[top]) {
    num_frames_[top] = uint32_t(walk.num_looked_at());
    return false;
  }
  for (auto [node, condition] : nodes) {
    if (condition == Conditions::kByReading) {
      exits->by_reading.push_back(node);
      continue;
    }
    auto same = std::find(exits->of_lists.begin(), exits->of_lists.end(), condition);
    if (same == exits->of_lists.end()) {
      exits->of_lists.push_back(condition);
      exits->lists.emplace_back();
      same = exits->of_lists.end() - 1;
    }
    exits->lists[size_t(same - exits->of_lists.begin())].push_back(node);
  }
  suspect_bytes_ += nodes.size() * sizeof(uint32_t);
  entry.exits = std::move(exits);
  return true;
}

bool SchemaCache::is_exact(const Position& position, const Entry& entry) {
  if (position.has_used() || !entry.suspects.of_themselves.empty()) return false;
  if (entry.conditions.tokens.empty()) return true;
  std::vector<bool> holds = truths(position, entry.conditions);
  return std::all_of(entry.conditions.tokens.begin(), entry.conditions.tokens.end(), [&](const auto& token) {
    return token.second == Conditions::kByReading ? may_follow(position, token.first) : holds[token.second];
  });
}

// The truth of each condition. Conditions that only reading decides count as true here:
// callers read their tokens.
std::vector<bool> SchemaCache::truths(const Position& position, const Conditions& conditions) {
  std::vector<const PastKeys*> names = {&position.names()};  // of each frame, the top first
  for (const Frame* frame = position.below(); frame != nullptr; frame = frame->below.get()) {
    names.push_back(&names_of(frame->memory.get()));
  }
  std::vector<bool> holds(conditions.all.size(), true);
  for (size_t i = 2; i < conditions.all.size(); ++i) {
    const Conditions::Condition& condition = conditions.all[i];
    holds[i] = holds[condition.before] && machine_->holds(condition.guard, *names[condition.frame]);
  }
  return holds;
}

bool SchemaCache::may_follow(const Position& position, uint32_t token) {
  Position next = position;
  return next.read(vocabulary_->begin(token), vocabulary_->end(token)) && next.has_unused();
}

void SchemaCache::forbid_past_names(const Position& position, const Conditions& conditions, engine::MaskRow& row) {
  std::vector<bool> holds = truths(position, conditions);
  for (auto [token, condition] : conditions.tokens) {
    if (!row.allows(token)) continue;
    bool is_allowed = condition == Conditions::kByReading ? may_follow(position, token) : holds[condition];
    row.set(token, is_allowed);
  }
}

std::vector<State> SchemaCache::control_state(const Place& place) {
  Lock lock(*this);
  State top = mask_state(place.position);
  if (known_entry(place.position, top) == nullptr) computed_entry(place.position, top);
  std::string key = key_of(place.position, top);
  std::vector<State> states(key.size() / sizeof(State));
  std::memcpy(states.data(), key.data(), key.size());
  return states;
}

bool SchemaCache::has_mask(const Place& place) {
  if (place.mask.load(std::memory_order_acquire) != nullptr) return true;
  if (place.position.has_used()) return false;
  Lock lock(*this);
  const Entry* known = known_entry(place.position, mask_state(place.position));
  return known != nullptr && is_exact(place.position, *known) && keep(place, known->mask) != nullptr;
}

bool SchemaCache::fill(const Place& place, engine::MaskRow& row) {
  const engine::Mask* known = place.mask.load(std::memory_order_acquire);
  if (known != nullptr) {
    store_.expand(*known, row);
    return !known->is_empty();
  }
  Lock lock(*this);
  const Entry& entry = entry_of(place.position, mask_state(place.position));
  bool allows_any = fill_row(place.position, entry, row);
  if (!depends_on_position(place.position, entry)) {
    keep(place, entry.mask);
  } else if (place.is_shared()) {
    keep(place, store_.add(row.words()));
  }
  return allows_any;
}

bool SchemaCache::fill_row(const Position& position, uint32_t* words) {
  engine::MaskRow row(words, row_.size());
  return fill_row(position, entry_of(position, mask_state(position)), row);
}

bool SchemaCache::fill_row(const Position& position, const Entry& entry, engine::MaskRow& row) {
  if (entry.mask == nullptr) {
    std::copy(row_.begin(), row_.end(), row.overwrite());
  } else {
    store_.expand(*entry.mask, row);
  }
  if (!entry.conditions.tokens.empty()) forbid_past_names(position, entry.conditions, row);
  if (position.has_used() || !entry.suspects.of_themselves.empty()) forbid_used(position, entry.suspects, row);
  if (entry.mask != nullptr && !depends_on_position(position, entry)) return !entry.mask->is_empty();
  return row.allows_any();
}

// Takes tokens out of a row that would repeat a key or an item, or after which only
// used ones could follow. Reads each suspect that the row allows, unless the item is
// certainly new.
void SchemaCache::forbid_used(const Position& position, const Suspects& suspects, engine::MaskRow& row) {
  machine_->schema().budget().restart();
  bool remembers = position.has_used();
  const Frame* item = position.below() == nullptr ? nullptr : position.below()->item;
  bool is_in_item = item != nullptr && !machine_->counts().is_tight(item->state) &&
                    (item->below == nullptr || item->below->item == nullptr);
  bool is_in_string = is_in_item && machine_->is_in_string(position.state());
  // True if the item certainly differs from the earlier ones after the token.
  auto is_new_item = [&](uint32_t token) {
    if (position.is_new_item()) return true;
    TextSet::Cursor begin = position.used_begin();
    for (const uint8_t* byte = vocabulary_->begin(token); byte < vocabulary_->end(token); ++byte) {
      begin.read(*byte);
      if (begin.is_dead()) return true;
      if (*byte == '"') break;  // the string may end here
    }
    return false;
  };
  // True if the token has two quotes, so that it may begin and complete a key. Earlier
  // keys of the same object may rule this key out, however new the item is.
  auto may_complete_key = [&](uint32_t token) {
    return std::count(vocabulary_->begin(token), vocabulary_->end(token), uint8_t('"')) >= 2;
  };
  size_t num_of_themselves = 0;  // that were tried
  bool are_rivals_prepared = false;
  for (uint32_t token : remembers ? suspects.of_earlier : suspects.of_themselves) {
    bool is_of_itself = !remembers || (num_of_themselves < suspects.of_themselves.size() &&
                                       suspects.of_themselves[num_of_themselves] == token);
    num_of_themselves += is_of_itself;
    if (!row.allows(token)) continue;
    bool is_for_item = !is_of_itself && (is_in_string || (is_in_item && position.is_new_item()));
    if (is_for_item && is_new_item(token) && !may_complete_key(token)) continue;
    if (!are_rivals_prepared) position.prepare_rivals();
    are_rivals_prepared = true;
    if (!may_follow(position, token)) row.set(token, false);
  }
  bool is_key = machine_->memory(position.state()) == MemoryKind::kInsideKey;
  if (!is_key || position.memory()->used == nullptr) return;
  // Walks the used keys through the vocabulary trie. A key has one spelling, so each
  // token that completes a used key is forbidden.
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  auto follow = [&](auto& self, const TextSet::Cursor& used, uint32_t node) -> void {
    uint32_t quote = used.is_whole() ? vocabulary_->child(node, '"') : VocabularyTrie::kNone;
    if (quote != VocabularyTrie::kNone) {
      for (uint32_t i = vocabulary_->first_token(quote); i < nodes[nodes[quote].end - 1].tokens_end; ++i) {
        row.set(vocabulary_->tokens()[i], false);
      }
    }
    used.visit_next([&](uint8_t byte, const TextSet::Cursor& next) {
      uint32_t child = vocabulary_->child(node, byte);
      if (child != VocabularyTrie::kNone) self(self, next, child);
    });
  };
  follow(follow, position.used_begin(), VocabularyTrie::kRoot);
}

}  // namespace structout::json
