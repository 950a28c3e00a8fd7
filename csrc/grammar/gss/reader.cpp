#include "grammar/gss/reader.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace structout::context_free {

std::string lexer_key(const Configuration& config) {
  std::string key;
  auto append_config = [&key](const LexerConfiguration& each) {
    append_to_key(key, each.node);
    append_to_key(key, each.lexer_state);
  };
  append_config(config);
  if (config.others == nullptr) return key;
  append_to_key(key, uint32_t(config.others->lexer_configs.size()));
  for (const LexerConfiguration& each : config.others->lexer_configs) append_config(each);
  return key;
}

// Collects the alternatives of a configuration. Merges equal ones and, without a lexer, all
// stacks into one node.
class Reader::ConfigurationBuilder {
 public:
  ConfigurationBuilder(Reader& reader, engine::Budget& budget) : reader_(reader), budget_(budget) {}

  void add(const LexerConfiguration& config) {
    if (config.node != Stacks::kDead) lexer_configs_.push_back(config);
  }

  void add(EmbeddedParse parse) {
    if (!parses_.empty()) budget_.spend(parses_.size());
    for (EmbeddedParse& other : parses_) {
      if (other.cache != parse.cache) continue;
      if (!reader_.embedded().locked(parse.cache).are_equal(*other.config, *parse.config)) continue;
      other.below = reader_.stacks_.united({other.below, parse.below}, budget_);
      return;
    }
    parses_.push_back(std::move(parse));
  }

  Configuration config() {
    Configuration config;
    if (!lexer_configs_.empty() && !reader_.network_.has_lexer()) {
      std::vector<GssNode> nodes;
      for (const LexerConfiguration& each : lexer_configs_) nodes.push_back(each.node);
      config.node = reader_.stacks_.united(std::move(nodes), budget_);
      config.lexer_state = 0;
      lexer_configs_.clear();
    } else if (!lexer_configs_.empty()) {
      auto is_before = [](const LexerConfiguration& a, const LexerConfiguration& b) {
        return std::tie(a.node, a.lexer_state, a.num_tokens) < std::tie(b.node, b.lexer_state, b.num_tokens);
      };
      std::sort(lexer_configs_.begin(), lexer_configs_.end(), is_before);
      lexer_configs_.erase(std::unique(lexer_configs_.begin(), lexer_configs_.end()), lexer_configs_.end());
      static_cast<LexerConfiguration&>(config) = lexer_configs_[0];
      lexer_configs_.erase(lexer_configs_.begin());
    }
    if (parses_.empty() && lexer_configs_.empty()) return config;
    config.others =
        std::make_shared<const OtherConfigurations>(OtherConfigurations{std::move(lexer_configs_), std::move(parses_)});
    return config;
  }

 private:
  Reader& reader_;
  engine::Budget& budget_;
  std::vector<LexerConfiguration> lexer_configs_;
  std::vector<EmbeddedParse> parses_;
};

Reader::Reader(const Network& network, Lexer& lexer, EmbeddedUse* embedded)
    : network_(network), lexer_(lexer), embedded_(embedded), stacks_(network) {
  bool has_classes = network.has_lexer() && network.embedded().empty();
  if (has_classes) bytes_with_tokens_ = lexer.bytes_with_tokens();
  for (uint32_t byte = 0; byte < 256 && !has_classes; ++byte) {
    if (network.may_consist_of(uint8_t(byte))) bytes_with_tokens_.push_back(uint8_t(byte));
  }
}

// The terminals that the states read. Ignored ones are not among them.
std::vector<uint32_t> Reader::allowed_terminals(const std::vector<uint32_t>& states) const {
  std::vector<uint32_t> allowed;
  for (uint32_t terminal = 0; terminal < network_.terminals().size(); ++terminal) {
    auto reads = [&](uint32_t state) { return network_.next(state, terminal) != kNone; };
    if (std::any_of(states.begin(), states.end(), reads)) allowed.push_back(terminal);
  }
  return allowed;
}

