#include "grammar/token_masks/masks.h"

#include <algorithm>
#include <utility>

#include "base/sorted_set.h"
#include "grammar/token_masks/mask_search.h"
#include "grammar/token_masks/summaries.h"
#include "grammar/token_masks/trie_walk.h"

namespace structout::context_free {

using engine::VocabularyTrie;

namespace {

constexpr size_t kBytesPerKey = 96;  // of the table, roughly

}  // namespace

Masks::Masks(const Network& network, Lexer& lexer, Completability& completability,
             std::shared_ptr<const VocabularyTrie> vocabulary)
    : network_(network),
      lexer_(lexer),
      completability_(completability),
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
  if (Summaries::is_of_use(network_)) summaries_ = std::make_unique<Summaries>(*this, network_, lexer_);
}

Masks::~Masks() = default;

Masks::Next Masks::computed_after(GssNode node, uint8_t byte, engine::Budget& budget) {
  GssNode next = stacks_.after(node, byte, budget);
  size_t num_classes = network_.num_byte_classes();
  after_.resize(stacks_.num_nodes() * num_classes);
  uint8_t unknowns = 0;
  static_assert(kMaxUnknownsOfMask <= 8 * sizeof unknowns);
  for (const StackTop* unknown = stacks_.unknowns_begin(next); unknown < stacks_.unknowns_end(next); ++unknown) {
    unknowns = uint8_t(unknowns | 1u << (unknown->state - kUnknownContext));
  }
  return after_[node * num_classes + network_.byte_class(byte)] = {next, unknowns, stacks_.reads_symbols(next),
                                                                   !stacks_.embedded_starts(next, budget).empty()};
}

// True if a word may end after any letter, directly or after a space: one letter leads to a
// state that the next letter leads back to, and that has an unknown context. Most tokens
// are words, so most of them would be continuations.
bool Masks::is_open_ended(GssNode start, engine::Budget& budget) {
  uint32_t known = is_open_ended_.find(start, 0);
  if (known != PairTable::kMissing) return known == 1;
  auto begins_word = [&](GssNode node) {
    GssNode word = after(node, 'a', budget).node;
    return word != Stacks::kDead && after(word, 'a', budget).node == word && stacks_.has_unknown(word);
  };
  bool result = begins_word(start) || begins_word(after(start, ' ', budget).node);
  is_open_ended_.add(start, 0, result);
  return result;
}

class Masks::UpperPart {
 public:
  UpperPart(const Stacks& from, Stacks& to, engine::Budget& budget) : from_(from), to_(to), budget_(budget) {}

  std::optional<GssNode> copied(GssNode node, uint32_t num_returns) {
    if (node == Stacks::kBottom || node == Stacks::kDead) return node;
    if (num_returns == 0) return unknown_for(node);
    if (++num_nodes_ > kMaxReturnNodes) return std::nullopt;
    std::vector<StackTop> tops = from_.tops(node);
    for (StackTop& top : tops) {
      std::optional<GssNode> below = copied(top.below, num_returns - 1);
      if (!below) return std::nullopt;
      top.below = *below;
    }
    return to_.node_of(tops, budget_);
  }

  // By unknown context: the real node.
  std::vector<GssNode> belows;

 private:
  std::optional<GssNode> unknown_for(GssNode node) {
    auto found = std::find(belows.begin(), belows.end(), node);
    if (found == belows.end()) {
      if (belows.size() == kMaxUnknownsOfMask) return std::nullopt;
      found = belows.insert(found, node);
    }
    return to_.unknown(uint32_t(found - belows.begin()));
  }

  const Stacks& from_;
  Stacks& to_;
  engine::Budget& budget_;
  uint32_t num_nodes_ = 0;
};

// A partial mask with a continuation in most of its tokens is of no use, since another
// partial mask must continue from all of these. So an open-ended start also takes in the
// rules that it returns to, one level after the other, until most words stay inside; two or
// three levels mostly suffice.
Masks::Start Masks::start_of(const StackTop& top, bool is_closed, Stacks& stacks, engine::Budget& budget) {
  Start start = {stacks_.above_unknown(top.state, is_closed, budget), {top.below}};
  if (!is_open_ended(start.node, budget)) return start;
  for (uint32_t num_returns = 1; num_returns <= kMaxReturns; ++num_returns) {
    UpperPart upper(stacks, stacks_, budget);
    std::optional<GssNode> below = upper.copied(top.below, num_returns);
    if (!below) break;
    GssNode node = stacks_.above(top.state, *below, is_closed, budget);
    if (!is_open_ended(node, budget)) return {node, std::move(upper.belows)};
  }
  return start;
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
  engine::make_set(trie_nodes);
  return trie_nodes_.number_of(trie_nodes);
}

