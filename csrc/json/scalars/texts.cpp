#include "json/scalars/texts.h"

#include <algorithm>

#include "automata/compile.h"
#include "base/hash.h"
#include "base/sorted_set.h"
#include "json/document/errors.h"
#include "json/scalars/known_automata.h"
#include "json/scalars/number.h"
#include "json/scalars/shared_languages.h"

namespace structout::json {

using engine::Automaton;
using engine::Edge;
using engine::kDead;
using engine::Spelling;

namespace {

constexpr uint64_t kWorkPerLanguage = 1024;  // in steps of the budget
constexpr size_t kMaxStates = 1 << 20;
constexpr size_t kMaxEdges = 16 << 20;

}  // namespace

Texts::Texts(Formulas& formulas, engine::Budget& budget, const std::vector<bool>& allowed_bytes)
    : formulas_(formulas),
      budget_(budget),
      syntax_{known_automaton("canonical strings", [] { return any_string_content(Spelling::kJsonCanonical); }),
              known_automaton("strings", [] { return any_string_content(Spelling::kJson); }), any_number()},
      allowed_bytes_(allowed_bytes),
      allows_all_bytes_(std::count(allowed_bytes.begin(), allowed_bytes.end(), true) == 256) {}

Formula Texts::language(TextKind kind, const std::string& name, const std::function<Automaton()>& compile) {
  auto [found, is_new] = languages_by_name_.try_emplace(name, uint32_t(languages_.size()));
  if (is_new) {
    try {
      SharedLanguages& all = SharedLanguages::of_process();
      std::shared_ptr<const SharedLanguage> shared = all.find(name);
      if (shared == nullptr) {
        shared = std::make_shared<const SharedLanguage>(compile(), syntax(kind));
        all.add(name, shared);
      }
      languages_.push_back(
          {kind, {shared, &shared->automaton}, {shared, &shared->is_everything}, {shared, &shared->distances}});
      memory_bytes_ += shared->automaton.memory_bytes();
      budget_.spend(kWorkPerLanguage);
    } catch (...) {
      languages_by_name_.erase(name);
      throw;
    }
  }
  return atom_of(found->second, 0, 0);
}

Formula Texts::listed(TextKind kind, const std::string& name, uint32_t which,
                      const std::function<ListedTexts()>& build) {
  std::shared_ptr<const ListedTexts>& texts = listed_by_name_[name];
  if (texts == nullptr) {
    texts = std::make_shared<const ListedTexts>(build());
    memory_bytes_ += texts->automaton().memory_bytes();
    budget_.spend(texts->automaton().num_states());
  }
  const std::string numbered = name + " " + std::to_string(which);
  auto known = languages_by_name_.find(numbered);
  if (known == languages_by_name_.end()) {
    languages_.push_back({kind, {texts, &texts->automaton()}, nullptr, nullptr, texts, which});
    known = languages_by_name_.emplace(numbered, uint32_t(languages_.size() - 1)).first;
  }
  return atom_of(known->second, 0, 0);
}

bool Texts::Language::accepts(uint32_t state) const {
  if (listed == nullptr || which == kAllListed) return automaton->accepts(state);
  uint32_t label = listed->label(state);
  return label != ListedTexts::kNone && (label >> which & 1) != 0;
}

Formula Texts::strings_matching(const std::string& pattern) {
  return language(TextKind::kString, "pattern " + pattern,
                  [&] { return engine::compile_string_content(pattern, budget_.limits); });
}

Formula Texts::exact_strings(std::vector<std::string> values) {
  engine::make_set(values);
  std::string name = "exact";
  for (const std::string& value : values) name += " " + std::to_string(value.size()) + ":" + value;
  return language(TextKind::kString, name, [&] { return engine::exact_string_contents(values); });
}

Formula Texts::atom_of(uint32_t language, uint32_t state, uint32_t syntax_state) {
  const Language& of = languages_[language];
  if (state >= of.automaton->num_states()) return kNever;
  bool is_everything =
      of.is_everything != nullptr && of.is_everything->count(SharedLanguage::pair_of(state, syntax_state)) != 0;
  if (is_everything) return kAlways;
  return formulas_.atom(Op::kText, language, state);
}

Formula Texts::after(Formula formula, uint8_t byte, uint32_t syntax_state, bool ends_character) {
  return formulas_.substitute(formula, [&](Formula atom) {
    FormulaNode node = formulas_[atom];
    if (node.op == Op::kMinLength) return ends_character ? min_length(node.a - 1) : atom;
    return atom_of(node.a, languages_[node.a].automaton->next(node.b, byte), syntax_state);
  });
}

bool Texts::holds_at_end(const TextState& state) const {
  if (!syntax(state.kind).accepts(state.syntax)) return false;
  return formulas_.evaluate(state.formula, [this](Formula atom) {
    const FormulaNode& node = formulas_[atom];
    return node.op == Op::kText && languages_[node.a].accepts(node.b);
  });
}

bool Texts::matches(TextKind kind, Formula formula, const std::string& text) {
  uint32_t state = start(kind, formula);
  for (size_t i = 0; i < text.size() && state != kDead; ++i) {
    const TextState now = states_[state];
    uint32_t syntax_state = syntax(kind).next(now.syntax, uint8_t(text[i]));
    if (syntax_state == kDead) return false;
    bool ends_character = kind != TextKind::kNumber && syntax_state == kBoundary;
    state = add({kind, syntax_state, after(now.formula, uint8_t(text[i]), syntax_state, ends_character)});
  }
  return state != kDead && accepts(state);
}

uint32_t Texts::add(const TextState& state) {
  uint64_t hash = engine::mix(engine::mix(uint64_t(state.kind), state.syntax), state.formula);
  auto is_equal = [&](uint32_t other) { return states_[other] == state; };
  auto store = [&] {
    engine::make_room(states_);
    engine::make_room(steps_);
    bool accepts = holds_at_end(state);
    states_.push_back(state);
    steps_.emplace_back();
    steps_.back().accepts = accepts;
  };
  auto [number, is_new] = state_numbers_.find_or_add(hash, is_equal, store);
  if (is_new) {
    memory_bytes_ += sizeof(TextState) + sizeof(Steps) + 2 * sizeof(uint64_t);
    budget_.spend(1);
    if (states_.size() > kMaxStates) throw CacheFull("schema_text_states", states_.size(), kMaxStates);
  }
  return number;
}

void Texts::expand(uint32_t number) {
  if (steps_[number].is_expanded) return;
  const TextState state = states_[number];
  const Automaton& all = syntax(state.kind);
  // Bytes between two bounds lead to the same state.
  std::vector<bool> is_bound(257);
  for (const Edge* edge = all.begin(state.syntax); edge < all.end(state.syntax); ++edge) {
    is_bound[edge->first] = is_bound[edge->last + 1] = true;
  }
  for (int byte = 1; byte < 256; ++byte) {
    if (allowed_bytes_[byte] != allowed_bytes_[byte - 1]) is_bound[byte] = true;
  }
  std::vector<Formula> atoms;
  formulas_.visit_literals(state.formula, [&atoms](Formula atom, bool) { atoms.push_back(atom); });
  for (Formula atom : atoms) {
    const FormulaNode& node = formulas_[atom];
    if (node.op != Op::kText) continue;
    const Automaton& automaton = *languages_[node.a].automaton;
    for (const Edge* edge = automaton.begin(node.b); edge < automaton.end(node.b); ++edge) {
      is_bound[edge->first] = is_bound[edge->last + 1] = true;
    }
  }
  std::vector<Edge> edges;
  for (const Edge* edge = all.begin(state.syntax); edge < all.end(state.syntax); ++edge) {
    bool ends_character = state.kind != TextKind::kNumber && edge->target == kBoundary;
    for (int first = edge->first; first <= edge->last;) {
      int last = first;
      while (last < edge->last && !is_bound[last + 1]) ++last;
      Formula formula = after(state.formula, uint8_t(first), edge->target, ends_character);
      if (!allowed_bytes_[first]) {
        steps_[number].lacks_edges |= formula != kNever;
      } else {
        uint32_t target = add({state.kind, edge->target, formula});
        if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == first) {
          edges.back().last = uint8_t(last);
        } else {
          edges.push_back({uint8_t(first), uint8_t(last), target});
        }
      }
      first = last + 1;
    }
  }
  edges.shrink_to_fit();
  memory_bytes_ += edges.size() * sizeof(Edge);
  if (memory_bytes_ / sizeof(Edge) > kMaxEdges) throw CacheFull("schema_text_edges", edges.size(), kMaxEdges);
  steps_[number].edges = std::move(edges);
  steps_[number].is_expanded = true;
}

uint32_t Texts::next(uint32_t state, uint8_t byte) {
  expand(state);
  for (const Edge& edge : steps_[state].edges) {
    if (byte <= edge.last) return byte >= edge.first ? edge.target : kDead;
  }
  return kDead;
}

}  // namespace structout::json
