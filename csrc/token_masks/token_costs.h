// The tokens that a text still needs after each token that may come next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
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
  TokenCosts(uint32_t own, uint32_t usual, std::vector<std::pair<uint32_t, uint32_t>> others,
             std::optional<uint32_t> values_to_come = std::nullopt)
      : own(own), usual(usual), values_to_come(values_to_come) {
    std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    for (size_t i = 0; i < others.size(); ++i) {
      bool is_last = i + 1 == others.size() || others[i].second != others[i + 1].second;
      if (is_last && others[i].first != usual) others_.push_back(others[i]);
    }
    std::sort(others_.begin(), others_.end());
    others_.shrink_to_fit();
  }

  // The costs of the tokens that a row allows. `after` holds the cost after each token of the
  // vocabulary. The most frequent one becomes the usual one.
  static TokenCosts of_row(uint32_t own, const std::vector<uint32_t>& after, const uint32_t* row) {
    std::unordered_map<uint32_t, uint32_t> numbers;  // of tokens, by cost
    std::pair<const uint32_t, uint32_t>* last = nullptr;
    for (uint32_t token = 0; token < after.size(); ++token) {
      if (!allows(row, token)) continue;
      if (last == nullptr || last->first != after[token]) last = &*numbers.try_emplace(after[token], 0).first;
      ++last->second;
    }
    auto has_less = [](const auto& a, const auto& b) { return a.second < b.second; };
    auto usual = std::max_element(numbers.begin(), numbers.end(), has_less);
    if (usual == numbers.end()) return {own, kUnknownCost, {}};
    std::vector<std::pair<uint32_t, uint32_t>> others;
    for (uint32_t token = 0; token < after.size(); ++token) {
      if (after[token] != usual->first && allows(row, token)) others.emplace_back(after[token], token);
    }
    return {own, usual->first, std::move(others)};
  }

  const uint32_t own, usual;
  const std::optional<uint32_t> values_to_come;  // in the ending, where FairLimit counts

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
      if (!row.allows(other->second)) continue;
      kept.push_back(other->second);
      row.set(other->second, false);
    }
    has_changed = row.allows_any();
    row.write(kNoTokens);
    for (uint32_t token : kept) row.set(token, true);
    return has_changed;
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

  uint32_t most() const { return cost_sum(costs->most(), more); }
};

// How a text shares the tokens that its limit leaves above its least cost. Each value that
// still has to come keeps a share of them, of kShare tokens at most, and none may be taken by
// what brings the end no nearer, such as whitespace. What need not come, such as another key,
// begins only with kMore to spare beside them. Strings and numbers that have begun take what
// they need: half of a name is worth no more than none.
struct FairLimit {
  static constexpr uint32_t kShare = 5, kMore = 8, kMostReserve = 40, kMostKept = kMostReserve + kMore;

  uint32_t spare = 0, num_values = 0;  // of the whole text

  // The cost that a token may leave, if `max` is the most that can be completed in time. The
  // tokens that bring the end nearer stay below it.
  uint32_t max_after(const TokenCosts& costs, uint32_t max) const {
    if (!costs.values_to_come || costs.own == 0) return max;
    uint32_t share = num_values == 0 ? kShare : std::min(kShare, spare / num_values);
    auto reserve = uint32_t(std::min<uint64_t>(kMostReserve, uint64_t(share) * *costs.values_to_come));
    if (max > costs.own + reserve + kMore) return max - reserve - kMore;
    return max >= costs.own + reserve ? costs.own : costs.own - 1;
  }
};

}  // namespace structout::engine
