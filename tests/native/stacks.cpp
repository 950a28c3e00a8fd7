// Unit tests of grammar/gss/stacks.h: its nodes against sets of stacks that are written
// out, and its texts against what a grammar means.
#include "grammar/gss/stacks.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "expect.h"

using namespace structout;
using context_free::GssNode;
using context_free::Network;
using context_free::NetworkOptions;
using context_free::Stacks;
using context_free::StackTop;
using engine::Rules;

namespace {

using Stack = std::vector<uint32_t>;           // of states, the top first
using Build = uint32_t (*)(Rules&, uint32_t);  // with a part that stands for "b"
using Judge = bool (*)(const std::string&);

// s ::= "" | "a" s "b"
uint32_t nested(Rules& rules, uint32_t b) {
  uint32_t s = rules.add_rule("s");
  uint32_t pair = rules.add_sequence({rules.add_text("a"), s, b});
  rules.define(s, rules.add_alternatives({rules.add_text(""), pair}));
  return s;
}

bool is_nested(const std::string& text) {
  size_t half = text.size() / 2;
  return text == std::string(half, 'a') + std::string(half, 'b');
}

// t ::= "b" s, s as above: no text begins with s
uint32_t nested_after_b(Rules& rules, uint32_t b) { return rules.add_sequence({b, nested(rules, b)}); }

bool is_nested_after_b(const std::string& text) { return text[0] == 'b' && is_nested(text.substr(1)); }

// t ::= "b" s, s ::= u | "a" s "b", u ::= "" | "b" u: one rule begins with another
uint32_t nested_with_more(Rules& rules, uint32_t b) {
  uint32_t s = rules.add_rule("s"), u = rules.add_rule("u");
  rules.define(u, rules.add_alternatives({rules.add_text(""), rules.add_sequence({b, u})}));
  rules.define(s, rules.add_alternatives({u, rules.add_sequence({rules.add_text("a"), s, b})}));
  return rules.add_sequence({b, s});
}

bool is_nested_with_more(const std::string& text) {
  const auto num_a = size_t(std::count(text.begin(), text.end(), 'a')), num_b = text.size() - num_a;
  return num_a < num_b && text == "b" + std::string(num_a, 'a') + std::string(num_b - 1, 'b');
}

// s ::= "" | "a" | "b" | "a" s "a" | "b" s "b"
uint32_t palindromes(Rules& rules, uint32_t b) {
  uint32_t s = rules.add_rule("s"), a = rules.add_text("a");
  rules.define(s, rules.add_alternatives(
                      {rules.add_text(""), a, b, rules.add_sequence({a, s, a}), rules.add_sequence({b, s, b})}));
  return s;
}

bool is_palindrome(const std::string& text) { return text == std::string(text.rbegin(), text.rend()); }

// s ::= "a" | s "b" s, ambiguous and left-recursive
uint32_t sums(Rules& rules, uint32_t b) {
  uint32_t s = rules.add_rule("s"), a = rules.add_text("a");
  rules.define(s, rules.add_alternatives({a, rules.add_sequence({s, b, s})}));
  return s;
}

bool is_sum(const std::string& text) {
  if (text.size() % 2 == 0) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != "ab"[i % 2]) return false;
  }
  return true;
}

// s ::= "" | s s | "a" s "b", ambiguous in each "b"
uint32_t brackets(Rules& rules, uint32_t b) {
  uint32_t s = rules.add_rule("s"), pair = rules.add_sequence({rules.add_text("a"), s, b});
  rules.define(s, rules.add_alternatives({rules.add_text(""), rules.add_sequence({s, s}), pair}));
  return s;
}

bool is_balanced(const std::string& text) {
  int depth = 0;
  for (char byte : text) {
    depth += byte == 'a' ? 1 : -1;
    if (depth < 0) return false;
  }
  return depth == 0;
}

