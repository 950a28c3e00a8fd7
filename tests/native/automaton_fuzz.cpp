// Feeds the core of the automata with patterns made of random parts, and with damaged
// bytes. Built with sanitizers. Prints how many patterns compiled, and how many did not.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "automata/compile.h"
#include "automata/rules.h"
#include "base/hash.h"
#include "json/scalars/number.h"
#include "language/index_matcher.h"
#include "token_masks/token_index.h"

using namespace structout;
using namespace structout::engine;

namespace {

std::mt19937_64 rng(16);

size_t below(size_t bound) { return rng() % bound; }

const std::vector<std::string> kParts = {"a",       "b",       "\xC3\xA9",  "\xF0\x9F\xA6\x8A",
                                         ".",       "[a-z]",   "[^\"\\\\]", "\\d",
                                         "\\W",     "\\s",     "(",         ")",
                                         "(?:",     "(?=",     "(?!",       "(?<n>",
                                         "|",       "*",       "+",         "?",
                                         "{2}",     "{0,3}",   "{1,}",      "^",
                                         "$",       "\\x41",   "\\u0041",   "\\u{1F98A}",
                                         "[",       "]",       "-",         "\\",
                                         "{",       "}",       "[^",        "\\b",
                                         "\\ud83e", "\\udd8a", "\xFF",      std::string(1, '\0'),
                                         "{900}",   "\\p{Lu}", "\\P{L}",    "[^\\p{gc=N}"};

std::string random_pattern() {
  std::string pattern;
  for (size_t i = below(16); i > 0; --i) pattern += kParts[below(kParts.size())];
  if (below(2)) pattern = "(" + pattern + ")" + kParts[below(kParts.size())];
  return pattern;
}

// Rules whose parts refer to each other at random.
Automaton random_rules(const Limits& limits) {
  Rules rules;
  std::vector<uint32_t> parts, references;
  for (size_t i = 0; i < 3; ++i) references.push_back(rules.add_rule("r" + std::to_string(i)));
  parts = references;
  auto any = [&] { return parts[below(parts.size())]; };
  for (size_t i = below(12); i > 0; --i) {
    switch (below(8)) {
      case 0:
        parts.push_back(rules.add_text(std::string(below(3), char(below(256)))));
        break;
      case 1:
        parts.push_back(rules.add_regex(random_pattern(), limits));
        break;
      case 2:
        parts.push_back(rules.add_automaton(compile_choices({"", "ab", std::string(1, char(below(256)))})));
        break;
      case 3:
        parts.push_back(rules.add_complement(any()));
        break;
      case 4:
        parts.push_back(rules.add_intersection({any(), any()}));
        break;
      case 5:
        parts.push_back(
            rules.add_repetition(any(), uint32_t(below(3)), below(2) ? kUnbounded : uint32_t(2 + below(9))));
        break;
      case 6:
        parts.push_back(rules.add_sequence({any(), any(), any()}));
        break;
      case 7:
        parts.push_back(rules.add_alternatives({any(), any()}));
        break;
    }
  }
  for (uint32_t reference : references) rules.define(reference, any());
  return rules.compile(references[0], limits);
}

// Bounds and steps of random digits.
Automaton random_numbers(const Limits& limits) {
  auto digits = [] { return std::string(1, char('1' + below(9))) + std::to_string(below(1000)).substr(0, below(4)); };
  std::string text = (below(4) ? "" : "-") + digits();
  if (below(2)) text += "." + digits();
  if (below(4) == 0) text += "e" + std::to_string(int64_t(below(9000)) - 4500);
  json::Decimal number(text);
  Budget budget(limits);
  switch (below(4)) {
    case 0:
      return json::numbers_from(number, below(2));
    case 1:
      return json::numbers_to(number, below(2));
    case 2:
      return json::numbers_equal(number);
  }
  return number.is_negative() ? json::integers(below(2)) : json::multiples_of(number, budget);
}

std::string damaged(std::string bytes) {
  for (size_t i = below(3); i > 0 && !bytes.empty(); --i) bytes[below(bytes.size())] ^= char(1 << below(8));
  if (below(4) == 0) bytes.resize(below(bytes.size() + 8));
  return bytes;
}

// Damage after a checksum that is right, so that the checks after it are reached.
std::string damaged_and_signed(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  bytes = damaged(bytes);
  uint64_t checksum = hash_bytes(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  for (int i = 0; i < 8; ++i, checksum >>= 8) bytes.push_back(char(checksum & 0xFF));
  return bytes;
}

void read_damaged(const Automaton& automaton) {
  for (int i = 0; i < 8; ++i) {
    std::string bytes = automaton.serialize();
    try {
      Automaton::deserialize(i % 2 ? damaged(bytes) : damaged_and_signed(bytes));
    } catch (const std::invalid_argument&) {
    }
  }
}

void walk(const Automaton& automaton, const std::shared_ptr<const VocabularyTrie>& vocabulary) {
  auto index = std::make_shared<TokenIndex>(automaton, vocabulary);
  IndexMatcher matcher(index, {0});
  std::vector<uint32_t> rows(vocabulary->row_words() * 4);
  for (int step = 0; step < 20; ++step) {
    std::vector<int64_t> drafts = {int64_t(below(vocabulary->size())), int64_t(below(vocabulary->size() + 9)) - 4, -1};
    std::vector<uint32_t> states;
    matcher.append_draft_states(drafts.data(), drafts.size(), states);
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i] != kFreeRow) matcher.fill(states[i], rows.data() + i * vocabulary->row_words());
    }
    int64_t token = int64_t(below(vocabulary->size()));
    matcher.accept(&token, 1);
    if (below(5) == 0) matcher.rollback(below(matcher.num_tokens() + 1));
  }
  if (index->num_states() < 200) index->token_classes(1 << 26);
  TokenIndex::deserialize(index->serialize(), vocabulary);
}

}  // namespace

int main(int, char** arguments) {
  std::vector<std::string> tokens = {""};
  for (int byte = 0; byte < 256; byte += 1 + int(below(2))) tokens.push_back(std::string(1, char(byte)));
  for (int i = 0; i < 300; ++i) tokens.push_back(random_pattern().substr(0, 1 + below(4)));
  auto vocabulary = std::make_shared<const VocabularyTrie>(tokens);
  Limits limits;
  limits.states = 2000;
  limits.nodes = 20000;
  limits.seconds = 5;
  int num_compiled = 0, num_refused = 0;
  Automaton previous;
  for (int i = std::atoi(arguments[1]); i > 0; --i) {
    try {
      Automaton automaton = i % 6 == 0   ? random_rules(limits)
                            : i % 6 == 1 ? compile_json_string({random_pattern()}, uint32_t(below(3)), 4, limits)
                            : i % 6 == 2 ? compile_string_content(random_pattern(), limits)
                            : i % 6 == 3 ? random_numbers(limits)
                                         : compile_regex(random_pattern(), limits);
      ++num_compiled;
      read_damaged(automaton);
      if (automaton.num_states() == 0) continue;
      if (automaton.num_states() < 500) walk(automaton, vocabulary);
      Budget budget(limits);
      previous = i % 2 ? union_of(previous, automaton, budget) : difference(automaton, previous, budget);
    } catch (const PatternError&) {
      ++num_refused;
    } catch (const LimitError&) {
      ++num_refused;
    }
  }
  compile_choices(tokens);
  std::printf("%d %d\n", num_compiled, num_refused);
}
