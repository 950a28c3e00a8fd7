// Unit tests of json/scalars/texts.h: formulas on the contents of strings and on numbers, against all
// short texts.
#include "json/scalars/texts.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "automata/compile.h"
#include "expect.h"
#include "json/scalars/number.h"

using namespace structout;
using json::Formula;
using json::Formulas;
using json::TextKind;
using json::Texts;

namespace {

using Judge = std::function<bool(const std::string&)>;

constexpr size_t kMaxLength = 4;  // longer texts are counted as if all characters were allowed
constexpr size_t kMaxDigits = 3;

std::mt19937_64 rng(3);
size_t below(size_t bound) { return rng() % bound; }

// What else a text may have is not allowed.
std::vector<bool> allowed_bytes(const std::string& characters) {
  std::vector<bool> allowed(256);
  for (char character : characters) allowed[uint8_t(character)] = true;
  return allowed;
}

std::vector<std::string> short_texts(const std::string& characters = "ab") {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < kMaxLength; ++i) {
    for (char character : characters) texts.push_back(texts[i] + character);
  }
  return texts;
}

struct Tester {
  engine::Limits limits = without_clock();
  engine::Budget budget{limits};
  Formulas formulas{budget};
  Texts texts;
  std::vector<std::pair<Formula, Judge>> atoms;

  explicit Tester(const std::string& characters) : texts(formulas, budget, allowed_bytes(characters)) {}

  static engine::Limits without_clock() {
    engine::Limits limits;
    limits.seconds = 1e9;
    return limits;
  }

  uint32_t after(uint32_t state, const std::string& begin) {
    for (char byte : begin) state = texts.next(state, uint8_t(byte));
    return state;
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
};

// Strings of "a" and "b".
struct StringTester : Tester {
  StringTester() : Tester("ab") {
    atoms = {
        {texts.strings_matching("^a"), [](const std::string& text) { return text[0] == 'a'; }},
        {texts.strings_matching("b"), [](const std::string& text) { return text.find('b') != std::string::npos; }},
        {texts.strings_matching("^(ab)*$"), [](const std::string& text) { return is_repeated_ab(text); }},
        {texts.exact_strings({"", "ab", "ba", "bbb"}),
         [](const std::string& text) { return text.empty() || text == "ab" || text == "ba" || text == "bbb"; }},
        {texts.min_length(2), [](const std::string& text) { return text.size() >= 2; }},
        {texts.min_length(4), [](const std::string& text) { return text.size() >= 4; }},
    };
  }

  static bool is_repeated_ab(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != "ab"[i % 2]) return false;
    }
    return text.size() % 2 == 0;
  }

  // The same with a limit of the length, so that there are few texts.
  std::pair<Formula, Judge> random_and_short(int depth) {
    auto [formula, is_one] = random(depth);
    return {formulas.conjunction({formula, formulas.negation(texts.min_length(kMaxLength + 1))}), is_one};
  }
};

// Numbers of a few digits, without a sign, a point or an exponent. What is asked of them is
// random.
struct NumberTester : Tester {
  NumberTester() : Tester("0123456789") {
    for (int i = 0; i < 4; ++i) {
      const engine::Automaton automaton = random_automaton();
      atoms.emplace_back(language(automaton), [automaton](const std::string& text) { return automaton.matches(text); });
    }
  }

  // The process keeps languages by their names.
  Formula language(const engine::Automaton& automaton) {
    static size_t number = 0;
    return texts.language(TextKind::kNumber, std::to_string(number++), [&] { return automaton; });
  }

  // Half of them go on after any digits, as multiples of a step do.
  engine::Automaton random_automaton() {
    engine::AutomatonBuilder builder;
    size_t num_states = 1 + below(4);
    bool always_goes_on = below(2) == 0;
    for (size_t i = 0; i < num_states; ++i) {
      std::vector<engine::Edge> edges;
      for (int first = '0', last; first <= '9'; first = last + 1) {
        last = std::min(first + int(below(10)), int('9'));
        bool is_edge = always_goes_on || below(4) > 0;
        if (is_edge) edges.push_back({uint8_t(first), uint8_t(last), uint32_t(below(num_states))});
      }
      builder.add_state(below(3) > 0, edges);
    }
    return builder.minimal(0, budget);
  }

  std::pair<Formula, Judge> random_and_short(int depth) {
    auto [formula, is_one] = random(depth);
    Formula is_short = language(engine::compile_regex("[0-9]{1," + std::to_string(kMaxDigits) + "}", limits));
    return {formulas.conjunction({formula, is_short}), is_one};
  }
};

