#include "grammar/token_masks/bounded_texts.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "base/utf8.h"
#include "token_masks/unique_number.h"

namespace structout::context_free {

namespace utf8 = engine::utf8;
using engine::BytesBelow;
using engine::CharacterCounts;
using engine::EmbeddedConfiguration;
using engine::EmbeddedView;
using engine::Ending;
using engine::kDead;
using engine::VocabularyTrie;

namespace {

// The texts of an automaton whose bytes are all tokens of the vocabulary.
engine::Automaton spelled(const engine::Automaton& automaton, const VocabularyTrie& vocabulary,
                          const engine::Limits& limits) {
  engine::AutomatonBuilder builder;
  for (uint32_t state = 0; state < automaton.num_states(); ++state) {
    std::vector<engine::Edge> edges;
    for (const engine::Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      bool continues = false;
      for (uint32_t byte = edge->first; byte <= edge->last; ++byte) {
        bool is_token = vocabulary.has_byte(uint8_t(byte));
        if (is_token && continues) edges.back().last = uint8_t(byte);
        if (is_token && !continues) edges.push_back({uint8_t(byte), uint8_t(byte), edge->target});
        continues = is_token;
      }
    }
    builder.add_state(automaton.accepts(state), edges);
  }
  engine::Budget budget(limits);
  return automaton.num_states() == 0 ? automaton : builder.minimal(0, budget);
}

}  // namespace

BoundedAutomaton::BoundedAutomaton(const engine::Automaton& automaton, std::shared_ptr<const VocabularyTrie> vocabulary,
                                   const engine::Limits& limits)
    : automaton_(vocabulary->has_all_bytes() ? automaton : spelled(automaton, *vocabulary, limits)),
      vocabulary_(std::move(vocabulary)),
      number_(engine::unique_number()),
      budget_(limits),
      counts_(automaton_, budget_),
      loops_(automaton_.num_states()),
      store_(vocabulary_),
      endings_(*vocabulary_) {}

std::unique_ptr<engine::StepBudgetLock> BoundedAutomaton::lock() {
  auto lock = std::make_unique<engine::StepBudgetLock>(mutex_, budget_);
  budget_.restart();
  return lock;
}

BoundedPosition BoundedAutomaton::start(uint32_t min, uint32_t max) const {
  return {0, min <= counts_.least(0, 0) ? 0 : min, max};
}

BoundedPosition BoundedAutomaton::after(BoundedPosition position, uint8_t byte) const {
  position.state = automaton_.next(position.state, byte);
  if (!CharacterCounts::begins_character(byte) || position.state == kDead) return position;
  if (position.max == 0) return {kDead};
  position.max -= position.max != BoundedPosition::kNoBound;
  if (position.min > 0) {
    --position.min;
    // What all texts have need not be counted.
    if (position.min <= counts_.least(position.state, 0)) position.min = 0;
  }
  return position;
}

bool BoundedAutomaton::is_live(const BoundedPosition& position) const {
  if (position.state >= automaton_.num_states()) return false;  // dead, or of no text
  uint32_t least = counts_.least(position.state, position.min);
  return least != CharacterCounts::kNone && least <= position.max;
}

bool BoundedAutomaton::may_continue(const BoundedPosition& position) const {
  for (const engine::Edge* edge = automaton_.begin(position.state); edge < automaton_.end(position.state); ++edge) {
    for (uint32_t byte = edge->first; byte <= edge->last; ++byte) {
      if (is_live(after(position, uint8_t(byte)))) return true;
    }
  }
  return false;
}

// The position with smaller bounds that allows the same tokens and has the same
// continuations. From the first repetition of the counts on only the remainder of `min`
// matters, and after `min` some text ends within as many characters as there are counts.
BoundedPosition BoundedAutomaton::shared_position(BoundedPosition position) const {
  uint32_t num_counts = counts_.num_irregular() + counts_.period(), longest = vocabulary_->max_depth();
  uint32_t far = counts_.num_irregular() + longest + 1;
  uint32_t num_skipped = 0;  // whole periods
  if (position.min > far) num_skipped = (position.min - far) / counts_.period() * counts_.period();
  position.min -= num_skipped;
  if (position.max == BoundedPosition::kNoBound) return position;
  position.max -= num_skipped;
  if (position.max - position.min >= num_counts + longest) position.max = BoundedPosition::kNoBound;
  return position;
}

bool BoundedAutomaton::leads_back(uint32_t start, uint32_t state, uint8_t rest) const {
  for (uint32_t byte = 0x80; byte < 256; ++byte) {
    uint8_t left = utf8::after(rest, uint8_t(byte));
    if (left == utf8::kInvalid) continue;
    uint32_t next = automaton_.next(state, uint8_t(byte));
    bool is_back = left == utf8::kBetween ? next == start : next != kDead && leads_back(start, next, left);
    if (!is_back) return false;
  }
  return true;
}

engine::ByteGroups BoundedAutomaton::looping_groups(uint32_t state) {
  Loops& loops = loops_[state];
  if (!loops.is_known) {
    engine::ByteGroups others = 0;
    for (uint32_t byte = 0; byte < 0x80; ++byte) {
      bool is_back = automaton_.next(state, uint8_t(byte)) == state;
      (is_back ? loops.groups : others) |= BytesBelow::group_of(uint8_t(byte));
    }
    loops.groups &= ~others;
    if (loops.groups != 0 && leads_back(state, state, utf8::kBetween)) loops.groups |= BytesBelow::kAboveAscii;
    if (automaton_.accepts(state)) loops.groups = 0;  // each node of the trie is a possible end
    loops.is_known = true;
  }
  return loops.groups;
}

template <typename Visit>
void BoundedAutomaton::walk(const BoundedPosition& from, bool whole_characters, Visit visit) {
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  const BytesBelow& below = vocabulary_->bytes_below();
  const std::vector<uint32_t>& heights = vocabulary_->string_tokens().height;
  std::vector<BoundedPosition> positions(vocabulary_->max_depth() + 1);  // before each byte
  positions[0] = from;
  vocabulary_->visit_below(VocabularyTrie::kRoot, [&](uint32_t node, uint8_t byte, uint32_t depth) {
    const BoundedPosition& next = positions[depth + 1] = after(positions[depth], byte);
    if (next.state == kDead) return false;
    budget_.spend(1);
    if (!is_live(next)) return false;
    uint32_t end = nodes[node].tokens_end;
    engine::ByteGroups groups = below.groups(node);
    // A loop takes one of the characters of `max`, and leaves the rest of the text as it is.
    bool stays = groups != 0 && (whole_characters || next.min == 0) && (groups & ~looping_groups(next.state)) == 0 &&
                 next.max - counts_.least(next.state, 0) >= heights[node];
    if (stays && (groups & BytesBelow::kAboveAscii) != 0) {
      stays = whole_characters && below.are_characters(node, utf8::kBetween);
    }
    if (stays) end = nodes[nodes[node].end - 1].tokens_end;
    visit(node, end, next);
    return !stays;
  });
}

std::vector<uint32_t> BoundedAutomaton::computed_row(const BoundedPosition& position, uint32_t* row) {
  std::fill(row, row + vocabulary_->row_words(), 0);
  std::vector<uint32_t> continuations;
  walk(position, true, [&](uint32_t node, uint32_t end, const BoundedPosition& next) {
    for (uint32_t i = vocabulary_->first_token(node); i < end; ++i) {
      uint32_t token = vocabulary_->tokens()[i];
      row[token >> 5] |= 1u << (token & 31);
    }
    if (may_end(next) && vocabulary_->nodes()[node].end > node + 1) continuations.push_back(node);
  });
  return continuations;
}

EmbeddedView BoundedAutomaton::view_of(const Entry& entry) const {
  EmbeddedView view;
  view.mask = entry.mask;
  view.entry = entry.number;
  view.continuations = entry.continuations;
  view.counting_continuations = 1;
  return view;
}

std::optional<EmbeddedView> BoundedAutomaton::known_view(const BoundedPosition& position) const {
  auto known = entries_.find(shared_position(position));
  return known == entries_.end() ? std::nullopt : std::optional(view_of(known->second));
}

EmbeddedView BoundedAutomaton::view(const BoundedPosition& position) {
  if (std::optional<EmbeddedView> known = known_view(position)) return *std::move(known);
  std::vector<uint32_t> row(vocabulary_->row_words());
  const BoundedPosition shared = shared_position(position);
  std::vector<uint32_t> continuations = computed_row(shared, row.data());
  const engine::Mask* mask = entries_.size() < kMaxEntries ? store_.add(row.data()) : nullptr;
  if (mask == nullptr) {
    EmbeddedView view;
    view.own_continuations = std::move(continuations);
    return view;
  }
  continuation_bytes_ += continuations.size() * sizeof(uint32_t);
  Entry entry{mask, std::make_shared<const Nodes>(Nodes{std::move(continuations)}), uint32_t(entries_.size())};
  return view_of(entries_.emplace(shared, std::move(entry)).first->second);
}

void BoundedAutomaton::fill(const BoundedPosition& position, uint32_t* row) {
  const BoundedPosition shared = shared_position(position);
  auto known = entries_.find(shared);
  if (known != entries_.end()) return store_.expand(*known->second.mask, row);
  computed_row(shared, row);
}

std::string BoundedAutomaton::forced(BoundedPosition position) {
  std::string bytes;
  while (!may_end(position) && bytes.size() < kMaxForcedBytes) {
    std::optional<BoundedPosition> only;
    uint8_t forced_byte = 0;
    for (const engine::Edge* edge = automaton_.begin(position.state); edge < automaton_.end(position.state); ++edge) {
      for (uint32_t byte = edge->first; byte <= edge->last; ++byte) {
        BoundedPosition next = after(position, uint8_t(byte));
        if (!is_live(next)) continue;
        if (only) return bytes;
        only = next;
        forced_byte = uint8_t(byte);
      }
      budget_.spend(1);
    }
    bytes.push_back(char(forced_byte));
    position = *only;
  }
  return bytes;
}

std::string BoundedAutomaton::short_end(const BoundedPosition& position) {
  std::string bytes;
  uint32_t state = position.state, left = counts_.least(state, position.min);
  while (left > 0 || !automaton_.accepts(state)) {
    bytes.push_back(char(counts_.byte_towards(automaton_, state, left)));
    state = automaton_.next(state, uint8_t(bytes.back()));
    left -= CharacterCounts::begins_character(uint8_t(bytes.back()));
    budget_.spend(1);
  }
  return bytes;
}

// After a token of an ending its rest is the ending of the position there: a position with
// fewer characters to come would have led to a shorter ending here.
const Ending* BoundedAutomaton::ending(uint32_t state, uint32_t num_characters) {
  std::vector<std::pair<std::pair<uint32_t, uint32_t>, uint8_t>> path;  // with the byte that follows
  const Ending* ending = nullptr;
  uint32_t left = num_characters;
  while (left > 0 || !automaton_.accepts(state)) {
    auto known = ending_of_.find({state, left});
    if (known != ending_of_.end()) {
      ending = known->second;
      break;
    }
    uint8_t byte = counts_.byte_towards(automaton_, state, left);
    path.push_back({{state, left}, byte});
    state = automaton_.next(state, byte);
    left -= CharacterCounts::begins_character(byte);
    budget_.spend(1);
  }
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    ending = endings_.add(std::string(1, char(step->second)), ending);
    ending_of_.emplace(step->first, ending);
  }
  return ending;
}