// Cached by node, and below that by the states on top: stacks with the same ones share a
// start.
uint32_t Reader::lexer_start(GssNode node, bool may_ignore) {
  std::vector<uint32_t>& starts = lexer_starts_[may_ignore];
  if (starts.size() <= node) starts.resize(stacks_.num_nodes(), kNone);
  if (starts[node] != kNone) return starts[node];
  tops_.clear();
  for (const StackTop* top = stacks_.begin(node); top < stacks_.end(node) && top->state < kUnknownContext; ++top) {
    if (tops_.empty() || tops_.back() != top->state) tops_.push_back(top->state);
  }
  uint32_t number = top_numbers_.number_of(tops_);
  std::vector<uint32_t>& starts_of_tops = starts_of_tops_[may_ignore];
  if (starts_of_tops.size() <= number) starts_of_tops.resize(top_numbers_.size(), kNone);
  if (starts_of_tops[number] == kNone) starts_of_tops[number] = computed_lexer_start(tops_, may_ignore);
  return starts[node] = starts_of_tops[number];
}

uint32_t Reader::computed_lexer_start(const std::vector<uint32_t>& states, bool may_ignore) {
  // Ignored lexemes stand between terminals: not at the start of a text, and not after the
  // last terminal that may follow.
  std::vector<uint32_t> allowed = allowed_terminals(states);
  for (uint32_t terminal = 0; terminal < network_.terminals().size() && may_ignore && !states.empty(); ++terminal) {
    if (lexer_.is_ignored(terminal)) allowed.push_back(terminal);
  }
  return lexer_.start(lexer_.set_of(allowed));
}

Configuration Reader::start(engine::Budget& budget) {
  Configuration config;
  config.node = stacks_.start(budget);
  config.lexer_state = network_.has_lexer() ? lexer_start(config.node, false) : 0;
  return config;
}

LexerConfiguration Reader::after_embedded(GssNode below, engine::Budget& budget) {
  GssNode node = stacks_.returned(below, budget);
  return {node, network_.has_lexer() ? lexer_start(node) : 0};
}

GssNode Reader::after_lexeme(GssNode node, uint32_t set, engine::Budget& budget) {
  uint32_t known = after_lexeme_.find(node, set);
  if (known != PairTable::kMissing) return known;
  const uint32_t *first = lexer_.begin(set), *last = lexer_.end(set);
  GssNode result = node;
  if (last - first == 1 && !lexer_.is_ignored(*first)) {
    result = stacks_.after(node, *first, budget);
  } else if (first == last || !lexer_.is_ignored(*first)) {  // all of them are ignored, or none
    std::vector<GssNode> nodes;
    for (; first < last; ++first) nodes.push_back(stacks_.after(node, *first, budget));
    result = stacks_.united(std::move(nodes), budget);
  }
  after_lexeme_.add(node, set, result);
  return result;
}

LexerConfiguration Reader::config_after_lexeme(GssNode node, uint32_t set, engine::Budget& budget) {
  GssNode next = after_lexeme(node, set, budget);
  if (next == Stacks::kDead) return {};
  const Terminal& terminal = network_.terminals()[*lexer_.begin(set)];
  LexerConfiguration after = {next, lexer_start(next, may_ignore_after(set))};
  if (terminal.options.stop.empty()) return after;
  // The next lexeme must not end with a stop inside these bytes: it would leave that to its
  // own next lexeme, and so on.
  auto ends_with_stop = [this](uint32_t lexer_state) {
    uint32_t accepted = lexer_.accepted(lexer_state);
    return accepted != 0 && !network_.terminals()[*lexer_.begin(accepted)].options.stop.empty();
  };
  Configuration within{after};
  for (char byte : terminal.options.stop) {
    within = after_alone(within, uint8_t(byte), budget);
    if (within.is_dead() || ends_with_stop(within.lexer_state)) return after;
  }
  return within;
}

Configuration Reader::after_alone(const LexerConfiguration& config, uint8_t byte, engine::Budget& budget) {
  if (!network_.has_lexer()) return {{stacks_.after(config.node, byte, budget), 0}};
  uint32_t next = lexer_.after(config.lexer_state, byte, budget);
  if (next != Lexer::kStuck) return {{config.node, next, config.num_tokens}};
  LexerConfiguration after = config_after_lexeme(config.node, lexer_.accepted(config.lexer_state), budget);
  if (after.node == Stacks::kDead) return {};
  if (!is_between(after)) return after_alone(after, byte, budget);
  next = lexer_.after(after.lexer_state, byte, budget);
  return next == Lexer::kStuck ? Configuration() : Configuration{{after.node, next}};
}