std::vector<std::string> short_numbers() {
  std::vector<std::string> numbers;
  for (size_t i = 0; std::to_string(i).size() <= kMaxDigits; ++i) numbers.push_back(std::to_string(i));
  return numbers;
}

void test_text_matches_if_the_formula_holds() {
  StringTester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random(3);
    for (const std::string& text : short_texts()) {
      EXPECT(tester.texts.matches(TextKind::kString, formula, text) == is_one(text));
    }
  }
}

void test_state_is_live_if_some_continuation_holds() {
  StringTester tester;
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

// Also where the texts have any length.
void test_state_is_live_if_one_that_accepts_follows() {
  for (int i = 0; i < 100; ++i) {
    NumberTester tester;
    std::vector<uint32_t> states = {tester.texts.followed(TextKind::kNumber, tester.random(3).first)};
    std::vector<std::pair<uint32_t, uint32_t>> steps;
    std::set<uint32_t> is_reached = {states[0]}, is_live;
    for (size_t k = 0; k < states.size(); ++k) {
      for (const engine::Edge& edge : tester.texts.edges(states[k])) {
        steps.emplace_back(states[k], edge.target);
        if (is_reached.insert(edge.target).second) states.push_back(edge.target);
      }
      if (tester.texts.accepts(states[k])) is_live.insert(states[k]);
    }
    for (size_t before = SIZE_MAX; before != is_live.size();) {
      before = is_live.size();
      for (auto [from, to] : steps) {
        if (is_live.count(to) != 0) is_live.insert(from);
      }
    }
    std::shuffle(states.begin(), states.end(), rng);
    for (uint32_t state : states) EXPECT(tester.texts.is_live(state) == (is_live.count(state) != 0));
  }
}

// `expected` are all continuations.
void expect_listed_and_counted(Texts& texts, uint32_t state, std::vector<std::string> expected) {
  std::optional<std::vector<std::string>> found = texts.all_texts(state, std::max<size_t>(expected.size(), 100));
  EXPECT(found.has_value());
  std::sort(expected.begin(), expected.end());
  std::sort(found->begin(), found->end());
  EXPECT(*found == expected);
  EXPECT(texts.count(state) == expected.size());
  if (expected.size() >= 2) EXPECT(!texts.all_texts(state, expected.size() - 1).has_value());
}

void test_all_texts_are_listed_and_counted() {
  StringTester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(3);
    std::vector<std::string> expected;
    for (const std::string& text : short_texts()) {
      if (is_one(text)) expected.push_back(text);
    }
    uint32_t start = tester.texts.start(TextKind::kString, formula);
    expect_listed_and_counted(tester.texts, start, expected);
    EXPECT(tester.texts.least_count(start) == expected.size());
  }
}

// A character that texts may not have can leave out some that the formula accepts.
void test_all_strings_are_listed_or_none() {
  StringTester tester;
  const std::vector<std::string> all = short_texts("abc");
  size_t num_listed = 0;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(3);
    std::optional<std::vector<std::string>> found = tester.texts.all_strings(formula, 100);
    if (!found) continue;
    ++num_listed;
    EXPECT(found->size() == size_t(std::count_if(all.begin(), all.end(), is_one)));
  }
  EXPECT(num_listed > 20);
}

// From each beginning, so that the digits that may still follow are few or none.
void test_all_numbers_are_listed_and_counted() {
  for (int i = 0; i < 200; ++i) {
    NumberTester tester;
    auto [formula, is_one] = tester.random_and_short(2);
    std::map<std::string, std::vector<std::string>> expected = {{"", {}}};  // by the beginning
    for (const std::string& text : short_numbers()) {
      expected[text];
      if (!is_one(text)) continue;
      for (size_t size = 0; size <= text.size(); ++size) expected[text.substr(0, size)].push_back(text.substr(size));
    }
    uint32_t start = tester.texts.followed(TextKind::kNumber, formula);
    for (const auto& [begin, ends] : expected) {
      uint32_t state = tester.after(start, begin);
      uint32_t least = tester.texts.least_count(state);
      EXPECT(least <= ends.size());
      EXPECT((least == 0) == ends.empty());
      expect_listed_and_counted(tester.texts, state, ends);
    }
  }
}

