// Refuses negations of narrower texts: formats whose expressions allow less than the
// standards, and steps of numbers (multipleOf) for which only some multiples are
// recognized. A text of such a language satisfies the keyword, but other texts may satisfy
// it too. So a schema may demand the keyword, but must not depend on a value lacking it, as
// `not` would.
#include <algorithm>

#include "json/formulas/schema.h"

namespace structout::json {

bool Schema::has_narrower_text(Formula texts) {
  if (narrower_texts_.empty()) return false;
  const std::vector<Formula>& atoms = formulas_.atoms(texts);
  return std::any_of(atoms.begin(), atoms.end(), [this](Formula atom) { return narrower_texts_.count(atom) != 0; });
}

// A document that is monotone in these languages allows valid texts only. So the check
// follows the sign with which each formula occurs, from the root down. It visits a child at
// most once per sign.
void Schema::check_narrower_texts() {
  if (narrower_texts_.empty()) return;
  struct Occurrence {
    Formula child;
    bool is_negated;
  };
  std::vector<Occurrence> pending = {{root(), false}};
  std::unordered_set<uint64_t> is_seen;
  auto add = [&](Formula child, bool is_negated) {
    if (is_seen.insert(uint64_t(child) * 2 + is_negated).second) pending.push_back({child, is_negated});
  };
  auto check = [&](Formula texts, bool is_negated) {
    formulas_.visit_literals(
        texts,
        [&](Formula atom, bool atom_is_negated) {
          auto found = narrower_texts_.find(atom);
          if (found == narrower_texts_.end() || !atom_is_negated) return;
          const auto& [schema, keyword] = found->second;
          std::string what = keyword == "format"
                                 ? "the format " + schema->find("format")->text +
                                       " is enforced by an expression that is narrower than its standard"
                                 : "only some of the multiples of " + schema->find(keyword)->text + " are known";
          refuse(*schema, keyword,
                 what + ", so nothing can depend on that a value does not have it (in not, if, oneOf or maxContains)");
        },
        is_negated);
  };
  while (!pending.empty()) {
    budget_.spend(1);
    const Occurrence occurrence = pending.back();
    pending.pop_back();
    formulas_.visit_literals(
        occurrence.child, [&](Formula atom, bool is_negated) { add(atom, is_negated); }, occurrence.is_negated);
    if (!is_atom(formulas_.op(occurrence.child))) continue;
    check(expand(occurrence.child, Type::kString), occurrence.is_negated);
    check(expand(occurrence.child, Type::kNumber), occurrence.is_negated);
    for (Type type : {Type::kArray, Type::kObject}) {
      Formula expanded = expand(occurrence.child, type);
      formulas_.visit_literals(
          expanded,
          [&](Formula atom, bool is_negated) {
            const FormulaNode& node = formulas_[atom];
            switch (node.op) {
              case Op::kForName:
                return add(node.b, is_negated);
              case Op::kForKeys:  // more keys ask for more
                check(node.a, !is_negated);
                return add(node.b, is_negated);
              case Op::kForItems:
                return add(node.c, is_negated);
              case Op::kHas:
                return add(node.a, is_negated);
              default:
                return;
            }
          },
          occurrence.is_negated);
    }
  }
}

}  // namespace structout::json
