#include "context_free/reader.h"

#include <utility>

namespace structout::context_free {

Reader::Reader(const Network& network, Lexer& lexer) : network_(network), lexer_(lexer), stacks_(network) {
  if (network.has_lexer()) bytes_with_tokens_ = lexer.bytes_with_tokens();
  for (uint32_t byte = 0; byte < 256 && !network.has_lexer(); ++byte) {
    if (network.may_consist_of(uint8_t(byte))) bytes_with_tokens_.push_back(uint8_t(byte));
  }
}

// The terminals that may follow, without those that are ignored.
std::vector<uint32_t> Reader::allowed_terminals(Node node) const {
  std::vector<uint32_t> allowed;
  for (uint32_t terminal = 0; terminal < network_.terminals().size(); ++terminal) {
    for (const Item* item = stacks_.begin(node); item < stacks_.end(node) && item->state < kHole; ++item) {
      if (network_.next(item->state, terminal) == kNone) continue;
      allowed.push_back(terminal);
      break;
    }
  }
  return allowed;
}

uint32_t Reader::lexer_start(Node node) {
  if (lexer_starts_.size() <= node) lexer_starts_.resize(stacks_.num_nodes(), kNone);
  if (lexer_starts_[node] != kNone) return lexer_starts_[node];
  // What is ignored stands between terminals: not at the start of a text, and not behind
  // the last one that may follow.
  std::vector<uint32_t> allowed = allowed_terminals(node);
  for (uint32_t terminal = 0; terminal < network_.terminals().size() && !allowed.empty(); ++terminal) {
    if (lexer_.is_ignored(terminal)) allowed.push_back(terminal);
  }
  return lexer_starts_[node] = lexer_.start(lexer_.set_of(allowed));
}

Place Reader::start(engine::Budget& budget) {
  Place place;
  place.node = stacks_.start(budget);
  if (network_.has_lexer()) place.lexer_state = lexer_.start(lexer_.set_of(allowed_terminals(place.node)));
  return place;
}

Node Reader::after_lexeme(Node node, uint32_t set, engine::Budget& budget) {
  uint32_t known = after_lexeme_.find(node, set);
  if (known != PairTable::kMissing) return known;
  std::vector<uint32_t> terminals(lexer_.begin(set), lexer_.end(set));
  Node result = node;
  if (terminals.empty() || !lexer_.is_ignored(terminals[0])) {  // all of them are ignored, or none
    std::vector<Node> nodes;
    for (uint32_t terminal : terminals) nodes.push_back(stacks_.after(node, terminal, budget));
    result = stacks_.united(std::move(nodes), budget);
  }
  after_lexeme_.add(node, set, result);
  return result;
}

Place Reader::after(Place place, uint8_t byte, engine::Budget& budget) {
  if (!network_.has_lexer()) return {stacks_.after(place.node, byte, budget), 0};
  uint32_t next = lexer_.after(place.lexer_state, byte, budget);
  if (next != Lexer::kStuck) return {place.node, next};
  Node node = after_lexeme(place.node, lexer_.accepted(place.lexer_state), budget);
  if (node == Stacks::kDead) return {};
  next = lexer_.after(lexer_start(node), byte, budget);
  return next == Lexer::kStuck ? Place() : Place{node, next};
}

bool Reader::may_end(Place place, engine::Budget& budget) {
  if (!network_.has_lexer()) return stacks_.may_end(place.node);
  if (lexer_.is_fresh(place.lexer_state) || place.lexer_state == Lexer::kStuck) return stacks_.may_end(place.node);
  return stacks_.may_end(after_lexeme(place.node, lexer_.accepted(place.lexer_state), budget));
}

}  // namespace structout::context_free
