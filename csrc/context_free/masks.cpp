#include "context_free/masks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace structout::context_free {

using fsm::VocabularyTrie;

namespace {

constexpr uint32_t kTrieStepsPerUnit = 8;  // of a budget: a step is short
constexpr size_t kBytesPerKey = 96;        // of the table, roughly

}  // namespace

Masks::Masks(const Network& network, Lexer& lexer, std::shared_ptr<const VocabularyTrie> vocabulary)
    : network_(network),
      lexer_(lexer),
      vocabulary_(std::move(vocabulary)),
      stacks_(network),
      store_(vocabulary_),
      row_(vocabulary_->row_words()),
      piece_row_(vocabulary_->row_words()) {
  std::vector<uint32_t> children;
  vocabulary_->visit_below(VocabularyTrie::kRoot, [&](uint32_t node, uint8_t, uint32_t) {
    children.push_back(node);
    return false;
  });
  first_bytes_ = trie_nodes_.number_of(children);
}

Node Masks::after(Node node, uint8_t byte, fsm::Budget& budget) {
  if (rows_of_nodes_.size() <= node) rows_of_nodes_.resize(stacks_.num_nodes(), kNone);
  if (rows_of_nodes_[node] == kNone) {
    rows_of_nodes_[node] = uint32_t(after_.size());
    after_.emplace_back().fill(kNone);
  }
  uint32_t& known = after_[rows_of_nodes_[node]][byte];
  return known != kNone ? known : known = stacks_.after(node, byte, budget);
}

// Walks over the trie from one start.
class Masks::Walk {
 public:
  Walk(Masks& masks, fsm::Budget& budget) : masks_(masks), vocabulary_(*masks.vocabulary_), budget_(budget) {
    states_.resize(vocabulary_.max_depth() + 2);
  }

  // Reads the given nodes of the trie, and what goes on from them.
  Piece walk(uint32_t trie_nodes, uint32_t start) {
    std::fill(masks_.piece_row_.begin(), masks_.piece_row_.end(), 0);
    const std::vector<VocabularyTrie::Node>& nodes = vocabulary_.nodes();
    for (uint32_t node : masks_.trie_nodes_.list(trie_nodes)) {
      uint32_t depth = nodes[node].depth;
      states_[depth] = start;
      bool goes_on = masks_.network_.has_lexer() ? read_lexeme(node, nodes[node].byte, depth)
                                                 : read_rule(node, nodes[node].byte, depth);
      if (!goes_on || nodes[node].end == node + 1) continue;
      vocabulary_.visit_below(node, [&](uint32_t child, uint8_t byte, uint32_t at) {
        return masks_.network_.has_lexer() ? read_lexeme(child, byte, at) : read_rule(child, byte, at);
      });
    }
    Piece piece;
    if (has_tokens_) piece.tokens = masks_.store_.add(masks_.piece_row_.data());
    if (has_tokens_ && piece.tokens == nullptr) masks_.is_full_ = true;
    for (auto& [label, list] : exits_) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
      piece.exits.push_back({label, masks_.trie_nodes_.number_of(list)});
    }
    return piece;
  }

 private:
  void count_step() {
    if (++masks_.num_trie_steps_ % kTrieStepsPerUnit == 0) budget_.spend(1);
  }

  void add_tokens(uint32_t node) {
    uint32_t first = vocabulary_.first_token(node), end = vocabulary_.nodes()[node].tokens_end;
    for (uint32_t i = first; i < end; ++i) {
      uint32_t token = vocabulary_.tokens()[i];
      masks_.piece_row_[token >> 5] |= 1u << (token & 31);
      has_tokens_ = true;
    }
  }

  // Each returns whether the start's rule, or lexeme, may go on below the node.
  bool read_lexeme(uint32_t node, uint8_t byte, uint32_t depth) {
    count_step();
    uint32_t before = states_[depth], next = masks_.lexer_.after(before, byte, budget_);
    if (next == Lexer::kStuck) {
      uint32_t accepted = masks_.lexer_.accepted(before);
      if (accepted != 0) exits_[accepted].push_back(node);
      return false;
    }
    states_[depth + 1] = next;
    add_tokens(node);
    return true;
  }

  bool read_rule(uint32_t node, uint8_t byte, uint32_t depth) {
    count_step();
    Node next = states_[depth + 1] = masks_.after(states_[depth], byte, budget_);
    if (next == Stacks::kDead) return false;
    add_tokens(node);
    if (vocabulary_.nodes()[node].end == node + 1) return false;
    if (masks_.stacks_.has_hole(next)) {
      vocabulary_.visit_below(node, [this](uint32_t child, uint8_t, uint32_t) {
        exits_[0].push_back(child);
        return false;
      });
    }
    return masks_.stacks_.reads_symbols(next);
  }

  Masks& masks_;
  const VocabularyTrie& vocabulary_;
  fsm::Budget& budget_;
  std::vector<uint32_t> states_;  // of the lexer, or nodes, before the byte at each depth
  std::map<uint32_t, std::vector<uint32_t>> exits_;
  bool has_tokens_ = false;
};