uint32_t BoundedAutomaton::cost_to_end(const BoundedPosition& position) {
  uint32_t state = position.state, left = counts_.least(state, position.min), num_bytes = 0;
  while (left > kMaxSpelled) {
    uint8_t byte = counts_.byte_towards(automaton_, state, left);
    uint32_t next = automaton_.next(state, byte);
    bool repeats = next == state && counts_.period() == 1;  // up to where the counts are irregular
    uint32_t last = repeats ? std::max(kMaxSpelled, std::min(left - 1, counts_.num_irregular() + 1)) : left - 1;
    if (CharacterCounts::begins_character(byte)) {
      num_bytes += left - last;
      left = last;
    } else {
      ++num_bytes;
    }
    state = next;
    budget_.spend(1);
  }
  return engine::cost_sum(num_bytes, num_tokens(ending(state, left)));
}

uint32_t BoundedAutomaton::most_cost(const BoundedPosition& position) const {
  constexpr uint32_t kMaxBytes = 4;  // of a character
  uint64_t most = counts_.most();
  if (position.min > 0) most = uint64_t(position.min) + counts_.num_irregular() + counts_.period();
  return uint32_t(std::min<uint64_t>(kMaxBytes * (most + 1), engine::kUnknownCost - 1));
}

engine::CostTable BoundedAutomaton::token_costs(const BoundedPosition& position) {
  auto known = tables_.find({position.state, position.min});
  if (known != tables_.end()) return {known->second};
  std::vector<uint32_t> row(vocabulary_->row_words()), after(vocabulary_->size(), engine::kUnknownCost);
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> costs;  // by state and min
  walk({position.state, position.min}, false, [&](uint32_t node, uint32_t end, const BoundedPosition& next) {
    uint32_t first = vocabulary_->first_token(node);
    if (first == end) return;
    auto [cost, is_new] = costs.try_emplace({next.state, next.min}, 0);
    if (is_new) cost->second = cost_to_end(next);
    for (uint32_t i = first; i < end; ++i) {
      uint32_t token = vocabulary_->tokens()[i];
      row[token >> 5] |= 1u << (token & 31);
      after[token] = cost->second;
    }
  });
  auto table =
      std::make_shared<const engine::TokenCosts>(engine::TokenCosts::of_row(cost_to_end(position), after, row.data()));
  if (table_bytes_ + table->memory_bytes() <= kMaxTableBytes) {
    table_bytes_ += table->memory_bytes();
    tables_.emplace(std::pair(position.state, position.min), table);
  }
  return {table};
}

