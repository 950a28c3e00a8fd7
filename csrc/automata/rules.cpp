#include "automata/rules.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <unordered_set>

#include "automata/compile.h"
#include "automata/components.h"
#include "automata/nfa.h"

namespace structout::engine {

namespace {

constexpr uint32_t kUnvisited = UINT32_MAX;
constexpr size_t kShownRules = 8;
constexpr size_t kMaxShortText = 1'000;

// The automaton of one text, a chain of states, without a subset construction. Most
// terminals are texts.
Automaton chain(const std::string& text) {
  AutomatonBuilder builder;
  for (size_t i = 0; i < text.size(); ++i) {
    builder.add_state(false, {{uint8_t(text[i]), uint8_t(text[i]), uint32_t(i + 1)}});
  }
  builder.add_state(true, {});
  return builder.numbered(0);
}

std::string hex_escape(char character) {
  const char* digits = "0123456789abcdef";
  return {'\\', 'u', '0', '0', digits[character >> 4], digits[character & 0xF]};
}

}  // namespace

Rules Rules::in_json_string(const std::string& escaped) {
  for (char character : escaped) {
    bool is_punctuation = character > ' ' && character < 0x7F && !std::isalnum(character);
    if (!is_punctuation || character == '"' || character == '\\') {
      throw std::invalid_argument("only punctuation without another escape can be escaped");
    }
  }
  Rules rules;
  rules.spelling_ = Spelling::kJsonCanonical;
  rules.escaped_ = escaped;
  return rules;
}

// Refuses parts whose spelling is fixed where texts stand in a JSON string.
void Rules::check_plain() const {
  if (spelling_ != Spelling::kUtf8) throw std::invalid_argument("the part cannot stand in a JSON string");
}

std::string Rules::spelled(const std::string& text) const {
  if (spelling_ == Spelling::kUtf8) return text;
  std::string content;
  for (char character : spelled_canonically(text)) {
    bool is_escaped = escaped_.find(character) != std::string::npos;
    content += is_escaped ? hex_escape(character) : std::string{character};
  }
  return content;
}

// Makes the set of a part alternatives, with an escape for each of `escaped_` in it.
void Rules::spell_set(uint32_t part) {
  CodePointSet others = pattern_.sets[pattern_.parts[part].index].complement();
  std::vector<uint32_t> alternatives;
  for (char character : escaped_) {
    uint32_t code = uint8_t(character);
    if (others.contains(code)) continue;
    others.add(code, code);
    alternatives.push_back(add_text({character}));
  }
  if (alternatives.empty()) return;
  others.normalize();
  pattern_.sets.push_back(others.complement());
  alternatives.push_back(add_indexed(PartKind::kSet, pattern_.sets.size() - 1));
  pattern_.parts[part] = Part{PartKind::kAlternatives};
  pattern_.parts[part].children = std::move(alternatives);
}

uint32_t Rules::add(Part part) {
  for (uint32_t child : part.children) check(child);
  pattern_.parts.push_back(std::move(part));
  return uint32_t(pattern_.parts.size() - 1);
}

uint32_t Rules::add(PartKind kind, std::vector<uint32_t> parts) {
  Part part{kind};
  part.children = std::move(parts);
  return add(std::move(part));
}

uint32_t Rules::add_indexed(PartKind kind, size_t index) {
  Part part{kind};
  part.index = uint32_t(index);
  return add(std::move(part));
}

void Rules::check(uint32_t part) const {
  if (part >= pattern_.parts.size()) throw std::out_of_range("there is no part " + std::to_string(part));
}

uint32_t Rules::add_text(std::string bytes) {
  pattern_.texts.push_back(spelled(bytes));
  return add_indexed(PartKind::kText, pattern_.texts.size() - 1);
}

uint32_t Rules::add_characters(CodePointSet set, bool is_negated) {
  set.normalize();
  pattern_.sets.push_back(is_negated ? set.complement() : std::move(set));
  uint32_t part = add_indexed(PartKind::kSet, pattern_.sets.size() - 1);
  spell_set(part);
  return part;
}

uint32_t Rules::add_regex(const std::string& pattern, const Limits& limits) {
  size_t first = pattern_.parts.size();
  uint32_t whole = parse_regex(pattern, limits, pattern_);
  for (size_t i = first; i < pattern_.parts.size(); ++i) {
    PartKind kind = pattern_.parts[i].kind;
    if (kind == PartKind::kStart || kind == PartKind::kEnd) {
      throw PatternError("anchors are not supported in a grammar", false);
    }
    if (kind == PartKind::kLookahead) throw PatternError("lookahead is not supported in a grammar", false);
  }
  size_t end = pattern_.parts.size();
  for (size_t i = first; i < end; ++i) {
    if (pattern_.parts[i].kind == PartKind::kSet) spell_set(uint32_t(i));
  }
  return whole;
}

uint32_t Rules::add_automaton(Automaton automaton) {
  check_plain();
  pattern_.automata.push_back(std::move(automaton));
  return add_indexed(PartKind::kAutomaton, pattern_.automata.size() - 1);
}

uint32_t Rules::add_branching(Branching branching, std::vector<uint32_t> exits) {
  check_plain();
  if (branching.returns.size() != exits.size()) throw std::invalid_argument("an exit needs a part that follows it");
  uint32_t part = add(PartKind::kBranching, std::move(exits));
  pattern_.parts[part].index = uint32_t(pattern_.branchings.size());
  pattern_.branchings.push_back(std::move(branching));
  return part;
}

uint32_t Rules::add_sequence(std::vector<uint32_t> parts) { return add(PartKind::kSequence, std::move(parts)); }

uint32_t Rules::add_alternatives(std::vector<uint32_t> parts) { return add(PartKind::kAlternatives, std::move(parts)); }

uint32_t Rules::add_repetition(uint32_t part, uint32_t min, uint32_t max) {
  if (min > max) throw std::invalid_argument("the bounds of a repetition are out of order");
  Part repetition{PartKind::kRepetition};
  repetition.min = min;
  repetition.max = max;
  repetition.children.push_back(part);
  return add(std::move(repetition));
}

uint32_t Rules::add_intersection(std::vector<uint32_t> parts) {
  if (parts.empty()) throw std::invalid_argument("an intersection needs a part");
  return add(PartKind::kIntersection, std::move(parts));
}

uint32_t Rules::add_complement(uint32_t part) {
  uint32_t complement = add(PartKind::kComplement, {part});
  if (spelling_ == Spelling::kUtf8) return complement;
  uint32_t any_content = add_repetition(add_characters({}, true), 0, kUnbounded);
  return add_intersection({complement, any_content});
}

uint32_t Rules::add_terminal(uint32_t part, TerminalOptions options) {
  uint32_t terminal = add(PartKind::kTerminal, {part});
  pattern_.parts[terminal].index = uint32_t(pattern_.terminals.size());
  options.stop = spelled(options.stop);
  pattern_.terminals.push_back(std::move(options));
  return terminal;
}

uint32_t Rules::add_embedded(std::shared_ptr<EmbeddedLanguage> language) {
  check_plain();
  // Once each: where a text stands in one of them twice, it stands in one place.
  auto known = std::find(pattern_.embedded.begin(), pattern_.embedded.end(), language);
  size_t index = size_t(known - pattern_.embedded.begin());
  if (known == pattern_.embedded.end()) pattern_.embedded.push_back(std::move(language));
  return add_indexed(PartKind::kEmbedded, index);
}

uint32_t Rules::add_tokens(TokenRanges ids) {
  check_plain();
  std::sort(ids.begin(), ids.end());
  TokenRanges merged;
  for (auto [first, last] : ids) {
    if (first > last || last > kMaxToken) throw std::invalid_argument("no range of token ids");
    if (!merged.empty() && first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, last);
    } else {
      merged.emplace_back(first, last);
    }
  }
  pattern_.tokens.push_back(std::move(merged));
  return add_indexed(PartKind::kTokens, pattern_.tokens.size() - 1);
}

