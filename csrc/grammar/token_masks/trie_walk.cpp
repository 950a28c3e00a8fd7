#include "grammar/token_masks/trie_walk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/sorted_set.h"

namespace structout::context_free {

using engine::VocabularyTrie;

Masks::PartialMask Masks::Walk::walk(uint32_t trie_nodes, uint32_t start) {
  if (trie_nodes == kTokenIds) {
    add_token_ids(start);
  } else if (start >= kEmbedded) {
    walk_embedded(masks_.trie_nodes_.list(trie_nodes), start - kEmbedded);
  } else if (masks_.network_.has_lexer()) {
    walk_lexemes(masks_.trie_nodes_.list(trie_nodes), start);
  } else {
    walk_all_rules(trie_nodes, start);
  }
  PartialMask partial;
  partial.tokens = token_set();
  for (auto& [label, list] : continuations_)
    partial.continuations.push_back({label, masks_.trie_nodes_.number_of(list)});
  for (auto& [lexer_state, tokens] : guarded_) {
    PartialMask of_state;
    of_state.tokens = set_of(tokens);
    partial.guarded.push_back({lexer_state, masks_.add_partial_mask(std::move(of_state))});
  }
  return partial;
}

Masks::Fragment Masks::Walk::walk_below(uint32_t node, uint32_t state) {
  if (masks_.network_.has_lexer()) {
    states_[vocabulary_.nodes()[node].depth + 1] = state;
    vocabulary_.visit_below(
        node, [&](uint32_t child, uint8_t byte, uint32_t depth) { return read_lexeme(child, byte, depth); });
  } else {
    walk_rules({node}, state);
    list_continuations();
  }
  return {token_set(), {continuations_.begin(), continuations_.end()}, {guarded_.begin(), guarded_.end()}};
}

bool Masks::Walk::add_fragment(uint32_t node, uint32_t state) {
  if (vocabulary_.nodes()[node].end - node < kMinNodesOfFragment) return false;
  if (!masks_.network_.has_lexer() && !masks_.network_.embedded().empty()) return false;
  uint32_t number = masks_.fragment_numbers_.find(node, state);
  if (number == PairTable::kMissing) {
    Fragment walked = Walk(masks_, reader_, budget_).walk_below(node, state);
    number = uint32_t(masks_.fragments_.size());
    masks_.add_bytes(walked.memory_bytes());
    masks_.fragments_.push_back(std::move(walked));
    masks_.fragment_numbers_.add(node, state, number);
  }
  const Fragment& fragment = masks_.fragments_[number];
  tokens_.insert(tokens_.end(), fragment.tokens.listed.begin(), fragment.tokens.listed.end());
  add_row(fragment.tokens.row);
  for (const auto& [label, nodes] : fragment.continuations) {
    std::vector<uint32_t>& continuations = masks_.network_.has_lexer() ? continuations_[label] : ends_[label];
    continuations.insert(continuations.end(), nodes.begin(), nodes.end());
  }
  for (const auto& [lexer_state, tokens] : fragment.guarded) {
    guarded_[lexer_state].insert(guarded_[lexer_state].end(), tokens.begin(), tokens.end());
  }
  return true;
}

void Masks::Walk::add_row(const std::vector<uint32_t>& row) {
  if (row_.empty()) row_ = row;
  for (size_t i = 0; i < row.size(); ++i) row_[i] |= row[i];
}

void Masks::Walk::count_step() {
  if (++masks_.num_trie_steps_ % kTrieStepsPerUnit == 0) budget_.spend(1);
}

Masks::TokenSet Masks::Walk::set_of(const std::vector<uint32_t>& tokens) const {
  if (tokens.size() <= masks_.row_.size() / kWordsPerListedToken) return {tokens, {}};
  TokenSet set{{}, std::vector<uint32_t>(masks_.row_.size())};
  for (uint32_t token : tokens) set.row[token >> 5] |= 1u << (token & 31);
  return set;
}

Masks::TokenSet Masks::Walk::token_set() const {
  if (row_.empty()) return set_of(tokens_);
  TokenSet set{{}, row_};
  for (uint32_t token : tokens_) set.row[token >> 5] |= 1u << (token & 31);
  return set;
}

void Masks::Walk::add_tokens(uint32_t node, std::vector<uint32_t>& tokens) {
  uint32_t end = vocabulary_.nodes()[node].tokens_end;
  for (uint32_t i = vocabulary_.first_token(node); i < end; ++i) tokens.push_back(vocabulary_.tokens()[i]);
}

void Masks::Walk::add_token_ids(uint32_t state) {
  for (auto edge = masks_.network_.tokens_begin(state); edge < masks_.network_.tokens_end(state); ++edge) {
    for (uint32_t symbol = edge->first; symbol <= edge->last && symbol - kFirstToken < vocabulary_.size(); ++symbol) {
      tokens_.push_back(symbol - kFirstToken);
    }
  }
}

bool Masks::Walk::add_loop(uint32_t node, uint32_t state) {
  uint32_t end = vocabulary_.nodes()[node].end;
  if (end == node + 1) return true;
  bool has_lexer = masks_.network_.has_lexer();
  auto after = [&](uint32_t from, uint8_t byte) {
    return has_lexer ? masks_.lexer_.after(from, byte, budget_) : masks_.after(from, byte, budget_).node;
  };
  // If it is not sure that texts at the state can be finished, either all texts in the loop
  // can or none: the only way out of a character leads back to the state.
  auto is_usual = [&](uint32_t of) {
    if (has_lexer) return of == state || leads_like(of, masks_.completability_.is_completable(state, budget_));
    return of != Stacks::kDead && !masks_.stacks_.has_unknown(of) &&
           masks_.stacks_.embedded_starts(of, budget_).empty();
  };
  auto is_dead = [&](uint32_t from, uint32_t next) {
    return has_lexer ? next == Lexer::kStuck && masks_.lexer_.accepted(from) == 0 : next == Stacks::kDead;
  };
  Loops::Point point = masks_.loops_.point_of(state, after, is_usual, is_dead);
  const Loop& loop = masks_.loops_.loop(point.state);
  Below below = below_in(loop, vocabulary_.bytes_below(), node, point.utf8_state);
  if (below == Below::kUnknown || below == Below::kNone) return below == Below::kNone;
  bool is_sure = !has_lexer || masks_.completability_.is_completable(point.state, budget_);
  std::vector<uint32_t>& to = is_sure ? tokens_ : guarded_[point.state];
  if (below == Below::kAll) {
    auto tokens = vocabulary_.tokens().begin();
    to.insert(to.end(), tokens + vocabulary_.nodes()[node].tokens_end,
              tokens + vocabulary_.nodes()[end - 1].tokens_end);
    return true;
  }
  uint32_t skipped = std::min<uint32_t>(vocabulary_.nodes()[node].depth + 1, engine::BytesBelow::kMaxSkipped);
  if (!is_path_of(loop.groups, skipped, node, point.utf8_state)) return false;
  add_those_like(loop.groups, skipped, node, to);
  return true;
}

void Masks::Walk::add_those_like(engine::ByteGroups groups, uint32_t skipped, uint32_t node,
                                 std::vector<uint32_t>& to) {
  const engine::ByteGroups* of_tokens = vocabulary_.bytes_below().of_tokens(skipped);
  const VocabularyTrie::Node* nodes = vocabulary_.nodes().data();
  uint32_t first = nodes[node].tokens_end, end = nodes[nodes[node].end - 1].tokens_end;
  size_t size = to.size();
  to.resize(size + (end - first));
  for (uint32_t i = first; i < end; ++i) {
    to[size] = vocabulary_.tokens()[i];
    size += (of_tokens[i] & ~groups) == 0;
  }
  to.resize(size);
}

bool Masks::Walk::is_path_of(engine::ByteGroups groups, uint32_t skipped, uint32_t node, uint8_t utf8_state) const {
  namespace utf8 = engine::utf8;
  const VocabularyTrie::Node& last = vocabulary_.nodes()[node];
  const uint8_t* bytes = vocabulary_.begin(vocabulary_.tokens()[last.tokens_end]);  // of the first token below
  uint8_t state = utf8::kBetween;
  for (uint32_t i = skipped; i <= last.depth && state != utf8::kInvalid; ++i) {
    if ((engine::BytesBelow::group_of(bytes[i]) & ~groups) != 0) return false;
    state = utf8::after(state, bytes[i]);
  }
  return state == utf8_state;
}

bool Masks::Walk::leads_like(uint32_t inside_character, bool is_sure) {
  if (inside_character == Lexer::kStuck) return false;
  if (is_sure) return masks_.completability_.is_completable(inside_character, budget_);
  if (masks_.lexer_.accepted(inside_character) != 0) return false;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bool is_inner = byte >= 0x80 && byte < 0xC0;
    if (!is_inner && masks_.lexer_.after(inside_character, uint8_t(byte), budget_) != Lexer::kStuck) return false;
  }
  return true;
}

