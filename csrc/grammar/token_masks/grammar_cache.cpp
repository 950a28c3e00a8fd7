#include "grammar/token_masks/grammar_cache.h"

#include <algorithm>
#include <utility>

namespace structout::context_free {

SharedParts::SharedParts(std::shared_ptr<const Network> given, const engine::Limits& limits,
                         std::shared_ptr<const engine::VocabularyTrie> trie)
    : network(std::move(given)),
      vocabulary(std::move(trie)),
      budget(limits),
      lexer(*network),
      completability(*network, lexer),
      masks(*network, lexer, completability, vocabulary) {}

GrammarCache::GrammarCache(std::shared_ptr<SharedParts> parts, bool has_own)
    : parts_(std::move(parts)),
      embedded_(*parts_->network, has_own),
      reader_(*parts_->network, parts_->lexer, &embedded_),
      embedded_masks_(parts_->masks, reader_, parts_->vocabulary,
                      [this](const Configuration& config) { return has_end(config); }),
      end_search_(*parts_->network, parts_->completability),
      costs_(reader_, end_search_, embedded_masks_, parts_->vocabulary,
             [this](const LexerConfiguration& config, uint32_t* row) { fill_alone(config, row); }) {}

size_t GrammarCache::size_in_bytes() const {
  return reader_.memory_bytes() + states_.memory_bytes() + numbers_.memory_bytes() + embedded_masks_.memory_bytes() +
         end_search_.memory_bytes() + costs_.memory_bytes();
}

uint32_t GrammarCache::number_of(const LexerConfiguration& config) {
  uint32_t known = numbers_.find(config.node, config.lexer_state);
  if (known != PairTable::kMissing) return known;
  uint32_t number = states_.add();
  states_[number].config = {config.node, config.lexer_state};
  numbers_.add(config.node, config.lexer_state, number);
  return number;
}

bool GrammarCache::has_end(const Configuration& config) {
  auto of_one = [this](const LexerConfiguration& each) {
    return each.node != Stacks::kDead && end_search_.has_end(reader_, each, budget());
  };
  if (of_one(config)) return true;
  if (config.others == nullptr) return false;
  auto of_parse = [&](const EmbeddedParse& parse) { return of_one(reader_.after_embedded(parse.below, budget())); };
  return std::any_of(config.others->lexer_configs.begin(), config.others->lexer_configs.end(), of_one) ||
         std::any_of(config.others->parses.begin(), config.others->parses.end(), of_parse);
}

Configuration GrammarCache::with_completable_parses(const Configuration& config) {
  return reader_.with_ends(config, [this](const EmbeddedParse& parse) {
    return end_search_.has_end(reader_, reader_.after_embedded(parse.below, budget()), budget());
  });
}

TextConfiguration GrammarCache::completable(Configuration config) {
  config = with_completable_parses(config);
  if (config.is_dead() || !this->has_end(config)) return {};  // as masks, which count no tokens
  if (parts_->network->has_token_limits()) {
    auto has_end_of_one = [this](const LexerConfiguration& each) {
      return end_search_.has_end(reader_, each, budget());
    };
    config = reader_.at_token_end(std::move(config), has_end_of_one, budget());
  }
  uint32_t state = number_of(config);
  return {state, config.num_tokens, std::move(config.others)};
}

std::optional<std::string> GrammarCache::shortest_end(const TextConfiguration& text) {
  Lock lock(*this);
  return end_search_.shortest(reader_, config_of(text), budget());
}

TextConfiguration GrammarCache::start() {
  Lock lock(*this);
  return completable(reader_.start(budget()));
}

TextConfiguration GrammarCache::after(const TextConfiguration& from, const uint8_t* begin, const uint8_t* end) {
  Lock lock(*this);
  throw_if_full();
  return completable(reader_.after(config_of(from), begin, end, budget()));
}

TextConfiguration GrammarCache::after_token(const TextConfiguration& from, uint32_t token, bool by_id) {
  Lock lock(*this);
  throw_if_full();
  const uint8_t *begin = parts_->vocabulary->begin(token), *end = parts_->vocabulary->end(token);
  const Configuration config = config_of(from);
  Configuration next;
  if (!by_id && begin != end) next = reader_.after(config, begin, end, budget());
  if (parts_->network->has_tokens()) {
    next = reader_.united(next, reader_.after_token(config, token, budget()), budget());
  }
  return completable(std::move(next));
}

bool GrammarCache::may_end(const TextConfiguration& text) {
  State& state = states_[text.state];
  bool is_alone = text.others == nullptr;
  if (is_alone && state.may_end != MayEnd::kUnknown) return state.may_end == MayEnd::kYes;
  Lock lock(*this);
  bool result = reader_.may_end(config_of(text), budget());
  if (is_alone) state.may_end = result ? MayEnd::kYes : MayEnd::kNo;
  return result;
}

std::string GrammarCache::forced(const TextConfiguration& text) {
  Lock lock(*this);
  return forced_locked(config_of(text));
}

std::string GrammarCache::forced_locked(Configuration config) {
  std::string bytes;
  while (bytes.size() < kMaxForcedBytes && !reader_.may_end(config, budget()) &&
         !reader_.reads_token(config, budget())) {
    if (const EmbeddedParse* parse = config.only_parse()) {
      std::string inside = embedded_.locked(parse->cache).forced(*parse->config);
      if (inside.empty()) return bytes;
      const uint8_t* begin = reinterpret_cast<const uint8_t*>(inside.data());
      config = reader_.after(config, begin, begin + inside.size(), budget());
      bytes += inside;
      continue;
    }
    Configuration only;
    int forced_byte = -1;
    for (int byte = 0; byte < 256; ++byte) {
      Configuration next = reader_.after(config, uint8_t(byte), budget());
      if (next.is_dead() || !has_end(next)) continue;
      if (forced_byte >= 0) return bytes;
      forced_byte = byte;
      only = next;
    }
    if (forced_byte < 0) return bytes;
    bytes.push_back(char(forced_byte));
    config = only;
  }
  return bytes;
}

void GrammarCache::fill_by_walk(const Configuration& config, uint32_t* row) {
  auto is_allowed = [this](const Configuration& next) { return has_end(reader_.with_ends(next)); };
  std::fill(row, row + parts_->vocabulary->row_words(), 0);
  parts_->masks.add_by_walk(reader_, config, budget(), is_allowed, row);
}

const engine::Mask* GrammarCache::mask_of(uint32_t number) {
  const engine::Mask* known = states_[number].mask;
  if (known != nullptr) return known;
  Lock lock(*this);
  return mask_of_locked(number);
}

const engine::Mask* GrammarCache::mask_of_locked(uint32_t number) {
  State& state = states_[number];
  if (state.mask == nullptr) {
    auto has_end = [this](const LexerConfiguration& next) { return end_search_.has_end(reader_, next, budget()); };
    state.mask = parts_->masks.mask(reader_, state.config, has_end, budget());
  }
  return state.mask;
}

bool GrammarCache::has_mask(const TextConfiguration& text) {
  if (text.others == nullptr) return states_[text.state].mask != nullptr;
  Lock lock(*this);
  return embedded_masks_.has_mask(config_of(text));
}

bool GrammarCache::fill(const TextConfiguration& text, engine::MaskRow& row) {
  const engine::Mask* mask = text.others == nullptr ? mask_of(text.state) : nullptr;
  if (mask != nullptr) {
    parts_->masks.store().expand(*mask, row);
    return !mask->is_empty();
  }
  Lock lock(*this);
  if (text.others == nullptr) {
    fill_by_walk(config_of(text), row.overwrite());
  } else {
    const Configuration config = config_of(text);
    embedded_masks_.fill(config, row, budget());
    if (costs_.are_used()) text.others->most_cost = costs_.rough_bound(config, kNone, budget());
  }
  return row.allows_any();
}

void GrammarCache::fill_alone(const LexerConfiguration& config, uint32_t* row) {
  const engine::Mask* mask = mask_of_locked(number_of(config));
  if (mask == nullptr) return fill_by_walk(Configuration{config}, row);
  parts_->masks.store().expand(*mask, row);
}

uint32_t GrammarCache::cost_to_end(const TextConfiguration& text) {
  Lock lock(*this);
  return costs_.cost(config_of(text), budget());
}

engine::CostTable GrammarCache::token_costs(const TextConfiguration& text, uint32_t max) {
  MostCost& most = text.others == nullptr ? states_[text.state].most_cost : text.others->most_cost;
  if (most <= max) return {};
  Lock lock(*this);
  const Configuration config = config_of(text);
  if (most == kNone || text.others != nullptr) most = costs_.rough_bound(config, max, budget());
  if (most <= max) return {};
  engine::CostTable table = costs_.token_costs(config, budget());
  most = std::min(most.load(), table.most());
  return most <= max ? engine::CostTable{} : table;
}

std::vector<StackTop> GrammarCache::tops(const TextConfiguration& text) {
  Lock lock(*this);
  return reader_.stacks().tops(states_[text.state].config.node);
}

uint32_t GrammarCache::number_of(const TextConfiguration& text) {
  Lock lock(*this);
  constexpr uint32_t kInside = 1u << 31;
  return text.others == nullptr ? text.state : kInside + embedded_masks_.number_of(config_of(text), budget());
}

std::vector<uint32_t> GrammarCache::walked_row(const TextConfiguration& text) {
  Lock lock(*this);
  std::vector<uint32_t> row(parts_->vocabulary->row_words());
  fill_by_walk(config_of(text), row.data());
  return row;
}

std::vector<TextConfiguration> GrammarCache::copied(GrammarCache& from, const std::vector<TextConfiguration>& configs) {
  Lock lock(*this);
  size_t bytes_before = size_in_bytes();
  PairTable copies;
  auto copy = [&](GssNode node) { return reader_.stacks().copied(node, from.reader_.stacks(), copies); };
  std::vector<TextConfiguration> result;
  for (const TextConfiguration& each : configs) {
    LexerConfiguration config = from.states_[each.state].config;
    config.node = copy(config.node);
    TextConfiguration copied{number_of(config), each.num_tokens};
    // With a lexer a mask depends on the ends that the other object has found, so it stays
    // there.
    if (each.others == nullptr && !parts_->network->has_lexer()) {
      states_[copied.state].mask = from.states_[each.state].mask.load();
    }
    if (each.others != nullptr) {
      OtherConfigurations others = {each.others->lexer_configs, each.others->parses};
      for (LexerConfiguration& other : others.lexer_configs) other.node = copy(other.node);
      for (EmbeddedParse& parse : others.parses) parse.below = copy(parse.below);
      copied.others = std::make_shared<const OtherConfigurations>(std::move(others));
    }
    result.push_back(std::move(copied));
  }
  take_over_ends(from, configs, copies);
  reader_.stacks().copy_subsets(from.reader_.stacks(), copies);
  moved_bytes_ += size_in_bytes() - bytes_before;
  return result;
}

void GrammarCache::take_over_ends(GrammarCache& from, const std::vector<TextConfiguration>& configs) {
  Lock lock(*this);
  PairTable copies;
  take_over_ends(from, configs, copies);
}

void GrammarCache::take_over_ends(GrammarCache& from, const std::vector<TextConfiguration>& configs,
                                  PairTable& copies) {
  if (!parts_->network->has_lexer()) return;
  auto copy = [&](GssNode node) { return reader_.stacks().copied(node, from.reader_.stacks(), copies); };
  auto take_over = [&](const LexerConfiguration& config) {
    if (config.node == Stacks::kDead) return;
    end_search_.take_over(from.end_search_, config, copy);
    costs_.take_over(from.costs_, config, copy);
  };
  for (const TextConfiguration& each : configs) {
    take_over(from.states_[each.state].config);
    if (each.others == nullptr) continue;
    for (const LexerConfiguration& other : each.others->lexer_configs) take_over(other);
    for (const EmbeddedParse& parse : each.others->parses)
      take_over(from.reader_.after_embedded(parse.below, budget()));
  }
}

uint32_t GrammarCache::num_states() {
  Lock lock(*this);
  return states_.size();
}

void GrammarCache::throw_if_full() const {
  size_t bytes = size_in_bytes();
  if (bytes > kMaxBytes) throw engine::CacheFull("grammar_state_bytes", bytes, kMaxBytes);
}

}  // namespace structout::context_free
