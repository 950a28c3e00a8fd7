// How many values may follow, where they must differ from earlier ones.
#include <algorithm>
#include <set>

#include "json/machine.h"
#include "json/value_search.h"

namespace structout::json {

namespace {

constexpr uint32_t kMany = Machine::kManyValues;
constexpr size_t kMaxDepth = 64;        // of values and items that one count looks at
constexpr uint32_t kMaxCounted = 1024;  // values that are followed one by one
constexpr uint32_t kMaxSpellings = 22;  // of a number that need not be canonical

using NumValues = Machine::NumValues;
constexpr NumValues kManyOfThem = {kMany, true};

NumValues product(NumValues a, NumValues b) {
  return {uint32_t(std::min<uint64_t>(uint64_t(a.least) * b.least, kMany)), a.is_exact && b.is_exact};
}

NumValues sum(NumValues a, NumValues b) {
  return {uint32_t(std::min<uint64_t>(uint64_t(a.least) + b.least, kMany)), a.is_exact && b.is_exact};
}

}  // namespace

bool Machine::is_key(State state) const { return at<InKey>(state) != nullptr; }

Machine::NumValues Machine::num_values(State state, const PastKeys& names, size_t num_items) {
  bool depends_on_items = at<AfterItem>(state) != nullptr && num_items != kUnknownItems;
  bool is_kept = names.empty() && !depends_on_items;
  auto known = is_kept ? num_values_.find(state) : num_values_.end();
  if (known != num_values_.end()) return known->second;
  // What leads back to a state that is being counted can be repeated.
  if (is_kept && being_counted_.count(state) != 0) return kManyOfThem;
  if (count_depth_ == kMaxDepth) return {};
  schema_.budget().spend(1);
  if (is_kept) being_counted_.insert(state);
  NumValues count;
  ++count_depth_;
  try {
    count = counted_values(state, names, num_items);
  } catch (...) {
    --count_depth_;
    being_counted_.erase(state);
    throw;
  }
  --count_depth_;
  if (is_kept) {
    being_counted_.erase(state);
    num_values_[state] = count;
  }
  return count;
}

Machine::NumValues Machine::counted_values(State state, const PastKeys& names, size_t num_items) {
  const StateContents contents = states_[state];
  if (std::holds_alternative<InLiteral>(contents)) return {1, true};
  if (const auto* string = std::get_if<InString>(&contents)) return {texts_.count(lists_[string->texts][0]), true};
  if (const auto* number = std::get_if<InNumber>(&contents)) {
    uint32_t count = texts_.least_count(lists_[number->texts][0]);
    return {count == kMany ? count : std::max(count / kMaxSpellings, 1u), false};
  }
  if (const auto* value = std::get_if<BeforeValue>(&contents)) return num_values_of(value->children);
  if (const auto* start = std::get_if<ObjectStart>(&contents)) return num_objects(start->object, names);
  if (const auto* member = std::get_if<AfterMember>(&contents)) return num_objects(member->object, names);
  if (const auto* before = std::get_if<BeforeKey>(&contents)) {  // but not the object that has no more keys
    NumValues count = num_objects(before->object, names);
    const Object object = objects_[before->object];
    bool may_end = end_of_object(object) && (!is_guarded(object) || holds({Guard::kClose, before->object}, names));
    if (may_end && !count.are_many() && count.least > 0) --count.least;
    if (!count.is_exact) count.least = std::max(count.least, 1u);
    return count;
  }
  if (const auto* key = std::get_if<InKey>(&contents)) return num_objects_behind_key(*key, names);
  if (const auto* key = std::get_if<AfterKey>(&contents)) return num_members(key->object, key->key, names);
  if (const auto* start = std::get_if<ArrayStart>(&contents)) return num_arrays(start->array, 0);
  if (const auto* item = std::get_if<AfterItem>(&contents)) return num_arrays(item->array, num_items);
  return {};
}

// How many objects go on with a key, whose value comes next.
Machine::NumValues Machine::num_members(uint32_t object, uint32_t key, const PastKeys& names) {
  return product(num_values(value_state(key_plan(object, key).children)),
                 num_values_behind(waiting_member(object, key), names));
}

Machine::NumValues Machine::num_arrays(uint32_t array, size_t num_items) {
  const Numbers formulas = lists_[array];
  if (is_among(formulas)) return num_constants(formulas[0]);
  NumValues end = {pop_at_end(formulas) ? 1u : 0u, true};
  if (!item_plan(array).is_live) return end;
  NumValues item = num_values(value_state(item_plan(array).children));
  if (item.are_many()) return item;
  if (!are_items_unique(array)) {
    return sum(end, product(item, num_values_behind(waiting_item(array), {})));
  }
  if (num_items == kUnknownItems || !is_plain_array(array)) return {};  // which ones are left is not known
  // Sequences of different ones of those that are left.
  uint64_t num_left = item.least > num_items ? item.least - num_items : 0;
  uint32_t min = min_items(array), max = max_items(array);
  NumValues count = {0, item.is_exact}, sequences = {1, true};
  for (uint32_t length = 0; length <= max && sequences.least > 0 && !count.are_many(); ++length) {
    if (length >= min) count = sum(count, sequences);
    sequences = product(sequences, {uint32_t(num_left > length ? num_left - length : 0), true});
  }
  if (!count.is_exact) count.least = std::max(count.least, 1u);
  return count;
}

// The values that are left of those that an object or array must be one of.
Machine::NumValues Machine::num_constants(Formula among) {
  return {uint32_t(schema_.constants()[formulas_[among].a].size()), true};
}

Machine::NumValues Machine::num_objects_behind_key(const InKey& behind, const PastKeys& names) {
  const uint32_t number = behind.object;
  const Object object = objects_[number];
  bool has_free = behind.may_be_free();
  if (has_free && object.max_keys == UINT32_MAX && texts_.count(lists_[behind.free][0]) == kMany) return kManyOfThem;
  if (!object.is_kept) return {};
  const std::vector<uint32_t> by_spelling = order(object).by_spelling;
  std::vector<uint32_t> allowed;  // of the names that begin so
  for (uint32_t i = behind.begin; i < behind.end; ++i) {
    if (holds({Guard::kKeys, number, i, i + 1, false}, names)) allowed.push_back(i);
  }
  bool is_in_any_order = is_guarded(object);
  if (is_in_any_order && !has_free) {
    // Each object with one of these names: all but those with none of them.
    NumValues all = num_objects(number, names);
    PastKeys without = names;
    without.resize(by_spelling.size());
    bool is_one_required = false;
    for (uint32_t i : allowed) {
      without[by_spelling[i]] = true;
      is_one_required = is_one_required || shapes_[object.shape].is_required[by_spelling[i]];
    }
    if (all.is_exact && !all.are_many()) {
      return {all.least - (is_one_required ? 0 : num_objects(number, without).least), true};
    }
  }
  NumValues count = {0, true};
  for (uint32_t i : allowed) {
    if (count.are_many()) break;
    uint32_t key = number_of_key({order(object).order.names[by_spelling[i]]});
    PastKeys after = names;
    if (is_in_any_order) {
      after.resize(by_spelling.size());
      after[by_spelling[i]] = true;
    }
    NumValues with_key = num_members(number, key, after);
    // In any order an object may begin with several of its names.
    count = is_in_any_order ? NumValues{std::max(count.least, with_key.least), false} : sum(count, with_key);
  }
  if (has_free || object.allows_free) count.is_exact = false;
  if (!count.is_exact) count.least = std::max(count.least, 1u);
  return count;
}

bool Machine::has_many_values(State state) {
  auto known = has_many_values_.find(state);
  if (known != has_many_values_.end()) return known->second;
  PastKeys names;
  std::optional<uint32_t> object = object_between_members(state);
  if (const auto* key = at<InKey>(state)) object = key->object;
  if (const auto* key = at<AfterKey>(state)) object = key->object;
  if (object && at<ObjectStart>(state) == nullptr && is_guarded(objects_[*object])) {
    names.assign(order(objects_[*object]).order.names.size(), true);
  }
  return has_many_values_[state] = num_values(state, names).are_many();
}

Machine::NumValues Machine::num_values_of(uint32_t children) {
  Formula goal = lists_[children][0];
  NumValues count = {0, true};
  for (Type type : {Type::kNull, Type::kFalse, Type::kTrue}) count.least += schema_.expand(goal, type) == kAlways;
  Formula strings = schema_.expand(goal, Type::kString), numbers = schema_.expand(goal, Type::kNumber);
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
    Action action = read(BeforeValue{children, Whitespace::kNone}, MemoryKind::kNone, byte);
    if (action.kind == Action::kReplace) count = sum(count, num_values(action.state));
  }
  count.least = std::max(count.least, 1u);
  return count;
}