void Masks::Walk::walk_embedded(const std::vector<uint32_t>& nodes, uint32_t language) {
  std::shared_ptr<engine::EmbeddedCache> shared = reader_.embedded().current(language);
  engine::EmbeddedCache& cache = reader_.embedded().locked(shared);
  std::vector<engine::ConfigurationPtr> configs(vocabulary_.max_depth() + 1);  // before each byte
  std::vector<uint32_t> ends;
  auto read = [&](uint32_t node, uint8_t byte, uint32_t depth) {
    budget_.spend(1);
    const uint8_t* at = &byte;
    engine::ConfigurationPtr next = cache.after(*configs[depth], at, at + 1);
    if (next == nullptr) return false;
    if (vocabulary_.first_token(node) < vocabulary_.nodes()[node].tokens_end && cache.has_end(*next)) {
      add_tokens(node, tokens_);
    }
    bool has_more = vocabulary_.nodes()[node].end > node + 1, may_end = cache.may_end(*next);
    if (may_end && has_more) ends.push_back(node);
    if (!has_more || (may_end && !cache.may_continue(*next))) return false;
    configs[depth + 1] = std::move(next);
    return true;
  };
  for (uint32_t node : nodes) {
    bool is_root = node == VocabularyTrie::kRoot;
    uint32_t depth = is_root ? 0 : vocabulary_.nodes()[node].depth;
    if (masks_.network_.has_lexer()) {
      configs[depth] = cache.start();
      if (!read(node, vocabulary_.nodes()[node].byte, depth)) continue;
    } else {
      configs[is_root ? 0 : depth + 1] = cache.start();
    }
    vocabulary_.visit_below(node, read);
  }
  if (!ends.empty()) continuations_[0] = masks_.trie_nodes_.list(masks_.list_of(std::move(ends)));
}