void Masks::TokenSet::add_to(uint32_t* mask) const {
  for (uint32_t token : listed) mask[token >> 5] |= 1u << (token & 31);
  for (size_t i = 0; i < row.size(); ++i) mask[i] |= row[i];
}

size_t Masks::Fragment::memory_bytes() const {
  size_t bytes = tokens.memory_bytes();
  for (const auto& [label, nodes] : continuations) bytes += nodes.size() * sizeof(uint32_t);
  for (const auto& [lexer_state, listed] : guarded) bytes += listed.size() * sizeof(uint32_t);
  return bytes;
}

void Masks::add_bytes(size_t bytes) {
  mask_bytes_ += bytes;
  is_full_ = is_full_ || mask_bytes_ > kMaxMaskBytes;
}

uint32_t Masks::add_partial_mask(PartialMask partial) {
  add_bytes(partial.tokens.memory_bytes());
  partial_masks_.push_back(std::move(partial));
  return uint32_t(partial_masks_.size() - 1);
}

// Returns the number of a partial mask, which is walked on first use. `start`: a state of
// the lexer, a node of stacks_, a language from kEmbedded on, or, with kTokenIds, a state
// that matches tokens by their ids.
uint32_t Masks::partial_mask_of(uint32_t trie_nodes, uint32_t start, Reader& reader, engine::Budget& budget) {
  uint32_t known = partial_mask_numbers_.find(trie_nodes, start);
  if (known != PairTable::kMissing) return known;
  PartialMask partial = Walk(*this, reader, budget).walk(trie_nodes, start);
  bool is_node = !network_.has_lexer() && start < kEmbedded && trie_nodes != kTokenIds;
  if (is_node) {
    for (const StackTop* unknown = stacks_.unknowns_begin(start); unknown < stacks_.unknowns_end(start); ++unknown) {
      partial.continuations.push_back({unknown->state - kUnknownContext, trie_nodes});
    }
  }
  uint32_t number = add_partial_mask(std::move(partial));
  partial_mask_numbers_.add(trie_nodes, start, number);
  return number;
}

Masks::Branch Masks::branch_after(const std::vector<uint32_t>& trie_nodes, GssNode below, Reader& reader,
                                  engine::Budget& budget) {
  uint32_t list = list_of(trie_nodes);
  if (!network_.has_lexer()) return {list, below, 0, false};
  LexerConfiguration config = reader.after_embedded(below, budget);
  return {list, config.node, config.lexer_state, true};
}

std::optional<std::vector<uint32_t>> Masks::partial_masks_of(Reader& reader, const std::vector<Branch>& branches,
                                                             const HasEnd& has_end, engine::Budget& budget) {
  if (is_full_) return std::nullopt;
  // An ambiguous text may have any number of different tops, so summaries start anew once
  // they are large.
  if (summaries_ != nullptr && summaries_->memory_bytes() > kMaxSummaryBytes) {
    summaries_ = std::make_unique<Summaries>(*this, network_, lexer_);
  }
  return MaskSearch(*this, reader, has_end, budget).partial_masks(branches);
}

void Masks::add_tokens(const std::vector<uint32_t>& partial_masks, uint32_t* row) const {
  for (uint32_t number : partial_masks) partial_mask(number).tokens.add_to(row);
}

const engine::Mask* Masks::mask(Reader& reader, const LexerConfiguration& config, const HasEnd& has_end,
                                engine::Budget& budget) {
  std::optional<std::vector<uint32_t>> numbers = partial_masks_of(reader, {at(config)}, has_end, budget);
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
                 after_.capacity() * sizeof(Next) + partial_mask_numbers_.memory_bytes() +
                 fragment_numbers_.memory_bytes() + is_open_ended_.memory_bytes() + loops_.memory_bytes() +
                 branches_.memory_bytes() + partial_masks_.size() * sizeof(PartialMask) +
                 fragments_.size() * sizeof(Fragment) + mask_bytes_ + is_start_.capacity();
  if (summaries_ != nullptr) bytes += summaries_->memory_bytes();
  return bytes + masks_.size() * kBytesPerKey;
}

}  // namespace structout::context_free
