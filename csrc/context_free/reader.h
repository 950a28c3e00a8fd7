// Reads texts of a grammar byte by byte.
#pragma once

#include <cstdint>
#include <vector>

#include "base/number_table.h"
#include "context_free/lexer.h"
#include "context_free/network.h"
#include "context_free/stacks.h"

namespace structout::context_free {

// Where a text stands: in which stacks, and how far in a lexeme.
struct Place {
  Node node = Stacks::kDead;
  uint32_t lexer_state = Lexer::kStuck;  // 0 without a lexer
  bool is_dead() const { return node == Stacks::kDead; }
};

// Places are named by numbers of this reader's stacks and of a lexer that readers share.
class Reader {
 public:
  Reader(const Network& network, Lexer& lexer);

  Place start(engine::Budget& budget);
  Place after(Place place, uint8_t byte, engine::Budget& budget);
  bool may_end(Place place, engine::Budget& budget);

  // Bytes that texts may consist of, one of each class of a lexer.
  const std::vector<uint8_t>& bytes_with_tokens() const { return bytes_with_tokens_; }

  // The stacks after a lexeme that all terminals of a set accept.
  Node after_lexeme(Node node, uint32_t set, engine::Budget& budget);

  // The state of the lexer in front of the next lexeme.
  uint32_t lexer_start(Node node);

  const Network& network() const { return network_; }
  Lexer& lexer() { return lexer_; }
  Stacks& stacks() { return stacks_; }
  const Stacks& stacks() const { return stacks_; }
  size_t memory_bytes() const {
    return stacks_.memory_bytes() + after_lexeme_.memory_bytes() + lexer_starts_.capacity() * sizeof(uint32_t);
  }

 private:
  std::vector<uint32_t> allowed_terminals(Node node) const;

  const Network& network_;
  Lexer& lexer_;
  Stacks stacks_;
  std::vector<uint8_t> bytes_with_tokens_;
  PairTable after_lexeme_;              // by node and set of terminals
  std::vector<uint32_t> lexer_starts_;  // by node, as far as known
};

}  // namespace structout::context_free
