#include "context_free/masks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace structout::context_free {

using engine::VocabularyTrie;

namespace {

constexpr size_t kBytesPerKey = 96;  // of the table, roughly

}  // namespace

Masks::Masks(const Network& network, Lexer& lexer, SureWays& sure_ways,
             std::shared_ptr<const VocabularyTrie> vocabulary)
    : network_(network),
      lexer_(lexer),
      sure_ways_(sure_ways),
      vocabulary_(std::move(vocabulary)),
      stacks_(network),
      store_(vocabulary_),
      row_(vocabulary_->row_words()),
      is_start_(network.has_lexer() ? 0 : vocabulary_->nodes().size()) {
  std::vector<uint32_t> nodes = {VocabularyTrie::kRoot};
  if (network_.has_lexer()) {
    nodes.clear();
    vocabulary_->visit_below(VocabularyTrie::kRoot, [&](uint32_t node, uint8_t, uint32_t) {
      nodes.push_back(node);
      return false;
    });
  }
  whole_trie_ = trie_nodes_.number_of(nodes);
}

Masks::Next Masks::computed_after(Node node, uint8_t byte, engine::Budget& budget) {
  Node next = stacks_.after(node, byte, budget);
  after_.resize(size_t(stacks_.num_nodes()) << 8);
  return after_[size_t(node) << 8 | byte] = {next, stacks_.has_hole(next), stacks_.reads_symbols(next)};
}

// Walks over the trie from one start.
class Masks::Walk {
 public:
  Walk(Masks& masks, engine::Budget& budget) : masks_(masks), vocabulary_(*masks.vocabulary_), budget_(budget) {
    states_.resize(vocabulary_.max_depth() + 2);
  }

  Piece walk(uint32_t trie_nodes, uint32_t start) {
    std::vector<uint32_t> nodes = masks_.trie_nodes_.list(trie_nodes);
    if (masks_.network_.has_lexer()) {
      walk_lexemes(nodes, start);
    } else {
      walk_rules(nodes, start);
    }
    Piece piece;
    piece.tokens = token_set();
    for (auto& [label, list] : exits_) piece.exits.push_back({label, masks_.trie_nodes_.number_of(list)});
    for (auto& [lexer_state, tokens] : guarded_) {
      Piece of_state;
      of_state.tokens = set_of(tokens);
      piece.guarded.push_back({lexer_state, masks_.add_piece(std::move(of_state))});
    }
    return piece;
  }

 private:
  // What the tokens below one node do.
  Part walk_below(uint32_t node, uint32_t state) {
    if (masks_.network_.has_lexer()) {
      states_[vocabulary_.nodes()[node].depth + 1] = state;
      vocabulary_.visit_below(
          node, [&](uint32_t child, uint8_t byte, uint32_t depth) { return read_lexeme(child, byte, depth); });
    } else {
      walk_rules({node}, state);
    }
    return {token_set(), {exits_.begin(), exits_.end()}, {guarded_.begin(), guarded_.end()}};
  }

  // Adds what the tokens below a node do, if they are so many that it is kept: other
  // walks come to the same node in the same state.
  bool add_part(uint32_t node, uint32_t state) {
    if (vocabulary_.nodes()[node].end - node < kMinNodesOfPart) return false;
    uint32_t number = masks_.part_numbers_.find(node, state);
    if (number == PairTable::kMissing) {
      Part walked = Walk(masks_, budget_).walk_below(node, state);
      number = uint32_t(masks_.parts_.size());
      masks_.add_bytes(walked.memory_bytes());
      masks_.parts_.push_back(std::move(walked));
      masks_.part_numbers_.add(node, state, number);
    }
    const Part& part = masks_.parts_[number];
    tokens_.insert(tokens_.end(), part.tokens.listed.begin(), part.tokens.listed.end());
    add_row(part.tokens.row);
    for (const auto& [label, nodes] : part.exits) {
      exits_[label].insert(exits_[label].end(), nodes.begin(), nodes.end());
    }
    for (const auto& [lexer_state, tokens] : part.guarded) {
      guarded_[lexer_state].insert(guarded_[lexer_state].end(), tokens.begin(), tokens.end());
    }
    return true;
  }

  void add_row(const std::vector<uint32_t>& row) {
    if (row_.empty()) row_ = row;
    for (size_t i = 0; i < row.size(); ++i) row_[i] |= row[i];
  }

  static constexpr uint32_t kTrieStepsPerUnit = 8;  // of a budget: a step is short
  static constexpr uint32_t kMinNodesOfLoop = 16;   // to read fewer takes no longer
  static constexpr uint32_t kMinNodesOfPart = 128;
  static constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words

  void count_step() {
    if (++masks_.num_trie_steps_ % kTrieStepsPerUnit == 0) budget_.spend(1);
  }

