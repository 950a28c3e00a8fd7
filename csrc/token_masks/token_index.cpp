#include "token_masks/token_index.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/byte_stream.h"
#include "base/hash.h"

namespace structout::engine {

namespace {

constexpr ptrdiff_t kScannedEdges = 3;             // a state with more has a dense row
constexpr size_t kMaxDenseWords = 8u << 20;        // more states than fit are searched
constexpr size_t kMaxWalkedNodes = 8u << 20;       // of the vocabulary's trie, to find the fewest tokens
constexpr size_t kMaxTokenCostsBytes = 16u << 20;  // beyond, costs after tokens are not kept
const std::string kMagic = "structout token index\n";
constexpr uint32_t kVersion = 1;

}  // namespace

TokenIndex::TokenIndex(Automaton automaton, std::shared_ptr<const VocabularyTrie> vocabulary)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      dense_row_(automaton_.num_states(), kDead),
      is_live_(automaton_.num_states(), 0),
      masks_(automaton_.num_states()),
      store_(vocabulary_) {
  build_rows();
  find_live_states();
}

void TokenIndex::build_rows() {
  bool is_bound[257] = {};
  for (uint32_t state = 0; state < num_states(); ++state) {
    for (const Edge* edge = automaton_.begin(state); edge < automaton_.end(state); ++edge) {
      is_bound[edge->first] = is_bound[edge->last + 1] = true;
    }
  }
  uint32_t num_classes = 1;
  for (int byte = 1; byte < 256; ++byte) {
    num_classes += is_bound[byte];
    class_of_byte_[byte] = uint8_t(num_classes - 1);
  }
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (automaton_.end(state) - automaton_.begin(state) <= kScannedEdges) continue;
    if (dense_.size() + num_classes > kMaxDenseWords) break;
    dense_row_[state] = uint32_t(dense_.size());
    dense_.resize(dense_.size() + num_classes, kDead);
    uint32_t* row = dense_.data() + dense_row_[state];
    for (const Edge* edge = automaton_.begin(state); edge < automaton_.end(state); ++edge) {
      std::fill(row + class_of_byte_[edge->first], row + class_of_byte_[edge->last] + 1, edge->target);
    }
  }
  dense_.shrink_to_fit();
}

template <typename Visit>
void TokenIndex::walk(uint32_t state, Visit visit) const {
  const std::vector<VocabularyTrie::Node>& nodes = vocabulary_->nodes();
  // states[d] is where the bytes before depth d lead.
  std::vector<uint32_t> states(vocabulary_->max_depth() + 1);
  states[0] = state;
  vocabulary_->visit_below(VocabularyTrie::kRoot, [&](uint32_t node, uint8_t byte, uint32_t depth) {
    uint32_t target = step(states[depth], byte);
    if (target == kDead) return false;
    states[depth + 1] = target;
    uint32_t tokens_begin = vocabulary_->first_token(node);
    if (tokens_begin < nodes[node].tokens_end) visit(tokens_begin, nodes[node].tokens_end, target);
    return true;
  });
}

// If every edge has a byte that is a token of its own, tokens lead wherever bytes lead,
// and all states are live. Otherwise a state, for example one in the middle of a long
// token, may have no way by tokens to an accepting state; a search backwards from the
// accepting states finds the live ones.
void TokenIndex::find_live_states() {
  uint32_t count = num_states();
  auto has_token_for = [this](const Edge& edge) {
    for (int byte = edge.first; byte <= edge.last; ++byte) {
      if (vocabulary_->has_byte(uint8_t(byte))) return true;
    }
    return false;
  };
  bool has_all = true;
  for (uint32_t state = 0; state < count && has_all; ++state) {
    for (const Edge* edge = automaton_.begin(state); edge < automaton_.end(state); ++edge) {
      has_all = has_all && has_token_for(*edge);
    }
  }
  if (has_all) {
    std::fill(is_live_.begin(), is_live_.end(), uint8_t(1));
    return;
  }
  costs_ = fewest_tokens();
  for (uint32_t state = 0; state < count; ++state) is_live_[state] = costs_[state] != kUnknownCost;
}

void TokenIndex::compute_row(uint32_t state, uint32_t* row) const {
  std::memset(row, 0, vocabulary_->row_words() * sizeof(uint32_t));
  const uint32_t* tokens = vocabulary_->tokens().data();
  walk(state, [&](uint32_t first, uint32_t end, uint32_t target) {
    if (!is_live(target)) return;
    for (uint32_t i = first; i < end; ++i) row[tokens[i] >> 5] |= 1u << (tokens[i] & 31);
  });
}

