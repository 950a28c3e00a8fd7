#include "grammar/token_masks/grammar_costs.h"

#include <algorithm>
#include <map>
#include <utility>

namespace structout::context_free {

using engine::allows;
using engine::CostTable;
using engine::kUnknownCost;
using engine::TokenCosts;

namespace {

template <typename Visit>
void visit_parses(const Configuration& config, Visit visit) {
  if (config.others == nullptr) return;
  for (const EmbeddedParse& parse : config.others->parses) visit(parse);
}

}  // namespace

void GrammarCosts::note(const LexerConfiguration& config, const Searched& found) {
  uint32_t number = searched_numbers_.find(config.node, config.lexer_state);
  if (number == PairTable::kMissing) {
    searched_numbers_.add(config.node, config.lexer_state, uint32_t(searched_.size()));
    searched_.push_back(found);
    return;
  }
  searched_[number] = found;  // which is less: tables without it may forbid the tokens of its path
  uint32_t table = table_numbers_.find(config.node, config.lexer_state);
  if (table != PairTable::kMissing) tables_[table] = nullptr;
  combined_.clear();
}

StackEndings& GrammarCosts::endings() {
  auto cost_of_language = [this](uint32_t language) {
    engine::EmbeddedCache& cache = reader_.embedded().locked(reader_.embedded().current(language));
    return cache.cost_to_end(*cache.start());
  };
  if (endings_ == nullptr) {
    endings_ = std::make_unique<StackEndings>(reader_.network(), reader_.stacks(), *vocabulary_, cost_of_language);
  }
  return *endings_;
}

uint32_t GrammarCosts::cost(const Configuration& config, engine::Budget& budget) {
  uint32_t least = kUnknownCost;
  Reader::visit_lexer_configs(config, [&](const auto& each) { least = std::min(least, cost_of(each, budget)); });
  visit_parses(config, [&](const auto& parse) { least = std::min(least, cost_of(parse, budget)); });
  return least;
}

uint32_t GrammarCosts::cost_of(const LexerConfiguration& config, engine::Budget& budget) {
  if (!reader_.network().has_lexer()) return num_tokens(endings().of(config.node));
  return reader_.may_end(Configuration{config}, budget) ? 0 : searched_cost(config, budget);
}

uint32_t GrammarCosts::cost_of(const EmbeddedParse& parse, engine::Budget& budget) {
  uint32_t inside = reader_.embedded().locked(parse.cache).cost_to_end(*parse.config);
  return cost_sum(inside, cost_after(parse, budget));
}

uint32_t GrammarCosts::searched_cost(const LexerConfiguration& config, engine::Budget& budget) {
  if (const Searched* known = this->known(config)) return known->cost;
  auto has_cost = [this](const LexerConfiguration& each) {
    const Searched* known = this->known(each);
    return known != nullptr && known->cost != kUnknownCost;
  };
  std::vector<EndSearch::Part> path = end_search_.path(reader_, Configuration{config}, has_cost, budget);
  std::string bytes;
  std::vector<LexerConfiguration> at_byte(1);  // the configurations on the path; dead inside of embedded texts
  for (const EndSearch::Part& part : path) {
    bytes += part.bytes;
    at_byte.resize(bytes.size() + 1);
    at_byte.back() = part.config;
  }
  if (path.empty()) {
    note(config, {kUnknownCost, {}});
    return kUnknownCost;
  }
  uint32_t rest = has_cost(path.back().config) ? known(path.back().config)->cost : 0;
  engine::Endings endings(*vocabulary_);
  const engine::Ending* ending = endings.add(bytes, rest == 0 ? nullptr : endings.jump(rest, nullptr));
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    if (at_byte[byte].node == Stacks::kDead || known(at_byte[byte]) != nullptr) continue;
    uint32_t token_node = endings.first_token_node(*ending, byte);
    bool is_spelled = token_node != engine::VocabularyTrie::kNone;
    size_t after = byte + (is_spelled ? vocabulary_->nodes()[token_node].depth + 1u : 0u);
    note(at_byte[byte], {ending->counts[byte], is_spelled ? at_byte[after] : LexerConfiguration()});
  }
  return num_tokens(ending);
}