  TokenSet set_of(const std::vector<uint32_t>& tokens) const {
    if (tokens.size() <= masks_.row_.size() / kWordsPerListedToken) return {tokens, {}};
    TokenSet set{{}, std::vector<uint32_t>(masks_.row_.size())};
    for (uint32_t token : tokens) set.row[token >> 5] |= 1u << (token & 31);
    return set;
  }

  // All that were added.
  TokenSet token_set() const {
    if (row_.empty()) return set_of(tokens_);
    TokenSet set{{}, row_};
    for (uint32_t token : tokens_) set.row[token >> 5] |= 1u << (token & 31);
    return set;
  }

  void add_tokens(uint32_t node, std::vector<uint32_t>& tokens) {
    uint32_t end = vocabulary_.nodes()[node].tokens_end;
    for (uint32_t i = vocabulary_.first_token(node); i < end; ++i) tokens.push_back(vocabulary_.tokens()[i]);
  }

  // Where the bytes below a node all lead back to one state, they need not be read.
  bool add_loop(uint32_t node, uint32_t state) {
    uint32_t end = vocabulary_.nodes()[node].end;
    if (end - node < kMinNodesOfLoop) return false;
    auto after = [this](uint32_t from, uint8_t byte) {
      return masks_.network_.has_lexer() ? masks_.lexer_.after(from, byte, budget_)
                                         : masks_.after(from, byte, budget_).node;
    };
    auto is_usual = [this](uint32_t of) {
      if (masks_.network_.has_lexer()) return of != Lexer::kStuck && masks_.sure_ways_.is_safe(of, budget_);
      return of != Stacks::kDead && !masks_.stacks_.has_hole(of);
    };
    if (!masks_.loops_.of(state, after, is_usual).covers(vocabulary_.bytes_below(), node)) return false;
    uint32_t tokens_end = vocabulary_.nodes()[end - 1].tokens_end;
    auto tokens = vocabulary_.tokens().begin();
    tokens_.insert(tokens_.end(), tokens + vocabulary_.nodes()[node].tokens_end, tokens + tokens_end);
    return true;
  }

  // The places where a lexeme ends are never below each other, so neither are the nodes.
  void walk_lexemes(const std::vector<uint32_t>& nodes, uint32_t start) {
    for (uint32_t node : nodes) {
      const VocabularyTrie::Node& first = vocabulary_.nodes()[node];
      states_[first.depth] = start;
      if (!read_lexeme(node, first.byte, first.depth) || first.end == node + 1) continue;
      vocabulary_.visit_below(
          node, [&](uint32_t child, uint8_t byte, uint32_t depth) { return read_lexeme(child, byte, depth); });
    }
  }

  // Returns whether the lexeme may go on below the node.
  bool read_lexeme(uint32_t node, uint8_t byte, uint32_t depth) {
    count_step();
    uint32_t before = states_[depth], next = masks_.lexer_.after(before, byte, budget_);
    if (next == Lexer::kStuck) {
      uint32_t accepted = masks_.lexer_.accepted(before);
      if (accepted != 0) exits_[accepted].push_back(node);
      return false;
    }
    states_[depth + 1] = next;
    if (vocabulary_.first_token(node) < vocabulary_.nodes()[node].tokens_end) {
      add_tokens(node, masks_.sure_ways_.is_safe(next, budget_) ? tokens_ : guarded_[next]);
    }
    return !add_loop(node, next) && !add_part(node, next);
  }

  // A rule may end at nodes below each other, so the walk below one may pass another. It
  // goes on from both then.
  void walk_rules(const std::vector<uint32_t>& nodes, uint32_t start) {
    std::vector<uint8_t>& is_start = masks_.is_start_;
    struct Marks {
      ~Marks() {
        for (uint32_t node : nodes) {
          if (node != VocabularyTrie::kRoot) is_start[node] = 0;
        }
      }
      const std::vector<uint32_t>& nodes;
      std::vector<uint8_t>& is_start;
    } marks{nodes, is_start};
    for (uint32_t node : nodes) {
      if (node != VocabularyTrie::kRoot) is_start[node] = 1;
    }
    const std::vector<VocabularyTrie::Node>& all = vocabulary_.nodes();
    std::vector<uint32_t>& ends = exits_[0];  // of the rule, in front of other bytes
    for (uint32_t node : nodes) {
      bool is_root = node == VocabularyTrie::kRoot;
      if (!is_root && !std::exchange(is_start[node], 0)) continue;
      states_[is_root ? 0 : all[node].depth + 1] = start;
      uint32_t end = is_root ? uint32_t(all.size()) : all[node].end;
      for (uint32_t child = is_root ? 0 : node + 1; child < end;) {
        count_step();
        const VocabularyTrie::Node& read = all[child];
        Next next = masks_.after(states_[read.depth], read.byte, budget_);
        if (next.node != Stacks::kDead) {
          add_tokens(child, tokens_);
          if (next.has_hole && read.end > child + 1) ends.push_back(child);
          if (is_start[child]) {
            is_start[child] = 0;
            next.node = masks_.stacks_.united({next.node, start}, budget_);
            next.reads_symbols = true;
          }
          states_[read.depth + 1] = next.node;
          if (next.reads_symbols && read.end - child >= kMinNodesOfLoop) {
            bool has_starts = nodes.size() > 1 && std::upper_bound(nodes.begin(), nodes.end(), child) !=
                                                      std::lower_bound(nodes.begin(), nodes.end(), read.end);
            if (!has_starts && (add_loop(child, next.node) || add_part(child, next.node))) next.reads_symbols = false;
          }
        }
        child = next.reads_symbols ? child + 1 : read.end;
      }
    }
    if (!std::is_sorted(ends.begin(), ends.end())) std::sort(ends.begin(), ends.end());
    if (ends.empty()) exits_.clear();
  }