// root ::= "x" "(" | "(" root | r "(a", r ::= r root | "b" r | "x" | "": very ambiguous
uint32_t ambiguous(Rules& rules, uint32_t) {
  uint32_t root = rules.add_rule("root"), r = rules.add_rule("r");
  rules.define(root, rules.add_alternatives({rules.add_text("x("), rules.add_sequence({rules.add_text("("), root}),
                                             rules.add_sequence({r, rules.add_text("(a")})}));
  rules.define(r, rules.add_alternatives({rules.add_sequence({r, root}), rules.add_sequence({rules.add_text("b"), r}),
                                          rules.add_text("x"), rules.add_text("")}));
  return root;
}

struct Grammar {
  Build build;
  Judge judge;
  bool embeds_b = false;   // "b" is a text of an embedded language, of which only the calls matter here
  bool merges_all = true;  // unions are merged in all levels; otherwise only in the topmost one
};
const std::pair<Build, Judge> kLanguages[] = {
    {nested, is_nested},
    {nested_after_b, is_nested_after_b},
    {nested_with_more, is_nested_with_more},
    {palindromes, is_palindrome},
    {sums, is_sum},
    {brackets, is_balanced},
};
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
      : network(rules, root_of(grammar), NetworkOptions(), limits),
        budget(limits),
        stacks(network, grammar.merges_all ? Stacks::kMaxUnionWork : 0) {}

  uint32_t root_of(const Grammar& grammar) {
    return grammar.build(rules, grammar.embeds_b ? rules.add_embedded(nullptr) : rules.add_text("b"));
  }

  GssNode after(GssNode node, char byte) {
    if (byte == 'a' || network.embedded().empty()) return stacks.after(node, uint8_t(byte), budget);
    std::vector<GssNode> nodes;
    for (const context_free::EmbeddedStart& start : stacks.embedded_starts(node, budget)) {
      nodes.push_back(stacks.returned(start.below, budget));
    }
    EXPECT(nodes.size() <= 1);
    return stacks.united(nodes, budget);
  }

  GssNode after(GssNode node, const std::string& text) {
    for (char byte : text) node = after(node, byte);
    return node;
  }

  // Calls visit(text, node) for every text of "a" and "b" with at most kMaxLength bytes.
  void visit_texts(const std::function<void(const std::string&, GssNode)>& visit) {
    std::vector<std::pair<std::string, GssNode>> pending = {{"", stacks.start(budget)}};
    while (!pending.empty()) {
      auto [text, node] = pending.back();
      pending.pop_back();
      visit(text, node);
      if (text.size() == kMaxLength) continue;
      for (char byte : {'a', 'b'}) pending.emplace_back(text + byte, after(node, byte));
    }
  }

  // All stacks of a node, written out.
  std::set<Stack> written(const Stacks& from, GssNode node) {
    std::set<Stack> found;
    for (const StackTop& top : from.tops(node)) found.merge(written(from, top));
    return found;
  }

  std::set<Stack> written(const Stacks& from, const StackTop& top) {
    std::set<Stack> found;
    for (Stack stack : top.below == Stacks::kDead ? std::set<Stack>{{}} : written(from, top.below)) {
      stack.insert(stack.begin(), top.state);
      found.insert(stack);
    }
    return found;
  }

  std::vector<GssNode> reached() {
    std::set<GssNode> nodes;
    visit_texts([&](const std::string&, GssNode node) { nodes.insert(node); });
    return {nodes.begin(), nodes.end()};
  }
};

void test_texts_end_where_the_grammar_says(const Grammar& grammar) {
  Tester tester(grammar);
  size_t num_texts = 0;
  tester.visit_texts([&](const std::string& text, GssNode node) {
    EXPECT(tester.stacks.may_end(node) == grammar.judge(text));
    num_texts += tester.stacks.may_end(node);
  });
  EXPECT(num_texts >= kMaxLength / 2);
}