Machine::NumValues Machine::num_objects(uint32_t number, const PastKeys& names) {
  const Object object = prepared(number);
  if (is_among(lists_[object.formulas])) return num_constants(lists_[object.formulas][0]);
  bool is_free = object.allows_free && object.max_keys == UINT32_MAX;
  if (is_free && texts_.count(lists_[object.free][0]) == kMany) return kManyOfThem;
  const KeyOrder& order = this->order(object).order;
  if (!object.is_kept) return {};  // which keys may come together is not known here
  Formula rest = lists_[object.formulas][0];
  const std::vector<uint32_t> in_rest = schema_.names_in(rest);
  NumValues count = {1, rest == kAlways && object.max_keys == UINT32_MAX && !object.allows_free};
  for (uint32_t i = 0; i < order.names.size() && !count.are_many(); ++i) {
    bool has_come = is_guarded(object) ? i < names.size() && names[i] : i < object.next;
    if (has_come || std::find(in_rest.begin(), in_rest.end(), order.names[i]) != in_rest.end()) continue;
    bool is_optional = !shapes_[object.shape].is_required[i];
    if (is_optional && (rest != kAlways || object.max_keys != UINT32_MAX)) continue;
    const Plan plan = shape_plan(object.shape, number_of_key({order.names[i]}));
    if (!plan.is_live) continue;
    count = product(count, sum(num_values(value_state(plan.children)), {is_optional, true}));
  }
  return count;
}

