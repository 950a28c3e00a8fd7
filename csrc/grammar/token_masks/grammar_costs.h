// GrammarCosts: the tokens that texts of a grammar still need.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/completability/liveness.h"
#include "grammar/gss/reader.h"
#include "grammar/token_masks/embedded_masks.h"
#include "grammar/token_masks/stack_endings.h"
#include "token_masks/bytes_below.h"
#include "token_masks/token_costs.h"

namespace structout::context_free {

// Costs as TokenCosts defines them. Without a lexer they are those of StackEndings. With one,
// EndSearch finds a path to the end or to a configuration whose cost is known, and all
// configurations on it get their costs from it. An embedded text adds its own cost to that of
// the configuration behind it, and of the alternatives of an ambiguous configuration the least
// cost counts.
class GrammarCosts {
 public:
  // `fill(config, row)`: fills the mask of a configuration without embedded texts.
  using Fill = std::function<void(const LexerConfiguration& config, uint32_t* row)>;

  GrammarCosts(Reader& reader, EndSearch& end_search, EmbeddedMasks& embedded_masks,
               std::shared_ptr<const engine::VocabularyTrie> vocabulary, Fill fill)
      : reader_(reader),
        end_search_(end_search),
        embedded_masks_(embedded_masks),
        vocabulary_(std::move(vocabulary)),
        fill_(std::move(fill)) {}

  // kUnknownCost if no end is found soon.
  uint32_t cost(const Configuration& config, engine::Budget& budget);

  // A bound on the cost after any token, without a look at the tokens. A rougher one where even
  // that is at most `max`.
  uint32_t rough_bound(const Configuration& config, uint32_t max, engine::Budget& budget);

  // True once somebody has asked for a bound: the next ones cost little.
  bool are_used() const { return num_languages_ == reader_.network().embedded().size() && endings_ != nullptr; }

  engine::CostTable token_costs(const Configuration& config, engine::Budget& budget);

  // Copies the cost of a configuration from another object of the same grammar, and those along
  // its ending, unless lower ones are known, so that it still ends in time. `copied(node)`
  // returns the copy of a node.
  void take_over(const GrammarCosts& other, LexerConfiguration config, const std::function<GssNode(GssNode)>& copied);

  size_t memory_bytes() const {
    return (endings_ == nullptr ? 0 : endings_->memory_bytes()) + searched_numbers_.memory_bytes() +
           searched_.capacity() * sizeof(Searched) + bytes_;
  }

 private:
  static constexpr size_t kMaxBytes = 16 << 20;  // beyond, tables are not kept
  static constexpr size_t kBytesPerTable = 96;   // of the hash table, roughly

  // The costs of an ambiguous configuration, and the tables of the embedded texts from which
  // they were made.
  struct Combined {
    std::shared_ptr<const engine::TokenCosts> costs;
    std::vector<engine::CostTable> of_parses;
  };

  // A cost that a search has found, and the configuration after the first token of its path:
  // dead if that is inside of an embedded text, or if there is no path.
  struct Searched {
    uint32_t cost;
    LexerConfiguration next;
  };

  StackEndings& endings();
  uint32_t most_of_languages();                                    // the most that their first tokens may leave
  const Searched* known(const LexerConfiguration& config) const {  // null if it was not searched
    uint32_t number = searched_numbers_.find(config.node, config.lexer_state);
    return number == PairTable::kMissing ? nullptr : &searched_[number];
  }
  void note(const LexerConfiguration& config, const Searched& found);  // new, or with less cost than before
  uint32_t cost_of(const LexerConfiguration& config, engine::Budget& budget);
  uint32_t cost_of(const EmbeddedParse& parse, engine::Budget& budget);
  uint32_t searched_cost(const LexerConfiguration& config, engine::Budget& budget);
  uint32_t cost_after(const EmbeddedParse& parse, engine::Budget& budget) {
    return cost_of(reader_.after_embedded(parse.below, budget), budget);
  }
  // The table of a configuration outside of embedded texts.
  std::shared_ptr<const engine::TokenCosts> alone(const LexerConfiguration& config, engine::Budget& budget);
  // The union of the tables of an ambiguous configuration's alternatives.
  std::shared_ptr<const engine::TokenCosts> combined(const Configuration& config,
                                                     const std::vector<engine::CostTable>& of_parses,
                                                     engine::Budget& budget);
  // The table of a configuration with this cost, from `after_` and its mask in `row_`.
  std::shared_ptr<const engine::TokenCosts> table(uint32_t own);
  void note(uint32_t token, uint32_t cost) { after_[token] = std::min(after_[token], cost); }
  engine::ByteGroups looping_bytes(const Configuration& config, engine::Budget& budget);
  void note_below(uint32_t trie_node, const LexerConfiguration& config, const uint32_t* row, engine::Budget& budget);

  Reader& reader_;
  EndSearch& end_search_;
  EmbeddedMasks& embedded_masks_;
  const std::shared_ptr<const engine::VocabularyTrie> vocabulary_;
  const Fill fill_;
  std::unique_ptr<StackEndings> endings_;               // null until it is needed
  uint32_t num_languages_ = 0, most_of_languages_ = 0;  // those that were looked at
  PairTable searched_numbers_;                          // by node and state of the lexer
  std::vector<Searched> searched_;
  PairTable table_numbers_;  // of configurations alone, by node and state of the lexer
  std::vector<std::shared_ptr<const engine::TokenCosts>> tables_;
  std::unordered_map<std::string, Combined> combined_;
  std::vector<uint32_t> after_, row_;  // of the table that is made: costs by token, and a mask
  size_t bytes_ = 0;
};

}  // namespace structout::context_free
