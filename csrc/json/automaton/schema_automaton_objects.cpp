// Reading the keys of objects.
#include <algorithm>

#include "json/automaton/schema_automaton.h"

namespace structout::json {

std::optional<Action> SchemaAutomaton::end_of_object(const Object& object) {
  if (objects_.lacks_required(object)) return std::nullopt;
  return pop_at_end(lists_[object.formulas]);
}

std::optional<uint32_t> SchemaAutomaton::object_between_members(State state) const {
  if (const auto* start = at<ObjectStart>(state)) return start->object;
  if (const auto* before = at<BeforeKey>(state)) return before->object;
  if (const auto* after = at<AfterMember>(state)) return after->object;
  return std::nullopt;
}

Action SchemaAutomaton::read(const ObjectStart& start, RegisterKind registers, uint8_t byte) {
  if (std::optional<uint32_t> more = whitespace_.after(start.spaces, byte)) {
    return replace(add(ObjectStart{start.object, *more}, registers));
  }
  if (byte != '}') return read(BeforeKey{start.object, start.spaces}, registers, byte);
  return whitespace_.may_end(start.spaces) ? end_of_object(objects_[start.object]).value_or(Action{}) : Action{};
}

Action SchemaAutomaton::read(const BeforeKey& before, RegisterKind, uint8_t byte) {
  const Object& object = objects_.prepared(before.object);
  bool has_named = object.allows_names();
  if (byte == '"' && whitespace_.may_end(before.spaces) && (object.allows_free || has_named)) {
    uint32_t num_names = object.num_names();
    return replace(
        add(InKey{before.object, 0, has_named ? num_names : 0, 0, object.allows_free ? object.free : InKey::kNotFree},
            object.allows_free ? RegisterKind::kInsideKey : objects_.register_kind_of(object)));
  }
  std::optional<uint32_t> more = whitespace_.after(before.spaces, byte);
  return more ? replace(add(BeforeKey{before.object, *more}, objects_.register_kind_of(object))) : Action{};
}

Action SchemaAutomaton::read(const InKey& given, RegisterKind, uint8_t byte) {
  InKey key = given;
  const Object& object = objects_[key.object];
  const Objects::Order& order = objects_.order(object);
  auto spelling = [&](uint32_t index) -> const std::string& {
    return schema_.spelled_name(order.order.names[order.by_spelling[index]]);
  };
  auto is_allowed = [&](uint32_t index) { return object.allows_spelling(index); };
  if (byte == '"') {
    // Spellings never end inside an escape. Names are sorted by spelling, so the shortest
    // of those with this prefix is the first.
    bool is_named = key.may_be_named() && spelling(key.begin).size() == key.length;
    if (is_named && is_allowed(key.begin)) {
      return replace(after_key(key.object, {order.order.names[order.by_spelling[key.begin]]}));
    }
    if (key.may_be_free() && texts_.accepts(lists_[key.free][0])) {
      Key free;
      for (size_t i = 0; i < object.sets.size(); ++i) {
        if (texts_.accepts(lists_[key.free][i + 1])) free.sets.push_back(object.sets[i]);
      }
      return replace(after_key(key.object, free));
    }
  }
  // Named keys.
  while (key.begin < key.end &&
         (spelling(key.begin).size() <= key.length || uint8_t(spelling(key.begin)[key.length]) < byte)) {
    ++key.begin;
  }
  uint32_t last = key.begin;
  while (last < key.end && uint8_t(spelling(last)[key.length]) == byte) ++last;
  key.end = last;
  if (object.num_allowed_before[key.end] == object.num_allowed_before[key.begin]) key.begin = key.end = 0;
  if (key.may_be_free()) key.free = texts_after(key.free, byte).value_or(InKey::kNotFree);
  if (!key.may_be_named() && !key.may_be_free()) return {};
  key.length = key.may_be_named() ? key.length + 1 : 0;
  // All remaining names may have later positions. Moving the object on to the first of them
  // makes one state of those before it.
  auto position = uint32_t(order.order.names.size());
  for (uint32_t i = key.begin; i < key.end; ++i) {
    if (is_allowed(i)) position = std::min(position, order.by_spelling[i]);
  }
  key.object = objects_.at_position(key.object, position);
  objects_.prepared(key.object);
  return replace(add(key, key.may_be_free() ? RegisterKind::kInsideKey : objects_.register_kind_of(object)));
}

State SchemaAutomaton::after_key(uint32_t object, const Key& key) {
  return add(AfterKey{object, objects_.number_of_key(key), whitespace_.after_key()},
             objects_.register_kind_of(objects_[object]));
}

State SchemaAutomaton::after_free_key(const InKey& inside, uint32_t sets) {
  Key key;
  const Numbers& all = objects_[inside.object].sets;
  for (size_t i = 0; i < all.size(); ++i) {
    if ((sets >> i & 1) != 0) key.sets.push_back(all[i]);
  }
  return after_key(inside.object, key);
}

Action SchemaAutomaton::read(const AfterKey& key, RegisterKind registers, uint8_t byte) {
  if (byte == ':' && whitespace_.may_end(key.spaces)) {
    State value = add(BeforeValue{objects_.plan(key.object, key.key).value_formulas, whitespace_.after_colon()});
    return {Action::kPush, value, waiting_member(key.object, key.key)};
  }
  std::optional<uint32_t> spaces = whitespace_.after(key.spaces, byte);
  return spaces ? replace(add(AfterKey{key.object, key.key, *spaces}, registers)) : Action{};
}

Action SchemaAutomaton::read(const AfterMember& member, RegisterKind registers, uint8_t byte) {
  const Object& object = objects_.prepared(member.object);
  if (byte == ',') {
    bool may_continue = whitespace_.may_separate(member.spaces) && (object.allows_free || object.allows_names());
    if (!whitespace_.may_end(member.spaces) || !may_continue) return {};
    return replace(add(BeforeKey{member.object, whitespace_.after_comma()}, registers));
  }
  if (byte != '}' && !is_space(byte)) return {};
  std::optional<Action> end = end_of_object(object);
  if (byte == '}') return whitespace_.may_end(member.spaces) ? end.value_or(Action{}) : Action{};
  uint32_t spaces = whitespace_after_value(member.spaces, end, object.formulas);
  std::optional<uint32_t> more = whitespace_.after(spaces, byte);
  return more ? replace(add(AfterMember{member.object, *more}, registers)) : Action{};
}

State SchemaAutomaton::waiting_member(uint32_t object, uint32_t key) {
  return add(WaitingForMember{object, key}, objects_.register_kind_of(objects_.prepared(object)));
}

// -- names ---------------------------------------------------------------------------

Guard SchemaAutomaton::guard_in_any_order(State state, uint8_t byte, const Action& action) {
  const auto* key = at<InKey>(state);
  std::optional<uint32_t> between = key == nullptr ? object_between_members(state) : std::nullopt;
  if (key == nullptr && !between) return {};
  uint32_t number = key != nullptr ? key->object : *between;
  const Object& object = objects_[number];
  if (!objects_.is_guarded(object)) return {};
  if (action.kind == Action::kPop) return {Guard::kClose, number};
  auto one_of = [&](uint32_t begin, uint32_t end, bool allows_free) {
    bool is_always_true = allows_free && object.max_keys == UINT32_MAX;
    return is_always_true ? Guard() : Guard{Guard::kKeys, number, begin, end, allows_free};
  };
  if (key == nullptr) {
    if (byte != '"' && byte != ',') return {};
    return one_of(0, object.num_names(), object.allows_free);
  }
  if (!key->may_be_named()) return {};  // it was a free key before
  if (const auto* next = at<InKey>(action.state)) return one_of(next->begin, next->end, next->may_be_free());
  if (completed_name(state, action.state)) return one_of(key->begin, key->begin + 1, false);
  return one_of(0, 0, true);
}

bool SchemaAutomaton::lacks_names(State state, const PastKeys& seen_keys) {
  if (!allows_any_order()) return false;
  const auto* inside = at<InKey>(state);
  const auto* after = at<AfterKey>(state);
  bool is_free = inside != nullptr ? !inside->may_be_named() : after != nullptr && objects_.key(after->key).is_free();
  return is_free && objects_.lacks_names(inside != nullptr ? inside->object : after->object, seen_keys);
}

std::optional<uint32_t> SchemaAutomaton::completed_name(State state, State next) const {
  bool may_be_complete = allows_any_order() && at<InKey>(state) != nullptr && at<AfterKey>(next) != nullptr;
  return may_be_complete ? index_of_name(*at<AfterKey>(next)) : std::nullopt;
}

std::optional<uint32_t> SchemaAutomaton::index_of_name(const AfterKey& after) const {
  const Key& key = objects_.key(after.key);
  if (key.is_free()) return std::nullopt;
  return objects_.order(objects_[after.object]).order.positions.at(key.name);
}

bool SchemaAutomaton::ends_free_key(State state) {
  if (at<InKey>(state) == nullptr) return false;
  Action action = this->action(state, '"');
  if (action.kind != Action::kReplace) return false;
  const auto* after = at<AfterKey>(action.state);
  return after != nullptr && objects_.key(after->key).is_free();
}

}  // namespace structout::json