void GrammarCosts::take_over(const GrammarCosts& other, LexerConfiguration config,
                             const std::function<GssNode(GssNode)>& copied) {
  for (const Searched* from = other.known(config); from != nullptr; from = other.known(config)) {
    auto copy = [&](LexerConfiguration each) {
      each.node = each.node == Stacks::kDead ? Stacks::kDead : copied(each.node);
      return each;
    };
    LexerConfiguration here = copy(config);
    const Searched* known_here = known(here);
    if (known_here != nullptr && known_here->cost <= from->cost) return;
    note(here, {from->cost, copy(from->next)});
    config = from->next;
  }
}

uint32_t GrammarCosts::rough_bound(const Configuration& config, uint32_t max, engine::Budget& budget) {
  uint32_t most = 0;
  auto add = [&](uint32_t inside, const LexerConfiguration& after) {
    most = std::max(most, cost_sum(inside, endings().most(after.node)));
  };
  // Inside of a token an embedded text may begin.
  Reader::visit_lexer_configs(config, [&](const auto& each) { add(most_of_languages(), each); });
  visit_parses(config, [&](const EmbeddedParse& parse) {
    LexerConfiguration after = reader_.after_embedded(parse.below, budget);
    uint32_t outside = cost_sum(endings().most(after.node), endings().growth()), languages = most_of_languages();
    engine::EmbeddedCache& cache = reader_.embedded().locked(parse.cache);
    add(std::max(cache.most_cost(*parse.config, max - std::min(max, outside)), languages), after);
  });
  return cost_sum(most, endings().growth());
}

uint32_t GrammarCosts::most_of_languages() {
  for (; num_languages_ < reader_.network().embedded().size(); ++num_languages_) {
    engine::EmbeddedCache& cache = reader_.embedded().locked(reader_.embedded().current(num_languages_));
    most_of_languages_ = std::max(most_of_languages_, cache.most_cost(*cache.start(), 0));
  }
  return most_of_languages_;
}

std::shared_ptr<const TokenCosts> GrammarCosts::table(uint32_t own) {
  auto costs = std::make_shared<const TokenCosts>(TokenCosts::of_row(own, after_, row_.data()));
  bytes_ += costs->memory_bytes() + kBytesPerTable;
  return costs;
}

// The groups of ASCII bytes that all lead from a configuration back to it, as inside of
// names and strings.
engine::ByteGroups GrammarCosts::looping_bytes(const Configuration& config, engine::Budget& budget) {
  engine::ByteGroups looping = 0, others = engine::BytesBelow::kAboveAscii;
  for (uint32_t byte = 0; byte < 0x80; ++byte) {
    engine::ByteGroups group = engine::BytesBelow::group_of(uint8_t(byte));
    if ((others & group) != 0) continue;
    Configuration next = reader_.after(config, uint8_t(byte), budget);
    (next.others == nullptr && next == config ? looping : others) |= group;
  }
  return looping & ~others;
}

// The tokens below a node of the trie that a row allows: `config` is the configuration
// after the bytes of the node.
void GrammarCosts::note_below(uint32_t trie_node, const LexerConfiguration& config, const uint32_t* row,
                              engine::Budget& budget) {
  const std::vector<engine::VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  std::vector<Configuration> configs(vocabulary_->max_depth() + 1);  // before each byte
  bool is_root = trie_node == engine::VocabularyTrie::kRoot;
  configs[is_root ? 0 : nodes[trie_node].depth + 1] = Configuration{config};
  std::map<std::pair<GssNode, uint32_t>, engine::ByteGroups> looping;  // by configuration
  vocabulary_->visit_below(trie_node, [&](uint32_t node, uint8_t byte, uint32_t depth) {
    budget.spend(1);
    Configuration& next = configs[depth + 1] = reader_.after(configs[depth], byte, budget);
    if (next.is_dead()) return false;
    uint32_t end = nodes[node].tokens_end;
    bool stays = false;  // true if all tokens below lead to the same configuration
    if (next.others == nullptr && configs[depth].others == nullptr && next == configs[depth]) {
      auto [known, is_new] = looping.try_emplace({next.node, next.lexer_state}, 0);
      if (is_new) known->second = looping_bytes(next, budget);
      stays = (vocabulary_->bytes_below().groups(node) & ~known->second) == 0;
      if (stays) end = nodes[nodes[node].end - 1].tokens_end;
    }
    uint32_t cost_here = kUnknownCost;
    for (uint32_t i = vocabulary_->first_token(node); i < end; ++i) {
      uint32_t token = vocabulary_->tokens()[i];
      if (row != nullptr && !allows(row, token)) continue;
      if (cost_here == kUnknownCost) cost_here = cost(next, budget);
      note(token, cost_here);
    }
    return !stays;
  });
}

