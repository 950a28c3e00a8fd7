// Satisfiability of formulas on objects.
#include <algorithm>
#include <functional>

#include "json/satisfiability/liveness.h"

namespace structout::json {

namespace {

constexpr size_t kMaxFreeKeys = 256;
constexpr size_t kMaxConflictTests = 24;
constexpr uint32_t kAnyNumberOfKeys = UINT32_MAX;

bool is_past(uint32_t name, const KeyOrder& order, const PastKeys& past) {
  if (past.empty()) return false;
  auto found = order.positions.find(name);
  return found != order.positions.end() && past[found->second];
}

}  // namespace

bool Liveness::applies(const FormulaNode& atom, const Key& key) {
  if (atom.op == Op::kForName) return atom.a == key.name;
  if (atom.op != Op::kForKeys) return false;
  if (!key.is_free()) return schema_.describes(atom.a, key.name);
  return std::find(key.sets.begin(), key.sets.end(), atom.a) != key.sets.end();
}

Formula Liveness::outside(const KeyOrder& order) {
  if (order.names.empty()) return kAlways;
  std::vector<std::string> names;
  for (uint32_t name : order.names) names.push_back(schema_.name(name));
  return formulas_.negation(texts_.exact_strings(std::move(names)));
}

Formula Liveness::description(const Key& key, const std::vector<Formula>& sets, const KeyOrder& order) {
  std::vector<Formula> all = {outside(order)};
  for (Formula set : sets) {
    bool is_inside = std::find(key.sets.begin(), key.sets.end(), set) != key.sets.end();
    all.push_back(is_inside ? set : formulas_.negation(set));
  }
  return formulas_.conjunction(std::move(all));
}

std::vector<Key> Liveness::free_keys(const std::vector<Formula>& sets, const KeyOrder& order) {
  std::optional<std::vector<Key>> keys = some_free_keys(sets, order);
  if (!keys) throw engine::LimitError("schema_key_sets", kMaxFreeKeys + 1, kMaxFreeKeys);
  return *std::move(keys);
}

std::optional<std::vector<Key>> Liveness::some_free_keys(const std::vector<Formula>& sets, const KeyOrder& order) {
  std::vector<Key> keys;
  std::function<void(size_t, Formula, Key)> divide = [&](size_t next, Formula text, Key key) {
    if (keys.size() > kMaxFreeKeys) return;
    if (text == kNever || !texts_.is_live(texts_.start(TextKind::kString, text))) return;
    if (next == sets.size()) return keys.push_back(std::move(key));
    divide(next + 1, formulas_.conjunction({text, formulas_.negation(sets[next])}), key);
    key.sets.push_back(sets[next]);
    divide(next + 1, formulas_.conjunction({text, sets[next]}), std::move(key));
  };
  divide(0, outside(order), {});
  if (keys.size() > kMaxFreeKeys) return std::nullopt;
  return keys;
}

// Sets of keys with the same child count as one. Keys are split by a set only while some
// child formulas conflict, and first by the child that conflicts with most others.
Formula Liveness::free_texts(const std::vector<Formula>& for_keys, const KeyOrder& order) {
  std::map<Formula, std::vector<Formula>> sets;  // by child
  for (Formula atom : for_keys) sets[formulas_[atom].b].push_back(formulas_[atom].a);
  std::vector<Formula> children, allowed;
  for (const auto& [child, ignored] : sets) children.push_back(child);
  if (!is_satisfiable(formulas_.conjunction(children))) {
    std::map<Formula, size_t> num_excluded;
    for (Formula child : children) {
      auto excludes = [&](Formula other) { return !is_satisfiable(formulas_.conjunction({child, other})); };
      num_excluded[child] = size_t(std::count_if(children.begin(), children.end(), excludes));
    }
    auto excludes_more = [&](Formula a, Formula b) { return num_excluded[a] > num_excluded[b]; };
    std::stable_sort(children.begin(), children.end(), excludes_more);
  }
  std::function<void(size_t, Formula, Formula)> divide = [&](size_t next, Formula text, Formula asked) {
    if (text == kNever || !texts_.is_live(texts_.start(TextKind::kString, text))) return;
    if (!is_satisfiable(asked)) return;
    Literals all(children.begin() + ptrdiff_t(next), children.end());
    all.push_back(asked);
    if (is_satisfiable(formulas_.conjunction(std::move(all)))) return allowed.push_back(text);
    if (allowed.size() > kMaxFreeKeys) throw engine::LimitError("schema_key_sets", allowed.size(), kMaxFreeKeys);
    Formula described = formulas_.disjunction(sets[children[next]]);
    divide(next + 1, formulas_.conjunction({text, formulas_.negation(described)}), asked);
    divide(next + 1, formulas_.conjunction({text, described}), formulas_.conjunction({asked, children[next]}));
  };
  divide(0, outside(order), kAlways);
  return formulas_.disjunction(std::move(allowed));
}

bool Liveness::is_object_live(Formula object, const KeyOrder& order, const PastKeys& past) {
  if (object == kAlways || object == kNever) return object == kAlways;
  if (formulas_.op(object) == Op::kAmong) {
    const FormulaNode among = formulas_[object];
    const std::vector<uint32_t>& constants = schema_.constants()[among.a];
    auto is_past_name = [&](uint32_t name) { return is_past(name, order, past); };
    return past.empty() || std::any_of(constants.begin(), constants.end(), [&](uint32_t constant) {
             return schema_.may_come(constant, among.b, is_past_name);
           });
  }
  object = schema_.without_among(object);
  if (object == kAlways || object == kNever) return object == kAlways;
  std::string key(reinterpret_cast<const char*>(&object), sizeof object);
  const KeyOrder* used = &order;
  KeyOrder own;
  if (past.empty()) {
    for (uint32_t name : schema_.names_in(object)) {
      own.positions.emplace(name, uint32_t(own.names.size()));
      own.names.push_back(name);
    }
    used = &own;
  } else {
    for (size_t i = 0; i < past.size(); ++i) {
      if (past[i]) key += std::to_string(order.names[i]) + ",";
    }
    key += "/" + std::to_string(order.names.size());
    for (uint32_t name : order.names) key += "," + std::to_string(name);
  }
  auto known = live_objects_.find(key);
  if (known != live_objects_.end()) return known->second;
  bool is_live = false;
  std::vector<Formula> clauses = {object};
  Literals parts = formulas_.conjuncts(object);
  // A conjunction of literals is its only implicant, so it needs no search.
  bool is_conjunction =
      std::none_of(parts.begin(), parts.end(), [&](Formula part) { return has_operands(formulas_.op(part)); });
  if (is_conjunction) {
    is_live = are_object_literals_live(parts, *used, past, nullptr);
    keep(live_objects_, key, is_live);
    return is_live;
  }
  for (;;) {
    std::optional<Literals> literals = implicant(formulas_.conjunction(clauses));
    if (!literals) break;
    Literals conflict;
    is_live = are_object_literals_live(*literals, *used, past, &conflict);
    if (is_live) break;
    if (conflict.empty()) conflict = *literals;
    std::vector<Formula> clause;
    for (Formula literal : conflict) clause.push_back(formulas_.negation(literal));
    clauses.push_back(formulas_.disjunction(std::move(clause)));
  }
  keep(live_objects_, key, is_live);
  return is_live;
}

void Liveness::keep(std::unordered_map<std::string, bool>& results, const std::string& key, bool is_live) {
  if (is_live || assumed_.empty()) results.emplace(key, is_live);
}

// Decides if an object can satisfy a conjunction of literals, by backtracking. Every
// required name and every refuted atom needs a witness, a key whose value does what the
// literal demands: a negated kForKeys needs a key of its set whose value violates its
// child. Then there must be enough keys.
struct Liveness::ObjectSearch {
  struct Witness {
    Key key;
    std::vector<Formula> also;  // child formulas that its value must satisfy beside those of all keys
  };

