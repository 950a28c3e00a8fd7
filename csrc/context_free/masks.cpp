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

Masks::Masks(const Network& network, Lexer& lexer, std::shared_ptr<const VocabularyTrie> vocabulary)
    : network_(network),
      lexer_(lexer),
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
  return after_[size_t(node) << 8 | byte] = {next, stacks_.has_hole(next), stacks_.reads_symbols(next),
                                             !stacks_.embedded_starts(next, budget).empty()};
}

uint32_t Masks::list_of(std::vector<uint32_t> trie_nodes) {
  if (network_.has_lexer()) {
    std::vector<uint32_t> children;
    for (uint32_t node : trie_nodes) {
      vocabulary_->visit_below(node, [&](uint32_t child, uint8_t, uint32_t) {
        children.push_back(child);
        return false;
      });
    }
    trie_nodes = std::move(children);
  }
  std::sort(trie_nodes.begin(), trie_nodes.end());
  trie_nodes.erase(std::unique(trie_nodes.begin(), trie_nodes.end()), trie_nodes.end());
  return trie_nodes_.number_of(trie_nodes);
}

// Walks over the trie from one start.
class Masks::Walk {
 public:
  Walk(Masks& masks, Reader& reader, engine::Budget& budget)
      : masks_(masks), reader_(reader), vocabulary_(*masks.vocabulary_), budget_(budget) {
    states_.resize(vocabulary_.max_depth() + 2);
  }

  Piece walk(uint32_t trie_nodes, uint32_t start) {
    if (trie_nodes == kTokenIds) {
      add_token_ids(start);
    } else if (start >= kEmbedded) {
      walk_embedded(masks_.trie_nodes_.list(trie_nodes), start - kEmbedded);
    } else if (masks_.network_.has_lexer()) {
      walk_lexemes(masks_.trie_nodes_.list(trie_nodes), start);
    } else {
      walk_all_rules(trie_nodes, start);
    }
    Piece piece;
    if (tokens_.size() > masks_.row_.size() / kWordsPerListedToken) {
      piece.row.resize(masks_.row_.size());
      for (uint32_t token : tokens_) piece.row[token >> 5] |= 1u << (token & 31);
    } else {
      piece.tokens = std::move(tokens_);
    }
    for (auto& [label, list] : exits_) piece.exits.push_back({label, masks_.trie_nodes_.number_of(list)});
    return piece;
  }

 private:
  static constexpr uint32_t kTrieStepsPerUnit = 8;     // of a budget: a step is short
  static constexpr uint32_t kWordsPerListedToken = 4;  // setting a bit takes as long as copying some words

  void count_step() {
    if (++masks_.num_trie_steps_ % kTrieStepsPerUnit == 0) budget_.spend(1);
  }

  void add_tokens(uint32_t node) {
    uint32_t end = vocabulary_.nodes()[node].tokens_end;
    for (uint32_t i = vocabulary_.first_token(node); i < end; ++i) tokens_.push_back(vocabulary_.tokens()[i]);
  }

  void add_token_ids(uint32_t state) {
    for (auto edge = masks_.network_.tokens_begin(state); edge < masks_.network_.tokens_end(state); ++edge) {
      for (uint32_t symbol = edge->first; symbol <= edge->last && symbol - kFirstToken < vocabulary_.size(); ++symbol) {
        tokens_.push_back(symbol - kFirstToken);
      }
    }
  }

  // From the begin of an embedded text.
  void walk_embedded(const std::vector<uint32_t>& nodes, uint32_t language) {
    std::shared_ptr<engine::EmbeddedStates> shared = reader_.embedded().current(language);
    engine::EmbeddedStates& states = reader_.embedded().held(shared);
    std::vector<engine::PositionPtr> positions(vocabulary_.max_depth() + 1);  // before each byte
    std::vector<uint32_t> ends;
    auto read = [&](uint32_t node, uint8_t byte, uint32_t depth) {
      budget_.spend(1);
      const uint8_t* at = &byte;
      engine::PositionPtr next = states.after(*positions[depth], at, at + 1);
      if (next == nullptr) return false;
      if (vocabulary_.first_token(node) < vocabulary_.nodes()[node].tokens_end && states.has_end(*next)) {
        add_tokens(node);
      }
      bool has_more = vocabulary_.nodes()[node].end > node + 1, may_end = states.may_end(*next);
      if (may_end && has_more) ends.push_back(node);
      if (!has_more || (may_end && !states.may_go_on(*next))) return false;
      positions[depth + 1] = std::move(next);
      return true;
    };
    for (uint32_t node : nodes) {
      bool is_root = node == VocabularyTrie::kRoot;
      uint32_t depth = is_root ? 0 : vocabulary_.nodes()[node].depth;
      if (masks_.network_.has_lexer()) {
        positions[depth] = states.start();
        if (!read(node, vocabulary_.nodes()[node].byte, depth)) continue;
      } else {
        positions[is_root ? 0 : depth + 1] = states.start();
      }
      vocabulary_.visit_below(node, read);
    }
    if (!ends.empty()) exits_[0] = masks_.trie_nodes_.list(masks_.list_of(std::move(ends)));
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
    add_tokens(node);
    return true;
  }

