#include "json/token_masks/schema_cache.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "json/automaton/closure.h"
#include "json/satisfiability/rehearsal.h"
#include "token_masks/unique_number.h"

namespace structout::json {

using engine::VocabularyTrie;

namespace {

constexpr size_t kBytesPerKey = 96;  // of the table, roughly

}  // namespace

SchemaCache::SchemaCache(std::unique_ptr<SchemaAutomaton> automaton, std::shared_ptr<const VocabularyTrie> vocabulary)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      store_(vocabulary_),
      costs_(*automaton_, *vocabulary_),
      ends_(*automaton_, *vocabulary_, costs_),
      number_(engine::unique_number()),
      row_(vocabulary_->row_words()),
      memory_bytes_(size_in_bytes()) {}

SchemaCache::Lock::Lock(SchemaCache& cache) : cache_(cache), lock_(cache.mutex_, cache.automaton_->schema().budget()) {
  cache.automaton_->schema().budget().restart();  // its clock may be another thread's
}

SchemaCache::Lock::~Lock() { cache_.memory_bytes_ = cache_.size_in_bytes(); }

void SchemaCache::rehearse() {
  Lock lock(*this);
  json::rehearse(*automaton_);
  if (!ends_.has_end(Configuration(*automaton_)))
    throw SchemaError(ErrorKind::kImpossible, "the tokens of the vocabulary spell no text of the schema", "#");
}

CachedConfigurationPtr SchemaCache::start() {
  Lock lock(*this);
  return configs_.of(Configuration(*automaton_));
}

CachedConfigurationPtr SchemaCache::after(const CachedConfiguration& cached, uint32_t token) {
  if (cached.is_shared()) {
    engine::LookupLock lock(mutex_);
    CachedConfigurationPtr known = configs_.after(cached, token);
    if (known != nullptr) return with_ending(cached, token, std::move(known));
  }
  const uint8_t *begin = vocabulary_->begin(token), *end = vocabulary_->end(token);
  if (begin == end) return nullptr;
  Lock lock(*this);
  CachedConfigurationPtr next = read(cached, begin, end);
  if (next != nullptr) configs_.add_move(cached, token, *next);
  return next == nullptr ? next : with_ending(cached, token, std::move(next));
}

// Takes over the rest of the ending that the text has carried up to the token.
CachedConfigurationPtr SchemaCache::with_ending(const CachedConfiguration& before, uint32_t token,
                                                CachedConfigurationPtr after) {
  if (before.ending.empty()) return after;
  std::string_view bytes(reinterpret_cast<const char*>(vocabulary_->begin(token)),
                         size_t(vocabulary_->end(token) - vocabulary_->begin(token)));
  bool is_along = before.ending.size() > bytes.size() && before.ending.compare(0, bytes.size(), bytes) == 0;
  if (!is_along) return after;
  if (after->is_shared()) {
    after =
        std::make_shared<const CachedConfiguration>(after->config, after->is_complete, CachedConfiguration::kNoNumber);
  }
  after->ending = before.ending.substr(bytes.size());
  return after;
}

uint32_t SchemaCache::cost_to_end(const CachedConfiguration& cached) {
  if (cached.is_complete) return 0;
  Lock lock(*this);
  return costs_.cost(cached.config, cached.ending);
}

uint32_t SchemaCache::values_to_come(const CachedConfiguration& cached) {
  Lock lock(*this);
  return costs_.values_to_come(cached.config, cached.ending);
}

std::shared_ptr<const engine::TokenCosts> SchemaCache::token_costs(const CachedConfiguration& cached, uint32_t max) {
  uint32_t most = cached.most_cost.load(std::memory_order_acquire);
  if (most <= max) return nullptr;
  Lock lock(*this);
  if (most == CachedConfiguration::kNoNumber) {
    entry_of(cached.config, mask_state(cached.config));  // makes the states to which tokens lead
    most = costs_.rough_bound(cached.config, cached.ending);
    cached.most_cost.store(most, std::memory_order_release);
    if (most <= max) return nullptr;
  }
  std::shared_ptr<const engine::TokenCosts> costs = costs_.token_costs(cached.config, cached.ending);
  cached.most_cost.store(std::min(most, costs->most()), std::memory_order_release);
  return costs->most() <= max ? nullptr : costs;
}

CachedConfigurationPtr SchemaCache::after(const CachedConfiguration& cached, const std::string& bytes) {
  const uint8_t* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  Lock lock(*this);
  return read(cached, begin, begin + bytes.size());
}

CachedConfigurationPtr SchemaCache::read(const CachedConfiguration& cached, const uint8_t* begin, const uint8_t* end) {
  Configuration next = cached.config;
  if (!next.read(begin, end) || !has_end(next)) return nullptr;
  return configs_.of(std::move(next));
}

std::string SchemaCache::forced(const CachedConfiguration& cached) {
  Lock lock(*this);
  return cached.config.forced();
}

uint64_t SchemaCache::work() {
  Lock lock(*this);
  return automaton_->schema().budget().total();
}

size_t SchemaCache::num_states() {
  Lock lock(*this);
  return automaton_->num_states();
}

size_t SchemaCache::size_in_bytes() const {
  return automaton_->memory_bytes() + store_.memory_bytes() + masks_.size() * kBytesPerKey + duplicate_check_bytes_ +
         configs_.memory_bytes() + costs_.memory_bytes() + ends_.memory_bytes();
}

std::optional<engine::Automaton> SchemaCache::closed(const engine::Limits& limits) try {
  Lock lock(*this);
  engine::Budget budget(limits);
  return closure(*automaton_, budget);
} catch (const engine::LimitError&) {
  return std::nullopt;
}

std::optional<SchemaCache::Strings> SchemaCache::strings(uint32_t max_copied, const engine::Limits& limits) try {
  Lock lock(*this);
  Schema& schema = automaton_->schema();
  schema.budget().restart();
  Texts& texts = schema.texts();
  const Formula strings = schema.without_among(schema.expand(schema.root(), Type::kString));
  Texts::BoundedStrings bounded = texts.without_lengths(strings);
  uint32_t max = bounded.max == Texts::kNoMaximum ? 0 : bounded.max;
  if (std::max(bounded.min, max) <= max_copied) bounded = {strings};
  return Strings{texts.strings_between_quotes(bounded.others, limits), bounded.min, bounded.max};
} catch (const engine::LimitError&) {
  return std::nullopt;
}

// The state on top, or one with the same mask that more configurations share: without a
// maximum length that no token of the vocabulary can reach.
State SchemaCache::mask_state(const Configuration& config) {
  State state = config.state();
  if (mask_states_.size() <= state) mask_states_.resize(automaton_->num_states(), kNoState);
  if (mask_states_[state] == kNoState) {
    mask_states_[state] = automaton_->hints().without_far_limits(state, vocabulary_->max_depth());
  }
  return mask_states_[state];
}

// The cache key of a mask: the states from the top of the stack down, as far as masks with
// the same top have looked so far.
std::string SchemaCache::key_of(const Configuration& config, State top) const {
  size_t num_frames = top < num_frames_.size() ? num_frames_[top] : 1;
  std::string key(reinterpret_cast<const char*>(&top), sizeof top);
  const Frame* frame = config.below();
  for (size_t i = 1; i < num_frames; ++i) {
    State state = frame == nullptr ? kNoState : frame->state;
    key.append(reinterpret_cast<const char*>(&state), sizeof state);
    if (frame == nullptr) break;
    frame = frame->below.get();
  }
  return key;
}

const SchemaCache::Entry* SchemaCache::known_entry(const Configuration& config, State top) const {
  auto found = masks_.find(key_of(config, top));
  return found == masks_.end() ? nullptr : &found->second;
}

// Computes a mask on a cache miss, and leaves its row in row_. A string with a maximum
// length, or a key that may still become a named one, starts from the mask of a similar
// state and changes only the tokens that may differ. All others walk through the
// vocabulary.
const SchemaCache::Entry& SchemaCache::computed_entry(const Configuration& config, State top) {
  automaton_->schema().budget().restart();
  std::optional<WalkHints::LengthLimit> limit;
  if (!automaton_->has_unique_items())
    limit = automaton_->hints().length_limit(top);  // strings with a limit may run out
  std::optional<State> similar = limit ? limit->without : automaton_->hints().state_without_name(top);
  const Entry* base = nullptr;
  if (similar) {
    base = known_entry(config, *similar);
    if (base == nullptr) base = &computed_entry(config, *similar);
    if (base->mask == nullptr) base = nullptr;
  }
  TokenWalk walk(*automaton_, config, top);
  DuplicateChecks duplicate_checks;
  Conditions conditions;
  bool is_filled = base != nullptr;
  if (is_filled) {
    store_.expand(*base->mask, row_.data());
    duplicate_checks = base->duplicate_checks;
    conditions = base->conditions;
    if (limit) {
      is_filled = walk.forbid_longer(*vocabulary_, *limit, row_.data());
    } else {
      walk.fill_names(*vocabulary_, row_.data(), duplicate_checks, conditions);
    }
  }
  if (!is_filled) {
    std::fill(row_.begin(), row_.end(), 0);
    duplicate_checks = {};
    conditions = {};
    walk.fill(*vocabulary_, row_.data(), duplicate_checks, conditions);
  }
  last_.duplicate_checks = std::move(duplicate_checks);
  last_.conditions = std::move(conditions);
  if (num_frames_.size() <= top) num_frames_.resize(top + 1, 1);
  num_frames_[top] = std::max(num_frames_[top], uint32_t(walk.num_looked_at()));
  if (similar) num_frames_[top] = std::max(num_frames_[top], num_frames_[*similar]);
  last_.mask = store_.add(row_.data());
  last_.continuations = nullptr;
  last_.number = engine::EmbeddedView::kNoEntry;
  if (last_.mask == nullptr) return last_;
  last_.number = uint32_t(masks_.size());
  duplicate_check_bytes_ +=
      (last_.duplicate_checks.of_earlier.size() + last_.duplicate_checks.of_themselves.size()) * sizeof(uint32_t) +
      last_.conditions.tokens.size() * sizeof(last_.conditions.tokens[0]) +
      last_.conditions.all.size() * sizeof(last_.conditions.all[0]);
  return masks_.emplace(key_of(config, top), last_).first->second;
}

const engine::Mask* SchemaCache::keep(const CachedConfiguration& cached, const engine::Mask* mask) {
  if (mask != nullptr) cached.mask.store(mask, std::memory_order_release);
  return mask;
}

bool SchemaCache::find_continuations(const Configuration& config, State top, const Entry& entry) {
  auto continuations = std::make_shared<Continuations>();
  std::vector<std::pair<uint32_t, uint32_t>> nodes;
  automaton_->schema().budget().restart();
  TokenWalk walk(*automaton_, config, top);
  walk.list_continuations(*vocabulary_, nodes, continuations->conditions);
  if (walk.num_looked_at() > num_frames_[top]) {
    num_frames_[top] = uint32_t(walk.num_looked_at());
    return false;
  }
  for (auto [node, condition] : nodes) {
    if (condition == Conditions::kByReading) {
      continuations->by_reading.push_back(node);
      continue;
    }
    auto same = std::find(continuations->of_lists.begin(), continuations->of_lists.end(), condition);
    if (same == continuations->of_lists.end()) {
      continuations->of_lists.push_back(condition);
      continuations->lists.emplace_back();
      same = continuations->of_lists.end() - 1;
    }
    continuations->lists[size_t(same - continuations->of_lists.begin())].push_back(node);
  }
  duplicate_check_bytes_ += nodes.size() * sizeof(uint32_t);
  entry.continuations = std::move(continuations);
  return true;
}

bool SchemaCache::is_exact(const Configuration& config, const Entry& entry) {
  if (!ends_.are_all_spelled() || config.has_used() || !entry.duplicate_checks.of_themselves.empty()) return false;
  if (entry.conditions.tokens.empty()) return true;
  std::vector<bool> holds = truths(config, entry.conditions);
  return std::all_of(entry.conditions.tokens.begin(), entry.conditions.tokens.end(), [&](const auto& token) {
    return token.second == Conditions::kByReading ? may_follow(config, token.first) : holds[token.second];
  });
}

// The truth of each condition. Conditions that only reading decides count as true here:
// callers read their tokens.
std::vector<bool> SchemaCache::truths(const Configuration& config, const Conditions& conditions) {
  std::vector<const PastKeys*> seen_keys = {&config.seen_keys()};  // of each frame, the top first
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
    seen_keys.push_back(&seen_keys_of(frame->registers.get()));
  }
  std::vector<bool> holds(conditions.all.size(), true);
  for (size_t i = 2; i < conditions.all.size(); ++i) {
    const Conditions::Condition& condition = conditions.all[i];
    holds[i] = holds[condition.before] && automaton_->holds(condition.guard, *seen_keys[condition.frame]);
  }
  return holds;
}

