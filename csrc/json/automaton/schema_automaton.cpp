#include "json/automaton/schema_automaton.h"

#include <algorithm>
#include <string_view>

namespace structout::json {

namespace {

// Outside of strings, keys and literals, only these bytes have actions of their own: all
// others act as their neighbours do, but for the edges of numbers.
constexpr std::string_view kStructure = " \t\n\r{}[],:\"-0123456789ntf";

}  // namespace

SchemaAutomaton::SchemaAutomaton(const std::string& schema, const SchemaOptions& options, const TextForm& form,
                                 const engine::Limits& limits)
    : schema_(schema, options, limits),
      formulas_(schema_.formulas()),
      texts_(schema_.texts()),
      liveness_(schema_),
      form_(form),
      whitespace_(form.whitespace),
      planner_(schema_, liveness_, lists_),
      objects_(schema_, liveness_, planner_, lists_, form.key_order),
      arrays_(schema_, liveness_, planner_, lists_),
      counts_(*this),
      hints_(*this) {}

State SchemaAutomaton::start() {
  if (start_ != kNoState) return start_;
  Formula root = schema_.root();
  if (!liveness_.is_satisfiable(root)) {
    if (const std::optional<std::string>& pointer = schema_.endless_reference()) {
      throw SchemaError(ErrorKind::kMalformed, "the schema refers to itself for the same value", *pointer);
    }
    if (schema_.has_narrower_texts()) {
      throw SchemaError(ErrorKind::kUnsupported, "no value satisfies the schema among those of its formats and steps",
                        "#");
    }
    if (std::optional<std::string> array = schema_.impossible_array()) {
      throw SchemaError(ErrorKind::kImpossible, "under uniqueItems, an array needs more items than there are values",
                        *array + "/uniqueItems");
    }
    const char* readings = schema_.has_two_readings() ? ", with each format as an assertion and as an annotation" : "";
    throw SchemaError(ErrorKind::kImpossible, std::string("no value satisfies the schema") + readings, "#");
  }
  for (Formula schema : schema_.child_formulas()) {
    uint32_t array = lists_.number_of({schema_.expand(schema, Type::kArray)});
    if (!arrays_.are_items_unique(array)) continue;
    try {
      if (counts_.has_enough_items(array)) continue;
      if (schema_.formulas().op(schema) == Op::kAnd) {
        throw SchemaError(ErrorKind::kImpossible, "an array needs more items than there are closed values", "");
      }
      impossible_arrays_.push_back(schema_.pointer_of(schema));
    } catch (SchemaError& error) {
      if (error.pointer.empty()) error.pointer = schema_.pointer_of(schema) + "/uniqueItems";
      throw;
    }
  }
  return start_ = before_value(lists_.number_of({root}));
}

State SchemaAutomaton::before_value(uint32_t value_formulas) {
  return add(BeforeValue{value_formulas, Whitespace::kNone});
}

State SchemaAutomaton::add(const StateContents& contents, RegisterKind registers) {
  actions_.make_room_for_state();
  auto [state, is_new] = states_.add(contents, registers);
  if (is_new) {
    actions_.add_state();
    uint32_t max_states = schema_.budget().limits.schema_states;
    if (states_.size() > max_states) throw CacheFull("schema_states", states_.size(), max_states);
  }
  return state;
}

size_t SchemaAutomaton::memory_bytes() const {
  return schema_.memory_bytes() + states_.size() * 128 + objects_.size() * 256 + actions_.memory_bytes();
}

Action SchemaAutomaton::new_action(State state, uint8_t byte) {
  const Action action = read(state, byte);
  auto [first, last] = range_of(state, byte);
  actions_.add(state, first, last, action);
  return action;
}

std::pair<uint8_t, uint8_t> SchemaAutomaton::range_of(State state, uint8_t byte) {
  uint8_t first = 0, last = UINT8_MAX;
  auto keep_out = [&](uint8_t other) {
    if (other == byte) first = last = byte;
    if (other < byte) first = std::max(first, uint8_t(other + 1));
    if (other > byte) last = std::min(last, uint8_t(other - 1));
  };
  std::optional<uint32_t> texts;
  std::string_view ends = kStructure;
  if (const auto* literal = at<InLiteral>(state)) ends = kLiterals[literal->literal].substr(literal->position, 1);
  if (const auto* number = at<InNumber>(state)) texts = number->texts;
  if (const auto* string = at<InString>(state)) {
    texts = string->texts;
    ends = "\"";
  }
  if (const auto* key = at<InKey>(state)) {
    if (key->may_be_free()) texts = key->free;
    ends = "\"";
    for (uint8_t other : hints_.name_bytes(state)) keep_out(other);
  }
  for (char end : ends) keep_out(uint8_t(end));
  if (!texts) return {first, last};
  for (uint32_t each : lists_[*texts]) {
    const std::vector<engine::Edge>& edges = texts_.edges(each);
    auto edge =
        std::find_if(edges.begin(), edges.end(), [byte](const engine::Edge& other) { return byte <= other.last; });
    bool is_between = edge == edges.end() || byte < edge->first;
    if (edge != edges.end()) last = std::min(last, is_between ? uint8_t(edge->first - 1) : edge->last);
    if (!is_between) first = std::max(first, edge->first);
    if (is_between && edge != edges.begin()) first = std::max(first, uint8_t(std::prev(edge)->last + 1));
  }
  return {first, last};
}

// -- values -------------------------------------------------------------------------

Numbers SchemaAutomaton::expanded(uint32_t value_formulas, Type type) {
  Numbers formulas;
  for (Formula child : Numbers(lists_[value_formulas])) formulas.push_back(schema_.expand(child, type));
  auto is_among_or_constant = [this](Formula formula) {
    return formulas_.op(formula) == Op::kAmong || formula <= kNever;
  };
  if (!planner_.is_among(formulas) || !std::all_of(formulas.begin(), formulas.end(), is_among_or_constant)) {
    for (Formula& formula : formulas) formula = schema_.without_among(formula);
  }
  return formulas;
}

Action SchemaAutomaton::read(const BeforeValue& value, RegisterKind, uint8_t byte) {
  if (std::optional<uint32_t> more = whitespace_.after(value.spaces, byte)) {
    return replace(add(BeforeValue{value.value_formulas, *more}));
  }
  if (!whitespace_.may_end(value.spaces)) return {};
  if (byte == '{') {
    Numbers formulas = expanded(value.value_formulas, Type::kObject);
    std::optional<uint32_t> object = objects_.start(value.value_formulas, std::move(formulas));
    if (!object) return {};
    return replace(add(ObjectStart{*object, whitespace_.after_bracket()}, objects_.register_kind_at_start()));
  }
  if (byte == '[') {
    Numbers formulas = expanded(value.value_formulas, Type::kArray);
    if (!liveness_.is_array_live(formulas[0])) return {};
    return replace(add(ArrayStart{lists_.number_of(formulas), whitespace_.after_bracket()}));
  }
  if (byte == '"' || byte == '-' || (byte >= '0' && byte <= '9')) {
    bool is_string = byte == '"';
    TextKind kind = is_string ? TextKind::kString : TextKind::kNumber;
    const Numbers formulas = expanded(value.value_formulas, is_string ? Type::kString : Type::kNumber);
    bool is_lone = is_string && formulas.size() == 1 && !has_unique_items();
    Numbers states = {is_lone ? texts_.start_of_lone_string(formulas[0]) : texts_.start(kind, formulas[0])};
    // The required formula also chooses the spelling of numbers; tracked formulas follow any.
    for (size_t i = 1; i < formulas.size(); ++i) states.push_back(texts_.followed(kind, formulas[i]));
    if (!texts_.is_live(states[0])) return {};
    uint32_t texts = lists_.number_of(states);
    return is_string ? replace(add(InString{texts})) : read(InNumber{texts}, RegisterKind::kNone, byte);
  }
  for (uint32_t literal = 0; literal < 3; ++literal) {
    if (byte != uint8_t(kLiterals[literal][0])) continue;
    std::vector<bool> truth_values;
    for (Formula formula : expanded(value.value_formulas, Type(literal))) truth_values.push_back(formula == kAlways);
    if (!truth_values[0]) return {};
    return replace(add(InLiteral{literal, 1, truth_values_.number_of(truth_values)}));
  }
  return {};
}

Action SchemaAutomaton::read(const InLiteral& literal, RegisterKind, uint8_t byte) {
  std::string_view text = kLiterals[literal.literal];
  if (byte != uint8_t(text[literal.position])) return {};
  if (literal.position + 1 == text.size()) return {Action::kPop, literal.truth_values};
  return replace(add(InLiteral{literal.literal, literal.position + 1, literal.truth_values}));
}

Action SchemaAutomaton::read(const InString& string, RegisterKind, uint8_t byte) {
  if (byte == '"') {  // inside an escape it is read as any byte
    if (std::optional<uint32_t> truth_values = truth_values_of_texts(string.texts))
      return {Action::kPop, *truth_values};
  }
  std::optional<uint32_t> texts = texts_after(string.texts, byte);
  return texts ? replace(add(InString{*texts})) : Action{};
}

Action SchemaAutomaton::read(const InNumber& number, RegisterKind, uint8_t byte) {
  if (byte == ',' || byte == ']' || byte == '}' || is_space(byte)) {
    std::optional<uint32_t> truth_values = truth_values_of_texts(number.texts);
    return truth_values ? Action{Action::kPopBefore, *truth_values} : Action{};
  }
  std::optional<uint32_t> texts = texts_after(number.texts, byte);
  return texts ? replace(add(InNumber{*texts})) : Action{};
}

std::optional<uint32_t> SchemaAutomaton::texts_after(uint32_t texts, uint8_t byte) {
  const Numbers& before = lists_[texts];
  Numbers after;
  after.reserve(before.size());
  for (uint32_t each : before) {
    uint32_t next = texts_.next(each, byte);
    if (next == engine::kDead) return std::nullopt;
    after.push_back(next);
  }
  if (!texts_.is_live(after[0])) return std::nullopt;
  return after == before ? texts : lists_.number_of(after);
}

bool SchemaAutomaton::reads_number(State state) {
  constexpr std::string_view kBytes = "0123456789+-.eE";
  return std::any_of(kBytes.begin(), kBytes.end(),
                     [&](char byte) { return action(state, uint8_t(byte)).kind == Action::kReplace; });
}

std::optional<uint32_t> SchemaAutomaton::truth_values_at_end(State state) {
  const auto* number = at<InNumber>(state);
  return number != nullptr ? truth_values_of_texts(number->texts) : std::nullopt;
}

std::optional<uint32_t> SchemaAutomaton::truth_values_of_texts(uint32_t texts) {
  std::vector<bool> truth_values;
  for (uint32_t each : Numbers(lists_[texts])) truth_values.push_back(texts_.accepts(each));
  if (!truth_values[0]) return std::nullopt;
  return truth_values_.number_of(truth_values);
}

State SchemaAutomaton::resume(State waiting, uint32_t truth_values) {
  if (waiting == kNoState) return add(TextEnd());
  auto known = resumed_.find({waiting, truth_values});
  if (known != resumed_.end()) return known->second;
  const std::vector<bool> truths = truth_values_[truth_values];
  State state = kNoState;
  if (const auto* found = at<WaitingForMember>(waiting)) {
    const WaitingForMember member = *found;
    if (std::optional<uint32_t> after = objects_.after(member.object, member.key, truths)) {
      state = add(AfterMember{*after, whitespace_.after_value()}, objects_.register_kind_of(objects_.prepared(*after)));
    }
  } else if (std::optional<uint32_t> after = arrays_.after(array_of(waiting), truths)) {
    state = add(AfterItem{*after, whitespace_.after_value()},
                arrays_.are_items_unique(*after) ? RegisterKind::kItems : RegisterKind::kNone);
  }
  return resumed_[{waiting, truth_values}] = state;
}

std::optional<Action> SchemaAutomaton::pop_at_end(const Numbers& formulas) {
  std::vector<bool> truth_values;
  for (Formula formula : formulas) {
    truth_values.push_back(formulas_.evaluate(formula, [this](Formula atom) {
      Op op = formulas_.op(atom);  // nothing more will come
      if (op == Op::kAmong) return schema_.is_whole(formulas_[atom]);
      return op == Op::kForName || op == Op::kForKeys || op == Op::kFollows || op == Op::kForItems || op == Op::kUnique;
    }));
  }
  if (!truth_values[0]) return std::nullopt;
  return Action{Action::kPop, truth_values_.number_of(truth_values)};
}

State SchemaAutomaton::waiting_item(uint32_t array) {
  return add(WaitingForItem{array}, arrays_.are_items_unique(array) ? RegisterKind::kInsideItem : RegisterKind::kNone);
}

Action SchemaAutomaton::read(const ArrayStart& start, RegisterKind, uint8_t byte) {
  if (std::optional<uint32_t> more = whitespace_.after(start.spaces, byte)) {
    return replace(add(ArrayStart{start.array, *more}));
  }
  if (!whitespace_.may_end(start.spaces)) return {};
  if (byte == ']') return pop_at_end(lists_[start.array]).value_or(Action{});
  if (!arrays_.item_plan(start.array).is_live) return {};
  Action first =
      read(BeforeValue{arrays_.item_plan(start.array).value_formulas, Whitespace::kNone}, RegisterKind::kNone, byte);
  if (first.kind != Action::kReplace) return {};
  return {Action::kPush, first.state, waiting_item(start.array)};
}

uint32_t SchemaAutomaton::whitespace_after_value(uint32_t spaces, const std::optional<Action>& end,
                                                 uint32_t formulas) const {
  if (spaces != whitespace_.after_value() || !whitespace_.needs_end()) return spaces;
  if (!end) return Whitespace::kNone;
  // Tracked formulas, names in any order and items that must differ leave the end open,
  // even if the required formula allows it.
  bool is_sure = lists_[formulas].size() == 1 && !allows_any_order() && !has_unique_items();
  return is_sure ? whitespace_.before_end() : spaces;
}

Action SchemaAutomaton::read(const AfterItem& item, RegisterKind registers, uint8_t byte) {
  if (byte == ',') {
    bool may_continue = whitespace_.may_separate(item.spaces) && arrays_.item_plan(item.array).is_live;
    if (!whitespace_.may_end(item.spaces) || !may_continue) return {};
    State value = add(BeforeValue{arrays_.item_plan(item.array).value_formulas, whitespace_.after_comma()});
    return {Action::kPush, value, waiting_item(item.array)};
  }
  if (byte != ']' && !is_space(byte)) return {};
  std::optional<Action> end = pop_at_end(lists_[item.array]);
  if (byte == ']') return whitespace_.may_end(item.spaces) ? end.value_or(Action{}) : Action{};
  std::optional<uint32_t> more = whitespace_.after(whitespace_after_value(item.spaces, end, item.array), byte);
  return more ? replace(add(AfterItem{item.array, *more}, registers)) : Action{};
}

}  // namespace structout::json