  Masks& masks_;
  const VocabularyTrie& vocabulary_;
  engine::Budget& budget_;
  std::vector<uint32_t> states_;  // of the lexer, or nodes, before the byte at each depth
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> row_;                          // of further tokens, if there are any
  std::map<uint32_t, std::vector<uint32_t>> exits_;    // by label
  std::map<uint32_t, std::vector<uint32_t>> guarded_;  // tokens by the state of the lexer
};

void Masks::TokenSet::add_to(uint32_t* mask) const {
  for (uint32_t token : listed) mask[token >> 5] |= 1u << (token & 31);
  for (size_t i = 0; i < row.size(); ++i) mask[i] |= row[i];
}

size_t Masks::Part::memory_bytes() const {
  size_t bytes = tokens.memory_bytes();
  for (const auto& [label, nodes] : exits) bytes += nodes.size() * sizeof(uint32_t);
  for (const auto& [lexer_state, listed] : guarded) bytes += listed.size() * sizeof(uint32_t);
  return bytes;
}

void Masks::add_bytes(size_t bytes) {
  piece_bytes_ += bytes;
  is_full_ = is_full_ || piece_bytes_ > kMaxPieceBytes;
}

uint32_t Masks::add_piece(Piece piece) {
  add_bytes(piece.tokens.memory_bytes());
  pieces_.push_back(std::move(piece));
  return uint32_t(pieces_.size() - 1);
}

// `start`: a state of the lexer, or a node of stacks_.
uint32_t Masks::piece_of(uint32_t trie_nodes, uint32_t start, engine::Budget& budget) {
  uint32_t known = piece_numbers_.find(trie_nodes, start);
  if (known != PairTable::kMissing) return known;
  Piece piece = Walk(*this, budget).walk(trie_nodes, start);
  if (!network_.has_lexer() && stacks_.has_hole(start)) piece.exits.push_back({0, trie_nodes});
  uint32_t number = add_piece(std::move(piece));
  piece_numbers_.add(trie_nodes, start, number);
  return number;
}

const engine::Mask* Masks::mask(Reader& reader, Place place, engine::Budget& budget,
                                const std::function<bool(Place)>& has_end) {
  if (is_full_) return nullptr;
  // What goes on where: trie nodes in front of which stacks stand. The lexer's state, or
  // kNone in front of a lexeme. `is_closed`: see Stacks::above_hole().
  using Branch = std::tuple<uint32_t, Node, uint32_t, bool>;
  std::vector<Branch> pending = {{whole_trie_, place.node, place.lexer_state, true}};
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
      const Piece& found = piece(numbers.back());
      for (const Guarded& guarded : found.guarded) {
        if (has_end({node, guarded.lexer_state})) numbers.push_back(guarded.piece);
      }
      for (const Exit& exit : found.exits) {
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
  auto has_no_tokens = [this](uint32_t number) { return piece(number).tokens.is_empty(); };
  numbers.erase(std::remove_if(numbers.begin(), numbers.end(), has_no_tokens), numbers.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string key(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint32_t));
  auto [found, is_new] = masks_.try_emplace(std::move(key), nullptr);
  if (!is_new) return found->second;
  std::fill(row_.begin(), row_.end(), 0);
  for (uint32_t number : numbers) piece(number).tokens.add_to(row_.data());
  found->second = store_.add(row_.data());
  if (found->second != nullptr) return found->second;
  is_full_ = true;
  masks_.erase(found);
  return nullptr;
}

size_t Masks::memory_bytes() const {
  size_t bytes = store_.memory_bytes() + stacks_.memory_bytes() + trie_nodes_.memory_bytes() +
                 after_.capacity() * sizeof(Next) + piece_numbers_.memory_bytes() + part_numbers_.memory_bytes() +
                 loops_.memory_bytes() + pieces_.size() * sizeof(Piece) + parts_.size() * sizeof(Part) + piece_bytes_ +
                 is_start_.capacity();
  return bytes + masks_.size() * kBytesPerKey;
}

}  // namespace structout::context_free