bool TokenIndex::fill(uint32_t state, MaskRow& row) const {
  const Mask* mask = masks_[state].load(std::memory_order_acquire);
  if (mask != nullptr) {
    store_.expand(*mask, row);
    return mask->is_empty();
  }
  uint32_t* words = row.overwrite();
  compute_row(state, words);
  mask = store_.add(words);
  if (mask == nullptr) return !row.allows_any();
  masks_[state].store(mask, std::memory_order_release);
  return mask->is_empty();
}

uint32_t TokenIndex::mask_slot(uint32_t state) const {
  const Mask* mask = masks_[state].load(std::memory_order_acquire);
  if (mask == nullptr) {
    std::vector<uint32_t> row(vocabulary_->row_words());
    fill(state, row.data());
    mask = masks_[state].load(std::memory_order_acquire);
  }
  return mask == nullptr ? kDead : mask->slot;
}

void TokenIndex::compute_masks() const {
  std::vector<uint32_t> row(vocabulary_->row_words());
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (is_live(state) && !has_mask(state)) fill(state, row.data());
  }
}

std::string TokenIndex::forced(uint32_t state) const {
  std::string bytes;
  while (!accepts(state)) {
    const Edge* edge = automaton_.begin(state);
    if (automaton_.end(state) - edge != 1 || edge->first != edge->last) break;
    bytes.push_back(char(edge->first));
    state = edge->target;
  }
  return bytes;
}

const std::vector<uint32_t>& TokenIndex::costs() const {
  std::call_once(has_costs_, [this] {
    bool is_small = num_states() * vocabulary_->nodes().size() <= kMaxWalkedNodes;
    if (costs_.empty()) costs_ = is_small || !vocabulary_->has_all_bytes() ? fewest_tokens() : tokens_of_shortest();
    for (uint32_t cost : costs_) most_cost_ = cost == kUnknownCost ? most_cost_ : std::max(most_cost_, cost);
  });
  return costs_;
}

// Breadth first from the accepting states, backwards over tokens.
std::vector<uint32_t> TokenIndex::fewest_tokens() const {
  std::vector<std::vector<uint32_t>> sources(num_states());
  std::vector<uint32_t> costs(num_states(), kUnknownCost), last_source(num_states(), kDead), pending;
  for (uint32_t state = 0; state < num_states(); ++state) {
    walk(state, [&](uint32_t, uint32_t, uint32_t target) {
      if (std::exchange(last_source[target], state) != state) sources[target].push_back(state);
    });
    if (!accepts(state)) continue;
    costs[state] = 0;
    pending.push_back(state);
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    for (uint32_t source : sources[pending[i]]) {
      if (costs[source] != kUnknownCost) continue;
      costs[source] = costs[pending[i]] + 1;
      pending.push_back(source);
    }
  }
  return costs;
}

// Breadth first from the accepting states, backwards over bytes: each state gets the byte that
// a shortest text continues with, and the ending of a state is this byte and the ending after
// it. So after a token of an ending its rest is the ending.
std::vector<uint32_t> TokenIndex::tokens_of_shortest() const {
  std::vector<std::vector<std::pair<uint32_t, uint8_t>>> sources(num_states());
  std::vector<uint32_t> pending;
  Endings endings(*vocabulary_);
  std::vector<const Ending*> ending_of(num_states(), nullptr);
  std::vector<bool> has_ending(num_states());
  for (uint32_t state = 0; state < num_states(); ++state) {
    for (const Edge* edge = automaton_.begin(state); edge < automaton_.end(state); ++edge) {
      sources[edge->target].emplace_back(state, edge->first);
    }
    if (!accepts(state)) continue;
    has_ending[state] = true;
    pending.push_back(state);
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    for (auto [source, byte] : sources[pending[i]]) {
      if (has_ending[source]) continue;
      has_ending[source] = true;
      ending_of[source] = endings.add(std::string(1, char(byte)), ending_of[pending[i]]);
      pending.push_back(source);
    }
  }
  std::vector<uint32_t> costs(num_states());
  std::transform(ending_of.begin(), ending_of.end(), costs.begin(), num_tokens);
  return costs;
}