  ObjectSearch(Liveness& liveness, const Literals& literals, const KeyOrder& order, const PastKeys& past)
      : liveness(liveness), formulas(liveness.formulas_), literals(literals), order(order), past(past) {
    for (Formula literal : literals) {
      FormulaNode node = formulas[literal];
      bool is_negated = node.op == Op::kNot;
      Formula atom = is_negated ? node.a : literal;
      node = formulas[atom];
      if (node.op == Op::kRequired) {
        (is_negated ? forbidden : required).push_back(node.a);
      } else if (node.op == Op::kMinKeys) {
        if (is_negated) {
          max_keys = std::min(max_keys, node.a - 1);
        } else {
          min_keys = std::max(min_keys, node.a);
        }
      } else if (node.op == Op::kForName || node.op == Op::kForKeys) {
        if (is_negated) {
          (node.op == Op::kForName ? refuted : existing).push_back(atom);
        } else if (node.op == Op::kForName) {
          for_name[node.a].push_back(node.b);
        } else {
          for_keys.push_back(atom);
        }
      }
    }
  }

  Formula need(const Key& key, const std::vector<Formula>& also = {}) const {
    std::vector<Formula> all = also;
    auto named = for_name.find(key.name);
    if (!key.is_free() && named != for_name.end()) all.insert(all.end(), named->second.begin(), named->second.end());
    for (Formula atom : for_keys) {
      if (liveness.applies(formulas[atom], key)) all.push_back(formulas[atom].b);
    }
    return formulas.conjunction(std::move(all));
  }