  // Goes on behind the embedded texts that begin and end on the way.
  void walk_all_rules(uint32_t trie_nodes, Node start) {
    using Begin = std::pair<uint32_t, Node>;  // a list of nodes of the trie, and what goes on there
    std::vector<Begin> pending = {{trie_nodes, start}};
    std::set<Begin> seen(pending.begin(), pending.end());
    while (!pending.empty()) {
      auto [list, node] = pending.back();
      pending.pop_back();
      std::vector<uint32_t> nodes = masks_.trie_nodes_.list(list);
      begin_embedded(node, nodes);
      walk_rules(nodes, node);
      for (auto& [text, begins] : std::exchange(embedded_, {})) {
        auto [language, below] = text;
        const Piece& piece =
            masks_.piece(masks_.piece_of(masks_.list_of(begins), kEmbedded + language, reader_, budget_));
        add_all_tokens(piece);
        Node next = masks_.stacks_.returned(below, budget_);
        for (const Exit& exit : piece.exits) {
          if (masks_.stacks_.has_hole(next)) {
            std::vector<uint32_t> ends = masks_.trie_nodes_.list(exit.trie_nodes);
            ends_.insert(ends_.end(), ends.begin(), ends.end());
          }
          bool goes_on = masks_.stacks_.reads_symbols(next) && seen.insert({exit.trie_nodes, next}).second;
          if (goes_on) pending.emplace_back(exit.trie_nodes, next);
        }
      }
    }
    if (ends_.empty()) return;
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    exits_[0] = std::move(ends_);
  }

  void add_all_tokens(const Piece& piece) {
    tokens_.insert(tokens_.end(), piece.tokens.begin(), piece.tokens.end());
    for (uint32_t word = 0; word < piece.row.size(); ++word) {
      for (uint32_t bits = piece.row[word]; bits != 0; bits &= bits - 1) {
        tokens_.push_back(word << 5 | uint32_t(__builtin_ctz(bits)));
      }
    }
  }

  void begin_embedded(Node node, const std::vector<uint32_t>& trie_nodes) {
    for (const EmbeddedStart& start : masks_.stacks_.embedded_starts(node, budget_)) {
      std::vector<uint32_t>& list = embedded_[{start.language, start.below}];
      list.insert(list.end(), trie_nodes.begin(), trie_nodes.end());
    }
  }

  // A rule may end at nodes below each other, so the walk below one may pass another. It
  // goes on from both then.
  void walk_rules(const std::vector<uint32_t>& nodes, Node start) {
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
          add_tokens(child);
          if (next.has_hole && read.end > child + 1) ends_.push_back(child);
          if (next.begins_embedded && read.end > child + 1) begin_embedded(next.node, {child});
          if (is_start[child]) {
            is_start[child] = 0;
            next.node = masks_.stacks_.united({next.node, start}, budget_);
            next.reads_symbols = true;
          }
          states_[read.depth + 1] = next.node;
        }
        child = next.reads_symbols ? child + 1 : read.end;
      }
    }
  }

  Masks& masks_;
  Reader& reader_;
  const VocabularyTrie& vocabulary_;
  engine::Budget& budget_;
  std::vector<uint32_t> states_;  // of the lexer, or nodes, before the byte at each depth
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> ends_;  // of the rule, in front of other bytes
  // Where embedded texts begin, by their languages and the stacks below.
  std::map<std::pair<uint32_t, Node>, std::vector<uint32_t>> embedded_;
  std::map<uint32_t, std::vector<uint32_t>> exits_;  // by label
};

// `start`: a state of the lexer, a node of stacks_, a language from kEmbedded on, or a
// state whose tokens are read by their ids.
uint32_t Masks::piece_of(uint32_t trie_nodes, uint32_t start, Reader& reader, engine::Budget& budget) {
  uint32_t known = piece_numbers_.find(trie_nodes, start);
  if (known != PairTable::kMissing) return known;
  Piece piece = Walk(*this, reader, budget).walk(trie_nodes, start);
  bool is_node = !network_.has_lexer() && start < kEmbedded && trie_nodes != kTokenIds;
  if (is_node && stacks_.has_hole(start)) piece.exits.push_back({0, trie_nodes});
  piece_bytes_ += (piece.tokens.size() + piece.row.size()) * sizeof(uint32_t);
  is_full_ = is_full_ || piece_bytes_ > kMaxPieceBytes;
  pieces_.push_back(std::move(piece));
  uint32_t number = uint32_t(pieces_.size() - 1);
  piece_numbers_.add(trie_nodes, start, number);
  return number;
}