std::shared_ptr<const TokenCosts> TokenIndex::token_costs(uint32_t state, uint32_t max) const {
  costs();
  if (most_cost_ <= max) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  token_costs_.resize(num_states());
  std::shared_ptr<const TokenCosts>& known = token_costs_[state];
  if (known != nullptr) return known->most() <= max ? nullptr : known;
  std::vector<std::pair<uint32_t, uint32_t>> after;  // cost and token
  std::map<uint32_t, size_t> counts;                 // of tokens, by cost
  walk(state, [&](uint32_t first, uint32_t end, uint32_t target) {
    if (!is_live(target)) return;
    counts[costs_[target]] += end - first;
    for (uint32_t i = first; i < end; ++i) after.emplace_back(costs_[target], vocabulary_->tokens()[i]);
  });
  auto is_less = [](const auto& a, const auto& b) { return a.second < b.second; };
  auto usual = std::max_element(counts.begin(), counts.end(), is_less);
  auto found = std::make_shared<const TokenCosts>(costs_[state], usual == counts.end() ? 0 : usual->first, after);
  if (token_costs_bytes_ + found->memory_bytes() <= kMaxTokenCostsBytes) {
    token_costs_bytes_ += found->memory_bytes();
    known = found;
  }
  return found->most() <= max ? nullptr : found;
}

TokenClasses TokenIndex::token_classes(uint64_t max_bytes) const {
  // Tokens of one class have the same set of (state, target) pairs. They are found by
  // the sum of a hash of each pair, which does not depend on the order; 128 bits make
  // collisions negligible.
  struct Sum {
    uint64_t low = 0, high = 0;
    bool operator==(const Sum& other) const { return low == other.low && high == other.high; }
  };
  uint32_t size = vocabulary_->size();
  std::vector<Sum> sums(size);
  const uint32_t* tokens = vocabulary_->tokens().data();
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (!is_live(state)) continue;
    walk(state, [&](uint32_t first, uint32_t end, uint32_t target) {
      if (!is_live(target)) return;
      uint64_t pair = uint64_t(state) << 32 | target;
      Sum term{mix(mix(1, pair), pair >> 7), mix(mix(2, ~pair), pair << 9)};
      for (uint32_t i = first; i < end; ++i) {
        sums[tokens[i]].low += term.low;
        sums[tokens[i]].high += term.high;
      }
    });
  }
  TokenClasses classes;
  classes.class_of_token.assign(size, 0);
  std::unordered_map<uint64_t, std::vector<uint32_t>> tokens_by_sum;  // the first token of each class
  std::vector<uint32_t> examples = {kDead};
  for (uint32_t token = 0; token < size; ++token) {
    if (sums[token] == Sum{}) continue;
    std::vector<uint32_t>& known = tokens_by_sum[sums[token].low];
    auto found = std::find_if(known.begin(), known.end(),
                              [&](uint32_t number) { return sums[examples[number]] == sums[token]; });
    if (found == known.end()) {
      known.push_back(uint32_t(examples.size()));
      classes.class_of_token[token] = int32_t(examples.size());
      examples.push_back(token);
    } else {
      classes.class_of_token[token] = int32_t(*found);
    }
  }
  classes.num_classes = uint32_t(examples.size());
  uint64_t bytes = (uint64_t(num_states()) * classes.num_classes + size) * sizeof(int32_t);
  if (bytes > max_bytes) throw LimitError("table_bytes", bytes, max_bytes);
  classes.next.assign(size_t(num_states()) * classes.num_classes, -1);
  for (uint32_t state = 0; state < num_states(); ++state) {
    if (!is_live(state)) continue;
    for (uint32_t number = 1; number < classes.num_classes; ++number) {
      classes.next[size_t(state) * classes.num_classes + number] = int32_t(next(state, examples[number]));
    }
  }
  return classes;
}

size_t TokenIndex::memory_bytes() const {
  return sizeof(*this) + automaton_.memory_bytes() + (dense_row_.capacity() + dense_.capacity()) * sizeof(uint32_t) +
         is_live_.capacity() + masks_.capacity() * sizeof(masks_[0]) + store_.memory_bytes() +
         costs_.capacity() * sizeof(uint32_t) + token_costs_bytes_;
}

std::string TokenIndex::serialize() const {
  ByteWriter writer;
  writer.write(kMagic);
  writer.write(kVersion, 4);
  writer.write(vocabulary_->size(), 4);
  writer.write(vocabulary_->fingerprint(), 8);
  writer.write(automaton_.serialize());
  return writer.finished();
}

std::shared_ptr<TokenIndex> TokenIndex::deserialize(const std::string& bytes,
                                                    std::shared_ptr<const VocabularyTrie> vocabulary) {
  ByteReader reader(bytes, "a saved token index");
  reader.check_header(kMagic, kVersion);
  uint64_t size = reader.read(4), fingerprint = reader.read(8);
  if (size != vocabulary->size() || fingerprint != vocabulary->fingerprint()) {
    reader.fail("belongs to another vocabulary, of " + std::to_string(size) + " tokens");
  }
  return std::make_shared<TokenIndex>(Automaton::deserialize(reader.read_text(reader.num_left())),
                                      std::move(vocabulary));
}

}  // namespace structout::engine
