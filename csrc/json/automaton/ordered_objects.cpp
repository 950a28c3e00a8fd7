// Orders of the keys of objects, and objects that may still follow one of several.
#include <algorithm>
#include <numeric>

#include "json/automaton/objects.h"

namespace structout::json {

const std::vector<Objects::OpenOrder>& Objects::orders_of(uint32_t value_formulas, const Numbers& objects) {
  auto known = open_orders_.find(value_formulas);
  if (known != open_orders_.end()) return known->second;
  const Numbers children = lists_[value_formulas];
  bool may_be_several = rule_ == KeyOrderRule::kDeclared && !planner_.is_among(objects);
  const std::vector<Schema::OrderedObjects> declared = schema_.declared_orders(children, may_be_several);
  std::vector<OpenOrder> all;
  auto first = uint32_t(orders_.size());
  for (const Schema::OrderedObjects& each : declared) {
    Order order;
    auto add_name = [&](uint32_t name) {
      if (!order.order.positions.try_emplace(name, uint32_t(order.order.names.size())).second) return;
      order.order.names.push_back(name);
    };
    for (uint32_t name : each.names) add_name(name);
    for (Formula object : objects) {
      for (uint32_t name : schema_.names_in(object)) add_name(name);
    }
    for (uint32_t name : few_free_keys(objects, order.order)) add_name(name);
    order.by_spelling.resize(order.order.names.size());
    std::iota(order.by_spelling.begin(), order.by_spelling.end(), 0);
    std::sort(order.by_spelling.begin(), order.by_spelling.end(), [&](uint32_t a, uint32_t b) {
      return schema_.spelled_name(order.order.names[a]) < schema_.spelled_name(order.order.names[b]);
    });
    Formula object = declared.size() == 1 ? objects[0] : schema_.without_among(each.object);
    order.first = first;
    all.push_back({uint32_t(orders_.size()), 0, liveness_.with_key_bounds(object)});
    orders_.push_back(std::move(order));
  }
  return open_orders_[value_formulas] = std::move(all);
}

std::vector<Objects::OpenOrder> Objects::open_orders(Formula required) {
  std::vector<OpenOrder> open;
  bool has_several = formulas_.op(required) == Op::kOr;
  for (Formula each : has_several ? formulas_.operands(required) : std::vector<Formula>{required}) {
    std::vector<Formula> literals = formulas_.conjuncts(each);
    auto is_order = [this](Formula literal) { return formulas_.op(literal) == Op::kFollows; };
    auto follows = std::find_if(literals.begin(), literals.end(), is_order);
    if (follows == literals.end()) continue;  // kNever
    const FormulaNode node = formulas_[*follows];
    literals.erase(follows);
    open.push_back({node.a, node.b, formulas_.conjunction(std::move(literals))});
  }
  return open;
}

Formula Objects::required_formula(const std::vector<OpenOrder>& open) {
  std::vector<Formula> any;
  for (const OpenOrder& each : open) {
    any.push_back(formulas_.conjunction({each.formula, formulas_.atom(Op::kFollows, each.order, each.position)}));
  }
  return formulas_.disjunction(std::move(any));
}

PastKeys Objects::past_of(const OpenOrder& open) const {
  PastKeys past(orders_[open.order].order.names.size());
  std::fill(past.begin(), past.begin() + open.position, true);
  return past;
}

bool Objects::is_live(const OpenOrder& open) {
  return liveness_.is_object_live(open.formula, orders_[open.order].order, past_of(open));
}

std::vector<Objects::OpenOrder> Objects::after_key_in_orders(Formula required, const Key& key, const Truth& truth) {
  std::vector<OpenOrder> after;
  for (OpenOrder each : open_orders(required)) {
    const KeyOrder& order = orders_[each.order].order;
    auto position = uint32_t(key.is_free() ? order.names.size() : order.positions.at(key.name) + 1);
    if (!key.is_free() && position <= each.position) continue;
    each.position = position;
    each.formula = planner_.after_key(each.formula, key, order, past_of(each), truth);
    after.push_back(each);
  }
  return after;
}

std::optional<uint32_t> Objects::object_of_orders(std::vector<OpenOrder> open, Numbers formulas) {
  auto is_dead = [this](const OpenOrder& each) { return !is_live(each); };
  open.erase(std::remove_if(open.begin(), open.end(), is_dead), open.end());
  if (open.empty()) return std::nullopt;
  // Orders that agree about the names that may still come become the first of them.
  for (OpenOrder& each : open) {
    const std::vector<uint32_t>& names = orders_[each.order].order.names;
    auto following = names.begin() + each.position;
    for (uint32_t other = orders_[each.order].first; other < each.order; ++other) {
      if (std::equal(following, names.end(), orders_[other].order.names.begin() + each.position)) each.order = other;
    }
  }
  bool has_orders = std::any_of(open.begin(), open.end(), [&](const OpenOrder& each) {
    return each.order != open[0].order || each.position != open[0].position;
  });
  PastKeys past = past_of(open[0]);
  if (has_orders) {
    formulas[0] = required_formula(open);
    for (const OpenOrder& each : open) {
      const std::unordered_map<uint32_t, uint32_t>& positions = orders_[each.order].order.positions;
      for (size_t i = 0; i < past.size(); ++i) {
        past[i] = past[i] && positions.at(orders_[open[0].order].order.names[i]) < each.position;
      }
    }
  } else {
    std::vector<Formula> any;
    for (const OpenOrder& each : open) any.push_back(each.formula);
    formulas[0] = formulas_.disjunction(std::move(any));
  }
  return object_of(shape_of(kAlways, open[0].order), std::move(formulas), std::move(past), has_orders);
}

}  // namespace structout::json
