#include "grammar/token_masks/summaries.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/sorted_set.h"

namespace structout::context_free {

bool Masks::Summaries::is_of_use(const Network& network) {
  const std::vector<Terminal>& terminals = network.terminals();
  auto has_stop = [](const Terminal& terminal) { return !terminal.options.stop.empty(); };
  return network.has_lexer() && network.embedded().empty() && !network.has_tokens() && !network.has_token_limits() &&
         std::none_of(terminals.begin(), terminals.end(), has_stop);
}

Masks::Summaries::Tops::Tops(Summaries& summaries, Stacks& stacks, GssNode node, engine::Budget& budget)
    : from_(summaries.reader_.stacks()), to_(stacks) {
  Stacks& above_unknowns = summaries.reader_.stacks();
  std::vector<StackTop> tops;
  for (const StackTop& top : stacks.tops(node)) {
    if (top.state == kEndOfText) {  // ignored lexemes may follow here
      tops.push_back(top);
      continue;
    }
    auto unknown = std::find(belows_.begin(), belows_.end(), top.below);
    if (unknown == belows_.end()) {
      if (belows_.size() == kMaxUnknowns) return;
      unknown = belows_.insert(unknown, top.below);
    }
    tops.push_back({top.state, above_unknowns.unknown(uint32_t(unknown - belows_.begin()))});
  }
  node_ = above_unknowns.node_of(tops, budget);
}

const Masks::Summaries::Summary& Masks::Summaries::of(uint32_t trie_nodes, GssNode tops, uint32_t lexer_state,
                                                      engine::Budget& budget) {
  uint32_t start = start_numbers_.find(tops, lexer_state);
  if (start == PairTable::kMissing) start_numbers_.add(tops, lexer_state, start = num_starts_++);
  uint32_t number = numbers_.find(trie_nodes, start);
  if (number != PairTable::kMissing) return summaries_[number];
  summaries_.push_back(computed(trie_nodes, tops, lexer_state, budget));
  const Summary& summary = summaries_.back();
  numbers_.add(trie_nodes, start, uint32_t(summaries_.size() - 1));
  summary_bytes_ += summary.partial_masks.size() * sizeof(uint32_t) + summary.endings.size() * sizeof(Ending) +
                    summary.continuations.size() * sizeof(Continuation);
  return summary;
}

// Joins the partial mask at the start and the summaries after its continuations. These are
// summaries of their own tops, since the lexemes after a nested text are a part of many
// summaries. The recursion ends, as continuations lead down the trie.
Masks::Summaries::Summary Masks::Summaries::computed(uint32_t trie_nodes, GssNode tops, uint32_t lexer_state,
                                                     engine::Budget& budget) {
  Summary summary;
  uint32_t number = masks_.partial_mask_of(trie_nodes, lexer_state, reader_, budget);
  const PartialMask& partial = masks_.partial_mask(number);
  if (!partial.tokens.is_empty()) summary.partial_masks.push_back(number);
  for (const Guarded& guarded : partial.guarded)
    summary.endings.push_back({tops, guarded.lexer_state, guarded.partial});
  std::vector<Continuation> pending;
  std::set<std::tuple<uint32_t, GssNode, bool>> seen;
  auto continue_at = [&](const Continuation& continuation) {
    if (continuation.node == Stacks::kDead ||
        !seen.insert({continuation.trie_nodes, continuation.node, continuation.may_ignore}).second)
      return;
    (reader_.stacks().has_unknown(continuation.node) ? summary.continuations : pending).push_back(continuation);
  };
  for (const Masks::Continuation& continuation : partial.continuations) {
    continue_at({continuation.trie_nodes, reader_.after_lexeme(tops, continuation.label, budget),
                 reader_.may_ignore_after(continuation.label)});
  }
  std::unordered_map<GssNode, Tops> by_node;
  while (!pending.empty()) {
    Continuation begin = pending.back();
    pending.pop_back();
    budget.spend(1);
    uint32_t start = reader_.lexer_start(begin.node, begin.may_ignore);
    if (start == Lexer::kStuck) continue;
    Tops& inner = by_node.try_emplace(begin.node, *this, reader_.stacks(), begin.node, budget).first->second;
    if (inner.node() == Stacks::kDead) {
      summary.continuations.push_back(begin);
      continue;
    }
    const Summary& rest = of(begin.trie_nodes, inner.node(), start, budget);
    summary.partial_masks.insert(summary.partial_masks.end(), rest.partial_masks.begin(), rest.partial_masks.end());
    for (const Ending& ending : rest.endings) {
      summary.endings.push_back({inner.filled(ending.node, false, budget), ending.lexer_state, ending.partial});
    }
    for (const Continuation& continuation : rest.continuations) {
      continue_at({continuation.trie_nodes, inner.filled(continuation.node, false, budget), continuation.may_ignore});
    }
  }
  engine::make_set(summary.partial_masks);
  return summary;
}

GssNode Masks::Summaries::Tops::filled(GssNode node, bool is_below, engine::Budget& budget) {
  auto [known, is_new] = known_.try_emplace(uint64_t(node) << 1 | uint64_t(is_below), Stacks::kDead);
  if (!is_new) return known->second;
  std::vector<StackTop> tops;
  for (const StackTop& top : from_.tops(node)) {
    if (top.state == kEndOfText) {
      tops.push_back(top);
    } else if (top.state >= kUnknownContext) {
      GssNode below = belows_[top.state - kUnknownContext];
      GssNode real = is_below ? below : to_.returned(below, budget);
      if (from_.begin(node) + 1 == from_.end(node)) return known_[uint64_t(node) << 1 | uint64_t(is_below)] = real;
      tops.insert(tops.end(), to_.begin(real), to_.end(real));
    } else {
      tops.push_back({top.state, filled(top.below, true, budget)});
    }
  }
  GssNode result = to_.node_of(tops, budget);
  return known_[uint64_t(node) << 1 | uint64_t(is_below)] = result;
}

size_t Masks::Summaries::memory_bytes() const {
  return reader_.memory_bytes() + start_numbers_.memory_bytes() + numbers_.memory_bytes() +
         summaries_.size() * sizeof(Summary) + summary_bytes_;
}

}  // namespace structout::context_free