void test_dead_nodes_begin_no_text(const Grammar& grammar) {
  Tester tester(grammar);
  std::set<std::string> prefixes;
  tester.visit_texts([&](const std::string& text, GssNode) {
    if (!grammar.judge(text)) return;
    for (size_t length = 0; length <= text.size(); ++length) prefixes.insert(text.substr(0, length));
  });
  tester.visit_texts([&](const std::string& text, GssNode node) {
    // A prefix of twice its length ends within the texts that were tried.
    if (2 * text.size() + 1 > kMaxLength) return;
    EXPECT((node != Stacks::kDead) == (prefixes.count(text) == 1));
  });
}

void test_equal_sets_of_stacks_are_one_node(const Grammar& grammar) {
  if (!grammar.merges_all) return;
  Tester tester(grammar);
  std::set<std::set<Stack>> sets;
  std::vector<GssNode> nodes = tester.reached();
  for (GssNode node : nodes) sets.insert(tester.written(tester.stacks, node));
  EXPECT(sets.size() == nodes.size());
}

void test_unions_and_subsets_are_those_of_the_stacks(const Grammar& grammar) {
  Tester tester(grammar);
  std::map<GssNode, std::set<Stack>> sets;
  for (GssNode node : tester.reached()) sets[node] = tester.written(tester.stacks, node);
  for (const auto& [a, in_a] : sets) {
    for (const auto& [b, in_b] : sets) {
      bool is_subset = std::includes(in_b.begin(), in_b.end(), in_a.begin(), in_a.end());
      bool is_told = tester.stacks.is_subset(a, b, tester.budget);
      EXPECT(is_told == is_subset || (!is_told && !grammar.merges_all));
      std::set<Stack> in_both = in_a;
      in_both.insert(in_b.begin(), in_b.end());
      GssNode both = tester.stacks.united({a, b}, tester.budget);
      EXPECT(tester.written(tester.stacks, both) == in_both);
      EXPECT(both == tester.stacks.united({b, a, Stacks::kDead, b}, tester.budget));
      if (!is_subset) continue;
      const auto& [c, in_c] = *sets.rbegin();
      in_both.insert(in_c.begin(), in_c.end());
      EXPECT(tester.written(tester.stacks, tester.stacks.united({a, b, c}, tester.budget)) == in_both);
    }
  }
}

// Also where the part is read later, so that its node has the larger number.
void test_what_follows_a_part_is_part_of_what_follows_the_whole(const Grammar& grammar) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < 3; ++i) {
    for (char byte : {'a', 'b'}) texts.push_back(texts[i] + byte);
  }
  for (const std::string& one : texts) {
    for (const std::string& other : texts) {
      Tester tester(grammar);
      GssNode start = tester.stacks.start(tester.budget), part = tester.after(start, one);
      GssNode whole = tester.stacks.united({part, tester.after(start, other)}, tester.budget);
      for (char byte : {'a', 'b'}) {
        GssNode after_whole = tester.after(whole, byte), after_part = tester.after(part, byte);
        GssNode both = tester.stacks.united({after_part, after_whole}, tester.budget);
        EXPECT(tester.written(tester.stacks, both) == tester.written(tester.stacks, after_whole));
        if (!grammar.merges_all) continue;
        EXPECT(tester.stacks.is_subset(after_part, after_whole, tester.budget) && both == after_whole);
      }
    }
  }
}

void test_state_above_a_node_is_one_of_its_stack_tops(const Grammar& grammar) {
  Tester tester(grammar);
  for (GssNode node : tester.reached()) {
    for (const StackTop& top : tester.stacks.tops(node)) {
      auto above = [&] { return tester.stacks.above(top.state, top.below, true, tester.budget); };
      GssNode one = above();
      EXPECT(tester.written(tester.stacks, one) == tester.written(tester.stacks, top));
      EXPECT(above() == one);
    }
  }
}

