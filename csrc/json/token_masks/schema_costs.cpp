#include "json/token_masks/schema_costs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

#include "json/satisfiability/value_search.h"

namespace structout::json {

using engine::Ending;
using engine::kUnknownCost;
using engine::TokenCosts;

namespace {

// True if the items around a configuration may only end so that they differ from earlier
// ones, and that is more than a matter of the string on top.
bool depends_on_items(const Configuration& config) {
  SchemaAutomaton& automaton = config.automaton();
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
    bool is_item = automaton.register_kind(frame->state) == RegisterKind::kInsideItem;
    if (is_item && automaton.counts().is_tight(frame->state)) return true;
  }
  const Frame* item = config.below() == nullptr ? nullptr : config.below()->item;
  if (item == nullptr || !item->has_used) return false;
  bool is_alone = item->below == nullptr || item->below->item == nullptr || !item->below->item->has_used;
  bool is_string = item == config.below() && automaton.is_in_string(config.state());
  return !is_alone || !(config.is_new_item() || is_string);
}

std::string bytes_of(const Ending* ending) {
  std::string bytes;
  for (; ending != nullptr; ending = ending->tail()) bytes += *ending->bytes;
  return bytes;
}

// Strings and numbers that an ending begins and that may be longer than there.
uint32_t num_values(const std::string& bytes) {
  uint32_t count = 0;
  for (size_t i = 1; i < bytes.size(); ++i) {
    bool is_number = std::strchr(":,[", bytes[i - 1]) != nullptr && (std::isdigit(bytes[i]) != 0 || bytes[i] == '-');
    bool is_string = bytes[i - 1] == '"' && bytes[i] == '"';
    if (is_number || is_string) ++count;
  }
  return count;
}

bool has_free_key(const Registers* registers) { return registers != nullptr && registers->used != nullptr; }

}  // namespace

SchemaCosts::Found SchemaCosts::ending(const Configuration& config, std::string* carried, bool may_add) {
  if (config.is_complete()) return {nullptr, true};
  stack_.clear();
  bool is_key = automaton_.is_key(config.state());
  stack_.push_back({config.state(), {config.seen_keys(), has_free_key(config.registers()) && !is_key}});
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
    const Registers* registers = frame->registers.get();
    stack_.push_back({frame->state, {seen_keys_of(registers), has_free_key(registers)}});
  }
  Found found{&no_end_, false};
  if (!depends_on_items(config)) {
    // After a free key, a key that has begun may become a name, or another free key.
    const Ending* named = &no_end_;
    if (is_key && has_free_key(config.registers())) {
      stack_[0].second.has_free = true;
      endings_.find(stack_, named);
      stack_[0].second.has_free = false;
    }
    if (endings_.find(stack_, found.ending)) {
      bool is_item = config.below() != nullptr && config.below()->item != nullptr;
      bool may_repeat = config.has_used() && (is_key || (is_item && automaton_.is_in_string(config.state())));
      found.is_least = !may_repeat || completes(config, found.ending);
      if (!found.is_least) found.ending = may_add ? with_another_character(config) : &no_end_;
    }
    if (named != &no_end_ && num_tokens(named) <= num_tokens(found.ending)) found = {named, true};
  } else if (const Ending* usual = nullptr; endings_.find(stack_, usual) && completes(config, usual)) {
    found.ending = usual;  // other items rarely forbid it
    if (carried != nullptr && carried->empty()) *carried = bytes_of(usual);
  }
  if (carried == nullptr) return found;
  if (carried->empty() && found.ending == &no_end_) *carried = searched(config);
  if (carried->empty()) return found;
  const Ending* other = endings_.of(*carried);
  return num_tokens(other) < num_tokens(found.ending) ? Found{other, false} : found;
}

size_t SchemaCosts::unspelled_bytes(const Configuration& config) {
  const Ending* ending = this->ending(config, nullptr).ending;
  if (ending == &no_end_) return SIZE_MAX;
  return num_tokens(ending) == kUnknownCost ? bytes_of(ending).size() : 0;
}

bool SchemaCosts::completes(const Configuration& config, const Ending* ending) const {
  const std::string bytes = bytes_of(ending);
  Configuration next = config;
  auto reads = [&next](char byte) { return next.read(uint8_t(byte)); };
  return std::all_of(bytes.begin(), bytes.end(), reads) && next.is_complete();
}

const Ending* SchemaCosts::with_another_character(const Configuration& config) {
  for (char byte : std::string_view("aeionstrlcdu0123456789bfghjkmpqvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_- ")) {
    Configuration next = config;
    if (!next.read(uint8_t(byte))) continue;
    Found found = ending(next, nullptr, false);
    if (found.ending == nullptr || !found.is_least) continue;
    return endings_.of(byte + bytes_of(found.ending));
  }
  return &no_end_;
}

