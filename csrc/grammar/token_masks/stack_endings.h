// The endings of stacks in a grammar.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "grammar/completability/rule_ends.h"
#include "grammar/gss/stacks.h"
#include "token_masks/endings.h"

namespace structout::context_free {

// Each state has a fixed ending of its rule, with the fewest bytes. The endings of a stack's
// states, from the top down, complete the text, and those of a set of stacks are a choice of
// these. So a larger set never costs more, and after the first token of an ending the set
// has the rest of it. A lexer might read the bytes in another way: it needs a search.
class StackEndings {
 public:
  // `cost_of_language(number)`: the tokens of an embedded text, kUnknownCost if unknown.
  StackEndings(const Network& network, const Stacks& stacks, const engine::VocabularyTrie& vocabulary,
               const std::function<uint32_t(uint32_t language)>& cost_of_language);

  const engine::Ending* of(GssNode node) { return known(node).ending; }

  // The bytes to the end of the costliest of the stacks.
  uint32_t most(GssNode node) { return known(node).most; }

  // The bytes that any token may add to most(), at most, and with a lexer those that complete
  // its last lexeme.
  uint32_t growth() const { return growth_; }

  size_t memory_bytes() const {
    return endings_.memory_bytes() + known_.capacity() * sizeof(Known) + bytes_of_parts_ +
           least_.capacity() * sizeof(uint32_t);
  }

 private:
  // Bytes, or a jump over so many tokens.
  struct Part {
    std::string bytes;
    uint32_t num_tokens = 0;
  };
  struct Known {
    const engine::Ending* ending = nullptr;
    uint32_t most = kNone;  // kNone: not known
  };
  uint32_t cost(uint32_t symbol) const;
  uint32_t computed_growth() const;
  const Known& known(GssNode node);
  const std::vector<Part>& parts(uint32_t state);
  // Visits (symbol, target) of the edges of a state, plain characters first.
  template <typename Visit>
  void visit_edges(uint32_t state, Visit visit) const;
  template <typename Visit>
  void visit_first_bytes(uint32_t symbol, Visit visit) const;

  const Network& network_;
  const Stacks& stacks_;
  const engine::VocabularyTrie& vocabulary_;
  std::vector<uint32_t> costs_of_languages_, costs_of_terminals_;
  std::vector<uint32_t> least_;  // by state: bytes to the end of its rule
  const uint32_t growth_;
  engine::Endings endings_;
  std::vector<std::vector<Part>> parts_;  // by state, as far as known
  size_t bytes_of_parts_ = 0;
  std::vector<Known> known_;  // by node
};

}  // namespace structout::context_free
