#include "grammar/token_masks/mask_search.h"

#include <algorithm>

#include "base/sorted_set.h"

namespace structout::context_free {

namespace {

constexpr size_t kMaxComparedBelow = 4;  // nodes of earlier branches that a new one is compared with

}  // namespace

std::optional<std::vector<uint32_t>> Masks::MaskSearch::partial_masks(const std::vector<Branch>& branches) {
  masks_.branches_.clear();
  for (const Branch& branch : branches) {
    if (masks_.branches_.insert(branch)) pending_.push_back(branch);
  }
  while (!pending_.empty()) {
    Branch branch = pending_.back();
    pending_.pop_back();
    budget_.spend(1);
    network_.has_lexer() ? follow_lexemes(branch) : follow_rules(branch);
  }
  if (masks_.is_full_ || !are_ends_sure_) return std::nullopt;
  auto has_no_tokens = [this](uint32_t number) { return masks_.partial_mask(number).tokens.is_empty(); };
  numbers_.erase(std::remove_if(numbers_.begin(), numbers_.end(), has_no_tokens), numbers_.end());
  engine::make_set(numbers_);
  return std::move(numbers_);
}

void Masks::MaskSearch::continue_at(const Branch& branch) {
  if (branch.node == Stacks::kDead || !masks_.branches_.insert(branch) || is_there(branch)) return;
  pending_.push_back(branch);
}

// True if a recent branch at the same nodes of the trie has all stacks of this one, as
// often in ambiguous grammars, whose rules return to stacks that are already there.
// Otherwise remembers this one.
bool Masks::MaskSearch::is_there(const Branch& branch) {
  if (branch.is_closed || network_.has_lexer()) return false;
  std::vector<GssNode>& nodes = open_nodes_[branch.trie_nodes];
  auto has_all = [&](GssNode node) { return reader_.stacks().is_subset(branch.node, node, budget_); };
  if (std::any_of(nodes.end() - ptrdiff_t(std::min(nodes.size(), kMaxComparedBelow)), nodes.end(), has_all))
    return true;
  nodes.push_back(branch.node);
  return false;
}

// Follows a branch by the summary of the states on top of it. Returns false if there are no
// summaries, or if the top needs too many unknown contexts.
bool Masks::MaskSearch::follow_summary(const Branch& branch) {
  if (masks_.summaries_ == nullptr) return false;
  if (branch.lexer_state == Lexer::kStuck) return true;
  auto found = tops_by_node_.find(branch.node);
  if (found == tops_by_node_.end()) {
    found = tops_by_node_.try_emplace(branch.node, *masks_.summaries_, reader_.stacks(), branch.node, budget_).first;
  }
  Summaries::Tops& tops = found->second;
  if (tops.node() == Stacks::kDead) return false;
  const Summaries::Summary& summary =
      masks_.summaries_->of(branch.trie_nodes, tops.node(), branch.lexer_state, budget_);
  numbers_.insert(numbers_.end(), summary.partial_masks.begin(), summary.partial_masks.end());
  for (const Summaries::Ending& ending : summary.endings) {
    if (has_end_({tops.filled(ending.node, false, budget_), ending.lexer_state})) numbers_.push_back(ending.partial);
  }
  for (const Summaries::Continuation& continuation : summary.continuations) {
    GssNode next = tops.filled(continuation.node, false, budget_);
    continue_at({continuation.trie_nodes, next, reader_.lexer_start(next, continuation.may_ignore), true});
  }
  return true;
}

void Masks::MaskSearch::follow_lexemes(const Branch& branch) {
  if (follow_summary(branch)) return;
  LexerConfiguration config = {branch.node, branch.lexer_state};
  if (is_in_front(branch)) {
    for (const StackTop& top : reader_.stacks().tops(reader_.before_token(config, budget_))) add_token_ids(top);
  }
  if (!network_.embedded().empty() && reader_.is_between(config)) begin_embedded(branch);
  if (config.lexer_state == Lexer::kStuck) return;
  const PartialMask& found = masks_.partial_mask(add_partial_mask(branch.trie_nodes, config.lexer_state));
  for (const Guarded& guarded : found.guarded) {
    if (has_end_({config.node, guarded.lexer_state})) numbers_.push_back(guarded.partial);
  }
  for (const Continuation& continuation : found.continuations) {
    LexerConfiguration next = reader_.config_after_lexeme(config.node, continuation.label, budget_);
    continue_at({continuation.trie_nodes, next.node, next.lexer_state, true});
  }
}

void Masks::MaskSearch::begin_embedded(const Branch& branch) {
  for (const EmbeddedStart& start : reader_.stacks().embedded_starts(branch.node, budget_)) {
    LexerConfiguration after = reader_.after_embedded(start.below, budget_);
    if (!has_end_(after)) continue;
    const PartialMask& found = masks_.partial_mask(add_partial_mask(branch.trie_nodes, kEmbedded + start.language));
    for (const Continuation& continuation : found.continuations)
      continue_at({continuation.trie_nodes, after.node, after.lexer_state, true});
  }
}

void Masks::MaskSearch::follow_rules(const Branch& branch) {
  for (const StackTop& top : reader_.stacks().tops(branch.node)) {
    if (top.state >= kUnknownContext) continue;
    if (is_in_front(branch)) add_token_ids(top);
    Start start = masks_.start_of(top, branch.is_closed, reader_.stacks(), budget_);
    const PartialMask& found = masks_.partial_mask(add_partial_mask(branch.trie_nodes, start.node));
    for (const Continuation& continuation : found.continuations)
      continue_at({continuation.trie_nodes, start.belows[continuation.label], 0, false});
  }
}

uint32_t Masks::MaskSearch::add_partial_mask(uint32_t trie_nodes, uint32_t start) {
  numbers_.push_back(masks_.partial_mask_of(trie_nodes, start, reader_, budget_));
  return numbers_.back();
}

void Masks::MaskSearch::add_token_ids(const StackTop& top) {
  if (top.state >= kUnknownContext || network_.tokens_begin(top.state) == network_.tokens_end(top.state)) return;
  are_ends_sure_ = are_ends_sure_ && has_end_after_tokens(top.state);
  add_partial_mask(kTokenIds, top.state);
}

bool Masks::MaskSearch::has_end_after_tokens(uint32_t state) {
  return !network_.has_lexer() ||
         std::all_of(network_.tokens_begin(state), network_.tokens_end(state), [&](const SymbolEdge& edge) {
           return masks_.completability_.is_completable_at(edge.target, ByteClassSets::kEmpty, budget_);
         });
}

}  // namespace structout::context_free