// Bytes that complete the text, which a search has found: up to the first configuration whose
// own ending is known, and on with that one. Empty if there are none.
std::string SchemaCosts::searched(const Configuration& config) {
  const std::string bytes = short_completion(config).value_or("");
  Configuration next = config;
  for (size_t i = 0; i < bytes.size() && next.read(uint8_t(bytes[i])); ++i) {
    Found rest = ending(next, nullptr);
    if (rest.is_least) return bytes.substr(0, i + 1) + bytes_of(rest.ending);
  }
  return bytes;
}

uint32_t SchemaCosts::rough_bound(const Configuration& config, std::string& carried) {
  const Found own = ending(config, &carried);
  if (!own.is_least || !stays_in_string(config)) return bound(num_tokens(own.ending), 0);
  // After any characters a part of the ending is left.
  const std::vector<uint32_t>& counts = own.ending->counts;
  return engine::cost_sum(*std::max_element(counts.begin(), counts.end()), kMostToEndCharacter);
}

// True if a string is on top that no token can end, that only its length restricts, and that
// is compared with no other.
bool SchemaCosts::stays_in_string(const Configuration& config) {
  const auto* string = automaton_.at<InString>(config.state());
  if (string == nullptr || (config.below() != nullptr && config.below()->item != nullptr)) return false;
  const Numbers texts = automaton_.lists()[string->texts];
  uint32_t num_required = texts.size() == 1 ? automaton_.schema().texts().num_required(texts[0]) : 0;
  return num_required > vocabulary_.string_tokens().max_before_end;
}

uint32_t SchemaCosts::rougher_bound(const Configuration& config) {
  uint32_t num_frames = 1;
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) ++num_frames;
  return bound(0, num_frames);
}

// The cost of some open values, `num_more` others, and those that one token can open.
uint32_t SchemaCosts::bound(uint64_t cost, uint64_t num_more) {
  num_more += 1 + vocabulary_.string_tokens().max_openings;
  cost += kMostToEndCharacter + kToDiffer + num_more * endings_.most_bytes();
  return uint32_t(std::min<uint64_t>(cost, kUnknownCost));
}