Masks::Branch Masks::behind(const std::vector<uint32_t>& trie_nodes, Node below, Reader& reader,
                            engine::Budget& budget) {
  uint32_t list = list_of(trie_nodes);
  if (!network_.has_lexer()) return {list, below, 0, false};
  return {list, reader.stacks().returned(below, budget), kNone, true};
}

std::optional<std::vector<uint32_t>> Masks::pieces_of(Reader& reader, const std::vector<Branch>& branches,
                                                      engine::Budget& budget) {
  if (is_full_) return std::nullopt;
  std::vector<Branch> pending = branches;
  std::set<Branch> seen(pending.begin(), pending.end());
  std::vector<uint32_t> numbers;
  auto go_on = [&](const Branch& branch) {
    if (branch.node != Stacks::kDead && seen.insert(branch).second) pending.push_back(branch);
  };
  auto add_token_ids = [&](const Item& item) {
    if (item.state >= kHole || network_.tokens_begin(item.state) == network_.tokens_end(item.state)) return;
    numbers.push_back(piece_of(kTokenIds, item.state, reader, budget));
  };
  while (!pending.empty()) {
    auto [trie_nodes, node, lexer_state, is_closed] = pending.back();
    pending.pop_back();
    budget.spend(1);
    bool is_in_front = trie_nodes == whole_trie_;
    if (network_.has_lexer()) {
      LexerPlace place = {node, lexer_state != kNone ? lexer_state : reader.lexer_start(node)};
      if (is_in_front && network_.has_tokens()) {
        for (const Item& item : reader.stacks().items(reader.before_token(place, budget))) add_token_ids(item);
      }
      if (lexer_state == kNone || reader.is_between(place)) {
        for (const EmbeddedStart& start : reader.stacks().embedded_starts(node, budget)) {
          numbers.push_back(piece_of(trie_nodes, kEmbedded + start.language, reader, budget));
          for (const Exit& exit : piece(numbers.back()).exits) {
            go_on({exit.trie_nodes, reader.stacks().returned(start.below, budget), kNone, true});
          }
        }
      }
      if (place.lexer_state == Lexer::kStuck) continue;
      numbers.push_back(piece_of(trie_nodes, place.lexer_state, reader, budget));
      for (const Exit& exit : piece(numbers.back()).exits) {
        go_on({exit.trie_nodes, reader.after_lexeme(node, exit.label, budget), kNone, true});
      }
      continue;
    }
    for (const Item& item : reader.stacks().items(node)) {
      if (item.state >= kHole) continue;
      if (is_in_front) add_token_ids(item);
      numbers.push_back(piece_of(trie_nodes, stacks_.above_hole(item.state, is_closed, budget), reader, budget));
      for (const Exit& exit : piece(numbers.back()).exits) go_on({exit.trie_nodes, item.below, 0, false});
    }
  }
  if (is_full_) return std::nullopt;
  auto has_no_tokens = [this](uint32_t number) { return piece(number).tokens.empty() && piece(number).row.empty(); };
  numbers.erase(std::remove_if(numbers.begin(), numbers.end(), has_no_tokens), numbers.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void Masks::add_tokens(const std::vector<uint32_t>& pieces, uint32_t* row) const {
  for (uint32_t number : pieces) {
    for (uint32_t token : piece(number).tokens) row[token >> 5] |= 1u << (token & 31);
    for (size_t i = 0; i < piece(number).row.size(); ++i) row[i] |= piece(number).row[i];
  }
}

const engine::Mask* Masks::mask(Reader& reader, const LexerPlace& place, engine::Budget& budget) {
  std::optional<std::vector<uint32_t>> numbers = pieces_of(reader, {at(place)}, budget);
  if (!numbers) return nullptr;
  std::string key(reinterpret_cast<const char*>(numbers->data()), numbers->size() * sizeof(uint32_t));
  auto [found, is_new] = masks_.try_emplace(std::move(key), nullptr);
  if (!is_new) return found->second;
  std::fill(row_.begin(), row_.end(), 0);
  add_tokens(*numbers, row_.data());
  found->second = store_.add(row_.data());
  if (found->second != nullptr) return found->second;
  is_full_ = true;
  masks_.erase(found);
  return nullptr;
}

size_t Masks::memory_bytes() const {
  size_t bytes = store_.memory_bytes() + stacks_.memory_bytes() + trie_nodes_.memory_bytes() +
                 after_.capacity() * sizeof(Next) + piece_numbers_.memory_bytes() + pieces_.size() * sizeof(Piece) +
                 piece_bytes_ + is_start_.capacity();
  return bytes + masks_.size() * kBytesPerKey;
}

}  // namespace structout::context_free