std::shared_ptr<const TokenCosts> GrammarCosts::alone(const LexerConfiguration& config, engine::Budget& budget) {
  uint32_t known = table_numbers_.find(config.node, config.lexer_state);
  bool is_kept = known != PairTable::kMissing;
  if (is_kept && tables_[known] != nullptr) return tables_[known];
  row_.resize(vocabulary_->row_words());
  fill_(config, row_.data());
  after_.assign(vocabulary_->size(), kUnknownCost);
  note_below(engine::VocabularyTrie::kRoot, config, row_.data(), budget);
  if (reader_.network().has_tokens()) {
    for (uint32_t token = 0; token < vocabulary_->size(); ++token) {
      if (!allows(row_.data(), token)) continue;
      Configuration next = reader_.after_token(Configuration{config}, token, budget);
      if (!next.is_dead()) note(token, cost(next, budget));
    }
  }
  std::shared_ptr<const TokenCosts> table = this->table(cost_of(config, budget));
  if (is_kept) return tables_[known] = table;
  if (bytes_ > kMaxBytes) return table;
  table_numbers_.add(config.node, config.lexer_state, uint32_t(tables_.size()));
  tables_.push_back(table);
  return table;
}

std::shared_ptr<const TokenCosts> GrammarCosts::combined(const Configuration& config,
                                                         const std::vector<CostTable>& of_parses,
                                                         engine::Budget& budget) {
  std::vector<std::shared_ptr<const TokenCosts>> of_lexer_configs;  // first, since alone() uses after_, too
  Reader::visit_lexer_configs(config, [&](const auto& each) { of_lexer_configs.push_back(alone(each, budget)); });
  uint32_t own = cost(config, budget);
  std::vector<uint32_t> inside(vocabulary_->size());
  row_.resize(vocabulary_->row_words());
  after_.assign(vocabulary_->size(), kUnknownCost);
  // Notes the costs of the tokens in row_.
  auto note_allowed = [&](const TokenCosts& costs, uint32_t more) {
    costs.write_to(inside);
    for (uint32_t token = 0; token < inside.size(); ++token) {
      if (allows(row_.data(), token)) note(token, cost_sum(inside[token], more));
    }
  };
  auto of_lexer_config = of_lexer_configs.begin();
  Reader::visit_lexer_configs(config, [&](const LexerConfiguration& each) {
    fill_(each, row_.data());
    note_allowed(**of_lexer_config++, 0);
  });
  auto of_parse = of_parses.begin();
  visit_parses(config, [&](const EmbeddedParse& parse) {
    reader_.embedded().locked(parse.cache).fill(*parse.config, row_.data());
    note_allowed(*of_parse->costs, of_parse->more);
    ++of_parse;
  });
  embedded_masks_.visit_continuations(config, budget, [&](const EmbeddedParse& parse, uint32_t node) {
    note_below(node, reader_.after_embedded(parse.below, budget), nullptr, budget);
  });
  embedded_masks_.fill(config, row_.data(), budget);
  return table(own);
}

CostTable GrammarCosts::token_costs(const Configuration& config, engine::Budget& budget) {
  if (config.others == nullptr) return {alone(config, budget)};
  KnownMask mask = embedded_masks_.find(config, budget);
  std::vector<CostTable> of_parses;
  visit_parses(config, [&](const EmbeddedParse& parse) {
    CostTable inside = reader_.embedded().locked(parse.cache).token_costs(*parse.config);
    of_parses.push_back({inside.costs, cost_sum(inside.more, cost_after(parse, budget))});
  });
  if (mask.is_of_language && config.only_parse() != nullptr) return of_parses[0];
  std::string key = lexer_key(config);
  append_to_key(key, mask.mask);
  for (const CostTable& each : of_parses) {
    append_to_key(key, each.costs.get());
    append_to_key(key, each.more);
  }
  auto known = mask.mask == nullptr ? combined_.end() : combined_.find(key);
  if (known != combined_.end()) return {known->second.costs};
  std::shared_ptr<const TokenCosts> costs = combined(config, of_parses, budget);
  bool is_kept = mask.mask != nullptr && bytes_ <= kMaxBytes;
  if (is_kept) combined_.emplace(std::move(key), Combined{costs, std::move(of_parses)});
  return {std::move(costs)};
}

}  // namespace structout::context_free