void Masks::Walk::walk_lexemes(const std::vector<uint32_t>& nodes, uint32_t start) {
  for (uint32_t node : nodes) {
    const VocabularyTrie::Node& first = vocabulary_.nodes()[node];
    states_[first.depth] = start;
    if (!read_lexeme(node, first.byte, first.depth) || first.end == node + 1) continue;
    vocabulary_.visit_below(
        node, [&](uint32_t child, uint8_t byte, uint32_t depth) { return read_lexeme(child, byte, depth); });
  }
}

bool Masks::Walk::read_lexeme(uint32_t node, uint8_t byte, uint32_t depth) {
  count_step();
  uint32_t before = states_[depth], next = masks_.lexer_.after(before, byte, budget_);
  if (next == Lexer::kStuck) {
    uint32_t accepted = masks_.lexer_.accepted(before);
    if (accepted != 0) continuations_[accepted].push_back(node);
    return false;
  }
  states_[depth + 1] = next;
  if (vocabulary_.first_token(node) < vocabulary_.nodes()[node].tokens_end) {
    add_tokens(node, masks_.completability_.is_completable(next, budget_) ? tokens_ : guarded_[next]);
  }
  return !add_loop(node, next) && !add_fragment(node, next);
}

void Masks::Walk::walk_all_rules(uint32_t trie_nodes, GssNode start) {
  using Begin = std::pair<uint32_t, GssNode>;  // a list of nodes of the trie, and what follows there
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
      const PartialMask& partial =
          masks_.partial_mask(masks_.partial_mask_of(masks_.list_of(begins), kEmbedded + language, reader_, budget_));
      add_all_tokens(partial);
      GssNode next = masks_.stacks_.returned(below, budget_);
      for (const Continuation& continuation : partial.continuations) {
        for (const StackTop* unknown = masks_.stacks_.unknowns_begin(next); unknown < masks_.stacks_.unknowns_end(next);
             ++unknown) {
          std::vector<uint32_t> ends = masks_.trie_nodes_.list(continuation.trie_nodes);
          ends_[unknown->state - kUnknownContext].insert(ends_[unknown->state - kUnknownContext].end(), ends.begin(),
                                                         ends.end());
        }
        bool continues = masks_.stacks_.reads_symbols(next) && seen.insert({continuation.trie_nodes, next}).second;
        if (continues) pending.emplace_back(continuation.trie_nodes, next);
      }
    }
  }
  list_continuations();
}