  bool is_satisfiable(const Key& key, const std::vector<Formula>& also = {}) const {
    return liveness.is_satisfiable(need(key, also));
  }

  bool is_possible(uint32_t name) const {
    return std::find(forbidden.begin(), forbidden.end(), name) == forbidden.end() && !is_past(name, order, past);
  }

  // A small unsatisfiable core: literals that no value of a name satisfies together, as few
  // as a short search finds. One of them demands that the name comes.
  Literals reasons(uint32_t name) const {
    std::vector<std::pair<Formula, Formula>> about;  // a literal, and what it asks of the value
    Formula asks_for_name = formulas.atom(Op::kRequired, name);
    bool is_required = std::find(required.begin(), required.end(), name) != required.end();
    for (Formula literal : literals) {
      bool is_negated = formulas.op(literal) == Op::kNot;
      const FormulaNode node = formulas[is_negated ? formulas[literal].a : literal];
      if (node.op == Op::kForName ? node.a != name : is_negated || !liveness.applies(node, {name})) continue;
      about.emplace_back(literal, is_negated ? formulas.negation(node.b) : node.b);
      if (is_negated && !is_required) asks_for_name = literal;
    }
    for (size_t i = 0; i < about.size() && about.size() <= kMaxConflictTests;) {
      std::vector<Formula> others;
      for (size_t j = 0; j < about.size(); ++j) {
        if (j != i) others.push_back(about[j].second);
      }
      if (liveness.is_satisfiable(formulas.conjunction(others))) {
        ++i;
      } else {
        about.erase(about.begin() + ptrdiff_t(i));
      }
    }
    Literals reasons;
    bool is_asked_for = false;
    for (auto [literal, asked] : about) {
      is_asked_for = is_asked_for || formulas.op(literal) == Op::kNot;
      reasons.push_back(literal);
    }
    if (!is_asked_for) reasons.push_back(asks_for_name);
    return reasons;
  }

  const std::vector<Key>& free_keys() {
    if (!known_free_keys) {
      std::vector<Formula>& sets = known_sets;
      auto add = [&](Formula atom) {
        const FormulaNode& node = formulas[atom];
        if (node.op == Op::kForKeys && std::find(sets.begin(), sets.end(), node.a) == sets.end())
          sets.push_back(node.a);
      };
      for (Formula atom : for_keys) add(atom);
      for (Formula atom : existing) add(atom);
      known_free_keys = liveness.free_keys(sets, order);
    }
    return *known_free_keys;
  }