bool SchemaCache::may_follow(const Configuration& config, uint32_t token) {
  Configuration next = config;
  return next.read(vocabulary_->begin(token), vocabulary_->end(token)) && has_end(next);
}

void SchemaCache::forbid_seen_keys(const Configuration& config, const Conditions& conditions, engine::MaskRow& row) {
  std::vector<bool> holds = truths(config, conditions);
  for (auto [token, condition] : conditions.tokens) {
    if (!row.allows(token)) continue;
    bool is_allowed = condition == Conditions::kByReading ? may_follow(config, token) : holds[condition];
    row.set(token, is_allowed);
  }
}

std::vector<State> SchemaCache::control_state(const CachedConfiguration& cached) {
  Lock lock(*this);
  State top = mask_state(cached.config);
  if (known_entry(cached.config, top) == nullptr) computed_entry(cached.config, top);
  std::string key = key_of(cached.config, top);
  std::vector<State> states(key.size() / sizeof(State));
  std::memcpy(states.data(), key.data(), key.size());
  return states;
}

bool SchemaCache::has_mask(const CachedConfiguration& cached) {
  if (cached.mask.load(std::memory_order_acquire) != nullptr) return true;
  if (cached.config.has_used()) return false;
  Lock lock(*this);
  const Entry* known = known_entry(cached.config, mask_state(cached.config));
  return known != nullptr && is_exact(cached.config, *known) && keep(cached, known->mask) != nullptr;
}