void test_copied_nodes_have_the_same_stacks(const Grammar& grammar) {
  Tester tester(grammar);
  Stacks other(tester.network);
  other.start(tester.budget);
  context_free::PairTable copies, copies_back;
  copies.add(Stacks::kDead, 0, Stacks::kDead);
  copies_back.add(Stacks::kDead, 0, Stacks::kDead);
  std::vector<GssNode> nodes = tester.reached();
  std::reverse(nodes.begin(), nodes.end());
  for (GssNode node : nodes) {
    GssNode copy = other.copied(node, tester.stacks, copies);
    EXPECT(tester.written(other, copy) == tester.written(tester.stacks, node));
    EXPECT(tester.stacks.copied(copy, other, copies_back) == node);
    EXPECT(std::is_sorted(other.begin(copy), other.end(copy)));
  }
}

void test_what_is_known_takes_no_work(const Grammar& grammar) {
  Tester tester(grammar);
  std::vector<GssNode> nodes = tester.reached();
  auto read_all = [&] {
    for (GssNode node : nodes) {
      for (char byte : {'a', 'b'}) tester.after(node, byte);
    }
  };
  auto united = [&](const std::vector<GssNode>& some) { return tester.stacks.united(some, tester.budget); };
  read_all();
  for (size_t i = 2; i < nodes.size(); ++i) united({nodes[i - 2], nodes[i - 1], nodes[i]});
  const uint64_t steps = tester.budget.total();
  const size_t memory = tester.stacks.memory_bytes();
  read_all();
  for (size_t i = 2; i < nodes.size(); ++i) united({nodes[i], Stacks::kDead, nodes[i - 1], nodes[i - 2]});
  EXPECT(tester.budget.total() == steps && tester.stacks.memory_bytes() == memory);
}

// Unions of what follows so many "a" and one more, which differ in each rule that was called.
void test_deep_unions_read_on() {
  for (size_t depth : {100, 1'000, 9'000}) {
    Tester tester({nested, is_nested});
    GssNode node = tester.after(tester.stacks.start(tester.budget), std::string(depth, 'a'));
    node = tester.stacks.united({node, tester.after(node, 'a')}, tester.budget);
    EXPECT(!tester.stacks.may_end(node));
    node = tester.after(node, std::string(depth, 'b'));
    EXPECT(tester.stacks.may_end(node) && tester.stacks.may_end(tester.after(node, 'b')));
    EXPECT(tester.after(node, "bb") == Stacks::kDead);
  }
}

// Merged in all levels, the unions of these stacks would be exponential in the length of the text.
void test_work_of_a_very_ambiguous_text_is_bounded() {
  Tester tester({ambiguous, nullptr});
  GssNode node = tester.stacks.start(tester.budget);
  uint32_t random = 1;
  for (size_t i = 0; i < 2'000; ++i) {
    const uint64_t before = tester.budget.total();
    std::vector<GssNode> following;
    for (char byte : {'(', 'a', 'b', 'x'}) {
      GssNode next = tester.after(node, byte);
      if (tester.stacks.reads_symbols(next)) following.push_back(next);
    }
    EXPECT(!following.empty() && tester.budget.total() - before < 50'000);
    random = random * 1'664'525 + 1'013'904'223;
    node = following[(random >> 16) % following.size()];
  }
}

}  // namespace

int main() {
  std::vector<Grammar> grammars;
  for (auto [build, judge] : kLanguages) {
    for (bool embeds_b : {false, true}) {
      for (bool merges_all : {true, false}) grammars.push_back({build, judge, embeds_b, merges_all});
    }
  }
  for (const Grammar& grammar : grammars) {
    test_texts_end_where_the_grammar_says(grammar);
    test_dead_nodes_begin_no_text(grammar);
    test_equal_sets_of_stacks_are_one_node(grammar);
    test_unions_and_subsets_are_those_of_the_stacks(grammar);
    test_what_follows_a_part_is_part_of_what_follows_the_whole(grammar);
    test_state_above_a_node_is_one_of_its_stack_tops(grammar);
    test_copied_nodes_have_the_same_stacks(grammar);
    test_what_is_known_takes_no_work(grammar);
  }
  test_deep_unions_read_on();
  test_work_of_a_very_ambiguous_text_is_bounded();
  return 0;
}
