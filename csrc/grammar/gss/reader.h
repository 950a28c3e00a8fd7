// Reads texts of a grammar byte by byte.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "grammar/gss/number_tables.h"
#include "grammar/gss/stacks.h"
#include "grammar/lexer/lexer.h"
#include "grammar/rules/network.h"
#include "grammar/token_masks/embedded_use.h"

namespace structout::context_free {

// A set of stacks and a state of the lexer. Inside a lexeme, the stacks are those in
// front of it. Equality ignores `num_tokens`: of equal alternatives a configuration keeps
// the one with the fewest tokens.
struct LexerConfiguration {
  GssNode node = Stacks::kDead;
  uint32_t lexer_state = Lexer::kStuck;  // 0 without a lexer
  uint32_t num_tokens = 0;               // that have ended inside the lexeme, if the network limits them
  bool operator==(const LexerConfiguration& other) const {
    return node == other.node && lexer_state == other.lexer_state;
  }
};

// A text of an embedded language that has begun, and the stacks below it.
struct EmbeddedParse {
  std::shared_ptr<engine::EmbeddedCache> cache;
  engine::ConfigurationPtr config;
  GssNode below;  // its end returns to these stacks: see Stacks::returned()
};

// The mask of a configuration inside embedded texts, once it has been found.
// `is_of_language`: true if it belongs to the cache of the first of these texts, which must
// expand it.
struct KnownMask {
  const engine::Mask* mask = nullptr;
  bool is_of_language = false;
};

// A bound on the tokens that a text needs after any next one, as far as one is known. Copies
// know none.
struct MostCost : std::atomic<uint32_t> {
  MostCost() : std::atomic<uint32_t>(kNone) {}
  MostCost(const MostCost&) : MostCost() {}
  using std::atomic<uint32_t>::operator=;
};

// The alternatives of an ambiguous configuration: see Configuration::others.
struct OtherConfigurations {
  std::vector<LexerConfiguration> lexer_configs;  // beside the first: a lexeme here may be an embedded text there
  std::vector<EmbeddedParse> parses;
  mutable KnownMask known_mask{};
  mutable MostCost most_cost{};
};

// The configuration of a text, in full. An ambiguous text has further lexer configurations,
// and embedded texts that have begun, as `others`. If an embedded text may end here,
// the configuration after it is among the lexer configurations already.
struct Configuration : LexerConfiguration {
  std::shared_ptr<const OtherConfigurations> others{};  // null if there are none

  bool is_dead() const { return node == Stacks::kDead && others == nullptr; }

