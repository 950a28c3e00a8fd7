#include "json/uniqueness/value_counts.h"

#include <algorithm>

#include "json/automaton/schema_automaton.h"
#include "json/satisfiability/value_search.h"

namespace structout::json {

namespace {

constexpr uint32_t kMany = ValueCounts::kMany;
constexpr size_t kMaxCountedDepth = 64;  // of values and items that one count looks at
constexpr uint32_t kMaxCounted = 1024;   // values that are followed one by one
constexpr uint32_t kMaxSpellings = 22;   // of a number that need not be canonical

using Count = ValueCounts::Count;
constexpr Count kManyOfThem = {kMany, true};

Count product(Count a, Count b) {
  return {uint32_t(std::min<uint64_t>(uint64_t(a.least) * b.least, kMany)), a.is_exact && b.is_exact};
}

Count sum(Count a, Count b) {
  return {uint32_t(std::min<uint64_t>(uint64_t(a.least) + b.least, kMany)), a.is_exact && b.is_exact};
}

}  // namespace

ValueCounts::ValueCounts(SchemaAutomaton& automaton)
    : automaton_(automaton),
      schema_(automaton.schema()),
      formulas_(schema_.formulas()),
      texts_(schema_.texts()),
      liveness_(automaton.liveness()),
      planner_(automaton.planner()),
      lists_(automaton.lists()),
      objects_(automaton.objects()),
      arrays_(automaton.arrays()) {}

Count ValueCounts::values(State state, const PastKeys& seen_keys, size_t num_items) {
  bool depends_on_items = automaton_.at<AfterItem>(state) != nullptr && num_items != kUnknownItems;
  bool is_kept = seen_keys.empty() && !depends_on_items;
  auto known = is_kept ? counts_.find(state) : counts_.end();
  if (known != counts_.end()) return known->second;
  // A way back to a state that is being counted can be repeated, so there are infinitely
  // many values.
  if (is_kept && being_counted_.count(state) != 0) return kManyOfThem;
  if (depth_ == kMaxCountedDepth) return {};
  schema_.budget().spend(1);
  if (is_kept) being_counted_.insert(state);
  Count count;
  ++depth_;
  try {
    count = counted(state, seen_keys, num_items);
  } catch (...) {
    --depth_;
    being_counted_.erase(state);
    throw;
  }
  --depth_;
  if (is_kept) {
    being_counted_.erase(state);
    counts_[state] = count;
  }
  return count;
}

Count ValueCounts::counted(State state, const PastKeys& seen_keys, size_t num_items) {
  const StateContents contents = automaton_.contents(state);
  if (std::holds_alternative<InLiteral>(contents)) return {1, true};
  if (const auto* string = std::get_if<InString>(&contents)) return {texts_.count(lists_[string->texts][0]), true};
  if (const auto* number = std::get_if<InNumber>(&contents)) {
    uint32_t count = texts_.least_count(lists_[number->texts][0]);
    return {count == kMany ? count : std::max(count / kMaxSpellings, 1u), false};
  }
  if (const auto* value = std::get_if<BeforeValue>(&contents)) return values_of(value->value_formulas);
  if (const auto* start = std::get_if<ObjectStart>(&contents)) return objects(start->object, seen_keys);
  if (const auto* member = std::get_if<AfterMember>(&contents)) {
    return automaton_.must_end(member->spaces) ? Count{1, true} : objects(member->object, seen_keys);
  }
  if (const auto* before = std::get_if<BeforeKey>(&contents)) {  // but not the object that has no more keys
    Count count = objects(before->object, seen_keys);
    const Object object = objects_[before->object];
    bool may_end = automaton_.end_of_object(object) &&
                   (!objects_.is_guarded(object) || automaton_.holds({Guard::kClose, before->object}, seen_keys));
    if (may_end && !count.are_many() && count.least > 0) --count.least;
    if (!count.is_exact) count.least = std::max(count.least, 1u);
    return count;
  }
  if (const auto* key = std::get_if<InKey>(&contents)) return objects_after(*key, seen_keys);
  if (const auto* key = std::get_if<AfterKey>(&contents)) return members(key->object, key->key, seen_keys);
  if (const auto* start = std::get_if<ArrayStart>(&contents)) return arrays(start->array, 0);
  if (const auto* item = std::get_if<AfterItem>(&contents)) {
    return automaton_.must_end(item->spaces) ? Count{1, true} : arrays(item->array, num_items);
  }
  return {};
}

bool ValueCounts::has_come(const Object& object, uint32_t name, const PastKeys& seen_keys) const {
  return objects_.is_guarded(object) ? name < seen_keys.size() && seen_keys[name] : name < object.next;
}

// True if any key that is allowed may come beside those that must: the object asks for
// numbers of keys alone, and for fewer names than the most.
bool ValueCounts::has_room_for_any_key(const Object& object, const PastKeys& seen_keys) const {
  bool are_numbers = object.is_kept;
  formulas_.visit_literals(lists_[object.formulas][0], [&](Formula atom, bool) {
    are_numbers = are_numbers && formulas_.op(atom) == Op::kMinKeys;
  });
  uint32_t num_required = 0;
  for (uint32_t i = 0; i < objects_.order(object).order.names.size(); ++i) {
    num_required += !has_come(object, i, seen_keys) && objects_.is_required(object, i);
  }
  return are_numbers && num_required < object.max_keys;
}

// Counts the objects that continue with a key, whose value comes next.
Count ValueCounts::members(uint32_t object, uint32_t key, const PastKeys& seen_keys) {
  return product(values(automaton_.before_value(objects_.plan(object, key).value_formulas)),
                 values_after(automaton_.waiting_member(object, key), seen_keys));
}

Count ValueCounts::arrays(uint32_t array, size_t num_items) {
  const Numbers formulas = lists_[array];
  if (planner_.is_among(formulas)) return constants(formulas[0]);
  Count end = {automaton_.pop_at_end(formulas) ? 1u : 0u, true};
  if (!arrays_.item_plan(array).is_live) return end;
  Count item = values(automaton_.before_value(arrays_.item_plan(array).value_formulas));
  if (item.are_many()) return item;
  if (!arrays_.are_items_unique(array)) {
    return sum(end, product(item, values_after(automaton_.waiting_item(array), {})));
  }
  if (num_items == kUnknownItems || !arrays_.is_plain(array)) return {};  // which ones are left is not known
  // Counts sequences of different values: num_left choices for the first item, one fewer
  // for each that follows.
  uint64_t num_left = item.least > num_items ? item.least - num_items : 0;
  uint32_t min = arrays_.min_items(array), max = arrays_.max_items(array);
  Count count = {0, item.is_exact}, sequences = {1, true};
  for (uint32_t length = 0; length <= max && sequences.least > 0 && !count.are_many(); ++length) {
    if (length >= min) count = sum(count, sequences);
    sequences = product(sequences, {uint32_t(num_left > length ? num_left - length : 0), true});
  }
  if (!count.is_exact) count.least = std::max(count.least, 1u);
  return count;
}

// Counts the constants that an object or array may still become.
Count ValueCounts::constants(Formula among) { return {uint32_t(schema_.constants()[formulas_[among].a].size()), true}; }

Count ValueCounts::objects_after(const InKey& inside, const PastKeys& seen_keys) {
  const uint32_t number = inside.object;
  const Object object = objects_[number];
  bool has_free = inside.may_be_free();
  if (has_free && object.max_keys == UINT32_MAX && texts_.count(lists_[inside.free][0]) == kMany) return kManyOfThem;
  if (!object.is_kept) return {};
  const std::vector<uint32_t> by_spelling = objects_.order(object).by_spelling;
  std::vector<uint32_t> allowed;  // of the names that begin so
  for (uint32_t i = inside.begin; i < inside.end; ++i) {
    if (automaton_.holds({Guard::kKeys, number, i, i + 1, false}, seen_keys)) allowed.push_back(i);
  }
  bool is_in_any_order = objects_.is_guarded(object);
  if (is_in_any_order && !has_free) {
    // The objects with at least one of these names are all objects but those with none of
    // them.
    Count all = objects(number, seen_keys);
    PastKeys without = seen_keys;
    without.resize(by_spelling.size());
    bool is_one_required = false;
    for (uint32_t i : allowed) {
      without[by_spelling[i]] = true;
      is_one_required = is_one_required || objects_.is_required(object, by_spelling[i]);
    }
    if (all.is_exact && !all.are_many()) {
      return {all.least - (is_one_required ? 0 : objects(number, without).least), true};
    }
  }
  Count count = {0, true};
  for (uint32_t i : allowed) {
    if (count.are_many()) break;
    uint32_t key = objects_.number_of_key({objects_.order(object).order.names[by_spelling[i]]});
    PastKeys after = seen_keys;
    if (is_in_any_order) {
      after.resize(by_spelling.size());
      after[by_spelling[i]] = true;
    }
    Count with_key = members(number, key, after);
    // In any order an object may begin with several of its names.
    count = is_in_any_order ? Count{std::max(count.least, with_key.least), false} : sum(count, with_key);
  }
  if (has_free || object.allows_free) count.is_exact = false;
  if (!count.is_exact) count.least = std::max(count.least, 1u);
  return count;
}

bool ValueCounts::are_many(State state) {
  auto known = are_many_.find(state);
  if (known != are_many_.end()) return known->second;
  PastKeys seen_keys;
  std::optional<uint32_t> object = automaton_.object_between_members(state);
  if (const auto* key = automaton_.at<InKey>(state)) object = key->object;
  if (const auto* key = automaton_.at<AfterKey>(state)) object = key->object;
  if (object && automaton_.at<ObjectStart>(state) == nullptr && objects_.is_guarded(objects_[*object])) {
    seen_keys.assign(objects_.order(objects_[*object]).order.names.size(), true);
  }
  return are_many_[state] = values(state, seen_keys).are_many();
}

Count ValueCounts::values_of(uint32_t value_formulas) {
  Formula required = lists_[value_formulas][0];
  Count count = {0, true};
  for (Type type : {Type::kNull, Type::kFalse, Type::kTrue}) count.least += schema_.expand(required, type) == kAlways;
  Formula strings = schema_.expand(required, Type::kString), numbers = schema_.expand(required, Type::kNumber);
  auto num_texts = [this](TextKind kind, Formula formula) { return texts_.count(texts_.start(kind, formula)); };
  if (strings != kNever) count = sum(count, {num_texts(TextKind::kString, strings), true});
  if (numbers != kNever && !count.are_many()) {
    Formula canonical = schema_.expand(formulas_.atom(Op::kCanonicalNumber), Type::kNumber);
    Formula others = formulas_.conjunction({numbers, formulas_.negation(canonical)});
    uint32_t num_canonical = num_texts(TextKind::kNumber, formulas_.conjunction({numbers, canonical}));
    bool is_exact =
        num_canonical == kMany || others == kNever || !texts_.is_live(texts_.start(TextKind::kNumber, others));
    count = sum(count, {num_canonical, is_exact});
  }
  for (uint8_t byte : {'[', '{'}) {
    if (count.are_many()) return count;
    Action action = automaton_.action(automaton_.before_value(value_formulas), byte);
    if (action.kind == Action::kReplace) count = sum(count, values(action.state));
  }
  count.least = std::max(count.least, 1u);
  return count;
}

Count ValueCounts::objects(uint32_t number, const PastKeys& seen_keys) {
  const Object object = objects_.prepared(number);
  if (planner_.is_among(lists_[object.formulas])) return constants(lists_[object.formulas][0]);
  const bool has_room = has_room_for_any_key(object, seen_keys);
  bool is_free = object.allows_free && (object.max_keys == UINT32_MAX || has_room);
  if (is_free && texts_.count(lists_[object.free][0]) == kMany) return kManyOfThem;
  const KeyOrder& order = objects_.order(object).order;
  if (!object.is_kept) return {};  // which keys may come together is not known here
  Formula rest = lists_[object.formulas][0];
  const std::vector<uint32_t> in_rest = schema_.names_in(rest);
  Count count = {1, rest == kAlways && object.max_keys == UINT32_MAX && !object.allows_free};
  for (uint32_t i = 0; i < order.names.size() && !count.are_many(); ++i) {
    if (has_come(object, i, seen_keys) || std::find(in_rest.begin(), in_rest.end(), order.names[i]) != in_rest.end())
      continue;
    bool is_optional = !objects_.is_required(object, i);
    bool is_sure = rest == kAlways && object.max_keys == UINT32_MAX;
    if (is_optional && !is_sure && !has_room) continue;
    const Plan plan = objects_.lasting_plan(object, objects_.number_of_key({order.names[i]}));
    if (!plan.is_live) continue;
    Count values = this->values(automaton_.before_value(plan.value_formulas));
    if (is_optional && values.are_many()) return kManyOfThem;
    if (!is_optional || is_sure) count = product(count, sum(values, {is_optional, true}));
  }
  return count;
}

Count ValueCounts::values_after(State waiting, const PastKeys& seen_keys, size_t num_items) {
  const StateContents contents = automaton_.contents(waiting);
  const auto* member = std::get_if<WaitingForMember>(&contents);
  bool is_key = member != nullptr;
  const Plan& plan =
      is_key ? objects_.plan(member->object, member->key) : arrays_.item_plan(automaton_.array_of(waiting));
  bool tells_values = !plan.tracked.empty() || plan.values != Plan::kNoValues;
  if (tells_values || (is_key && !objects_[member->object].is_kept)) return {};
  State state = automaton_.resume_with_required(waiting);
  if (state == kNoState) return {};
  bool have_same_formulas = !is_key && automaton_.item_formulas(state) == automaton_.item_formulas(waiting);
  if (!have_same_formulas) num_items = kUnknownItems;
  return values(state, is_key ? seen_keys : PastKeys(), num_items);
}

bool ValueCounts::has_unused_key(State state, const TextSet& used, TextSet::Cursor begin, const PastKeys& seen_keys) {
  uint32_t texts;
  if (const auto* key = automaton_.at<InKey>(state)) {
    if (may_be_named(*key, seen_keys) || !key->may_be_free()) return true;
    texts = key->free;
  } else if (const auto* before = automaton_.at<BeforeKey>(state)) {
    uint32_t number = before->object;
    const Object object = objects_.prepared(number);
    bool is_named = objects_.is_guarded(object)
                        ? automaton_.holds({Guard::kKeys, number, 0, object.num_names(), false}, seen_keys)
                        : object.allows_names();
    if (is_named || !object.allows_free) return true;
    texts = object.free;
    begin = used.begin();
  } else {
    return true;
  }
  uint32_t text = lists_[texts][0];
  uint32_t count = texts_.count(text);
  return count > begin.count() || texts_.num_among(text, begin) < count;
}

bool ValueCounts::has_unused_scalar(State state, TextSet::Cursor begin) {
  if (const auto* literal = automaton_.at<InLiteral>(state)) {
    for (char byte : SchemaAutomaton::kLiterals[literal->literal].substr(literal->position)) begin.read(uint8_t(byte));
    return !begin.is_whole();
  }
  const auto* string = automaton_.at<InString>(state);
  uint32_t text = lists_[string != nullptr ? string->texts : automaton_.at<InNumber>(state)->texts][0];
  if (texts_.least_count(text) > begin.count()) return true;
  uint32_t count = texts_.count(text);
  return count > begin.count() || texts_.num_among(text, begin) < count;
}

bool ValueCounts::may_lack_keys(State state) {
  if (const auto* key = automaton_.at<InKey>(state)) {
    return key->may_be_free() && texts_.count(lists_[key->free][0]) < kMany;
  }
  const auto* before = automaton_.at<BeforeKey>(state);
  if (before == nullptr) return false;
  const Object& object = objects_.prepared(before->object);
  return object.allows_free && texts_.count(lists_[object.free][0]) < kMany;
}

bool ValueCounts::may_be_named(const InKey& key, const PastKeys& seen_keys) {
  if (!key.may_be_named() || !objects_.is_guarded(objects_[key.object])) return key.may_be_named();
  return automaton_.holds({Guard::kKeys, key.object, key.begin, key.end, false}, seen_keys);
}

// -- arrays that must continue -----------------------------------------------------

std::vector<Formula> ValueCounts::few_children(uint32_t array) {
  const std::vector<Arrays::ItemRequirement> requirements = arrays_.item_requirements(array);
  std::vector<Formula> few;
  // Adds a child formula to `few` if few values satisfy it and an item in the range may.
  auto consider = [&](Formula child, uint32_t begin, uint32_t end) {
    if (child == kNever || child == kAlways || std::find(few.begin(), few.end(), child) != few.end()) return;
    bool is_possible =
        std::any_of(requirements.begin(), requirements.end(), [&](const Arrays::ItemRequirement& required) {
          bool is_in_range = begin <= required.begin && required.begin < end;
          return is_in_range && liveness_.is_satisfiable(formulas_.conjunction({child, required.required}));
        });
    if (is_possible && !values_of(lists_.number_of({child})).are_many()) few.push_back(child);
  };
  for (Formula atom : std::vector<Formula>(formulas_.atoms(lists_[array][0]))) {
    const FormulaNode node = formulas_[atom];
    if (node.op == Op::kForItems) consider(node.c, node.a, node.b);
    if (node.op == Op::kForItems) consider(formulas_.negation(node.c), node.a, node.b);
    if (node.op == Op::kHas) consider(node.a, 0, UINT32_MAX);
  }
  if (arrays_.item_plan(array).is_live) consider(lists_[arrays_.item_plan(array).value_formulas][0], 0, 1);
  return few;
}

bool ValueCounts::is_tight(State state) {
  if (automaton_.at<WaitingForItem>(state) == nullptr && automaton_.at<AfterItem>(state) == nullptr) return false;
  uint32_t array = automaton_.array_of(state);
  auto known = tight_arrays_.find(array);
  if (known != tight_arrays_.end()) return known->second;
  bool is_tight = arrays_.are_items_unique(array) && !arrays_.is_plain(array) && !few_children(array).empty();
  return tight_arrays_[array] = is_tight;
}

bool ValueCounts::depends_on_truth_values(State waiting) {
  uint32_t array = automaton_.array_of(waiting);
  if (!is_tight(waiting) || arrays_.item_plan(array).tracked.empty()) return false;
  const std::vector<Formula> literals = arrays_.literals(array);
  size_t num_has = 0;
  bool are_simple = std::all_of(literals.begin(), literals.end(), [&](Formula literal) {
    const FormulaNode& node = formulas_[literal];
    if (node.op == Op::kHas) return ++num_has == 1;
    if (node.op == Op::kNot) return formulas_.op(node.a) == Op::kMinItems;
    if (node.op == Op::kForItems) return node.a == 0 && node.b == UINT32_MAX;
    return node.op == Op::kMinItems || node.op == Op::kUnique;
  });
  return !are_simple;
}

bool ValueCounts::may_be_scarce(State waiting, const std::string& text) {
  for (Formula child : few_children(automaton_.array_of(waiting))) {
    Liveness::Values values = liveness_.all_values(child);
    if (values == nullptr) continue;
    schema_.budget().spend(values->size());
    auto begins_so = [&text](const std::string& value) { return value.compare(0, text.size(), text) == 0; };
    if (std::any_of(values->begin(), values->end(), begins_so)) return true;
  }
  return false;
}

bool ValueCounts::has_enough_items(uint32_t array) {
  if (!arrays_.item_plan(array).is_live) return true;
  uint32_t value_formulas = arrays_.item_plan(array).value_formulas;
  if (arrays_.is_plain(array)) {
    uint32_t min = arrays_.min_items(array);
    if (min < 2) return true;
    Count count = values_of(value_formulas);
    if (count.least >= min || count.is_exact) return count.least >= min;
    if (min <= kMaxCounted && num_different_values(automaton_, automaton_.before_value(value_formulas), min) >= min)
      return true;
    throw SchemaError(ErrorKind::kUnsupported, "under uniqueItems, an array needs more items than there are values");
  }
  for (Formula child : few_children(array)) {
    if (liveness_.all_values(child) != nullptr) continue;
    throw SchemaError(ErrorKind::kUnsupported,
                      "under uniqueItems, items may use up the values of those that must follow");
  }
  return true;
}

bool ValueCounts::stays_live(State state, const TextSet& used) {
  const Numbers& formulas = lists_[automaton_.array_of(state)];
  return automaton_.pop_at_end(formulas) || liveness_.is_array_live(formulas[0], used);
}

}  // namespace structout::json
