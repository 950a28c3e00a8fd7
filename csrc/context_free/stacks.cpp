#include "context_free/stacks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/sorted_set.h"

namespace structout::context_free {

namespace {

constexpr uint32_t kMaxUnionDepth = 4'000;    // united() and node_of() call each other for each level of the stacks
constexpr uint32_t kNumEnds = kMaxHoles + 1;  // holes and kEndOfText
constexpr size_t kMaxCompared = 4;            // nodes below the same state that a new one is compared with
constexpr uint32_t kMaxPairs = 10'000;        // of nodes that one is_subset() visits

const std::vector<EmbeddedStart> kNoStarts;

}  // namespace

Stacks::Stacks(const Network& network)
    : network_(network), seen_(network.num_states() + kNumEnds), callers_(network.num_rules()) {
  nodes_.number_of({});
  nodes_.number_of({{kEndOfText, kDead}});
  nodes_.number_of({{kHole, kDead}});
}

Node Stacks::united(std::vector<Node> nodes, engine::Budget& budget) {
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
  if (union_results_[number] != kNone) return union_results_[number];
  std::vector<Item> items;
  for (Node node : nodes) items.insert(items.end(), begin(node), end(node));
  struct Depth {
    explicit Depth(uint32_t& depth) : depth(++depth) {}
    ~Depth() { --depth; }
    uint32_t& depth;
  } level(union_depth_);
  if (union_depth_ > kMaxUnionDepth) throw engine::LimitError("grammar_nesting", union_depth_, kMaxUnionDepth);
  Node result = node_of(items, budget);
  return union_results_[number] = result;
}

bool Stacks::is_subset(Node a, Node b, engine::Budget& budget) {
  if (a == b || a == kDead) return true;
  if (b == kDead) return false;
  std::vector<std::pair<Node, Node>> pending = {{a, b}};
  for (uint32_t num_visited = 0; !pending.empty(); ++num_visited) {
    if (num_visited == kMaxPairs) return false;
    auto [x, y] = pending.back();
    if (is_subset_.find(x, y) != PairTable::kMissing) {
      pending.pop_back();
      continue;
    }
    budget.spend(1);
    bool result = true, is_known = true;
    const Item* other = begin(y);
    for (const Item* item = begin(x); item < end(x) && result; ++item) {
      while (other < end(y) && other->state < item->state) ++other;
      if (other == end(y) || other->state != item->state || (other->below == kDead && item->below != kDead)) {
        result = false;
      } else if (item->below != other->below && item->below != kDead) {
        uint32_t known = is_subset_.find(item->below, other->below);
        if (known == PairTable::kMissing) {
          pending.emplace_back(item->below, other->below);
          is_known = false;
        } else {
          result = known == 1;
        }
      }
    }
    if (result && !is_known) continue;
    // If this is false, the pairs on top are of no use any more, though they are still
    // decided.
    is_subset_.add(x, y, result);
  }
  return is_subset_.find(a, b) == 1;
}

Node Stacks::node_of(std::vector<Item>& items, engine::Budget& budget) {
  budget.spend(items.size() + 1);
  if (items.size() > 1) std::sort(items.begin(), items.end());
  size_t num_united = 0;
  for (size_t i = 0; i < items.size();) {
    size_t same_end = i + 1;
    while (same_end < items.size() && items[same_end].state == items[i].state) ++same_end;
    Item item = items[i];
    if (same_end > i + 1) {
      std::vector<Node> below;
      for (size_t j = i; j < same_end; ++j) below.push_back(items[j].below);
      item.below = united(std::move(below), budget);
    }
    items[num_united++] = item;
    i = same_end;
  }
  items.resize(num_united);
  return nodes_.number_of(items);
}

// Returns from the rules that end and calls those that begin. Only states that read
// symbols, and ends, remain in the result.
Node Stacks::closure(std::vector<Item>& kernel, engine::Budget& budget) {
  seen_.clear();
  callers_.clear();
  closed_items_.clear();
  std::vector<Item>& items = closure_items_;
  items.clear();
  while (!kernel.empty()) {
    Item item = kernel.back();
    kernel.pop_back();
    budget.spend(1);
    // In an ambiguous grammar a rule often returns to stacks that are already there.
    auto has_all = [&](Node below) { return is_subset(item.below, below, budget); };
    bool is_end = item.state >= kHole;
    uint32_t seen_state = is_end ? network_.num_states() + (item.state - kHole) : item.state;
    if (!seen_.add(seen_state, item.below, kMaxCompared, has_all)) continue;
    if (is_end) {
      closed_items_.push_back(item);
      continue;
    }
    items.push_back(item);
    if (network_.is_accepting(item.state)) kernel.insert(kernel.end(), begin(item.below), end(item.below));
  }
  // A rule is begun after all rules that begin with it, so that it is begun once, with the
  // stacks of all its callers.
  auto call_all = [&](uint32_t state, Node below) {
    for (const Call* call = network_.calls_begin(state); call < network_.calls_end(state); ++call) {
      budget.spend(1);
      std::vector<Item>& list = callers_.of(network_.rank(call->rule));
      if (network_.is_end(call->target)) {  // a tail call
        list.insert(list.end(), begin(below), end(below));
      } else {
        list.push_back({call->target, below});
      }
    }
  };
  for (const Item& item : items) call_all(item.state, item.below);
  for (uint32_t rank = 0; (rank = callers_.next(rank)) != kNone; ++rank) {
    Node below = node_of(callers_.take(rank), budget);
    uint32_t state = network_.start(network_.rule_of_rank(rank));
    call_all(state, below);
    if (network_.reads_symbols(state)) closed_items_.push_back({state, below});
  }
  for (const Item& item : items) {
    if (network_.reads_symbols(item.state)) closed_items_.push_back(item);
  }
  return node_of(closed_items_, budget);
}

Node Stacks::start(engine::Budget& budget) {
  if (network_.is_empty()) return kDead;
  std::vector<Item> kernel = {{network_.start(network_.root()), kBottom}};
  if (network_.matches_empty()) kernel.push_back({kEndOfText, kDead});
  return closure(kernel, budget);
}

Node Stacks::after(Node node, uint32_t symbol, engine::Budget& budget) {
  uint32_t known = after_.find(node, symbol);
  if (known != PairTable::kMissing) return known;
  std::vector<Item> kernel;
  for (const Item* item = begin(node); item < end(node) && item->state < kHole; ++item) {
    uint32_t next = symbol < kFirstToken ? network_.next(item->state, symbol)
                                         : network_.next_of_token(item->state, symbol - kFirstToken);
    if (next != kNone) kernel.push_back({next, item->below});
  }
  Node result = kDead;
  if (!kernel.empty()) {
    auto& recent = recent_.of(kernel);
    if (recent.kernel != kernel) {
      std::vector<Item> items = kernel;
      recent = {std::move(kernel), closure(items, budget)};
    }
    result = recent.node;
  }
  after_.add(node, symbol, result);
  return result;
}

Node Stacks::returned(Node below, engine::Budget& budget) {
  uint32_t known = returned_.find(below, 0);
  if (known != PairTable::kMissing) return known;
  std::vector<Item> kernel = items(below);
  Node result = closure(kernel, budget);
  returned_.add(below, 0, result);
  return result;
}

const std::vector<EmbeddedStart>& Stacks::embedded_starts(Node node, engine::Budget& budget) {
  if (network_.embedded().empty()) return kNoStarts;
  uint32_t known = starts_numbers_.find(node, 0);
  if (known != PairTable::kMissing) return starts_[known];
  std::map<uint32_t, std::vector<Item>> callers;  // by language
  for (const Item& item : items(node)) {
    if (item.state >= kHole) break;
    for (const Call* call = network_.embedded_begin(item.state); call < network_.embedded_end(item.state); ++call) {
      std::vector<Item>& list = callers[call->rule];
      if (network_.is_end(call->target)) {  // a tail call
        list.insert(list.end(), begin(item.below), end(item.below));
      } else {
        list.push_back({call->target, item.below});
      }
    }
  }
  std::vector<EmbeddedStart> starts;
  for (auto& [language, list] : callers) starts.push_back({language, node_of(list, budget)});
  starts_.push_back(std::move(starts));
  starts_numbers_.add(node, 0, uint32_t(starts_.size() - 1));
  return starts_.back();
}

Node Stacks::above(uint32_t state, Node below, bool is_closed, engine::Budget& budget) {
  uint32_t key = state << 1 | uint32_t(is_closed);
  uint32_t known = above_.find(key, below);
  if (known != PairTable::kMissing) return known;
  std::vector<Item> kernel = {{state, below}};
  Node result = is_closed ? nodes_.number_of(kernel) : closure(kernel, budget);
  above_.add(key, below, result);
  return result;
}

Node Stacks::copied(Node node, const Stacks& from, PairTable& copies) {
  // Depth first, without recursion: stacks may be as deep as texts are long.
  std::vector<Node> pending = {node};
  while (!pending.empty()) {
    Node current = pending.back();
    if (copies.find(current, 0) != PairTable::kMissing) {
      pending.pop_back();
      continue;
    }
    std::vector<Item> items = from.items(current);
    bool is_ready = true;
    for (Item& item : items) {
      uint32_t copy = copies.find(item.below, 0);
      if (copy == PairTable::kMissing) {
        pending.push_back(item.below);
        is_ready = false;
      }
      item.below = copy;
    }
    if (!is_ready) continue;
    pending.pop_back();
    copies.add(current, 0, nodes_.number_of(items));
  }
  return copies.find(node, 0);
}

}  // namespace structout::context_free
