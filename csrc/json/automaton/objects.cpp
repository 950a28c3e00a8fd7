#include "json/automaton/objects.h"

#include <algorithm>
#include <utility>

namespace structout::json {

// Names for free keys: those of classes (keys in the same sets) that have few keys. It can
// be told only of named keys if others remain, which matters where more keys must come: if
// a formula demands some (minProperties above 1, or a negated kForKeys), or if uniqueItems
// makes objects differ.
Numbers Objects::few_free_keys(const Numbers& objects, const KeyOrder& named) {
  Numbers sets, few;
  bool asks_for_keys = schema_.has_unique_items();
  for (Formula object : objects) {
    formulas_.visit_literals(object, [&](Formula atom, bool is_negated) {
      const FormulaNode& node = formulas_[atom];
      if (node.op == Op::kMinKeys) asks_for_keys |= !is_negated && node.a > 1;  // for one, any key will do
      if (node.op != Op::kForKeys) return;
      asks_for_keys |= is_negated;
      if (std::find(sets.begin(), sets.end(), node.a) == sets.end()) sets.push_back(node.a);
    });
  }
  if (!asks_for_keys || sets.empty()) return few;
  std::optional<std::vector<Key>> keys = liveness_.some_free_keys(sets, named);
  if (!keys) return few;
  for (const Key& key : *keys) {
    std::optional<Numbers> names = schema_.few_names(liveness_.description(key, sets, named));
    if (names) few.insert(few.end(), names->begin(), names->end());
  }
  return few;
}

// -- what lasts of a formula --------------------------------------------------------

// The split is possible (is_kept) if the rest speaks of the number of keys alone, or of
// single names alone. Then the formula stays satisfiable as long as the rest does, together
// with the lasting literals on its names: the set of other keys that have come does not
// matter.
const Objects::Parts& Objects::parts_of(Formula object) {
  auto known = parts_.find(object);
  if (known != parts_.end()) return known->second;
  Parts parts;
  const std::vector<Formula> literals = formulas_.conjuncts(object);
  std::vector<Formula> lasting, rest;
  schema_.budget().spend(literals.size());
  bool has_counts = false, has_least = false, has_names = false, has_sets = false;
  for (Formula literal : literals) {
    Op op = formulas_.op(literal);
    if (op == Op::kForName || op == Op::kForKeys || op == Op::kRequired) {
      lasting.push_back(literal);
      continue;
    }
    rest.push_back(literal);
    if (op == Op::kMinKeys && formulas_[literal].a == 1) continue;  // any key fulfils it
    bool is_bound = op == Op::kMinKeys || (op == Op::kNot && formulas_.op(formulas_[literal].a) == Op::kMinKeys);
    has_counts = has_counts || is_bound;
    has_least = has_least || op == Op::kMinKeys;
    if (is_bound) continue;
    for (Formula atom : formulas_.atoms(literal)) {
      bool is_of_name = formulas_.op(atom) == Op::kForName || formulas_.op(atom) == Op::kRequired;
      (is_of_name ? has_names : has_sets) = true;
    }
  }
  // In declared order skipped keys cannot come later, so the past decides if a minimum of
  // keys can still be reached.
  bool are_counts_kept = !has_names && (!has_least || rule_ == KeyOrderRule::kAny);
  parts.is_kept = !has_sets && (!has_counts || are_counts_kept);
  parts.lasting = parts.is_kept ? formulas_.conjunction(std::move(lasting)) : kAlways;
  parts.rest = parts.is_kept ? formulas_.conjunction(std::move(rest)) : object;
  return parts_.emplace(object, parts).first->second;
}

uint32_t Objects::shape_of(Formula lasting, uint32_t order_number) {
  auto known = shape_numbers_.find({lasting, order_number});
  if (known != shape_numbers_.end()) return known->second;
  const KeyOrder& order = orders_[order_number].order;
  Shape shape;
  shape.lasting = lasting;
  shape.order = order_number;
  shape.is_required.assign(order.names.size(), false);
  const std::vector<Formula> literals = formulas_.conjuncts(lasting);
  schema_.budget().spend(literals.size());
  for (Formula literal : literals) {
    const FormulaNode& node = formulas_[literal];
    if (node.op == Op::kRequired) shape.is_required[order.positions.at(node.a)] = true;
    if (node.op == Op::kForName) shape.for_name[node.a].push_back(node.b);
    if (node.op == Op::kForKeys) shape.for_keys.push_back(literal);
  }
  for (uint32_t i = 0; i < shape.is_required.size(); ++i) {
    if (shape.is_required[i]) shape.required.push_back(i);
  }
  shapes_.push_back(std::move(shape));
  return shape_numbers_[{lasting, order_number}] = uint32_t(shapes_.size() - 1);
}

uint32_t Objects::object_of(uint32_t shape, Numbers formulas, PastKeys past, bool has_orders) {
  bool are_others_known =
      std::all_of(formulas.begin() + 1, formulas.end(), [](Formula each) { return each <= kNever; });
  bool is_kept = are_others_known && parts_of(formulas[0]).is_kept;
  if (is_kept && shapes_[shape].lasting == kAlways) {
    const Parts parts = parts_of(formulas[0]);
    shape = shape_of(parts.lasting, shapes_[shape].order);
    formulas[0] = parts.rest;
  }
  // One object for all sets of past names: the configuration remembers these.
  if (is_kept && rule_ == KeyOrderRule::kAny) past.assign(past.size(), false);
  std::array<uint32_t, 3> key = {lists_.number_of(formulas), shape, pasts_.number_of(past)};
  auto known = object_numbers_.find(key);
  if (known != object_numbers_.end()) return known->second;
  uint32_t max_keys = UINT32_MAX;
  if (is_kept) {
    formulas_.visit_literals(formulas[0], [&](Formula atom, bool is_negated) {
      const FormulaNode& node = formulas_[atom];
      if (node.op == Op::kMinKeys && is_negated) max_keys = std::min(max_keys, node.a - 1);
    });
  }
  auto next = uint32_t(std::find(past.begin(), past.end(), false) - past.begin());
  objects_.push_back({shape, key[0], key[2], is_kept, has_orders, next, max_keys});
  return object_numbers_.emplace(key, uint32_t(objects_.size() - 1)).first->second;
}

std::optional<uint32_t> Objects::start(uint32_t value_formulas, Numbers formulas) {
  const std::vector<OpenOrder>& open = orders_of(value_formulas, formulas);
  return object_of_orders(open, std::move(formulas));
}

uint32_t Objects::at_position(uint32_t number, uint32_t position) {
  const Object object = objects_[number];
  if (!object.is_kept || is_guarded(object) || position <= object.next) return number;
  const Numbers formulas = lists_[object.formulas];
  const KeyOrder& order = this->order(object).order;
  for (uint32_t name : schema_.names_in(formulas[0])) {
    uint32_t other = order.positions.at(name);
    if (object.next <= other && other < position) return number;
  }
  PastKeys past = pasts_[object.past];
  std::fill(past.begin(), past.begin() + position, true);
  return object_of(object.shape, formulas, std::move(past));
}

// -- what a key makes of an object --------------------------------------------------

std::optional<PastKeys> Objects::past_after(const Object& object, const Key& key) const {
  PastKeys past = pasts_[object.past];
  bool is_any = rule_ == KeyOrderRule::kAny;
  if (key.is_free()) {
    if (!is_any) past.assign(past.size(), true);
    return past;
  }
  uint32_t position = order(object).order.positions.at(key.name);
  if (past[position]) return std::nullopt;
  past[position] = true;
  if (!is_any && !object.has_orders) std::fill(past.begin(), past.begin() + position, true);
  return past;
}

bool Objects::changes_rest(const Object& object, const Key& key) {
  Formula rest = lists_[object.formulas][0];
  if (rest == kAlways) return false;
  const KeyOrder& order = this->order(object).order;
  uint32_t end = key.is_free() ? uint32_t(order.names.size()) : order.positions.at(key.name) + 1;
  const std::vector<uint32_t>& names = schema_.names_in(rest);
  if (rule_ == KeyOrderRule::kAny) {
    return !key.is_free() && std::find(names.begin(), names.end(), key.name) != names.end();
  }
  return std::any_of(names.begin(), names.end(), [&](uint32_t name) {
    uint32_t position = order.positions.at(name);
    return object.next <= position && position < end;
  });
}

// The rest with the shape's literals on sets of keys, on the names that the rest mentions,
// and on `key`. If this is satisfiable, so is the whole formula.
Formula Objects::with_shape(const Object& object, Formula rest, const Key* key) {
  const Shape& shape = shapes_[object.shape];
  const KeyOrder& order = this->order(object).order;
  std::vector<uint32_t> names = schema_.names_in(rest);
  if (key != nullptr && !key->is_free()) names.push_back(key->name);
  std::vector<Formula> all = shape.for_keys;
  all.push_back(rest);
  for (uint32_t name : names) {
    if (shape.is_required[order.positions.at(name)]) all.push_back(formulas_.atom(Op::kRequired, name));
    auto asked = shape.for_name.find(name);
    if (asked == shape.for_name.end()) continue;
    for (Formula child : asked->second) all.push_back(formulas_.atom(Op::kForName, name, child));
  }
  return formulas_.conjunction(std::move(all));
}

const Plan& Objects::shape_plan(uint32_t number, uint32_t key_number) {
  Shape& shape = shapes_[number];
  auto known = shape.plans.find(key_number);
  if (known != shape.plans.end()) return known->second;
  const Key key = keys_[key_number];
  std::vector<Formula> required;
  auto named = shape.for_name.find(key.name);
  if (!key.is_free() && named != shape.for_name.end()) required = named->second;
  for (Formula atom : shape.for_keys) {
    if (liveness_.applies(formulas_[atom], key)) required.push_back(formulas_[atom].b);
  }
  schema_.budget().spend(required.size() + 1);
  Plan plan;
  for (Formula child : required) plan.decided.emplace_back(child, true);
  Formula all = formulas_.conjunction(std::move(required));
  plan.is_live = liveness_.is_satisfiable(all);
  plan.value_formulas = lists_.number_of({all});
  return shape.plans.emplace(key_number, std::move(plan)).first->second;
}

const Plan& Objects::plan(uint32_t number, uint32_t key_number) {
  const Object object = objects_[number];
  const Key key = keys_[key_number];
  if (object.is_kept && !changes_rest(object, key)) return shape_plan(object.shape, key_number);
  auto known = key_plans_.find({number, key_number});
  if (known != key_plans_.end()) return known->second;
  std::optional<PastKeys> past = past_after(object, key);
  Plan plan;
  if (past && planner_.is_among(lists_[object.formulas])) {
    const KeyOrder& order = this->order(object).order;
    auto is_past = [&](uint32_t name) { return (*past)[order.positions.at(name)]; };
    if (!key.is_free()) plan = planner_.plan_among(lists_[object.formulas], key.name, is_past);
  } else if (past) {
    const KeyOrder& order = this->order(object).order;
    Planner::Context context;
    Numbers formulas = lists_[object.formulas];
    context.derivative = [&](Formula formula, const Truth& truth) {
      bool has_orders = object.has_orders && formula == formulas[0];
      return has_orders ? required_formula(after_key_in_orders(formula, key, truth))
                        : planner_.after_key(formula, key, order, *past, truth);
    };
    // with_shape() has put the shape's literals on names into the formula, so it does not
    // need the past.
    context.is_live = [&](Formula formula) {
      if (!object.has_orders) return liveness_.is_object_live(formula, order, object.is_kept ? PastKeys() : *past);
      const std::vector<OpenOrder> open = open_orders(formula);
      return std::any_of(open.begin(), open.end(), [this](const OpenOrder& each) { return is_live(each); });
    };
    if (object.is_kept) formulas[0] = with_shape(object, formulas[0], &key);
    plan = planner_.plan(formulas, context);
  }
  return key_plans_.emplace(std::pair(number, key_number), std::move(plan)).first->second;
}

// True if a key fits the limit of the number of keys and, in declared order, skips no
// required name. Objects that are not kept leave this to their plans.
bool Objects::has_room(const Object& object, const Key& key) const {
  if (!object.is_kept) return true;
  const Shape& shape = shapes_[object.shape];
  const KeyOrder& order = this->order(object).order;
  auto position = uint32_t(key.is_free() ? order.names.size() : order.positions.at(key.name));
  if (object.max_keys == 0) return false;
  if (is_guarded(object)) return true;
  if (!key.is_free() && position < object.next) return false;
  auto missing = std::lower_bound(shape.required.begin(), shape.required.end(), object.next);
  if (missing != shape.required.end() && *missing < position) return false;  // it would be left out
  bool is_missing = missing != shape.required.end() && *missing == position;
  auto num_others = size_t(shape.required.end() - missing) - is_missing;
  return num_others <= object.max_keys - 1;
}

bool Objects::may_come(uint32_t number, uint32_t key_number) {
  return has_room(objects_[number], keys_[key_number]) && plan(number, key_number).is_live;
}

std::optional<uint32_t> Objects::after(uint32_t number, uint32_t key_number, const std::vector<bool>& truth_values) {
  const Object object = objects_[number];
  const Key key = keys_[key_number];
  const KeyOrder& order = this->order(object).order;
  PastKeys past = *past_after(object, key);
  Numbers formulas = lists_[object.formulas];
  bool changes = !object.is_kept || changes_rest(object, key);
  const Plan& plan = this->plan(number, key_number);
  if (plan.values != Plan::kNoValues) {
    auto is_past = [&](uint32_t name) { return past[order.positions.at(name)]; };
    formulas = planner_.after_among(formulas, key.name, is_past, plan, truth_values);
  } else {
    Truth truth = Planner::truth(plan, truth_values);
    std::vector<OpenOrder> open;
    if (object.has_orders) open = after_key_in_orders(std::exchange(formulas[0], kAlways), key, truth);
    for (Formula& formula : formulas) formula = planner_.after_key(formula, key, order, past, truth);
    if (object.has_orders) return object_of_orders(std::move(open), std::move(formulas));
  }
  if (changes) {
    bool is_live = object.is_kept ? liveness_.is_object_live(with_shape(object, formulas[0]), order, PastKeys())
                                  : liveness_.is_object_live(formulas[0], order, past);
    if (!is_live) return std::nullopt;
  }
  return object_of(object.shape, std::move(formulas), std::move(past));
}

bool Objects::lacks_required(const Object& object) const {
  const Shape& shape = shapes_[object.shape];
  return !is_guarded(object) && !shape.required.empty() && shape.required.back() >= object.next;
}

// -- what may follow ----------------------------------------------------------------

uint32_t Objects::number_of_key(const Key& key) {
  auto known = key_numbers_.find({key.name, key.sets});
  if (known != key_numbers_.end()) return known->second;
  keys_.push_back(key);
  return key_numbers_[{key.name, key.sets}] = uint32_t(keys_.size() - 1);
}

const std::vector<Objects::FreeKey>& Objects::free_keys(uint32_t order_number, const Numbers& sets) {
  auto known = free_keys_.find({order_number, sets});
  if (known != free_keys_.end()) return known->second;
  const KeyOrder& order = orders_[order_number].order;
  std::vector<FreeKey> keys;
  for (const Key& key : liveness_.free_keys(sets, order)) {
    keys.push_back({number_of_key(key), liveness_.description(key, sets, order)});
  }
  return free_keys_.emplace(std::pair(order_number, sets), std::move(keys)).first->second;
}

// The free keys that may come, as a formula on their texts.
Formula Objects::free_texts(uint32_t number, const Numbers& sets) {
  const Object object = objects_[number];
  if (object.is_kept && !changes_rest(object, Key())) {
    if (!has_room(object, Key())) return kNever;
    Shape& shape = shapes_[object.shape];
    if (!shape.free_texts) shape.free_texts = liveness_.free_texts(shape.for_keys, this->order(object).order);
    return *shape.free_texts;
  }
  std::vector<Formula> allowed;
  for (const FreeKey& free : free_keys(shapes_[object.shape].order, sets)) {
    if (may_come(number, free.key)) allowed.push_back(free.description);
  }
  return formulas_.disjunction(std::move(allowed));
}

const Object& Objects::prepared(uint32_t number) {
  if (objects_[number].is_prepared) return objects_[number];
  const Object given = objects_[number];
  const Order& order = this->order(given);
  const PastKeys past = pasts_[given.past];
  std::vector<uint32_t> num_allowed_before = {0};
  for (uint32_t position : order.by_spelling) {
    bool is_allowed = !past[position] && may_come(number, number_of_key({order.order.names[position]}));
    num_allowed_before.push_back(num_allowed_before.back() + is_allowed);
  }
  Numbers sets;
  auto add_set = [&](Formula atom) {
    const FormulaNode& node = formulas_[atom];
    if (node.op == Op::kForKeys && std::find(sets.begin(), sets.end(), node.a) == sets.end()) sets.push_back(node.a);
  };
  for (Formula atom : shapes_[given.shape].for_keys) add_set(atom);
  for (Formula formula : Numbers(lists_[given.formulas])) {
    for (Formula atom : formulas_.atoms(formula)) add_set(atom);
  }
  Formula allowed = free_texts(number, sets);
  Numbers free = {texts_.start(TextKind::kString, allowed)};
  for (Formula set : sets) free.push_back(texts_.start(TextKind::kString, set));
  Object& object = objects_[number];
  object.num_allowed_before = std::move(num_allowed_before);
  object.allows_free = allowed != kNever;
  object.free = lists_.number_of(free);
  object.sets = std::move(sets);
  object.is_prepared = true;
  return object;
}

Numbers Objects::possible_keys(uint32_t number) {
  const Object& object = prepared(number);
  Numbers keys;
  for (uint32_t i = 0; i < object.num_names(); ++i) {
    if (object.allows_spelling(i))
      keys.push_back(number_of_key({order(object).order.names[order(object).by_spelling[i]]}));
  }
  if (!object.allows_free) return keys;
  std::vector<Key> free = {Key()};
  for (Formula set : object.sets) free.push_back({Key::kFree, {set}});
  for (const Key& key : free) {
    if (may_come(number, number_of_key(key))) keys.push_back(number_of_key(key));
  }
  return keys;
}

bool Objects::holds(const Guard& guard, const PastKeys& seen_keys) const {
  if (guard.kind == Guard::kNone) return true;
  const Object& object = objects_[guard.object];
  const Shape& shape = shapes_[object.shape];
  auto has_come = [&](uint32_t position) { return position < seen_keys.size() && seen_keys[position]; };
  bool are_limited = guard.kind == Guard::kClose || object.max_keys != UINT32_MAX;
  size_t num_missing = 0;
  if (are_limited) {
    num_missing = shape.required.size() - size_t(std::count_if(shape.required.begin(), shape.required.end(), has_come));
  }
  if (guard.kind == Guard::kClose) return num_missing == 0;
  bool must_be_required = are_limited && num_missing >= object.max_keys;
  if (guard.allows_free && !must_be_required) return true;
  const std::vector<uint32_t>& by_spelling = order(object).by_spelling;
  for (uint32_t i = guard.begin; i < guard.end; ++i) {
    bool is_allowed = object.allows_spelling(i);
    bool is_candidate = !must_be_required || shape.is_required[by_spelling[i]];
    if (is_allowed && is_candidate && !has_come(by_spelling[i])) return true;
  }
  return false;
}

bool Objects::lacks_names(uint32_t number, const PastKeys& seen_keys) {
  const Object& object = objects_[number];
  if (is_guarded(object)) return !holds({Guard::kClose, number}, seen_keys);
  const KeyOrder& order = this->order(object).order;
  return !liveness_.is_object_live(lists_[object.formulas][0], order, PastKeys(order.names.size(), true));
}

}  // namespace structout::json
