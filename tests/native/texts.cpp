// Unit tests of json/texts.h: formulas on the contents of strings, against all short texts.
#include "json/texts.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "expect.h"

using namespace structout;
using json::Formula;
using json::Formulas;
using json::TextKind;
using json::Texts;

namespace {

using Judge = std::function<bool(const std::string&)>;

constexpr size_t kMaxLength = 4;  // longer texts are counted as if all characters were allowed

std::mt19937_64 rng(3);
size_t below(size_t bound) { return rng() % bound; }

// Texts of "a" and "b" alone: what else a string may have is not allowed.
std::vector<bool> allowed_bytes() {
  std::vector<bool> allowed(256);
  allowed['a'] = allowed['b'] = true;
  return allowed;
}

std::vector<std::string> short_texts() {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == kMaxLength) break;
    texts.push_back(texts[i] + "a");
    texts.push_back(texts[i] + "b");
  }
  return texts;
}

struct Tester {
  engine::Limits limits = without_clock();
  engine::Budget budget{limits};
  Formulas formulas{budget};
  Texts texts{formulas, budget, allowed_bytes()};
  std::vector<std::pair<Formula, Judge>> atoms = {
      {texts.strings_matching("^a"), [](const std::string& text) { return text[0] == 'a'; }},
      {texts.strings_matching("b"), [](const std::string& text) { return text.find('b') != std::string::npos; }},
      {texts.strings_matching("^(ab)*$"), [](const std::string& text) { return is_repeated_ab(text); }},
      {texts.exact_strings({"", "ab", "ba", "bbb"}),
       [](const std::string& text) { return text.empty() || text == "ab" || text == "ba" || text == "bbb"; }},
      {texts.min_length(2), [](const std::string& text) { return text.size() >= 2; }},
      {texts.min_length(4), [](const std::string& text) { return text.size() >= 4; }},
  };

  static engine::Limits without_clock() {
    engine::Limits limits;
    limits.seconds = 1e9;
    return limits;
  }

  static bool is_repeated_ab(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != "ab"[i % 2]) return false;
    }
    return text.size() % 2 == 0;
  }

  std::pair<Formula, Judge> random(int depth) {
    if (depth == 0) return atoms[below(atoms.size())];
    auto [first, is_first] = random(depth - 1);
    auto [second, is_second] = random(depth - 1);
    switch (below(3)) {
      case 0:
        return {formulas.negation(first), [is = is_first](const std::string& text) { return !is(text); }};
      case 1:
        return {formulas.conjunction({first, second}),
                [a = is_first, b = is_second](const std::string& text) { return a(text) && b(text); }};
      default:
        return {formulas.disjunction({first, second}),
                [a = is_first, b = is_second](const std::string& text) { return a(text) || b(text); }};
    }
  }

  // The same with a limit of the length, so that there are few texts.
  std::pair<Formula, Judge> random_and_short(int depth) {
    auto [formula, is_one] = random(depth);
    return {formulas.conjunction({formula, formulas.negation(texts.min_length(kMaxLength + 1))}), is_one};
  }
};

void test_text_matches_if_the_formula_holds() {
  Tester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random(3);
    for (const std::string& text : short_texts()) {
      EXPECT(tester.texts.matches(TextKind::kString, formula, text) == is_one(text));
    }
  }
}

void test_state_is_live_if_some_continuation_holds() {
  Tester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(3);
    std::vector<std::pair<std::string, uint32_t>> reached = {{"", tester.texts.start(TextKind::kString, formula)}};
    while (!reached.empty()) {
      auto [begin, state] = reached.back();
      reached.pop_back();
      bool is_live = false;
      for (const std::string& text : short_texts()) {
        is_live = is_live || (text.compare(0, begin.size(), begin) == 0 && is_one(text));
      }
      EXPECT(tester.texts.is_live(state) == is_live);
      tester.texts.edges(state);
      EXPECT(tester.texts.accepts(state) == is_one(begin));
      if (begin.size() == kMaxLength) continue;
      for (char byte : {'a', 'b'}) reached.emplace_back(begin + byte, tester.texts.next(state, uint8_t(byte)));
      EXPECT(tester.texts.next(state, 'c') == engine::kDead);
    }
  }
}

void test_all_texts_are_listed_and_counted() {
  Tester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(3);
    std::vector<std::string> expected;
    for (const std::string& text : short_texts()) {
      if (is_one(text)) expected.push_back(text);
    }
    std::sort(expected.begin(), expected.end());
    std::optional<std::vector<std::string>> found = tester.texts.all_texts(TextKind::kString, formula, 100);
    EXPECT(found.has_value());
    std::sort(found->begin(), found->end());
    EXPECT(*found == expected);
    EXPECT(tester.texts.count(tester.texts.start(TextKind::kString, formula)) == expected.size());
    if (expected.size() < 2) continue;
    EXPECT(!tester.texts.all_texts(TextKind::kString, formula, expected.size() - 1).has_value());
  }
}

void test_witness_is_a_text_of_the_formula() {
  Tester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(4);
    std::optional<std::string> witness = tester.texts.witness(TextKind::kString, formula);
    std::vector<std::string> all = short_texts();
    EXPECT(witness.has_value() == std::any_of(all.begin(), all.end(), is_one));
    EXPECT(!witness || is_one(*witness));
  }
}

void test_languages_without_end_have_many_texts() {
  Tester tester;
  Formula all = tester.texts.strings_matching("^(ab)*$");
  EXPECT(tester.texts.count(tester.texts.start(TextKind::kString, all)) == Texts::kManyTexts);
  EXPECT(!tester.texts.all_texts(TextKind::kString, all, 1000).has_value());
}

}  // namespace

int main() {
  test_text_matches_if_the_formula_holds();
  test_state_is_live_if_some_continuation_holds();
  test_all_texts_are_listed_and_counted();
  test_witness_is_a_text_of_the_formula();
  test_languages_without_end_have_many_texts();
  return 0;
}