// Reads bytes of an embedded text, up to one after which it may end.
void Reader::read_parse(const EmbeddedParse& parse, const uint8_t*& at, const uint8_t* end,
                        ConfigurationBuilder& builder, engine::Budget& budget) {
  engine::EmbeddedCache& cache = embedded_->locked(parse.cache);
  engine::ConfigurationPtr config = cache.after(*parse.config, at, end);
  if (config == nullptr) return;
  bool may_end = cache.may_end(*config);
  if (may_end) builder.add(after_embedded(parse.below, budget));
  if (!may_end || cache.may_continue(*config)) builder.add({parse.cache, std::move(config), parse.below});
}

Configuration Reader::after_all(const Configuration& config, uint8_t byte, engine::Budget& budget) {
  ConfigurationBuilder builder(*this, budget);
  auto read_byte = [&](const EmbeddedParse& parse) {
    const uint8_t* at = &byte;
    read_parse(parse, at, &byte + 1, builder, budget);
  };
  visit_lexer_configs(config, [&](LexerConfiguration from) {
    if (!is_between(from)) {
      uint32_t next = lexer_.after(from.lexer_state, byte, budget);
      if (next != Lexer::kStuck) return builder.add({from.node, next, from.num_tokens});
      from = config_after_lexeme(from.node, lexer_.accepted(from.lexer_state), budget);
      if (from.node == Stacks::kDead) return;
    }
    for (const EmbeddedStart& start : stacks_.embedded_starts(from.node, budget)) {
      if (!network_.embedded()[start.language]->first_bytes()[byte]) continue;
      std::shared_ptr<engine::EmbeddedCache> cache = embedded_->current(start.language);
      engine::ConfigurationPtr inner = embedded_->locked(cache).start();
      read_byte({std::move(cache), std::move(inner), start.below});
    }
    if (!network_.has_lexer()) return builder.add({stacks_.after(from.node, byte, budget), 0});
    uint32_t next = lexer_.after(from.lexer_state, byte, budget);
    if (next != Lexer::kStuck) builder.add({from.node, next});
  });
  if (config.others != nullptr) {
    for (const EmbeddedParse& parse : config.others->parses) read_byte(parse);
  }
  return builder.config();
}

Configuration Reader::after(Configuration config, const uint8_t* begin, const uint8_t* end, engine::Budget& budget) {
  for (const uint8_t* at = begin; at < end && !config.is_dead();) {
    if (const EmbeddedParse* parse = config.only_parse()) {
      ConfigurationBuilder builder(*this, budget);
      read_parse(*parse, at, end, builder, budget);
      config = builder.config();
    } else {
      config = after(config, *at++, budget);
    }
  }
  return config;
}

Configuration Reader::after_token(const Configuration& config, uint32_t token, engine::Budget& budget) {
  if (!network_.has_tokens()) return {};
  ConfigurationBuilder builder(*this, budget);
  visit_lexer_configs(config, [&](const LexerConfiguration& from) {
    GssNode node = stacks_.after(before_token(from, budget), kFirstToken + token, budget);
    builder.add({node, network_.has_lexer() ? lexer_start(node) : 0});
  });
  return builder.config();
}

Configuration Reader::united(const Configuration& a, const Configuration& b, engine::Budget& budget) {
  if (a.is_dead()) return b;
  if (b.is_dead()) return a;
  ConfigurationBuilder builder(*this, budget);
  for (const Configuration* config : {&a, &b}) {
    visit_lexer_configs(*config, [&](const LexerConfiguration& each) { builder.add(each); });
    if (config->others == nullptr) continue;
    for (const EmbeddedParse& parse : config->others->parses) builder.add(parse);
  }
  return builder.config();
}

bool Reader::reads_token(const Configuration& config, engine::Budget& budget) {
  if (!network_.has_tokens()) return false;
  bool reads_token = false;
  auto reads_one = [this](const StackTop& top) {
    return top.state < kUnknownContext && network_.tokens_begin(top.state) != network_.tokens_end(top.state);
  };
  visit_lexer_configs(config, [&](const LexerConfiguration& each) {
    std::vector<StackTop> tops = stacks_.tops(before_token(each, budget));
    reads_token = reads_token || std::any_of(tops.begin(), tops.end(), reads_one);
  });
  return reads_token;
}

bool Reader::may_end(const Configuration& config, engine::Budget& budget) {
  bool may_end = false;
  visit_lexer_configs(config, [&](const LexerConfiguration& each) {
    may_end = may_end || stacks_.may_end(before_token(each, budget));
  });
  return may_end;
}

}  // namespace structout::context_free