  // True if a free key stands for more keys than there are witnesses of it.
  bool has_another(const Key& key, const std::vector<Witness>& witnesses) {
    auto has_key = [&](const Witness& witness) { return witness.key == key; };
    auto count = std::count_if(witnesses.begin(), witnesses.end(), has_key);
    return count == 0 || count < num_keys(key);
  }

  // Finds keys whose values refute existing[next ...].
  bool find_witnesses(size_t next, std::vector<Witness>& witnesses) {
    if (next == existing.size()) return true;
    liveness.spend(1);
    const FormulaNode atom = formulas[existing[next]];
    Formula refuted = formulas.negation(atom.b);
    auto with = [&](Witness& witness) {
      witness.also.push_back(refuted);
      bool is_found = is_satisfiable(witness.key, witness.also) && find_witnesses(next + 1, witnesses);
      return is_found;
    };
    for (size_t i = 0; i < witnesses.size(); ++i) {
      if (!liveness.applies(atom, witnesses[i].key)) continue;
      std::vector<Formula> before = witnesses[i].also;
      if (with(witnesses[i])) return true;
      witnesses[i].also = std::move(before);
    }
    if (witnesses.size() >= max_keys) return false;
    auto with_new = [&](const Key& key) {
      size_t count = witnesses.size();
      witnesses.push_back({key, {refuted}});
      if (is_satisfiable(key, {refuted}) && find_witnesses(next + 1, witnesses)) return true;
      witnesses.resize(count);
      return false;
    };
    auto is_witness = [&](uint32_t name) {
      return std::any_of(witnesses.begin(), witnesses.end(),
                         [&](const Witness& other) { return other.key.name == name; });
    };
    for (uint32_t name : order.names) {
      if (!liveness.applies(atom, {name}) || !is_possible(name) || is_witness(name)) continue;
      if (with_new({name})) return true;
    }
    for (const Key& key : free_keys()) {
      if (liveness.applies(atom, key) && has_another(key, witnesses) && with_new(key)) return true;
    }
    return false;
  }

  bool has_enough_keys(const std::vector<Witness>& witnesses) {
    size_t count = witnesses.size();
    auto is_free = [](const Witness& witness) { return witness.key.is_free(); };
    bool are_named = std::none_of(witnesses.begin(), witnesses.end(), is_free);
    if (are_named && count >= min_keys) return true;
    for (uint32_t name : order.names) {
      bool is_witness =
          std::any_of(witnesses.begin(), witnesses.end(), [&](const Witness& other) { return other.key.name == name; });
      if (!is_witness && is_possible(name) && is_satisfiable({name}) && ++count >= min_keys && are_named) return true;
    }
    uint64_t num_free = num_free_keys();
    // Witnesses that are free keys are among these.
    count -= size_t(std::count_if(witnesses.begin(), witnesses.end(), is_free));
    return count + num_free >= min_keys;
  }

  // The number of keys that can come: names and free keys.
  uint64_t num_possible_keys() {
    uint64_t count = 0;
    for (uint32_t name : order.names) count += is_possible(name) && is_satisfiable({name});
    return count + num_free_keys();
  }

  uint64_t num_free_keys() {
    return liveness.texts_.count(liveness.texts_.start(TextKind::kString, liveness.free_texts(for_keys, order)));
  }

  // The number of keys that a free key stands for.
  uint32_t num_keys(const Key& key) {
    Formula description = liveness.description(key, known_sets, order);
    return liveness.texts_.count(liveness.texts_.start(TextKind::kString, description));
  }