// Which takes no state for each remainder after each number of digits.
void test_long_multiples_are_many() {
  NumberTester tester;
  Formula multiples = tester.language(json::multiples_of(json::Decimal("997"), tester.budget));
  uint32_t start = tester.texts.start(TextKind::kNumber, multiples);
  EXPECT(tester.texts.count(start) == Texts::kManyTexts);
  EXPECT(tester.texts.least_count(tester.after(start, "1")) == Texts::kManyTexts);
  EXPECT(tester.texts.num_states() < 3 * 997);
}

// Which takes no state for each length.
void test_long_strings_are_many() {
  StringTester tester;
  Formula is_short = tester.formulas.negation(tester.texts.min_length(1'000'000'000));
  EXPECT(tester.texts.count(tester.texts.start(TextKind::kString, is_short)) == Texts::kManyTexts);
  EXPECT(tester.texts.num_states() < 10);
}

// How many strings have from `min` to `max` characters, each of which is one of so many.
uint64_t num_strings(uint64_t num_characters, uint32_t min, uint32_t max) {
  const uint64_t many = Texts::kManyTexts;
  uint64_t sum = 0, of_length = 1;
  for (uint32_t length = 0; length <= max; ++length) {
    if (length >= min) sum = std::min(sum + of_length, many);
    of_length = std::min(of_length * num_characters, many);
  }
  return sum;
}

// A quote is no character of a string, even where a text may have it.
void test_strings_of_a_length_are_counted() {
  const std::vector<uint32_t> lengths = {0, 1, 2, 5, 8, 9, 10, 20, 28, 29, 30, 31, 40};
  for (const std::string characters : {"", "a", "ab", "abc", "0123456789"}) {
    Tester tester(characters + '"');
    for (uint32_t min : lengths) {
      Formula is_long = tester.texts.min_length(min);
      uint32_t expected = characters.empty() ? uint32_t(min == 0) : Texts::kManyTexts;
      EXPECT(tester.texts.count(tester.texts.start(TextKind::kString, is_long)) == expected);
      for (uint32_t max : lengths) {
        Formula is_short = tester.formulas.negation(tester.texts.min_length(max + 1));
        uint32_t state = tester.texts.start(TextKind::kString, tester.formulas.conjunction({is_long, is_short}));
        EXPECT(tester.texts.count(state) == num_strings(characters.size(), min, max));
      }
    }
  }
}

void test_texts_of_a_set_are_counted() {
  StringTester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(3);
    const std::string quote = below(2) == 0 ? "\"" : "";
    std::vector<std::string> chosen;
    json::TextSet set;
    for (const std::string& text : short_texts()) {
      if (below(2) == 0) continue;
      chosen.push_back(text);
      set = set.with(text + quote);
    }
    uint32_t start = tester.texts.start(TextKind::kString, formula);
    for (const std::string& begin : short_texts()) {
      json::TextSet::Cursor cursor = set.begin();
      for (char byte : begin) cursor.read(uint8_t(byte));
      auto is_expected = [&, is = is_one](const std::string& text) {
        return text.compare(0, begin.size(), begin) == 0 && is(text);
      };
      size_t expected = size_t(std::count_if(chosen.begin(), chosen.end(), is_expected));
      EXPECT(tester.texts.num_among(tester.after(start, begin), cursor) == expected);
    }
  }
}

void test_witness_is_a_text_of_the_formula() {
  StringTester tester;
  for (int i = 0; i < 150; ++i) {
    auto [formula, is_one] = tester.random_and_short(4);
    std::optional<std::string> witness = tester.texts.witness(TextKind::kString, formula);
    std::vector<std::string> all = short_texts();
    EXPECT(witness.has_value() == std::any_of(all.begin(), all.end(), is_one));
    EXPECT(!witness || is_one(*witness));
  }
}

void test_languages_without_end_have_many_texts() {
  StringTester tester;
  Formula all = tester.texts.strings_matching("^(ab)*$");
  EXPECT(tester.texts.count(tester.texts.start(TextKind::kString, all)) == Texts::kManyTexts);
  EXPECT(!tester.texts.all_texts(TextKind::kString, all, 1000).has_value());
}

}  // namespace

int main() {
  test_text_matches_if_the_formula_holds();
  test_state_is_live_if_some_continuation_holds();
  test_state_is_live_if_one_that_accepts_follows();
  test_all_texts_are_listed_and_counted();
  test_all_strings_are_listed_or_none();
  test_all_numbers_are_listed_and_counted();
  test_long_multiples_are_many();
  test_long_strings_are_many();
  test_strings_of_a_length_are_counted();
  test_texts_of_a_set_are_counted();
  test_witness_is_a_text_of_the_formula();
  test_languages_without_end_have_many_texts();
  return 0;
}
