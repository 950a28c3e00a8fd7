#include "grammar/gss/stacks.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/sorted_set.h"

namespace structout::context_free {

namespace {

constexpr uint32_t kNumEnds = kMaxUnknowns + 1;  // unknown contexts and kEndOfText
constexpr size_t kMaxCompared = 4;               // nodes below the same state that a new one is compared with
constexpr size_t kMaxComparedApart = 16;         // the same, of stack tops that stay apart
constexpr uint32_t kMaxPairs = 10'000;           // of nodes that one is_subset() visits
constexpr size_t kMaxCopiedSubsets = 1 << 18;    // which take some megabytes
constexpr size_t kLookupsPerStep = 4;            // in a table that may be large
constexpr size_t kTopsPerStep = 8;               // that are looked at for one step

const std::vector<EmbeddedStart> kNoStarts;

}  // namespace

Stacks::Stacks(const Network& network, uint64_t max_union_work)
    : network_(network),
      max_union_work_(max_union_work),
      seen_(network.num_states() + kNumEnds),
      callers_(network.num_rules()) {
  nodes_.number_of({});
  nodes_.number_of({{kEndOfText, kDead}});
  nodes_.number_of({{kUnknownContext, kDead}});
}

GssNode Stacks::united(std::vector<GssNode> nodes, engine::Budget& budget) {
  GssNode result = merged(nodes, budget);
  if (result != kNone) return result;
  std::vector<StackTop> tops = tops_of(nodes, budget);
  result = node_of(tops, budget);
  return union_results_[unions_.number_of(nodes)] = result;
}

GssNode Stacks::merged(std::vector<GssNode>& nodes, engine::Budget& budget) {
  engine::make_set(nodes);
  if (!nodes.empty() && nodes[0] == kDead) nodes.erase(nodes.begin());
  if (nodes.empty()) return kDead;
  if (nodes.size() == 1) return nodes[0];
  if (nodes.size() == 2) {
    if (is_subset(nodes[0], nodes[1], budget)) return nodes[1];
    if (is_subset(nodes[1], nodes[0], budget)) return nodes[0];
  }
  uint32_t number = unions_.number_of(nodes);
  union_results_.resize(unions_.size(), kNone);
  if (union_results_[number] == kTooLarge) return kNone;
  if (union_results_[number] != kNone) return union_results_[number];
  struct Depth {
    explicit Depth(uint32_t& depth) : depth(++depth) {}
    ~Depth() { --depth; }
    uint32_t& depth;
  } level(union_depth_);
  if (union_depth_ == 1) union_began_at_ = budget.total();
  if (budget.total() - union_began_at_ > max_union_work_) return kNone;
  std::vector<StackTop> tops;
  for (GssNode node : nodes) tops.insert(tops.end(), begin(node), end(node));
  GssNode result = node_of(tops, budget);
  if (result != kNone || union_depth_ == 1) union_results_[number] = result == kNone ? kTooLarge : result;
  return result;
}

std::vector<StackTop> Stacks::tops_of(const std::vector<GssNode>& nodes, engine::Budget& budget) {
  std::vector<StackTop> tops;
  met_.clear();
  for (GssNode node : nodes) {
    budget.spend(1 + nodes_.count(node) / kTopsPerStep);
    std::copy_if(begin(node), end(node), std::back_inserter(tops),
                 [this](const StackTop& top) { return met_.insert(top.state, top.below); });
  }
  return tops;
}

bool Stacks::is_subset(GssNode a, GssNode b, engine::Budget& budget) {
  if (a == b || a == kDead) return true;
  if (b == kDead) return false;
  if (uint32_t known = is_subset_.find(a, b); known != PairTable::kMissing) return known == 1;
  std::vector<std::pair<GssNode, GssNode>> pending = {{a, b}};
  for (uint32_t num_visited = 0; !pending.empty(); ++num_visited) {
    if (num_visited == kMaxPairs) return false;
    auto [x, y] = pending.back();
    if (is_subset_.find(x, y) != PairTable::kMissing) {
      pending.pop_back();
      continue;
    }
    budget.spend(1 + nodes_.count(x) / kTopsPerStep);
    bool result = true, is_known = true;
    size_t num_lookups = 0;
    const StackTop *same = begin(y), *same_end = same;
    for (const StackTop* top = begin(x); top < end(x) && result; ++top) {
      while (same < end(y) && same->state < top->state) ++same;
      same_end = std::max(same, same_end);
      while (same_end < end(y) && same_end->state == top->state) ++same_end;
      result = std::binary_search(same, same_end, *top) || (top->below == kDead && same < same_end);
      bool may_be = false;
      const size_t num_pending = pending.size();
      for (const StackTop* other = same; other < same_end && !result; ++other) {
        ++num_lookups;
        uint32_t known = other->below == kDead ? 0 : is_subset_.find(top->below, other->below);
        result = known == 1;
        if (known != PairTable::kMissing) continue;
        pending.emplace_back(top->below, other->below);
        may_be = true;
      }
      if (result) {
        pending.resize(num_pending);
      } else if (may_be) {
        result = true;
        is_known = false;
      }
    }
    budget.spend(num_lookups / kLookupsPerStep);
    if (result && !is_known) continue;
    // If this is false, the pairs on top are of no use any more, though they are still
    // decided.
    is_subset_.add(x, y, result);
  }
  return is_subset_.find(a, b) == 1;
}

void Stacks::remove_subsets(std::vector<GssNode>& nodes, engine::Budget& budget) {
  std::vector<GssNode> kept;
  for (GssNode node : nodes) {
    auto last = kept.end() - ptrdiff_t(std::min(kept.size(), kMaxComparedApart));
    budget.spend(size_t(kept.end() - last));
    if (std::any_of(last, kept.end(), [&](GssNode other) { return is_subset(node, other, budget); })) continue;
    auto is_inside = [&](GssNode other) { return is_subset(other, node, budget); };
    kept.erase(std::remove_if(last, kept.end(), is_inside), kept.end());
    kept.push_back(node);
  }
  nodes = std::move(kept);
}

GssNode Stacks::node_of(std::vector<StackTop>& tops, engine::Budget& budget) {
  budget.spend(tops.size() + 1);
  if (tops.size() > 1) std::sort(tops.begin(), tops.end());
  size_t num_united = 0;
  for (size_t i = 0; i < tops.size();) {
    size_t same_end = i + 1;
    while (same_end < tops.size() && tops[same_end].state == tops[i].state) ++same_end;
    StackTop top = tops[i];
    if (same_end > i + 1) {
      std::vector<GssNode> below;
      for (size_t j = i; j < same_end; ++j) below.push_back(tops[j].below);
      top.below = merged(below, budget);
      if (top.below == kNone) {
        if (union_depth_ > 0) return kNone;
        remove_subsets(below, budget);
        std::vector<StackTop> apart = tops_of(below, budget);
        top.below = node_apart(apart, budget);
      }
    }
    tops[num_united++] = top;
    i = same_end;
  }
  tops.resize(num_united);
  return nodes_.number_of(tops);
}

GssNode Stacks::node_apart(std::vector<StackTop>& tops, engine::Budget& budget) {
  budget.spend(tops.size() + 1);
  std::sort(tops.begin(), tops.end());
  std::vector<GssNode> below;
  size_t num_kept = 0;
  for (size_t i = 0; i < tops.size();) {
    const uint32_t state = tops[i].state;
    below.clear();
    for (; i < tops.size() && tops[i].state == state; ++i) below.push_back(tops[i].below);
    if (below.size() > 1) remove_subsets(below, budget);
    for (GssNode each : below) tops[num_kept++] = {state, each};
  }
  tops.resize(num_kept);
  return nodes_.number_of(tops);
}

// Returns from the rules that end and calls those that begin. Only states that read
// symbols, and ends, remain in the result.
GssNode Stacks::closure(std::vector<StackTop>& kernel, engine::Budget& budget) {
  seen_.clear();
  callers_.clear();
  closed_tops_.clear();
  std::vector<StackTop>& tops = closure_tops_;
  tops.clear();
  while (!kernel.empty()) {
    StackTop top = kernel.back();
    kernel.pop_back();
    budget.spend(1);
    // In an ambiguous grammar a rule often returns to stacks that are already there.
    auto has_all = [&](GssNode below) { return is_subset(top.below, below, budget); };
    bool is_end = top.state >= kUnknownContext;
    uint32_t seen_state = is_end ? network_.num_states() + (top.state - kUnknownContext) : top.state;
    if (!seen_.add(seen_state, top.below, kMaxCompared, has_all)) continue;
    if (is_end) {
      closed_tops_.push_back(top);
      continue;
    }
    tops.push_back(top);
    if (network_.is_accepting(top.state)) kernel.insert(kernel.end(), begin(top.below), end(top.below));
  }
  // A rule is begun after all rules that begin with it, so that it is begun once, with the
  // stacks of all its callers.
  auto call_all = [&](uint32_t state, GssNode below) {
    for (const Call* call = network_.calls_begin(state); call < network_.calls_end(state); ++call) {
      budget.spend(1);
      std::vector<StackTop>& list = callers_.of(network_.rank(call->rule));
      if (network_.is_end(call->target)) {  // a tail call
        list.insert(list.end(), begin(below), end(below));
      } else {
        list.push_back({call->target, below});
      }
    }
  };
  for (const StackTop& top : tops) call_all(top.state, top.below);
  for (uint32_t rank = 0; (rank = callers_.next(rank)) != kNone; ++rank) {
    GssNode below = node_of(callers_.take(rank), budget);
    uint32_t state = network_.start(network_.rule_of_rank(rank));
    call_all(state, below);
    if (network_.reads_symbols(state)) closed_tops_.push_back({state, below});
  }
  for (const StackTop& top : tops) {
    if (network_.reads_symbols(top.state)) closed_tops_.push_back(top);
  }
  return node_of(closed_tops_, budget);
}

GssNode Stacks::start(engine::Budget& budget) {
  if (network_.is_empty()) return kDead;
  std::vector<StackTop> kernel = {{network_.start(network_.root()), kBottom}};
  if (network_.matches_empty()) kernel.push_back({kEndOfText, kDead});
  return closure(kernel, budget);
}

GssNode Stacks::after(GssNode node, uint32_t symbol, engine::Budget& budget) {
  uint32_t known = after_.find(node, symbol);
  if (known != PairTable::kMissing) return known;
  std::vector<StackTop> kernel;
  for (const StackTop* top = begin(node); top < end(node) && top->state < kUnknownContext; ++top) {
    uint32_t next = symbol < kFirstToken ? network_.next(top->state, symbol)
                                         : network_.next_of_token(top->state, symbol - kFirstToken);
    if (next != kNone) kernel.push_back({next, top->below});
  }
  GssNode result = kDead;
  if (!kernel.empty()) {
    auto& recent = recent_.of(kernel);
    if (recent.kernel != kernel) {
      std::vector<StackTop> tops = kernel;
      recent = {std::move(kernel), closure(tops, budget)};
    }
    result = recent.node;
  }
  after_.add(node, symbol, result);
  return result;
}

GssNode Stacks::returned(GssNode below, engine::Budget& budget) {
  uint32_t known = returned_.find(below, 0);
  if (known != PairTable::kMissing) return known;
  std::vector<StackTop> kernel = tops(below);
  GssNode result = closure(kernel, budget);
  returned_.add(below, 0, result);
  return result;
}

const std::vector<EmbeddedStart>& Stacks::embedded_starts(GssNode node, engine::Budget& budget) {
  if (network_.embedded().empty()) return kNoStarts;
  uint32_t known = starts_numbers_.find(node, 0);
  if (known != PairTable::kMissing) return starts_[known];
  std::map<uint32_t, std::vector<StackTop>> callers;  // by language
  for (const StackTop& top : tops(node)) {
    if (top.state >= kUnknownContext) break;
    for (const Call* call = network_.embedded_begin(top.state); call < network_.embedded_end(top.state); ++call) {
      std::vector<StackTop>& list = callers[call->rule];
      if (network_.is_end(call->target)) {  // a tail call
        list.insert(list.end(), begin(top.below), end(top.below));
      } else {
        list.push_back({call->target, top.below});
      }
    }
  }
  std::vector<EmbeddedStart> starts;
  for (auto& [language, list] : callers) starts.push_back({language, node_of(list, budget)});
  starts_.push_back(std::move(starts));
  starts_numbers_.add(node, 0, uint32_t(starts_.size() - 1));
  return starts_.back();
}

GssNode Stacks::above(uint32_t state, GssNode below, bool is_closed, engine::Budget& budget) {
  uint32_t key = state << 1 | uint32_t(is_closed);
  uint32_t known = above_.find(key, below);
  if (known != PairTable::kMissing) return known;
  std::vector<StackTop> kernel = {{state, below}};
  GssNode result = is_closed ? nodes_.number_of(kernel) : closure(kernel, budget);
  above_.add(key, below, result);
  return result;
}

GssNode Stacks::copied(GssNode node, const Stacks& from, PairTable& copies) {
  // Depth first, without recursion: stacks may be as deep as texts are long.
  std::vector<GssNode> pending = {node};
  while (!pending.empty()) {
    GssNode current = pending.back();
    if (copies.find(current, 0) != PairTable::kMissing) {
      pending.pop_back();
      continue;
    }
    std::vector<StackTop> tops = from.tops(current);
    bool is_ready = true;
    for (StackTop& top : tops) {
      uint32_t copy = copies.find(top.below, 0);
      if (copy == PairTable::kMissing) {
        pending.push_back(top.below);
        is_ready = false;
      }
      top.below = copy;
    }
    if (!is_ready) continue;
    pending.pop_back();
    std::sort(tops.begin(), tops.end());
    copies.add(current, 0, nodes_.number_of(tops));
  }
  return copies.find(node, 0);
}

void Stacks::copy_subsets(const Stacks& from, const PairTable& copies) {
  size_t num_copied = 0;
  from.is_subset_.visit([&](GssNode a, GssNode b, uint32_t is_subset) {
    GssNode x = copies.find(a, 0), y = copies.find(b, 0);
    if (x == PairTable::kMissing || y == PairTable::kMissing || num_copied == kMaxCopiedSubsets) return;
    if (is_subset_.find(x, y) != PairTable::kMissing) return;
    is_subset_.add(x, y, is_subset);
    ++num_copied;
  });
}

}  // namespace structout::context_free