// Collects the costs after the tokens that a walk allows.
class SchemaCosts::Collector final : public TokenWalk::Visitor {
 public:
  Collector(SchemaCosts& costs, const Configuration& config)
      : costs_(costs), automaton_(costs.automaton_), config_(config), is_exact_(costs.vocabulary_.size()) {
    given_.push_back(config.registers());
    for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
      given_.push_back(frame->registers.get());
    }
  }

  // All plain tokens, or all that stay inside a string.
  void visit_string_tokens(const TokenWalk& walk) override {
    usual = cost_of_plain(walk, 0);
    note_plain(usual);
  }

  void visit_plain(const TokenWalk& walk, const uint32_t* begin, const uint32_t* end, uint32_t top) override {
    uint32_t cost = cost_of_plain(walk, top);
    note_plain(cost);
    add(begin, end, cost);
  }

  void visit(const TokenWalk& walk, const uint32_t* begin, const uint32_t* end, uint32_t top) override {
    for (const uint32_t* token = begin; token < end; ++token) is_exact_[*token] = true;
    if (has_new_name(walk, top)) {
      for (const uint32_t* token = begin; token < end; ++token) add(token, token + 1, cost_by_reading(*token));
    } else {
      add(begin, end, cost_of(walk, top));
    }
  }

  // `row`: the tokens that the walk has allowed; null after a walk of names alone.
  TokenCosts table(const uint32_t* row) {
    // Plain characters may be unfinished, and have to be finished then.
    bool is_known = costs_.vocabulary_.has_all_bytes() && most_of_plain_ != kUnknownCost;
    uint32_t cost = is_known ? most_of_plain_ + kMostToEndCharacter : kUnknownCost;
    for (uint32_t token : costs_.vocabulary_.string_tokens().unfinished) {
      if (has_plain_ && !is_exact_[token]) others.emplace_back(cost, token);
    }
    if (usual != kUnknownCost || row == nullptr) return {0, usual, std::move(others)};
    std::vector<uint32_t> after(costs_.vocabulary_.size(), kUnknownCost);
    for (auto [cost_after, token] : others) after[token] = cost_after;
    return TokenCosts::of_row(0, after, row);
  }

  uint32_t usual = kUnknownCost;
  std::vector<std::pair<uint32_t, uint32_t>> others;

 private:
  void note_plain(uint32_t cost) {
    has_plain_ = true;
    most_of_plain_ = std::max(most_of_plain_, cost);
  }

  // True if the token has completed a name, also of an object around the value on top.
  static bool has_new_name(const TokenWalk& walk, uint32_t top) {
    for (; top != TokenWalk::kBottom; top = walk.frame(top).below) {
      if ((walk.frame(top).new_keys & TokenWalk::kNewName) != 0) return true;
    }
    return false;
  }

  void add(const uint32_t* begin, const uint32_t* end, uint32_t cost) {
    for (; begin < end; ++begin) others.emplace_back(cost, *begin);
  }

  uint32_t cost_by_reading(uint32_t token) {
    Configuration next = config_;
    const engine::VocabularyTrie& vocabulary = costs_.vocabulary_;
    bool is_allowed = next.read(vocabulary.begin(token), vocabulary.end(token));
    return is_allowed ? num_tokens(costs_.ending(next, nullptr).ending) : kUnknownCost;
  }

  // Plain characters may lead to other states, each of whose bytes to the end of the string may
  // be a token.
  uint32_t cost_of_plain(const TokenWalk& walk, uint32_t top) {
    uint32_t cost = cost_of(walk, top);
    State state = walk.frame(top).state;
    const auto* string = automaton_.at<InString>(state);
    const auto* key = automaton_.at<InKey>(state);
    bool is_inside = string != nullptr || (key != nullptr && key->may_be_free());
    if (cost == kUnknownCost || last_ == nullptr || !is_inside) return cost;
    const Numbers texts = automaton_.lists()[string != nullptr ? string->texts : key->free];
    cost = std::max(cost, most_after(walk, top, texts));
    uint32_t most = automaton_.schema().texts().num_bytes_to_an_end(texts[0]);
    return most == Texts::kManyTexts || cost == kUnknownCost ? kUnknownCost : cost + most;
  }

  // The most that follows a string or a free key, with its quote, whichever of the tracked
  // formulas it satisfies.
  uint32_t most_after(const TokenWalk& walk, uint32_t top, const Numbers& texts) {
    const size_t num_tracked = texts.size() - 1;
    if (num_tracked == 0) return 0;
    if (num_tracked > kMaxTracked) return kUnknownCost;
    std::vector<std::pair<State, LeastEndings::Keys>>& stack = costs_.stack_;
    bool must_differ = set_stack(walk, top);
    std::optional<InKey> key;
    if (const auto* inside = automaton_.at<InKey>(stack[0].first)) key = *inside;
    uint32_t most = 0;
    for (uint32_t truths = 0; truths < 1u << num_tracked; ++truths) {
      if (!automaton_.schema().texts().may_satisfy(texts, truths)) continue;
      if (key) stack[0] = {automaton_.after_free_key(*key, truths), {stack[0].second.seen, true}};
      const Ending* ending = nullptr;
      bool is_known =
          key ? costs_.endings_.find(stack, ending)
              : costs_.endings_.find_after(stack, automaton_.number_of_truth_values(truths, num_tracked), ending);
      if (!is_known) return kUnknownCost;
      most = std::max(most, 1 + num_tokens(ending) + (must_differ ? kToDiffer : 0));
    }
    return most;
  }

  // Many tokens lead to the same states above the given ones.
  uint32_t cost_of(const TokenWalk& walk, uint32_t top) {
    const TokenWalk::WalkFrame& frame = walk.frame(top);
    bool is_new = frame.seen_keys >= given_.size();
    std::array<uint32_t, 4> key = {frame.state, frame.below, is_new, frame.new_keys};
    bool is_known_below = frame.below < given_.size() || frame.below == TokenWalk::kBottom;
    auto known = is_known_below ? costs_by_top_.find(key) : costs_by_top_.end();
    if (known == costs_by_top_.end()) {
      std::pair<uint32_t, const Ending*> computed = {computed_cost(walk, top), last_};
      if (is_known_below) costs_by_top_.emplace(key, computed);
      return computed.first;
    }
    last_ = known->second.second;
    return known->second.first;
  }

  uint32_t computed_cost(const TokenWalk& walk, uint32_t top) {
    bool must_differ = set_stack(walk, top);
    last_ = nullptr;
    if (!costs_.endings_.find(costs_.stack_, last_)) return kUnknownCost;
    return num_tokens(last_) + (must_differ ? kToDiffer : 0);
  }

  // Sets the stack of the costs to that of a frame. Returns true if its keys or items must
  // differ from earlier ones.
  bool set_stack(const TokenWalk& walk, uint32_t top) {
    std::vector<std::pair<State, LeastEndings::Keys>>& stack = costs_.stack_;
    stack.clear();
    bool must_differ = false;
    for (uint32_t at = top; at != TokenWalk::kBottom; at = walk.frame(at).below) {
      const TokenWalk::WalkFrame& frame = walk.frame(at);
      const Registers* registers = frame.seen_keys < given_.size() ? given_[frame.seen_keys] : nullptr;
      bool is_key = at == top && automaton_.is_key(frame.state);
      bool has_free = has_free_key(registers);
      must_differ =
          must_differ || (is_key && has_free) || automaton_.register_kind(frame.state) == RegisterKind::kInsideItem;
      has_free = (has_free && !is_key) || (frame.new_keys & TokenWalk::kNewFreeKey) != 0;
      stack.push_back({frame.state, {seen_keys_of(registers), has_free}});
    }
    return must_differ;
  }

  static constexpr size_t kMaxTracked = 4;

  SchemaCosts& costs_;
  SchemaAutomaton& automaton_;
  const Configuration& config_;
  std::vector<const Registers*> given_;  // of the given frames
  std::vector<bool> is_exact_;           // by token: its cost is not that of all plain tokens
  uint32_t most_of_plain_ = 0;           // of the plain tokens, if there were any
  bool has_plain_ = false;
  std::map<std::array<uint32_t, 4>, std::pair<uint32_t, const Ending*>> costs_by_top_;
  const Ending* last_ = nullptr;  // of the last cost_of()
};