size_t BoundedAutomaton::memory_share() {
  constexpr size_t kBytesPerKey = 64;  // of a table, roughly
  std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = automaton_.memory_bytes() + counts_.memory_bytes() + store_.memory_bytes() + endings_.memory_bytes() +
                 loops_.capacity() * sizeof(Loops) + entries_.size() * (sizeof(Entry) + kBytesPerKey) +
                 (ending_of_.size() + tables_.size()) * kBytesPerKey + table_bytes_ + continuation_bytes_;
  return bytes / std::max<uint32_t>(num_languages_, 1);
}

namespace {

struct BoundedConfiguration final : EmbeddedConfiguration {
  explicit BoundedConfiguration(const BoundedPosition& position) : position(position) {}
  const BoundedPosition position;
};

const BoundedPosition& position_of(const EmbeddedConfiguration& config) {
  return static_cast<const BoundedConfiguration&>(config).position;
}

// Caches of languages with other bounds share the automaton, its lock and its number.
class BoundedCache final : public engine::EmbeddedCache {
 public:
  BoundedCache(std::shared_ptr<BoundedAutomaton> automaton, const BoundedPosition& start)
      : automaton_(std::move(automaton)), start_(std::make_shared<BoundedConfiguration>(start)) {}

  void lock() override { lock_ = automaton_->lock(); }
  void unlock() noexcept override { std::unique_ptr<engine::StepBudgetLock> lock = std::move(lock_); }
  engine::ConfigurationPtr start() override { return start_; }