uint32_t Rules::add_rule(std::string name) {
  pattern_.rules.push_back({std::move(name)});
  return add_indexed(PartKind::kRule, pattern_.rules.size() - 1);
}

Rule& Rules::rule_of(uint32_t reference) {
  check(reference);
  if (pattern_.parts[reference].kind != PartKind::kRule) throw std::invalid_argument("the part is not a rule");
  return pattern_.rules[pattern_.parts[reference].index];
}

void Rules::define(uint32_t reference, uint32_t body) {
  check(body);
  Rule& rule = rule_of(reference);
  if (rule.body != kUndefined) throw std::invalid_argument("the rule " + rule.name + " is defined twice");
  rule.body = body;
}

void Rules::set_priority(uint32_t reference, int priority) { rule_of(reference).priority = priority; }

// The references to rules in a part, but not those in the bodies of these rules.
std::vector<Rules::Reference> Rules::references(uint32_t part) const {
  std::vector<Reference> found;
  std::vector<std::pair<uint32_t, bool>> pending = {{part, true}};
  std::unordered_set<uint64_t> seen;
  while (!pending.empty()) {
    auto [index, is_last] = pending.back();
    pending.pop_back();
    const Part& current = pattern_.parts[index];
    if (current.kind == PartKind::kRule) found.push_back({current.index, is_last});
    bool keeps_end = current.kind == PartKind::kSequence || current.kind == PartKind::kAlternatives ||
                     (current.kind == PartKind::kRepetition && current.max == 1);
    for (size_t i = 0; i < current.children.size(); ++i) {
      bool ends_sequence = current.kind != PartKind::kSequence || i + 1 == current.children.size();
      bool child_is_last = is_last && keeps_end && ends_sequence;
      if (seen.insert(uint64_t(current.children[i]) << 1 | child_is_last).second) {
        pending.emplace_back(current.children[i], child_is_last);
      }
    }
  }
  return found;
}

