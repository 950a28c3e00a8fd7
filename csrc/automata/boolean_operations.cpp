#include <algorithm>
#include <unordered_map>

#include "automata/automaton.h"

namespace structout::engine {

namespace {

enum class Operation { kIntersection, kUnion, kDifference };

// The product construction: a state is a pair of states. kDead in a pair means that
// this automaton has refused the text already.
class Product {
 public:
  Product(const Automaton& a, const Automaton& b, Operation operation, Budget& budget)
      : a_(a), b_(b), operation_(operation), budget_(budget) {}

  Automaton build() {
    uint32_t a = a_.num_states() > 0 ? 0 : kDead, b = b_.num_states() > 0 ? 0 : kDead;
    if (is_hopeless(a, b)) return {};
    number_of(a, b);
    for (size_t i = 0; i < pairs_.size(); ++i) {
      auto [left, right] = pairs_[i];
      add_edges(left, right);
      bool left_accepts = left != kDead && a_.accepts(left), right_accepts = right != kDead && b_.accepts(right);
      builder_.add_state(accepts(left_accepts, right_accepts), edges_);
      budget_.spend(edges_.size() + 1);
      budget_.check_states(pairs_.size());
    }
    return builder_.minimal(0, budget_);
  }

 private:
  bool accepts(bool a, bool b) const {
    return operation_ == Operation::kUnion ? a || b : operation_ == Operation::kIntersection ? a && b : a && !b;
  }

  // True if the result accepts nothing from the pair, for example an intersection with
  // kDead on one side.
  bool is_hopeless(uint32_t a, uint32_t b) const {
    return operation_ == Operation::kUnion          ? a == kDead && b == kDead
           : operation_ == Operation::kIntersection ? a == kDead || b == kDead
                                                    : a == kDead;
  }

  uint32_t number_of(uint32_t a, uint32_t b) {
    auto [found, is_new] = numbers_.try_emplace(uint64_t(a) << 32 | b, uint32_t(pairs_.size()));
    if (is_new) pairs_.emplace_back(a, b);
    return found->second;
  }

  void add_edges(uint32_t a, uint32_t b) {
    edges_.clear();
    const Edge *left = nullptr, *left_end = nullptr, *right = nullptr, *right_end = nullptr;
    if (a != kDead) left = a_.begin(a), left_end = a_.end(a);
    if (b != kDead) right = b_.begin(b), right_end = b_.end(b);
    for (int first = 0; first < 256;) {
      while (left < left_end && left->last < first) ++left;
      while (right < right_end && right->last < first) ++right;
      int last = 255;
      uint32_t left_target = target_at(left, left_end, first, last),
               right_target = target_at(right, right_end, first, last);
      if (!is_hopeless(left_target, right_target)) {
        edges_.push_back({uint8_t(first), uint8_t(last), number_of(left_target, right_target)});
      }
      first = last + 1;
    }
  }

  // The target for the byte `first`. Lowers `last` to the last byte with the same
  // target.
  static uint32_t target_at(const Edge* edge, const Edge* end, int first, int& last) {
    if (edge == end) return kDead;
    if (edge->first > first) {
      last = std::min(last, edge->first - 1);
      return kDead;
    }
    last = std::min(last, int(edge->last));
    return edge->target;
  }

  const Automaton &a_, &b_;
  const Operation operation_;
  Budget& budget_;
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<std::pair<uint32_t, uint32_t>> pairs_;
  std::vector<Edge> edges_;
  AutomatonBuilder builder_;
};

}  // namespace

Automaton intersection(const Automaton& a, const Automaton& b, Budget& budget) {
  return Product(a, b, Operation::kIntersection, budget).build();
}

Automaton union_of(const Automaton& a, const Automaton& b, Budget& budget) {
  return Product(a, b, Operation::kUnion, budget).build();
}

Automaton difference(const Automaton& a, const Automaton& b, Budget& budget) {
  return Product(a, b, Operation::kDifference, budget).build();
}

Automaton complement(const Automaton& a, Budget& budget) {
  AutomatonBuilder everything;
  everything.add_state(true, {{0, 255, 0}});
  return difference(everything.minimal(0, budget), a, budget);
}

}  // namespace structout::engine
