#include "json/machine.h"

#include <algorithm>
#include <string_view>

namespace structout::json {

namespace {

// Outside of strings and keys other bytes make no difference, but for literals.
constexpr std::string_view kStructure = " \t\n\r{}[],:\"-0123456789ntf";

}  // namespace

Machine::Machine(const std::string& schema, const SchemaOptions& options, const TextForm& form,
                 const engine::Limits& limits)
    : schema_(schema, options, limits),
      formulas_(schema_.formulas()),
      texts_(schema_.texts()),
      liveness_(schema_),
      form_(form),
      whitespace_(form.whitespace) {}

State Machine::start() {
  if (start_ != kNoState) return start_;
  Formula root = schema_.root();
  if (!liveness_.is_satisfiable(root)) {
    if (schema_.has_narrower_texts()) {
      throw SchemaError(ErrorKind::kUnsupported, "no value satisfies the schema among those of its formats and steps",
                        "#");
    }
    throw SchemaError(ErrorKind::kImpossible, "no value satisfies the schema", "#");
  }
  for (Formula schema : schema_.children()) {
    uint32_t array = lists_.number_of({schema_.expand(schema, Type::kArray)});
    if (!are_items_unique(array)) continue;
    has_unique_items_ = true;
    try {
      if (!has_enough_items(array)) impossible_arrays_.push_back(schema_.place_of(schema));
    } catch (SchemaError& error) {
      if (error.pointer.empty()) error.pointer = schema_.place_of(schema) + "/uniqueItems";
      throw;
    }
  }
  return start_ = value_state(lists_.number_of({root}));
}

State Machine::value_state(uint32_t children) { return add(Kind::kValue, {children, Whitespace::kNone}); }

State Machine::add(Kind kind, std::array<uint32_t, 5> fields, Memory memory) {
  uint64_t hash = uint64_t(kind);
  for (uint32_t field : fields) hash = engine::mix(hash, field);
  auto [state, is_new] =
      numbers_.find_or_add(hash, [&](State other) { return kinds_[other] == kind && fields_[other] == fields; });
  if (is_new) {
    kinds_.push_back(kind);
    fields_.push_back(fields);
    memories_.push_back(memory);
    rows_.emplace_back();
    uint32_t max_states = schema_.budget().limits.schema_states;
    if (kinds_.size() > max_states) throw RoomError("schema_states", kinds_.size(), max_states);
  }
  return state;
}

size_t Machine::memory_bytes() const {
  return schema_.memory_bytes() + kinds_.size() * 128 + objects_.size() * 256 + row_bytes_;
}

Action Machine::new_action(State state, uint8_t byte) {
  const Action action = read(state, byte);
  auto [first, last] = range_of(state, byte);
  std::unique_ptr<ActionRow>& row = rows_[state];
  if (row == nullptr) {
    row = std::make_unique<ActionRow>();
    row_bytes_ += sizeof(ActionRow);
  }
  auto found = std::find(row->actions.begin() + 1, row->actions.end(), action);
  uint8_t number = uint8_t(found - row->actions.begin());
  if (found == row->actions.end()) {
    row->actions.push_back(action);
    row_bytes_ += sizeof(Action);
  }
  std::fill(row->numbers + first, row->numbers + last + 1, number);
  return action;
}

std::pair<uint8_t, uint8_t> Machine::range_of(State state, uint8_t byte) {
  const std::array<uint32_t, 5>& fields = fields_[state];
  uint8_t first = 0, last = UINT8_MAX;
  auto keep_out = [&](uint8_t other) {
    if (other == byte) first = last = byte;
    if (other < byte) first = std::max(first, uint8_t(other + 1));
    if (other > byte) last = std::min(last, uint8_t(other - 1));
  };
  uint32_t texts = kNoText;
  std::string_view ends = kStructure;
  if (kinds_[state] == Kind::kLiteral) ends = kLiterals[fields[0]].substr(fields[1], 1);
  if (kinds_[state] == Kind::kText) {
    texts = fields[1];
    if (TextKind(fields[0]) == TextKind::kString) ends = "\"";
  }
  if (kinds_[state] == Kind::kKey) {
    texts = fields[4];
    ends = "\"";
    for (uint8_t other : name_bytes(state)) keep_out(other);
  }
  for (char end : ends) keep_out(uint8_t(end));
  if (texts == kNoText) return {first, last};
  for (uint32_t each : lists_[texts]) {
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

Action Machine::read(State state, uint8_t byte) {
  const std::array<uint32_t, 5> fields = fields_[state];
  switch (kinds_[state]) {
    case Kind::kEnd:
    case Kind::kWaitingKey:
    case Kind::kWaitingItem:
      return {};
    case Kind::kValue:
      return read_value(fields[0], fields[1], byte);
    case Kind::kLiteral: {
      std::string_view literal = kLiterals[fields[0]];
      if (byte != uint8_t(literal[fields[1]])) return {};
      if (fields[1] + 1 == literal.size()) return {Action::kPop, fields[2]};
      return replace(add(Kind::kLiteral, {fields[0], fields[1] + 1, fields[2]}));
    }
    case Kind::kText:
      return read_text(state, byte);
    case Kind::kObjectStart:
      return read_object_start(fields[0], fields[1], byte);
    case Kind::kKey:
      return read_key(state, byte);
    case Kind::kAfterKey: {
      if (byte == ':' && whitespace_.may_end(fields[2])) {
        State value = add(Kind::kValue, {key_plan(fields[0], fields[1]).children, whitespace_.start(true)});
        State waiting = add(Kind::kWaitingKey, {fields[0], fields[1]}, memory_of(prepared(fields[0])));
        return {Action::kPush, value, waiting};
      }
      std::optional<uint32_t> spaces = whitespace_.after(fields[2], byte);
      if (!spaces) return {};
      return replace(add(Kind::kAfterKey, {fields[0], fields[1], *spaces}, memories_[state]));
    }
    case Kind::kAfterMember: {
      if (std::optional<uint32_t> spaces = whitespace_.after(fields[1], byte)) {
        return replace(add(Kind::kAfterMember, {fields[0], *spaces}, memories_[state]));
      }
      if (!whitespace_.may_end(fields[1])) return {};
      Object& object = prepared(fields[0]);
      if (byte == '}') return end_of_object(object).value_or(Action{});
      if (byte != ',' || (!object.allows_free && object.num_allowed_before.back() == 0)) return {};
      return replace(add(Kind::kBeforeKey, {fields[0], whitespace_.start(true)}, memories_[state]));
    }
    case Kind::kBeforeKey:
      return read_before_key(fields[0], fields[1], byte);
    case Kind::kArrayStart:
      return read_array_start(fields[0], fields[1], byte);
    case Kind::kAfterItem: {
      if (std::optional<uint32_t> spaces = whitespace_.after(fields[1], byte)) {
        return replace(add(Kind::kAfterItem, {fields[0], *spaces}, memories_[state]));
      }
      if (!whitespace_.may_end(fields[1])) return {};
      if (byte == ']') return pop_at_end(lists_[fields[0]]).value_or(Action{});
      if (byte != ',' || !item_plan(fields[0]).is_live) return {};
      State value = add(Kind::kValue, {item_plan(fields[0]).children, whitespace_.start(true)});
      return {Action::kPush, value, waiting_item(fields[0])};
    }
  }
  return {};
}

// -- values -------------------------------------------------------------------------

Machine::Numbers Machine::expanded(uint32_t children, Type type) {
  Numbers formulas;
  for (Formula child : Numbers(lists_[children])) formulas.push_back(schema_.expand(child, type));
  auto is_among_or_constant = [this](Formula formula) {
    return formulas_.op(formula) == Op::kAmong || formula <= kNever;
  };
  if (!is_among(formulas) || !std::all_of(formulas.begin(), formulas.end(), is_among_or_constant)) {
    for (Formula& formula : formulas) formula = schema_.without_among(formula);
  }
  return formulas;
}

Action Machine::read_value(uint32_t children, uint32_t spaces, uint8_t byte) {
  if (std::optional<uint32_t> more = whitespace_.after(spaces, byte)) {
    return replace(add(Kind::kValue, {children, *more}));
  }
  if (!whitespace_.may_end(spaces)) return {};
  if (byte == '{') {
    Numbers formulas = expanded(children, Type::kObject);
    uint32_t order = order_of(children, formulas);
    PastKeys past(orders_[order].order.names.size());
    formulas[0] = liveness_.with_key_bounds(formulas[0]);
    if (!liveness_.is_object_live(formulas[0], orders_[order].order, past)) return {};
    uint32_t object = object_of(shape_of(kAlways, order), std::move(formulas), std::move(past));
    return replace(add(Kind::kObjectStart, {object, whitespace_.start(false)}, memory_at_start()));
  }
  if (byte == '[') {
    Numbers formulas = expanded(children, Type::kArray);
    if (!liveness_.is_array_live(formulas[0])) return {};
    return replace(add(Kind::kArrayStart, {lists_.number_of(formulas), whitespace_.start(false)}));
  }
  if (byte == '"' || byte == '-' || (byte >= '0' && byte <= '9')) {
    bool is_string = byte == '"';
    TextKind kind = is_string ? TextKind::kString : TextKind::kNumber;
    Numbers states;
    for (Formula formula : expanded(children, is_string ? Type::kString : Type::kNumber)) {
      states.push_back(states.empty() ? texts_.start(kind, formula) : texts_.followed(kind, formula));
    }
    if (!texts_.is_live(states[0])) return {};
    State text = add(Kind::kText, {uint32_t(kind), lists_.number_of(states)});
    return is_string ? replace(text) : read_text(text, byte);
  }
  for (uint32_t literal = 0; literal < 3; ++literal) {
    if (byte != uint8_t(kLiterals[literal][0])) continue;
    std::vector<bool> verdicts;
    for (Formula formula : expanded(children, Type(literal))) verdicts.push_back(formula == kAlways);
    if (!verdicts[0]) return {};
    return replace(add(Kind::kLiteral, {literal, 1, verdicts_.number_of(verdicts)}));
  }
  return {};
}

Action Machine::read_text(State state, uint8_t byte) {
  TextKind kind = TextKind(fields_[state][0]);
  const Numbers states = lists_[fields_[state][1]];
  bool may_end = kind == TextKind::kString ? byte == '"' : byte == ',' || byte == ']' || byte == '}' || is_space(byte);
  if (may_end) {
    if (!texts_.accepts(states[0])) {
      // Inside an escape, a quote is read as any byte.
      if (kind == TextKind::kNumber) return {};
    } else {
      std::optional<uint32_t> verdicts = verdicts_of_text(state);
      return {kind == TextKind::kString ? Action::kPop : Action::kPopBefore, *verdicts};
    }
  }
  Numbers after;
  for (uint32_t each : states) {
    uint32_t next = texts_.next(each, byte);
    if (next == engine::kDead) return {};
    after.push_back(next);
  }
  if (!texts_.is_live(after[0])) return {};
  return replace(add(Kind::kText, {fields_[state][0], lists_.number_of(after)}));
}

std::optional<uint32_t> Machine::verdicts_at_end(State state) {
  bool is_number = kinds_[state] == Kind::kText && TextKind(fields_[state][0]) == TextKind::kNumber;
  return is_number ? verdicts_of_text(state) : std::nullopt;
}

std::optional<uint32_t> Machine::verdicts_of_text(State state) {
  std::vector<bool> verdicts;
  for (uint32_t each : Numbers(lists_[fields_[state][1]])) verdicts.push_back(texts_.accepts(each));
  if (!verdicts[0]) return std::nullopt;
  return verdicts_.number_of(verdicts);
}

State Machine::resume(State waiting, uint32_t verdicts) {
  if (waiting == kNoState) return add(Kind::kEnd, {});
  auto known = resumed_.find({waiting, verdicts});
  if (known != resumed_.end()) return known->second;
  const std::vector<bool> truths = verdicts_[verdicts];
  const std::array<uint32_t, 5> fields = fields_[waiting];
  State state = kNoState;
  if (kinds_[waiting] == Kind::kWaitingKey) {
    if (std::optional<uint32_t> after = object_after(fields[0], fields[1], truths)) {
      state = add(Kind::kAfterMember, {*after, whitespace_.start(false)}, memory_of(prepared(*after)));
    }
  } else {
    const Plan& plan = item_plan(fields[0]);
    Numbers formulas = lists_[fields[0]];
    if (plan.values != kUnknown) {
      formulas = after_among(formulas, formulas_[formulas[0]].b, nullptr, plan, truths);
    } else {
      Truth truth = known_truth(plan, truths);
      for (Formula& formula : formulas) formula = after_item(formula, truth);
    }
    if (liveness_.is_array_live(formulas[0])) {
      uint32_t array = lists_.number_of(formulas);
      state = add(Kind::kAfterItem, {array, whitespace_.start(false)},
                  are_items_unique(array) ? Memory::kItems : Memory::kNone);
    }
  }
  resumed_[{waiting, verdicts}] = state;
  return state;
}

std::optional<Action> Machine::pop_at_end(const Numbers& formulas) {
  std::vector<bool> verdicts;
  for (Formula formula : formulas) {
    verdicts.push_back(formulas_.evaluate(formula, [this](Formula atom) {
      Op op = formulas_.op(atom);  // nothing more will come
      if (op == Op::kAmong) return schema_.is_whole(formulas_[atom]);
      return op == Op::kForName || op == Op::kForKeys || op == Op::kForItems || op == Op::kUnique;
    }));
  }
  if (!verdicts[0]) return std::nullopt;
  return pop(verdicts);
}

// -- arrays -------------------------------------------------------------------------

bool Machine::are_items_unique(uint32_t array) {
  for (Formula formula : Numbers(lists_[array])) {
    for (Formula atom : formulas_.atoms(formula)) {
      if (formulas_.op(atom) == Op::kUnique) return true;
    }
  }
  return false;
}

State Machine::waiting_item(uint32_t array) {
  return add(Kind::kWaitingItem, {array}, are_items_unique(array) ? Memory::kInsideItem : Memory::kNone);
}

Action Machine::read_array_start(uint32_t array, uint32_t spaces, uint8_t byte) {
  if (std::optional<uint32_t> more = whitespace_.after(spaces, byte))
    return replace(add(Kind::kArrayStart, {array, *more}));
  if (!whitespace_.may_end(spaces)) return {};
  if (byte == ']') return pop_at_end(lists_[array]).value_or(Action{});
  if (!item_plan(array).is_live) return {};
  Action first = read_value(item_plan(array).children, Whitespace::kNone, byte);
  if (first.kind != Action::kReplace) return {};
  return {Action::kPush, first.state, waiting_item(array)};
}

// How many items an array must have, and may have.
uint32_t Machine::min_items(uint32_t array) {
  uint32_t min = 0;
  formulas_.visit_literals(lists_[array][0], [&](Formula atom, bool is_negated) {
    if (formulas_.op(atom) == Op::kMinItems && !is_negated) min = std::max(min, formulas_[atom].a);
  });
  return min;
}

uint32_t Machine::max_items(uint32_t array) {
  uint32_t max = UINT32_MAX;
  formulas_.visit_literals(lists_[array][0], [&](Formula atom, bool is_negated) {
    if (formulas_.op(atom) == Op::kMinItems && is_negated) max = std::min(max, formulas_[atom].a - 1);
  });
  return max;
}

}  // namespace structout::json