Machine::NumValues Machine::num_values_behind(State waiting, const PastKeys& names, size_t num_items) {
  const StateContents contents = states_[waiting];
  const auto* member = std::get_if<WaitingForMember>(&contents);
  bool is_key = member != nullptr;
  const Plan& plan = is_key ? key_plan(member->object, member->key) : item_plan(array_of(waiting));
  bool tells_values = !plan.tracked.empty() || plan.values != kUnknown;
  if (tells_values || (is_key && !objects_[member->object].is_kept)) return {};
  State state = resume(waiting, verdicts_.number_of({true}));
  if (state == kNoState) return {};
  bool are_alike = !is_key && item_children(state) == item_children(waiting);
  if (!are_alike) num_items = kUnknownItems;
  return num_values(state, is_key ? names : PastKeys(), num_items);
}

bool Machine::has_unused_key(State state, const TextSet& used, TextSet::Cursor begin, const PastKeys& names) {
  uint32_t texts;
  if (const auto* key = at<InKey>(state)) {
    if (may_be_named(*key, names) || !key->may_be_free()) return true;
    texts = key->free;
  } else if (const auto* before = at<BeforeKey>(state)) {
    uint32_t number = before->object;
    const Object object = prepared(number);
    auto num_names = uint32_t(object.num_allowed_before.size() - 1);
    bool is_named = is_guarded(object) ? holds({Guard::kKeys, number, 0, num_names, false}, names)
                                       : object.num_allowed_before.back() > 0;
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

bool Machine::has_unused_scalar(State state, TextSet::Cursor begin) {
  if (const auto* literal = at<InLiteral>(state)) {
    for (char byte : kLiterals[literal->literal].substr(literal->position)) begin.read(uint8_t(byte));
    return !begin.is_whole();
  }
  const auto* string = at<InString>(state);
  uint32_t text = lists_[string != nullptr ? string->texts : at<InNumber>(state)->texts][0];
  if (texts_.least_count(text) > begin.count()) return true;
  uint32_t count = texts_.count(text);
  return count > begin.count() || texts_.num_among(text, begin) < count;
}

bool Machine::may_lack_keys(State state) {
  if (const auto* key = at<InKey>(state)) {
    return key->may_be_free() && texts_.count(lists_[key->free][0]) < kMany;
  }
  const auto* before = at<BeforeKey>(state);
  if (before == nullptr) return false;
  const Object& object = prepared(before->object);
  return object.allows_free && texts_.count(lists_[object.free][0]) < kMany;
}

// -- arrays that must go on ---------------------------------------------------------

bool Machine::is_plain_array(uint32_t array) {
  Formula formula = lists_[array][0];
  std::vector<Formula> literals = {formula};
  if (formulas_.op(formula) == Op::kAnd) literals = formulas_.operands(formula);
  return std::all_of(literals.begin(), literals.end(), [this](Formula literal) {
    const FormulaNode& node = formulas_[literal];
    if (node.op == Op::kNot) return formulas_.op(node.a) == Op::kMinItems;
    if (node.op == Op::kForItems) return node.a == 0 && node.b == UINT32_MAX;
    return node.op == Op::kMinItems || node.op == Op::kUnique || node.op == Op::kTrue;
  });
}

// What is asked of items by the array as a whole, where this changes: each range of items
// begins with another goal.
std::vector<Machine::ItemGoal> Machine::item_goals(uint32_t array) {
  Formula formula = lists_[array][0];
  std::vector<Formula> literals = {formula};
  if (formulas_.op(formula) == Op::kAnd) literals = formulas_.operands(formula);
  std::vector<FormulaNode> all;
  std::set<uint32_t> begins = {0};
  for (Formula literal : literals) {
    const FormulaNode& node = formulas_[literal];
    if (node.op != Op::kForItems) continue;
    all.push_back(node);
    begins.insert(node.a);
    if (node.b != UINT32_MAX) begins.insert(node.b);
  }
  std::vector<ItemGoal> goals;
  for (uint32_t begin : begins) {
    std::vector<Formula> asked;
    for (const FormulaNode& items : all) {
      if (items.a <= begin && begin < items.b) asked.push_back(items.c);
    }
    schema_.budget().spend(1 + all.size() / 16);
    goals.push_back({begin, formulas_.conjunction(std::move(asked))});
  }
  return goals;
}

std::vector<Formula> Machine::few_children(uint32_t array) {
  const std::vector<ItemGoal> goals = item_goals(array);
  std::vector<Formula> few;
  // Adds a child formula to `few` if few values satisfy it and an item in the range may.
  auto consider = [&](Formula child, uint32_t begin, uint32_t end) {
    if (child == kNever || child == kAlways || std::find(few.begin(), few.end(), child) != few.end()) return;
    bool is_possible = std::any_of(goals.begin(), goals.end(), [&](const ItemGoal& goal) {
      bool is_in_range = begin <= goal.begin && goal.begin < end;
      return is_in_range && liveness_.is_satisfiable(formulas_.conjunction({child, goal.goal}));
    });
    if (is_possible && !num_values_of(lists_.number_of({child})).are_many()) few.push_back(child);
  };
  for (Formula atom : std::vector<Formula>(formulas_.atoms(lists_[array][0]))) {
    const FormulaNode node = formulas_[atom];
    if (node.op == Op::kForItems) consider(node.c, node.a, node.b);
    if (node.op == Op::kForItems) consider(formulas_.negation(node.c), node.a, node.b);
    if (node.op == Op::kHas) consider(node.a, 0, UINT32_MAX);
  }
  if (item_plan(array).is_live) consider(lists_[item_plan(array).children][0], 0, 1);
  return few;
}

bool Machine::is_tight(State state) {
  if (at<WaitingForItem>(state) == nullptr && at<AfterItem>(state) == nullptr) return false;
  uint32_t array = array_of(state);
  auto known = tight_arrays_.find(array);
  if (known != tight_arrays_.end()) return known->second;
  bool is_tight = are_items_unique(array) && !is_plain_array(array) && !few_children(array).empty();
  return tight_arrays_[array] = is_tight;
}

bool Machine::depends_on_verdicts(State waiting) {
  uint32_t array = array_of(waiting);
  if (!is_tight(waiting) || item_plan(array).tracked.empty()) return false;
  Formula formula = lists_[array][0];
  std::vector<Formula> literals = {formula};
  if (formulas_.op(formula) == Op::kAnd) literals = formulas_.operands(formula);
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

bool Machine::may_be_scarce(State waiting, const std::string& text) {
  for (Formula child : few_children(array_of(waiting))) {
    Liveness::Values values = liveness_.all_values(child);
    if (values == nullptr) continue;
    schema_.budget().spend(values->size());
    auto begins_so = [&text](const std::string& value) { return value.compare(0, text.size(), text) == 0; };
    if (std::any_of(values->begin(), values->end(), begins_so)) return true;
  }
  return false;
}

bool Machine::has_enough_items(uint32_t array) {
  if (!item_plan(array).is_live) return true;
  uint32_t children = item_plan(array).children;
  if (is_plain_array(array)) {
    uint32_t min = min_items(array);
    if (min < 2) return true;
    NumValues count = num_values_of(children);
    if (count.least >= min || count.is_exact) return count.least >= min;
    if (min <= kMaxCounted && num_different_values(*this, value_state(children), min) >= min) return true;
    throw SchemaError(ErrorKind::kUnsupported, "under uniqueItems, an array needs more items than there are values");
  }
  for (Formula child : few_children(array)) {
    if (liveness_.all_values(child) != nullptr) continue;
    throw SchemaError(ErrorKind::kUnsupported,
                      "under uniqueItems, items may use up the values of those that must follow");
  }
  return true;
}

bool Machine::stays_live(State state, const TextSet& used) {
  const Numbers& formulas = lists_[array_of(state)];
  return pop_at_end(formulas) || liveness_.is_array_live(formulas[0], used);
}

}  // namespace structout::json