// `start`: a state of the lexer, or a node of stacks_.
uint32_t Masks::piece_of(uint32_t trie_nodes, uint32_t start, fsm::Budget& budget) {
  uint32_t known = piece_numbers_.find(trie_nodes, start);
  if (known != PairTable::kMissing) return known;
  Piece piece = Walk(*this, budget).walk(trie_nodes, start);
  if (!network_.has_lexer() && stacks_.has_hole(start)) piece.exits.push_back({0, trie_nodes});
  pieces_.push_back(std::move(piece));
  uint32_t number = uint32_t(pieces_.size() - 1);
  piece_numbers_.add(trie_nodes, start, number);
  return number;
}

const fsm::Mask* Masks::mask(Reader& reader, Place place, fsm::Budget& budget) {
  if (is_full_) return nullptr;
  // What goes on where: trie nodes in front of which stacks stand. The lexer's state, or
  // kNone in front of a lexeme. `is_closed`: see Stacks::above_hole().
  using Branch = std::tuple<uint32_t, Node, uint32_t, bool>;
  std::vector<Branch> pending = {{first_bytes_, place.node, place.lexer_state, true}};
  std::set<Branch> seen(pending.begin(), pending.end());
  std::vector<uint32_t> numbers;
  auto go_on = [&](const Branch& branch) {
    if (seen.insert(branch).second) pending.push_back(branch);
  };
  while (!pending.empty()) {
    auto [trie_nodes, node, lexer_state, is_closed] = pending.back();
    pending.pop_back();
    budget.spend(1);
    if (network_.has_lexer()) {
      uint32_t start = lexer_state != kNone ? lexer_state : reader.lexer_start(node);
      if (start == Lexer::kStuck) continue;
      numbers.push_back(piece_of(trie_nodes, start, budget));
      for (const Exit& exit : piece(numbers.back()).exits) {
        Node next = reader.after_lexeme(node, exit.label, budget);
        if (next != Stacks::kDead) go_on({exit.trie_nodes, next, kNone, true});
      }
      continue;
    }
    for (const Item& item : reader.stacks().items(node)) {
      if (item.state >= kHole) continue;
      numbers.push_back(piece_of(trie_nodes, stacks_.above_hole(item.state, is_closed, budget), budget));
      for (const Exit& exit : piece(numbers.back()).exits) go_on({exit.trie_nodes, item.below, 0, false});
    }
  }
  if (is_full_) return nullptr;
  auto has_no_tokens = [this](uint32_t number) { return piece(number).tokens == nullptr; };
  numbers.erase(std::remove_if(numbers.begin(), numbers.end(), has_no_tokens), numbers.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string key(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint32_t));
  auto [found, is_new] = masks_.try_emplace(std::move(key), nullptr);
  if (!is_new) return found->second;
  std::fill(row_.begin(), row_.end(), 0);
  for (uint32_t number : numbers) {
    store_.expand(*piece(number).tokens, piece_row_.data());
    for (size_t i = 0; i < row_.size(); ++i) row_[i] |= piece_row_[i];
  }
  found->second = store_.add(row_.data());
  if (found->second != nullptr) return found->second;
  is_full_ = true;
  masks_.erase(found);
  return nullptr;
}

size_t Masks::memory_bytes() const {
  size_t bytes = store_.memory_bytes() + stacks_.memory_bytes() + trie_nodes_.memory_bytes() +
                 after_.size() * sizeof(after_[0]) + piece_numbers_.memory_bytes() + pieces_.size() * sizeof(Piece);
  return bytes + masks_.size() * kBytesPerKey;
}

}  // namespace structout::context_free