std::shared_ptr<const TokenCosts> SchemaCosts::kept(std::string key, TokenCosts costs) {
  auto table = std::make_shared<const TokenCosts>(std::move(costs));
  if (bytes_ + table->memory_bytes() > kMaxBytes) return table;
  bytes_ += table->memory_bytes() + key.size() + kBytesPerTable;
  return tables_.emplace(std::move(key), std::move(table)).first->second;
}

std::shared_ptr<const TokenCosts> SchemaCosts::table(const Configuration& config, State top) {
  std::string key = key_of(config, top);
  auto known = tables_.find(key);
  if (known != tables_.end()) return known->second;
  if (auto limit = automaton_.hints().length_limit(top)) return table(config, limit->without);
  std::shared_ptr<const TokenCosts> base;
  if (std::optional<State> similar = automaton_.hints().state_without_name(top)) base = table(config, *similar);
  Collector collector(*this, config);
  TokenWalk walk(automaton_, config, top, &collector);
  std::vector<uint32_t> row(vocabulary_.row_words());
  DuplicateChecks duplicate_checks;
  Conditions conditions;
  if (base != nullptr) {
    collector.usual = base->usual;
    collector.others = base->others();
    walk.fill_names(vocabulary_, row.data(), duplicate_checks, conditions);
  } else {
    walk.fill(vocabulary_, row.data(), duplicate_checks, conditions);
  }
  return kept(std::move(key), collector.table(base == nullptr ? row.data() : nullptr));
}

std::shared_ptr<const TokenCosts> SchemaCosts::token_costs(const Configuration& config, std::string& carried) {
  std::string key = "own" + key_of(config, config.state());
  Found own = ending(config, &carried);
  auto known = own.is_least ? tables_.find(key) : tables_.end();
  if (known != tables_.end()) return known->second;
  automaton_.schema().budget().restart();
  State top = automaton_.hints().without_far_limits(config.state(), vocabulary_.max_depth());
  std::shared_ptr<const TokenCosts> table = this->table(config, top);
  std::vector<std::pair<uint32_t, uint32_t>> others = table->others();
  uint32_t cost = num_tokens(own.ending);
  if (own.ending != nullptr && own.ending != &no_end_) {
    // The first token of the ending stays allowed, whatever the table says.
    uint32_t node = endings_.endings().first_token_node(*own.ending);
    for (uint32_t i = vocabulary_.first_token(node); i < vocabulary_.nodes()[node].tokens_end; ++i) {
      others.emplace_back(std::min(cost - 1, table->after(vocabulary_.tokens()[i])), vocabulary_.tokens()[i]);
    }
  }
  State state = config.state();
  bool is_inside = automaton_.at<InString>(state) != nullptr || automaton_.at<InNumber>(state) != nullptr;
  std::optional<uint32_t> to_come;
  if (!is_inside && cost != kUnknownCost) to_come = num_values(bytes_of(own.ending));
  TokenCosts costs(cost, table->usual, std::move(others), to_come);
  return own.is_least ? kept(std::move(key), std::move(costs)) : std::make_shared<const TokenCosts>(std::move(costs));
}

uint32_t SchemaCosts::values_to_come(const Configuration& config, std::string& carried) {
  Found own = ending(config, &carried);
  return own.ending == &no_end_ ? 0 : num_values(bytes_of(own.ending));
}

std::string SchemaCosts::key_of(const Configuration& config, State top) {
  std::string key;
  auto append = [&key](State state, const Registers* registers) {
    key.append(reinterpret_cast<const char*>(&state), sizeof state);
    key.push_back(has_free_key(registers) ? 'f' : ' ');
    for (bool has_come : seen_keys_of(registers)) key.push_back(has_come ? '1' : '0');
  };
  append(top, config.registers());
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
    append(frame->state, frame->registers.get());
  }
  return key;
}

}  // namespace structout::json