bool SchemaCache::fill(const CachedConfiguration& cached, engine::MaskRow& row) {
  const engine::Mask* known = cached.mask.load(std::memory_order_acquire);
  if (known != nullptr) {
    store_.expand(*known, row);
    return !known->is_empty();
  }
  Lock lock(*this);
  const Entry& entry = entry_of(cached.config, mask_state(cached.config));
  bool allows_any = fill_row(cached.config, entry, row);
  if (!depends_on_config(cached.config, entry)) {
    keep(cached, entry.mask);
  } else if (cached.is_shared()) {
    keep(cached, store_.add(row.words()));
  }
  return allows_any;
}

bool SchemaCache::fill_row(const Configuration& config, uint32_t* words) {
  engine::MaskRow row(words, row_.size());
  return fill_row(config, entry_of(config, mask_state(config)), row);
}

bool SchemaCache::fill_row(const Configuration& config, const Entry& entry, engine::MaskRow& row) {
  if (entry.mask == nullptr) {
    std::copy(row_.begin(), row_.end(), row.overwrite());
  } else {
    store_.expand(*entry.mask, row);
  }
  if (!ends_.are_all_spelled()) {
    for (uint32_t token = 0; token < vocabulary_->size(); ++token) {
      if (row.allows(token)) row.set(token, may_follow(config, token));
    }
    return row.allows_any();
  }
  if (!entry.conditions.tokens.empty()) forbid_seen_keys(config, entry.conditions, row);
  if (config.has_used() || !entry.duplicate_checks.of_themselves.empty())
    forbid_used(config, entry.duplicate_checks, row);
  if (entry.mask != nullptr && !depends_on_config(config, entry)) return !entry.mask->is_empty();
  return row.allows_any();
}

