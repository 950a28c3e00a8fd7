// The tokens that a text still needs after each token that may come next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "token_masks/endings.h"
#include "token_masks/mask_row.h"

namespace structout::engine {

// A cost is an upper bound on the tokens to the end of a text, without a stop token. It is
// consistent: 0 only where the text may end, and from each configuration with a larger one
// some token leads to a configuration whose cost is at least one less. So a mask of the
// tokens with a cost of at most `left - 2`, of a text with `left` tokens left, is never empty
// while the cost of the text is at most `left - 1`: the last one is the stop token.
class TokenCosts {
 public:
  // `own`: the cost of the configuration. `usual`: the cost after all tokens that are not in
  // `others`, whose pairs are a cost and a token; of several pairs of a token the last counts.
  TokenCosts(uint32_t own, uint32_t usual, std::vector<std::pair<uint32_t, uint32_t>> others) : own(own), usual(usual) {
    std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    for (size_t i = 0; i < others.size(); ++i) {
      bool is_last = i + 1 == others.size() || others[i].second != others[i + 1].second;
      if (is_last && others[i].first != usual) others_.push_back(others[i]);
    }
    std::sort(others_.begin(), others_.end());
    others_.shrink_to_fit();
  }

  const uint32_t own, usual;

  // By increasing costs.
  const std::vector<std::pair<uint32_t, uint32_t>>& others() const { return others_; }

  uint32_t most() const { return others_.empty() ? usual : std::max(usual, others_.back().first); }

  uint32_t after(uint32_t token) const {
    auto found = std::find_if(others_.begin(), others_.end(), [&](const auto& each) { return each.second == token; });
    return found == others_.end() ? usual : found->first;
  }

  // Forbids the tokens of a row after which the cost is more than `max`. Returns true if
  // there were any.
  bool narrow(uint32_t max, MaskRow& row) const {
    auto first_above = std::upper_bound(others_.begin(), others_.end(), std::pair(max, UINT32_MAX));
    bool has_changed = false;
    if (usual <= max) {
      for (auto other = first_above; other < others_.end(); ++other) {
        has_changed = has_changed || row.allows(other->second);
        row.set(other->second, false);
      }
      return has_changed;
    }
    std::vector<uint32_t> kept;
    for (auto other = others_.begin(); other < first_above; ++other) {
      if (row.allows(other->second)) kept.push_back(other->second);
    }
    row.write(kNoTokens);
    for (uint32_t token : kept) row.set(token, true);
    return true;
  }

  // Writes the cost after each token of the vocabulary.
  void write_to(std::vector<uint32_t>& after) const {
    std::fill(after.begin(), after.end(), usual);
    for (auto [cost, token] : others_) after[token] = cost;
  }

  size_t memory_bytes() const { return sizeof *this + others_.capacity() * sizeof(others_[0]); }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> others_;
};

// Costs that are all larger by `more` than those of a table. Null: none of them matters.
struct CostTable {
  std::shared_ptr<const TokenCosts> costs = nullptr;
  uint32_t more = 0;

  uint32_t most() const { return costs->most() == kUnknownCost ? kUnknownCost : costs->most() + more; }
};

}  // namespace structout::engine
