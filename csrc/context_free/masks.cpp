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
constexpr size_t kMaxCompared = 4;   // nodes, with those that a rule returns to

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
      if (!ends_.empty()) exits_[0] = std::move(ends_);
    }
    return {token_set(), {exits_.begin(), exits_.end()}, {guarded_.begin(), guarded_.end()}};
  }

  // Adds what the tokens below a node do, if they are so many that it is kept: other
  // walks come to the same node in the same state.
  bool add_part(uint32_t node, uint32_t state) {
    if (vocabulary_.nodes()[node].end - node < kMinNodesOfPart) return false;
    if (!masks_.network_.has_lexer() && !masks_.network_.embedded().empty()) return false;
    uint32_t number = masks_.part_numbers_.find(node, state);
    if (number == PairTable::kMissing) {
      Part walked = Walk(masks_, reader_, budget_).walk_below(node, state);
      number = uint32_t(masks_.parts_.size());
      masks_.add_bytes(walked.memory_bytes());
      masks_.parts_.push_back(std::move(walked));
      masks_.part_numbers_.add(node, state, number);
    }
    const Part& part = masks_.parts_[number];
    tokens_.insert(tokens_.end(), part.tokens.listed.begin(), part.tokens.listed.end());
    add_row(part.tokens.row);
    for (const auto& [label, nodes] : part.exits) {
      std::vector<uint32_t>& exits = masks_.network_.has_lexer() ? exits_[label] : ends_;
      exits.insert(exits.end(), nodes.begin(), nodes.end());
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

  void add_token_ids(uint32_t state) {
    for (auto edge = masks_.network_.tokens_begin(state); edge < masks_.network_.tokens_end(state); ++edge) {
      for (uint32_t symbol = edge->first; symbol <= edge->last && symbol - kFirstToken < vocabulary_.size(); ++symbol) {
        tokens_.push_back(symbol - kFirstToken);
      }
    }
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
      return of != Stacks::kDead && !masks_.stacks_.has_hole(of) && masks_.stacks_.embedded_starts(of, budget_).empty();
    };
    if (!masks_.loops_.of(state, after, is_usual).covers(vocabulary_.bytes_below(), node)) return false;
    uint32_t tokens_end = vocabulary_.nodes()[end - 1].tokens_end;
    auto tokens = vocabulary_.tokens().begin();
    tokens_.insert(tokens_.end(), tokens + vocabulary_.nodes()[node].tokens_end, tokens + tokens_end);
    return true;
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
        add_tokens(node, tokens_);
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
    if (vocabulary_.first_token(node) < vocabulary_.nodes()[node].tokens_end) {
      add_tokens(node, masks_.sure_ways_.is_safe(next, budget_) ? tokens_ : guarded_[next]);
    }
    return !add_loop(node, next) && !add_part(node, next);
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
    tokens_.insert(tokens_.end(), piece.tokens.listed.begin(), piece.tokens.listed.end());
    add_row(piece.tokens.row);
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
          add_tokens(child, tokens_);
          if (next.has_hole && read.end > child + 1) ends_.push_back(child);
          if (next.begins_embedded && read.end > child + 1) begin_embedded(next.node, {child});
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
  }

  Masks& masks_;
  Reader& reader_;
  const VocabularyTrie& vocabulary_;
  engine::Budget& budget_;
  std::vector<uint32_t> states_;  // of the lexer, or nodes, before the byte at each depth
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> row_;   // of further tokens, if there are any
  std::vector<uint32_t> ends_;  // of the rule, in front of other bytes
  // Where embedded texts begin, by their languages and the stacks below.
  std::map<std::pair<uint32_t, Node>, std::vector<uint32_t>> embedded_;
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

// `start`: a state of the lexer, a node of stacks_, a language from kEmbedded on, or a
// state whose tokens are read by their ids.
uint32_t Masks::piece_of(uint32_t trie_nodes, uint32_t start, Reader& reader, engine::Budget& budget) {
  uint32_t known = piece_numbers_.find(trie_nodes, start);
  if (known != PairTable::kMissing) return known;
  Piece piece = Walk(*this, reader, budget).walk(trie_nodes, start);
  bool is_node = !network_.has_lexer() && start < kEmbedded && trie_nodes != kTokenIds;
  if (is_node && stacks_.has_hole(start)) piece.exits.push_back({0, trie_nodes});
  uint32_t number = add_piece(std::move(piece));
  piece_numbers_.add(trie_nodes, start, number);
  return number;
}

Masks::Branch Masks::behind(const std::vector<uint32_t>& trie_nodes, Node below, Reader& reader,
                            engine::Budget& budget) {
  uint32_t list = list_of(trie_nodes);
  if (!network_.has_lexer()) return {list, below, 0, false};
  LexerPlace place = reader.behind(below, budget);
  return {list, place.node, place.lexer_state, true};
}

bool Masks::has_end_behind_tokens(uint32_t state, engine::Budget& budget) {
  return !network_.has_lexer() ||
         std::all_of(network_.tokens_begin(state), network_.tokens_end(state), [&](const SymbolEdge& edge) {
           return sure_ways_.is_good(edge.target, ByteClassSets::kEmpty, budget);
         });
}

std::optional<std::vector<uint32_t>> Masks::pieces_of(Reader& reader, const std::vector<Branch>& branches,
                                                      const HasEnd& has_end, engine::Budget& budget) {
  if (is_full_) return std::nullopt;
  std::vector<Branch> pending = branches;
  std::set<Branch> seen(pending.begin(), pending.end());
  std::vector<uint32_t> numbers;
  // In an ambiguous grammar a rule often returns to what is already there.
  std::map<uint32_t, std::vector<Node>> seen_open;  // nodes that are not closed, by list of nodes of the trie
  auto is_there = [&](const Branch& branch) {
    if (branch.is_closed || network_.has_lexer()) return false;
    std::vector<Node>& nodes = seen_open[branch.trie_nodes];
    auto has_all = [&](Node node) { return reader.stacks().is_subset(branch.node, node, budget); };
    if (std::any_of(nodes.end() - ptrdiff_t(std::min(nodes.size(), kMaxCompared)), nodes.end(), has_all)) return true;
    nodes.push_back(branch.node);
    return false;
  };
  auto go_on = [&](const Branch& branch) {
    if (branch.node == Stacks::kDead || !seen.insert(branch).second || is_there(branch)) return;
    pending.push_back(branch);
  };
  bool are_ends_sure = true;
  auto add_token_ids = [&](const Item& item) {
    if (item.state >= kHole || network_.tokens_begin(item.state) == network_.tokens_end(item.state)) return;
    are_ends_sure = are_ends_sure && has_end_behind_tokens(item.state, budget);
    numbers.push_back(piece_of(kTokenIds, item.state, reader, budget));
  };
  while (!pending.empty()) {
    auto [trie_nodes, node, lexer_state, is_closed] = pending.back();
    pending.pop_back();
    budget.spend(1);
    bool is_in_front = trie_nodes == whole_trie_;
    if (network_.has_lexer()) {
      LexerPlace place = {node, lexer_state};
      if (is_in_front && network_.has_tokens()) {
        for (const Item& item : reader.stacks().items(reader.before_token(place, budget))) add_token_ids(item);
      }
      if (reader.is_between(place)) {
        for (const EmbeddedStart& start : reader.stacks().embedded_starts(node, budget)) {
          if (!has_end(reader.behind(start.below, budget))) continue;
          numbers.push_back(piece_of(trie_nodes, kEmbedded + start.language, reader, budget));
          for (const Exit& exit : piece(numbers.back()).exits) {
            LexerPlace behind = reader.behind(start.below, budget);
            go_on({exit.trie_nodes, behind.node, behind.lexer_state, true});
          }
        }
      }
      if (place.lexer_state == Lexer::kStuck) continue;
      numbers.push_back(piece_of(trie_nodes, place.lexer_state, reader, budget));
      const Piece& found = piece(numbers.back());
      for (const Guarded& guarded : found.guarded) {
        if (has_end({node, guarded.lexer_state})) numbers.push_back(guarded.piece);
      }
      for (const Exit& exit : found.exits) {
        LexerPlace behind = reader.behind_lexeme(node, exit.label, budget);
        go_on({exit.trie_nodes, behind.node, behind.lexer_state, true});
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
  if (is_full_ || !are_ends_sure) return std::nullopt;
  auto has_no_tokens = [this](uint32_t number) { return piece(number).tokens.is_empty(); };
  numbers.erase(std::remove_if(numbers.begin(), numbers.end(), has_no_tokens), numbers.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void Masks::add_tokens(const std::vector<uint32_t>& pieces, uint32_t* row) const {
  for (uint32_t number : pieces) piece(number).tokens.add_to(row);
}

const engine::Mask* Masks::mask(Reader& reader, const LexerPlace& place, const HasEnd& has_end,
                                engine::Budget& budget) {
  std::optional<std::vector<uint32_t>> numbers = pieces_of(reader, {at(place)}, has_end, budget);
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
                 after_.capacity() * sizeof(Next) + piece_numbers_.memory_bytes() + part_numbers_.memory_bytes() +
                 loops_.memory_bytes() + pieces_.size() * sizeof(Piece) + parts_.size() * sizeof(Part) + piece_bytes_ +
                 is_start_.capacity();
  return bytes + masks_.size() * kBytesPerKey;
}

}  // namespace structout::context_free