// Takes tokens out of a row that would repeat a key or an item, or after which only
// used ones could follow. Reads each token with a duplicate check that the row allows,
// unless the item is certainly new.
void SchemaCache::forbid_used(const Configuration& config, const DuplicateChecks& duplicate_checks,
                              engine::MaskRow& row) {
  automaton_->schema().budget().restart();
  bool remembers = config.has_used();
  const Frame* item = config.below() == nullptr ? nullptr : config.below()->item;
  bool is_in_item = item != nullptr && !automaton_->counts().is_tight(item->state) &&
                    (item->below == nullptr || item->below->item == nullptr);
  bool is_in_string = is_in_item && automaton_->is_in_string(config.state());
  // True if the item certainly differs from the earlier ones after the token.
  auto is_new_item = [&](uint32_t token) {
    if (config.is_new_item()) return true;
    TextSet::Cursor begin = config.used_begin();
    for (const uint8_t* byte = vocabulary_->begin(token); byte < vocabulary_->end(token); ++byte) {
      begin.read(*byte);
      if (begin.is_dead()) return true;
      if (*byte == '"') break;  // the string may end here
    }
    return false;
  };
  // True if the token has two quotes, so that it may begin and complete a key. Earlier keys
  // of the same object may rule this key out, however new the item is.
  auto may_complete_key = [&](uint32_t token) {
    return std::count(vocabulary_->begin(token), vocabulary_->end(token), uint8_t('"')) >= 2;
  };
  size_t num_of_themselves = 0;  // that were tried
  bool are_candidates_prepared = false;
  for (uint32_t token : remembers ? duplicate_checks.of_earlier : duplicate_checks.of_themselves) {
    bool is_of_itself = !remembers || (num_of_themselves < duplicate_checks.of_themselves.size() &&
                                       duplicate_checks.of_themselves[num_of_themselves] == token);
    num_of_themselves += is_of_itself;
    if (!row.allows(token)) continue;
    bool is_for_item = !is_of_itself && (is_in_string || (is_in_item && config.is_new_item()));
    if (is_for_item && is_new_item(token) && !may_complete_key(token)) continue;
    if (!are_candidates_prepared) config.prepare_duplicate_candidates();
    are_candidates_prepared = true;
    if (!may_follow(config, token)) row.set(token, false);
  }
  bool is_key = automaton_->register_kind(config.state()) == RegisterKind::kInsideKey;
  if (!is_key || config.registers()->used == nullptr) return;
  // Walks the used keys through the vocabulary trie. A key has one spelling, so each token
  // that completes a used key is forbidden.
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
  follow(follow, config.used_begin(), VocabularyTrie::kRoot);
}

}  // namespace structout::json