  // Returns the embedded text that has begun, if it is the only alternative, else null.
  const EmbeddedParse* only_parse() const {
    bool is_only =
        node == Stacks::kDead && others != nullptr && others->lexer_configs.empty() && others->parses.size() == 1;
    return is_only ? others->parses.data() : nullptr;
  }
};

// Appends the bytes of a number to a key.
template <typename Number>
void append_to_key(std::string& key, Number number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Returns a key that differs for configurations with different lexer configurations.
// Embedded texts do not affect it.
std::string lexer_key(const Configuration& config);

// Computes the next configuration of a text after bytes and tokens. Configurations are
// numbers of this reader's stacks and of a lexer that readers share. Without embedded
// languages a known step within a lexeme costs one table lookup, and so does a known byte
// without a lexer.
class Reader {
 public:
  // `embedded`: null if the network has no embedded languages.
  Reader(const Network& network, Lexer& lexer, EmbeddedUse* embedded = nullptr);

  Configuration start(engine::Budget& budget);
  Configuration after(const Configuration& config, uint8_t byte, engine::Budget& budget) {
    if (config.others == nullptr && network_.embedded().empty()) return after_alone(config, byte, budget);
    return after_all(config, byte, budget);
  }

  // Reads bytes. If the text is inside a single embedded text, that one reads all bytes up
  // to its next possible end at once.
  Configuration after(Configuration config, const uint8_t* begin, const uint8_t* end, engine::Budget& budget);

  // The configuration after a token that the grammar matches by its id.
  Configuration after_token(const Configuration& config, uint32_t token, engine::Budget& budget);

  // The union: the configuration of a text that is in one of the two.
  Configuration united(const Configuration& a, const Configuration& b, engine::Budget& budget);

  // The configuration without the embedded texts that cannot be completed, or for which
  // `counts` is false.
  template <typename Counts>
  Configuration with_ends(const Configuration& config, Counts counts);
  Configuration with_ends(const Configuration& config) {
    return with_ends(config, [](const EmbeddedParse&) { return true; });
  }

  // True if a token may follow that the grammar matches by its id.
  bool reads_token(const Configuration& config, engine::Budget& budget);

  // The configuration after the end of an embedded text.
  LexerConfiguration after_embedded(GssNode below, engine::Budget& budget);

  bool may_end(const Configuration& config, engine::Budget& budget);

  // True if a lexeme, an embedded text or a token may begin here, since no lexeme has begun
  // yet. Always true without a lexer.
  bool is_between(const LexerConfiguration& config) const {
    return !network_.has_lexer() || config.lexer_state == Lexer::kStuck || lexer_.is_fresh(config.lexer_state);
  }

  // The stacks in front of a token matched by its id, or of the end of the text. The
  // present lexeme ends there: the result is dead if it cannot.
  GssNode before_token(const LexerConfiguration& config, engine::Budget& budget) {
    return is_between(config) ? config.node
                              : config_after_lexeme(config.node, lexer_.accepted(config.lexer_state), budget).node;
  }

  // The bytes that texts may consist of. With a lexer and without embedded languages, only
  // one byte of each class.
  const std::vector<uint8_t>& bytes_with_tokens() const { return bytes_with_tokens_; }

  // The configuration in front of the next lexeme, after one that all terminals of a set
  // accept. If they have a stop that the next lexeme can begin with, the configuration is
  // after the stop, inside the next lexeme.
  LexerConfiguration config_after_lexeme(GssNode node, uint32_t set, engine::Budget& budget);

  // The stacks in front of the next lexeme. may_ignore_after() is true if that lexeme may
  // be an ignored one.
  GssNode after_lexeme(GssNode node, uint32_t set, engine::Budget& budget);
  bool may_ignore_after(uint32_t set) const {
    return !network_.ignores_once() || !lexer_.is_ignored(*lexer_.begin(set));
  }

  // The configuration at the end of a token, where max_tokens takes effect. Terminals that
  // have used it up leave the lexeme or, if texts cannot be finished so, end it; if that
  // fails too, the lexeme continues. `has_end(config)` is true if texts can be finished
  // from a configuration.
  template <typename HasEnd>
  Configuration at_token_end(Configuration config, HasEnd has_end, engine::Budget& budget);

  // The state of the lexer in front of the next lexeme. `may_ignore`: true if that may be
  // an ignored one.
  uint32_t lexer_start(GssNode node, bool may_ignore = true);

  template <typename Visit>
  static void visit_lexer_configs(const Configuration& config, Visit visit);

  const Network& network() const { return network_; }
  Lexer& lexer() { return lexer_; }
  Stacks& stacks() { return stacks_; }
  const Stacks& stacks() const { return stacks_; }
  EmbeddedUse& embedded() { return *embedded_; }
  size_t memory_bytes() const {
    size_t num_starts = 0;
    for (const auto* starts : {&lexer_starts_, &starts_of_tops_}) {
      num_starts += (*starts)[0].capacity() + (*starts)[1].capacity();
    }
    return stacks_.memory_bytes() + after_lexeme_.memory_bytes() + top_numbers_.memory_bytes() +
           num_starts * sizeof(uint32_t);
  }

 private:
  class ConfigurationBuilder;

  std::vector<uint32_t> allowed_terminals(const std::vector<uint32_t>& states) const;
  uint32_t computed_lexer_start(const std::vector<uint32_t>& states, bool may_ignore);
  Configuration after_alone(const LexerConfiguration& config, uint8_t byte, engine::Budget& budget);
  Configuration after_all(const Configuration& config, uint8_t byte, engine::Budget& budget);
  void read_parse(const EmbeddedParse& parse, const uint8_t*& at, const uint8_t* end, ConfigurationBuilder& builder,
                  engine::Budget& budget);

  const Network& network_;
  Lexer& lexer_;
  EmbeddedUse* const embedded_;
  Stacks stacks_;
  std::vector<uint8_t> bytes_with_tokens_;
  PairTable after_lexeme_;                             // by node and set of terminals
  std::array<std::vector<uint32_t>, 2> lexer_starts_;  // by may_ignore and node, as far as known
  ListNumbers<uint32_t> top_numbers_;                  // of lists of states
  std::array<std::vector<uint32_t>, 2> starts_of_tops_;
  std::vector<uint32_t> tops_;  // of the present node
};

template <typename Counts>
Configuration Reader::with_ends(const Configuration& config, Counts counts) {
  if (config.others == nullptr || config.others->parses.empty()) return config;
  auto has_end = [&](const EmbeddedParse& parse) {
    return counts(parse) && embedded_->locked(parse.cache).has_end(*parse.config);
  };
  const std::vector<EmbeddedParse>& parses = config.others->parses;
  if (std::all_of(parses.begin(), parses.end(), has_end)) return config;
  Configuration result = config;
  OtherConfigurations others{config.others->lexer_configs, {}};
  std::copy_if(parses.begin(), parses.end(), std::back_inserter(others.parses), has_end);
  bool is_empty = others.parses.empty() && others.lexer_configs.empty();
  result.others = is_empty ? nullptr : std::make_shared<const OtherConfigurations>(std::move(others));
  return result;
}

template <typename HasEnd>
Configuration Reader::at_token_end(Configuration config, HasEnd has_end, engine::Budget& budget) {
  auto limit = [&](LexerConfiguration& each) {
    if (is_between(each) || !lexer_.exceeds_limit(each.lexer_state, ++each.num_tokens)) return;
    Lexer::Limited limited = lexer_.limited(each.lexer_state, each.num_tokens);
    LexerConfiguration without = {each.node, limited.state, each.num_tokens};
    LexerConfiguration after = config_after_lexeme(each.node, limited.accepted, budget);
    if (limited.state != Lexer::kStuck && has_end(without)) {
      each = without;
    } else if (after.node != Stacks::kDead && has_end(after)) {
      each = after;
    }
  };
  if (config.node != Stacks::kDead) limit(config);
  if (config.others == nullptr || config.others->lexer_configs.empty()) return config;
  OtherConfigurations others{config.others->lexer_configs, config.others->parses};
  for (LexerConfiguration& each : others.lexer_configs) limit(each);
  config.others = std::make_shared<const OtherConfigurations>(std::move(others));
  return config;
}

template <typename Visit>
void Reader::visit_lexer_configs(const Configuration& config, Visit visit) {
  if (config.node != Stacks::kDead) visit(static_cast<const LexerConfiguration&>(config));
  if (config.others == nullptr) return;
  for (const LexerConfiguration& other : config.others->lexer_configs) visit(other);
}

}  // namespace structout::context_free