  engine::ConfigurationPtr after(const EmbeddedConfiguration& config, const uint8_t*& at, const uint8_t* end) override {
    BoundedPosition position = position_of(config);
    while (at < end) {
      position = automaton_->after(position, *at);
      if (position.state == kDead) return nullptr;
      ++at;
      if (automaton_->may_end(position)) break;
    }
    return automaton_->is_live(position) ? std::make_shared<BoundedConfiguration>(position) : nullptr;
  }

  bool may_end(const EmbeddedConfiguration& config) override { return automaton_->may_end(position_of(config)); }
  bool may_continue(const EmbeddedConfiguration& config) override {
    return automaton_->may_continue(position_of(config));
  }
  bool has_end(const EmbeddedConfiguration&) override { return true; }  // dead ones are never made
  bool are_equal(const EmbeddedConfiguration& a, const EmbeddedConfiguration& b) override {
    return position_of(a) == position_of(b);
  }
  EmbeddedView view(const EmbeddedConfiguration& config, const engine::ByteSet&) override {
    return automaton_->view(position_of(config));
  }
  std::optional<EmbeddedView> known_view(const EmbeddedConfiguration& config, const engine::ByteSet&) override {
    return automaton_->known_view(position_of(config));
  }
  void fill(const EmbeddedConfiguration& config, uint32_t* row) override { automaton_->fill(position_of(config), row); }
  void expand(const engine::Mask& mask, engine::MaskRow& row) override { automaton_->expand(mask, row); }
  std::string forced(const EmbeddedConfiguration& config) override { return automaton_->forced(position_of(config)); }
  std::optional<std::string> short_end(const EmbeddedConfiguration& config, uint64_t& work) override {
    std::string end = automaton_->short_end(position_of(config));
    work += end.size();
    return end;
  }
  uint32_t cost_to_end(const EmbeddedConfiguration& config) override {
    return automaton_->cost_to_end(position_of(config));
  }
  uint32_t most_cost(const EmbeddedConfiguration& config, uint32_t) override {
    return automaton_->most_cost(position_of(config));
  }
  engine::CostTable token_costs(const EmbeddedConfiguration& config) override {
    return automaton_->token_costs(position_of(config));
  }
  uint32_t number() const override { return automaton_->number(); }

 private:
  const std::shared_ptr<BoundedAutomaton> automaton_;
  const engine::ConfigurationPtr start_;
  std::unique_ptr<engine::StepBudgetLock> lock_;  // of the thread that called lock()
};

}  // namespace

BoundedTexts::BoundedTexts(std::shared_ptr<BoundedAutomaton> automaton, uint32_t min, uint32_t max)
    : automaton_(std::move(automaton)) {
  std::unique_ptr<engine::StepBudgetLock> lock = automaton_->lock();
  const BoundedPosition start = automaton_->start(min, max);
  if (!automaton_->is_live(start)) throw std::invalid_argument("no text has such a length");
  if (automaton_->may_end(start)) throw std::invalid_argument("the empty text is one of the texts");
  cache_ = std::make_shared<BoundedCache>(automaton_, start);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    first_bytes_[byte] = automaton_->is_live(automaton_->after(start, uint8_t(byte)));
  }
  ++automaton_->num_languages_;
}

}  // namespace structout::context_free