void Rules::check_recursion(uint32_t root) const {
  check(root);
  if (references(root).empty()) return;
  // The references of each rule that the root reaches. The last entry is the root's.
  size_t num_rules = pattern_.rules.size();
  std::vector<std::vector<Reference>> of_rule(num_rules + 1);
  std::vector<std::vector<uint32_t>> targets(num_rules + 1);
  std::vector<uint8_t> is_reached(num_rules + 1);
  std::vector<uint32_t> pending = {uint32_t(num_rules)};
  while (!pending.empty()) {
    uint32_t rule = pending.back();
    pending.pop_back();
    uint32_t body = rule == num_rules ? root : pattern_.rules[rule].body;
    if (body == kUndefined) throw PatternError("the rule " + pattern_.rules[rule].name + " is not defined", true);
    of_rule[rule] = references(body);
    for (const Reference& reference : of_rule[rule]) {
      targets[rule].push_back(reference.rule);
      if (is_reached[reference.rule]) continue;
      is_reached[reference.rule] = true;
      pending.push_back(reference.rule);
    }
  }
  Components components(targets);
  for (uint32_t rule = 0; rule < num_rules; ++rule) {
    for (const Reference& reference : of_rule[rule]) {
      if (reference.is_last || components[rule] != components[reference.rule]) continue;
      throw PatternError(
          "recursion is not supported except at the end of a rule: " + cycle(targets, rule, reference.rule), false);
    }
  }
}

// The names of the rules on a shortest cycle through the reference from `from` to `to`.
std::string Rules::cycle(const std::vector<std::vector<uint32_t>>& targets, uint32_t from, uint32_t to) const {
  std::vector<uint32_t> before(targets.size(), kUnvisited), pending = {to};
  before[to] = to;
  for (size_t i = 0; i < pending.size() && before[from] == kUnvisited; ++i) {
    for (uint32_t target : targets[pending[i]]) {
      if (before[target] != kUnvisited) continue;
      before[target] = pending[i];
      pending.push_back(target);
    }
  }
  std::vector<uint32_t> way;
  for (uint32_t rule = from; rule != to; rule = before[rule]) way.push_back(rule);
  way.push_back(to);
  std::reverse(way.begin(), way.end());
  std::string names = pattern_.rules[from].name;
  for (size_t i = 0; i < way.size(); ++i) {
    if (i == kShownRules && way.size() > kShownRules + 1) {
      return names + " -> ... -> " + pattern_.rules[from].name;
    }
    names += " -> " + pattern_.rules[way[i]].name;
  }
  return names;
}

Automaton Rules::compile(uint32_t root, const Limits& limits) const {
  if (pattern_.parts[root].kind == PartKind::kText) {
    const std::string& text = pattern_.texts[pattern_.parts[root].index];
    if (text.size() <= kMaxShortText && text.size() < limits.states) return chain(text);
  }
  check_recursion(root);
  Budget budget(limits);
  Nfa nfa = build_nfa(pattern_, {root}, spelling_, budget);
  return determinize(nfa, nfa.start, true, budget);
}

}  // namespace structout::engine
