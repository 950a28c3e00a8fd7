// The keys of objects.
#include <algorithm>
#include <numeric>

#include "json/machine.h"

namespace structout::json {

uint32_t Machine::order_of(uint32_t children, const Numbers& objects) {
  auto [found, is_new] = order_numbers_.try_emplace(children, uint32_t(orders_.size()));
  if (!is_new) return found->second;
  Order order;
  auto add_name = [&](uint32_t name) {
    if (!order.order.positions.try_emplace(name, uint32_t(order.order.names.size())).second) return;
    order.order.names.push_back(name);
  };
  for (uint32_t name : schema_.declared_names(lists_[children])) add_name(name);
  for (Formula object : objects) {
    for (uint32_t name : schema_.names_in(object)) add_name(name);
  }
  order.by_spelling.resize(order.order.names.size());
  std::iota(order.by_spelling.begin(), order.by_spelling.end(), 0);
  std::sort(order.by_spelling.begin(), order.by_spelling.end(), [&](uint32_t a, uint32_t b) {
    return schema_.spelled_name(order.order.names[a]) < schema_.spelled_name(order.order.names[b]);
  });
  orders_.push_back(std::move(order));
  return found->second;
}

uint32_t Machine::object_of(const Numbers& formulas, uint32_t order, const PastKeys& past) {
  std::array<uint32_t, 3> key = {lists_.number_of(formulas), order, pasts_.number_of(past)};
  auto [found, is_new] = object_numbers_.try_emplace(key, uint32_t(objects_.size()));
  if (is_new) {
    objects_.emplace_back();
    objects_.back().formulas = key[0];
    objects_.back().order = key[1];
    objects_.back().past = key[2];
  }
  return found->second;
}

std::optional<PastKeys> Machine::past_after(const Object& object, const Key& key) const {
  PastKeys past = pasts_[object.past];
  bool is_any = form_.key_order == KeyOrderRule::kAny;
  if (key.is_free()) {
    if (!is_any) past.assign(past.size(), true);
    return past;
  }
  uint32_t position = orders_[object.order].order.positions.at(key.name);
  if (past[position]) return std::nullopt;
  past[position] = true;
  if (!is_any) std::fill(past.begin(), past.begin() + position, true);
  return past;
}

Machine::Object& Machine::prepared(uint32_t number) {
  if (objects_[number].is_prepared) return objects_[number];
  const Order& order = orders_[objects_[number].order];
  const PastKeys past = pasts_[objects_[number].past];
  std::vector<uint32_t> num_allowed_before = {0};
  for (uint32_t position : order.by_spelling) {
    bool is_allowed = !past[position] && key_plan(number, number_of_key({order.order.names[position]})).is_live;
    num_allowed_before.push_back(num_allowed_before.back() + is_allowed);
  }
  std::vector<Formula> sets;
  for (Formula formula : Numbers(lists_[objects_[number].formulas])) {
    for (Formula atom : formulas_.atoms(formula)) {
      const FormulaNode& node = formulas_[atom];
      if (node.op == Op::kForKeys && std::find(sets.begin(), sets.end(), node.a) == sets.end()) sets.push_back(node.a);
    }
  }
  std::vector<Formula> described;
  for (const Key& key : liveness_.free_keys(sets, order.order)) {
    if (key_plan(number, number_of_key(key)).is_live) {
      described.push_back(liveness_.description(key, sets, order.order));
    }
  }
  Numbers free = {texts_.start(TextKind::kString, formulas_.disjunction(described))};
  for (Formula set : sets) free.push_back(texts_.start(TextKind::kString, set));
  Object& object = objects_[number];
  object.num_allowed_before = std::move(num_allowed_before);
  object.allows_free = !described.empty();
  object.free = lists_.number_of(free);
  object.sets = std::move(sets);
  object.is_prepared = true;
  return object;
}

uint32_t Machine::number_of_key(const Key& key) {
  auto [found, is_new] = key_numbers_.try_emplace({key.name, key.sets}, uint32_t(keys_.size()));
  if (is_new) keys_.push_back(key);
  return found->second;
}

Action Machine::read_object_start(uint32_t object, uint32_t spaces, uint8_t byte) {
  if (byte == '}') return pop_at_end(lists_[objects_[object].formulas]).value_or(Action{});
  if (std::optional<uint32_t> more = spaces_after(spaces, byte)) {
    return replace(add(Kind::kObjectStart, {object, *more}));
  }
  return read_before_key(object, spaces, byte);
}

Action Machine::read_before_key(uint32_t number, uint32_t spaces, uint8_t byte) {
  Object& object = prepared(number);
  Memory memory = object.allows_free ? Memory::kKeys : Memory::kNone;
  if (byte == '"' && may_end_spaces(spaces) && (object.allows_free || object.num_allowed_before.back() > 0)) {
    bool has_named = object.num_allowed_before.back() > 0;
    uint32_t num_names = uint32_t(object.num_allowed_before.size() - 1);
    return replace(add(Kind::kKey,
                       {number, 0, has_named ? num_names : 0, 0, object.allows_free ? object.free : kNoText},
                       object.allows_free ? Memory::kInsideKey : Memory::kNone));
  }
  std::optional<uint32_t> more = spaces_after(spaces, byte);
  return more ? replace(add(Kind::kBeforeKey, {number, *more}, memory)) : Action{};
}

Action Machine::read_key(State state, uint8_t byte) {
  auto [number, begin, end, length, free] = fields_[state];
  const Object& object = objects_[number];
  const Order& order = orders_[object.order];
  auto spelling = [&](uint32_t index) -> const std::string& {
    return schema_.spelled_name(order.order.names[order.by_spelling[index]]);
  };
  Memory after_memory = object.allows_free ? Memory::kKeys : Memory::kNone;
  if (byte == '"') {
    // Spellings never end inside an escape. The shortest of those that begin so is first.
    bool is_named = begin < end && spelling(begin).size() == length;
    if (is_named && object.num_allowed_before[begin + 1] > object.num_allowed_before[begin]) {
      uint32_t key = number_of_key({order.order.names[order.by_spelling[begin]]});
      return replace(add(Kind::kAfterKey, {number, key, spaces_at(false)}, after_memory));
    }
    if (free != kNoText && texts_.accepts(lists_[free][0])) {
      Key key;
      for (size_t i = 0; i < object.sets.size(); ++i) {
        if (texts_.accepts(lists_[free][i + 1])) key.sets.push_back(object.sets[i]);
      }
      return replace(add(Kind::kAfterKey, {number, number_of_key(key), spaces_at(false)}, after_memory));
    }
  }
  // Named keys.
  while (begin < end && (spelling(begin).size() <= length || uint8_t(spelling(begin)[length]) < byte)) ++begin;
  uint32_t last = begin;
  while (last < end && uint8_t(spelling(last)[length]) == byte) ++last;
  end = last;
  if (object.num_allowed_before[end] == object.num_allowed_before[begin]) begin = end = 0;
  // Free keys.
  uint32_t free_after = kNoText;
  if (free != kNoText) {
    Numbers states;
    for (uint32_t each : Numbers(lists_[free])) {
      uint32_t next = texts_.next(each, byte);
      if (next != fsm::kDead) states.push_back(next);
    }
    if (states.size() == lists_[free].size() && texts_.is_live(states[0])) free_after = lists_.number_of(states);
  }
  if (begin == end && free_after == kNoText) return {};
  length = begin == end ? 0 : length + 1;
  Memory memory = free_after != kNoText ? Memory::kInsideKey : after_memory;
  return replace(add(Kind::kKey, {number, begin, end, length, free_after}, memory));
}

}  // namespace structout::json