void Masks::Walk::list_continuations() {
  for (uint32_t unknown = 0; unknown < ends_.size(); ++unknown) {
    if (ends_[unknown].empty()) continue;
    engine::make_set(ends_[unknown]);
    continuations_[unknown] = std::move(ends_[unknown]);
  }
}

void Masks::Walk::add_all_tokens(const PartialMask& partial) {
  tokens_.insert(tokens_.end(), partial.tokens.listed.begin(), partial.tokens.listed.end());
  add_row(partial.tokens.row);
}

void Masks::Walk::begin_embedded(GssNode node, const std::vector<uint32_t>& trie_nodes) {
  for (const EmbeddedStart& start : masks_.stacks_.embedded_starts(node, budget_)) {
    std::vector<uint32_t>& list = embedded_[{start.language, start.below}];
    list.insert(list.end(), trie_nodes.begin(), trie_nodes.end());
  }
}

void Masks::Walk::walk_rules(const std::vector<uint32_t>& nodes, GssNode start) {
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
    if (!is_root && add_loop(node, start)) continue;
    states_[is_root ? 0 : all[node].depth + 1] = start;
    uint32_t end = is_root ? uint32_t(all.size()) : all[node].end;
    for (uint32_t child = is_root ? 0 : node + 1; child < end;) {
      count_step();
      const VocabularyTrie::Node& read = all[child];
      Next next = masks_.after(states_[read.depth], read.byte, budget_);
      if (next.node != Stacks::kDead) {
        add_tokens(child, tokens_);
        for (uint32_t unknown = 0, left = read.end > child + 1 ? next.unknowns : 0; left != 0; ++unknown, left >>= 1) {
          if ((left & 1) != 0) ends_[unknown].push_back(child);
        }
        if (next.begins_embedded && read.end > child + 1) begin_embedded(next.node, {child});
        if (is_start[child]) {
          is_start[child] = 0;
          next.node = masks_.stacks_.united({next.node, start}, budget_);
          next.reads_symbols = true;
        }
        states_[read.depth + 1] = next.node;
        // A start below this child has its own walk then.
        if (next.reads_symbols && add_loop(child, next.node)) next.reads_symbols = false;
        if (next.reads_symbols && read.end - child >= kMinNodesOfFragment) {
          bool has_starts = nodes.size() > 1 && std::upper_bound(nodes.begin(), nodes.end(), child) !=
                                                    std::lower_bound(nodes.begin(), nodes.end(), read.end);
          if (!has_starts && add_fragment(child, next.node)) next.reads_symbols = false;
        }
      }
      child = next.reads_symbols ? child + 1 : read.end;
    }
  }
}

}  // namespace structout::context_free