  // `conflict`: unless null, it becomes literals that cannot hold together, if some are found.
  bool is_live(Literals* conflict) {
    if (min_keys > max_keys || required.size() > max_keys) return false;
    std::vector<Witness> witnesses;
    for (uint32_t name : required) {
      if (is_past(name, order, past)) {
        if (conflict != nullptr) *conflict = {formulas.atom(Op::kRequired, name)};
        return false;
      }
      if (std::find(forbidden.begin(), forbidden.end(), name) != forbidden.end()) return false;
      witnesses.push_back({{name}, {}});
    }
    for (Formula atom : refuted) {
      const FormulaNode node = formulas[atom];
      if (!is_possible(node.a)) {
        if (conflict == nullptr) return false;
        *conflict = {formulas.negation(atom)};
        if (!is_past(node.a, order, past)) {
          conflict->push_back(formulas.negation(formulas.atom(Op::kRequired, node.a)));
        }
        return false;
      }
      auto witness = std::find_if(witnesses.begin(), witnesses.end(),
                                  [&](const Witness& other) { return other.key.name == node.a; });
      if (witness == witnesses.end()) witness = witnesses.insert(witness, Witness{{node.a}, {}});
      witness->also.push_back(formulas.negation(node.b));
    }
    if (witnesses.size() > max_keys) return false;
    for (const Witness& witness : witnesses) {
      if (is_satisfiable(witness.key, witness.also)) continue;
      if (conflict != nullptr) *conflict = reasons(witness.key.name);
      return false;
    }
    return find_witnesses(0, witnesses) && has_enough_keys(witnesses);
  }

  Liveness& liveness;
  Formulas& formulas;
  const Literals& literals;
  const KeyOrder& order;
  const PastKeys& past;
  std::vector<uint32_t> required, forbidden;
  uint32_t min_keys = 0, max_keys = kAnyNumberOfKeys;
  std::unordered_map<uint32_t, std::vector<Formula>> for_name;
  std::vector<Formula> for_keys;  // atoms
  // Atoms that must not hold, of one name and of many keys.
  std::vector<Formula> refuted, existing;
  std::optional<std::vector<Key>> known_free_keys;
  std::vector<Formula> known_sets;  // that tell them apart
};

bool Liveness::are_object_literals_live(const Literals& literals, const KeyOrder& order, const PastKeys& past,
                                        Literals* conflict) {
  return ObjectSearch(*this, literals, order, past).is_live(conflict);
}

Formula Liveness::with_key_bounds(Formula object) {
  bool needs_number = false;  // in one of several branches
  auto visit = [&](Formula atom, bool is_negated) {
    const FormulaNode& node = formulas_[atom];
    needs_number = needs_number || (node.op == Op::kMinKeys && node.a > 1 && !is_negated);
  };
  for (Formula part : formulas_.conjuncts(object)) {
    if (formulas_.op(part) != Op::kMinKeys) formulas_.visit_literals(part, visit);
  }
  return needs_number ? with_key_bounds(object, {}) : object;
}

Formula Liveness::with_key_bounds(Formula object, Literals around) {
  Literals parts = formulas_.conjuncts(object);
  auto is_branching = [this](Formula part) { return formulas_.op(part) == Op::kOr; };
  auto first_branching =
      std::stable_partition(parts.begin(), parts.end(), [&](Formula part) { return !is_branching(part); });
  around.insert(around.end(), parts.begin(), first_branching);
  for (auto part = first_branching; part != parts.end(); ++part) {
    std::vector<Formula> branches = formulas_.operands(*part);
    for (Formula& branch : branches) branch = with_key_bounds(branch, around);
    *part = formulas_.disjunction(std::move(branches));
  }
  KeyOrder order;
  for (uint32_t name : schema_.names_in(formulas_.conjunction(around))) {
    order.positions.emplace(name, uint32_t(order.names.size()));
    order.names.push_back(name);
  }
  uint64_t most = ObjectSearch(*this, around, order, {}).num_possible_keys();
  if (most < Texts::kManyTexts) {
    parts.push_back(formulas_.negation(formulas_.atom(Op::kMinKeys, uint32_t(most + 1))));
  }
  return formulas_.conjunction(std::move(parts));
}

}  // namespace structout::json
