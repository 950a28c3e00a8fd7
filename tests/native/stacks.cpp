// Unit tests of context_free/stacks.h: its nodes against sets of stacks that are written
// out, and its texts against what a grammar means.
#include "context_free/stacks.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "expect.h"

using namespace structout;
using context_free::Item;
using context_free::Network;
using context_free::NetworkOptions;
using context_free::Node;
using context_free::Stacks;
using engine::Rules;

namespace {

using Stack = std::vector<uint32_t>;  // of states, the top first
using Build = uint32_t (*)(Rules&);
using Judge = bool (*)(const std::string&);

// s ::= "" | "a" s "b"
uint32_t nested(Rules& rules) {
  uint32_t s = rules.add_rule("s");
  uint32_t pair = rules.add_sequence({rules.add_text("a"), s, rules.add_text("b")});
  rules.define(s, rules.add_alternatives({rules.add_text(""), pair}));
  return s;
}

bool is_nested(const std::string& text) {
  size_t half = text.size() / 2;
  return text == std::string(half, 'a') + std::string(half, 'b');
}

// s ::= "" | "a" | "b" | "a" s "a" | "b" s "b"
uint32_t palindromes(Rules& rules) {
  uint32_t s = rules.add_rule("s"), a = rules.add_text("a"), b = rules.add_text("b");
  rules.define(s, rules.add_alternatives(
                      {rules.add_text(""), a, b, rules.add_sequence({a, s, a}), rules.add_sequence({b, s, b})}));
  return s;
}

bool is_palindrome(const std::string& text) { return text == std::string(text.rbegin(), text.rend()); }

// s ::= "a" | s "b" s, ambiguous and left-recursive
uint32_t sums(Rules& rules) {
  uint32_t s = rules.add_rule("s"), a = rules.add_text("a");
  rules.define(s, rules.add_alternatives({a, rules.add_sequence({s, rules.add_text("b"), s})}));
  return s;
}

bool is_sum(const std::string& text) {
  if (text.size() % 2 == 0) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != "ab"[i % 2]) return false;
  }
  return true;
}

struct Grammar {
  Build build;
  Judge judge;
};
const Grammar kGrammars[] = {{nested, is_nested}, {palindromes, is_palindrome}, {sums, is_sum}};
constexpr size_t kMaxLength = 7;

struct Tester {
  Rules rules;
  engine::Limits limits = without_clock();
  Network network;
  engine::Budget budget;
  Stacks stacks;

  static engine::Limits without_clock() {
    engine::Limits limits;
    limits.seconds = 1e9;
    return limits;
  }

  explicit Tester(const Grammar& grammar)
      : network(rules, grammar.build(rules), NetworkOptions(), limits), budget(limits), stacks(network) {}

  // Calls visit(text, node) for every text of "a" and "b" with at most kMaxLength bytes.
  void visit_texts(const std::function<void(const std::string&, Node)>& visit) {
    std::vector<std::pair<std::string, Node>> pending = {{"", stacks.start(budget)}};
    while (!pending.empty()) {
      auto [text, node] = pending.back();
      pending.pop_back();
      visit(text, node);
      if (text.size() == kMaxLength) continue;
      for (char byte : {'a', 'b'}) pending.emplace_back(text + byte, stacks.after(node, uint8_t(byte), budget));
    }
  }

  // All stacks of a node, written out.
  std::set<Stack> written(const Stacks& from, Node node) {
    std::set<Stack> found;
    for (const Item& item : from.items(node)) {
      std::set<Stack> below = item.below == Stacks::kDead ? std::set<Stack>{{}} : written(from, item.below);
      for (Stack stack : below) {
        stack.insert(stack.begin(), item.state);
        found.insert(stack);
      }
    }
    return found;
  }

  std::vector<Node> reached() {
    std::set<Node> nodes;
    visit_texts([&](const std::string&, Node node) { nodes.insert(node); });
    return {nodes.begin(), nodes.end()};
  }
};

void test_texts_end_where_the_grammar_says(const Grammar& grammar) {
  Tester tester(grammar);
  size_t num_texts = 0;
  tester.visit_texts([&](const std::string& text, Node node) {
    EXPECT(tester.stacks.may_end(node) == grammar.judge(text));
    num_texts += tester.stacks.may_end(node);
  });
  EXPECT(num_texts >= kMaxLength / 2);
}

void test_dead_nodes_begin_no_text(const Grammar& grammar) {
  Tester tester(grammar);
  std::set<std::string> prefixes;
  tester.visit_texts([&](const std::string& text, Node) {
    if (!grammar.judge(text)) return;
    for (size_t length = 0; length <= text.size(); ++length) prefixes.insert(text.substr(0, length));
  });
  tester.visit_texts([&](const std::string& text, Node node) {
    // A prefix of twice its length ends within the texts that were tried.
    if (2 * text.size() + 1 > kMaxLength) return;
    EXPECT((node != Stacks::kDead) == (prefixes.count(text) == 1));
  });
}

void test_equal_sets_of_stacks_are_one_node(const Grammar& grammar) {
  Tester tester(grammar);
  std::set<std::set<Stack>> sets;
  std::vector<Node> nodes = tester.reached();
  for (Node node : nodes) sets.insert(tester.written(tester.stacks, node));
  EXPECT(sets.size() == nodes.size());
}

void test_unions_and_subsets_are_those_of_the_stacks(const Grammar& grammar) {
  Tester tester(grammar);
  std::vector<Node> nodes = tester.reached();
  for (Node a : nodes) {
    for (Node b : nodes) {
      std::set<Stack> in_a = tester.written(tester.stacks, a), in_b = tester.written(tester.stacks, b);
      bool is_subset = std::includes(in_b.begin(), in_b.end(), in_a.begin(), in_a.end());
      EXPECT(tester.stacks.is_subset(a, b, tester.budget) == is_subset);
      in_a.insert(in_b.begin(), in_b.end());
      Node both = tester.stacks.united({a, b}, tester.budget);
      EXPECT(tester.written(tester.stacks, both) == in_a);
      EXPECT(both == tester.stacks.united({b, a, Stacks::kDead, b}, tester.budget));
    }
  }
}

void test_copied_nodes_have_the_same_stacks(const Grammar& grammar) {
  Tester tester(grammar);
  Stacks other(tester.network);
  other.start(tester.budget);
  context_free::PairTable copies;
  copies.add(Stacks::kDead, 0, Stacks::kDead);
  for (Node node : tester.reached()) {
    Node copy = other.copied(node, tester.stacks, copies);
    EXPECT(tester.written(other, copy) == tester.written(tester.stacks, node));
  }
}

}  // namespace

int main() {
  for (const Grammar& grammar : kGrammars) {
    test_texts_end_where_the_grammar_says(grammar);
    test_dead_nodes_begin_no_text(grammar);
    test_equal_sets_of_stacks_are_one_node(grammar);
    test_unions_and_subsets_are_those_of_the_stacks(grammar);
    test_copied_nodes_have_the_same_stacks(grammar);
  }
  return 0;
}
