// The declared orders of keys: one for all objects, or several where branches contradict
// one another.
#include <algorithm>
#include <iterator>

#include "base/sorted_set.h"
#include "json/formulas/declared_order.h"
#include "json/formulas/schema.h"

namespace structout::json {

namespace {

constexpr size_t kMaxAlternatives = 256;  // that are made to divide the objects by further branches
constexpr size_t kMaxOrders = 64;         // of one object; more alternatives follow the first

}  // namespace

// Reads the lists of names that order the keys of objects. Divides the objects by the
// branches of anyOf and oneOf, each of which has lists of its own.
class Schema::KeyOrders {
 public:
  struct Alternative {
    Formula object;
    std::vector<std::vector<uint32_t>> lists = {};
  };

  KeyOrders(Schema& schema, Formula object) : schema_(schema), formulas_(schema.formulas()), all_{{object}} {}

  // Their formulas have the disjunction `object`.
  const std::vector<Alternative>& alternatives() const { return all_; }

  // Reads the schemas and constants of a child formula. `holds`: true if all objects
  // satisfy it, false if its branches are not to divide them.
  void read(Formula child, bool holds) {
    const FormulaNode node = formulas_[child];
    if (has_operands(node.op)) {
      const std::vector<Formula> operands = formulas_.operands(child);
      std::vector<Formula> objects = operands;
      for (Formula& object : objects) object = schema_.expand(object, Type::kObject);
      bool is_divided = holds && node.op == Op::kOr && divide(objects, [&](size_t i) { read(operands[i], true); });
      for (size_t i = 0; i < operands.size() && !is_divided; ++i) read(operands[i], holds && node.op == Op::kAnd);
    } else if (node.op == Op::kSchema) {
      InContext within(schema_, schema_.schemas_[node.a].context);
      read(*schema_.schemas_[node.a].value, holds);
    } else if (node.op == Op::kConstant) {
      add(schema_.constants_[node.a]->names);
    } else if (node.op == Op::kListed) {
      for (uint32_t constant : schema_.listed_[node.a]) add(schema_.listed_.value(constant).names);
    } else if (node.op == Op::kNot) {
      read(node.a, false);
    }
  }

 private:
  void add(const std::vector<std::string>& names) {
    std::vector<uint32_t> numbers;
    for (const std::string& name : names) numbers.push_back(schema_.number_of_name(name));
    for (Alternative& each : all_) each.lists.push_back(numbers);
  }

  void read(const Value& schema, bool holds) {
    if (!schema.is_object() || !seen_.insert(&schema).second) return;
    schema_.budget().spend(1);
    InContext within(schema_, schema_.entered(schema));
    if (schema_.is_lone_reference(schema)) return read(*schema_.reference_target(schema, "$ref"), holds);
    if (const Value* properties = schema.find("properties")) add(properties->names);
    for (size_t i = 0; i < schema.items.size(); ++i) {
      const std::string& keyword = schema.names[i];
      const Value& value = schema.items[i];
      if (keyword == "$ref" || keyword == "$dynamicRef" || keyword == "$recursiveRef") {
        if (const Value* target = schema_.reference_target(schema, keyword)) read(*target, holds);
      } else if (keyword == "allOf") {
        for (const Value& each : value.items) read(each, holds);
      } else if (keyword == "anyOf" || keyword == "oneOf") {
        if (holds && divide_by_branches(schema, keyword)) continue;
        for (const Value& each : value.items) read(each, false);
      } else if (keyword == "not" || keyword == "if" || keyword == "then" || keyword == "else") {
        read(value, false);
      } else if (keyword == "dependencies" || keyword == "dependentSchemas") {
        for (const Value& each : value.items) read(each, false);
      }
    }
    for (const char* keyword : {"enum", "const"}) {
      const Value* values = schema.find(keyword);
      if (values == nullptr) continue;
      if (values->is_object()) add(values->names);
      for (const Value& value : values->is_array() ? values->items : std::vector<Value>{}) add(value.names);
    }
    if (const Value* required = schema.find("required"); required != nullptr && required->is_array()) {
      for (const Value& name : required->items) add({name.text});
    }
  }

  // Divides the objects by the branches of a keyword. Returns false if one may satisfy the
  // keyword, but no branch: oneOf is read in both readings of formats, each of which may ask
  // for another branch.
  bool divide_by_branches(const Value& schema, const std::string& keyword) {
    const Value& branches = *schema.find(keyword);
    std::vector<Formula> objects;
    for (const Value& each : branches.items) {
      objects.push_back(schema_.expand(schema_.child(each), Type::kObject));
    }
    bool may_differ = keyword == "oneOf" && schema_.context_.formats == FormatReading::kBoth &&
                      schema_.document_.may_differ_in_formats(schema);
    if (may_differ && schema_.exactly_one(branches, Type::kObject) != schema_.any_of(objects)) return false;
    return divide(objects, [&](size_t i) { read(branches.items[i], true); });
  }

  // Divides the objects by branches of which each satisfies one. Calls read_branch(i) for
  // each. Returns false, and does nothing, if there would be too many alternatives.
  template <typename Read>
  bool divide(const std::vector<Formula>& branches, Read read_branch) {
    if (num_made_ + all_.size() * branches.size() > kMaxAlternatives) return false;
    num_made_ += all_.size() * branches.size();
    std::vector<Alternative> around, divided;
    std::swap(around, all_);
    const std::unordered_set<const Value*> seen = seen_;
    for (size_t i = 0; i < branches.size(); ++i) {
      for (const Alternative& each : around) {
        Formula object = both(each.object, branches[i]);
        if (object != kNever) all_.push_back({object, each.lists});
      }
      if (!all_.empty()) read_branch(i);
      std::move(all_.begin(), all_.end(), std::back_inserter(divided));
      all_.clear();
      seen_ = seen;
    }
    all_ = std::move(divided);
    return true;
  }

  // The conjunction, without the disjunctions that its other literals imply: one branch
  // replaces all.
  Formula both(Formula object, Formula branch) {
    std::vector<Formula> literals = formulas_.conjuncts(object), kept;
    for (Formula literal : formulas_.conjuncts(branch)) literals.push_back(literal);
    engine::make_set(literals);
    auto holds = [&](Formula operand) {
      const std::vector<Formula> parts = formulas_.conjuncts(operand);
      schema_.budget().spend(parts.size());
      return std::includes(literals.begin(), literals.end(), parts.begin(), parts.end());
    };
    for (Formula literal : literals) {
      const std::vector<Formula> operands =
          formulas_.op(literal) == Op::kOr ? formulas_.operands(literal) : std::vector<Formula>();
      if (std::none_of(operands.begin(), operands.end(), holds)) kept.push_back(literal);
    }
    return formulas_.conjunction(std::move(kept));
  }

  Schema& schema_;
  Formulas& formulas_;
  std::vector<Alternative> all_;
  std::unordered_set<const Value*> seen_;
  size_t num_made_ = 0;
};

std::vector<Schema::OrderedObjects> Schema::declared_orders(const std::vector<Formula>& children, bool may_be_several) {
  auto add_all = [this](DeclaredOrder& order, const std::vector<std::vector<uint32_t>>& lists) {
    budget_.spend(lists.size());
    for (const std::vector<uint32_t>& list : lists) order.add(list);
  };
  KeyOrders all(*this, kAlways);
  for (Formula child : children) all.read(child, false);
  DeclaredOrder merged;
  add_all(merged, all.alternatives()[0].lists);
  std::vector<OrderedObjects> orders = {{merged.names(), expand(children[0], Type::kObject)}};
  if (!may_be_several || !merged.is_contradicted() || has_unique_compounds()) return orders;
  KeyOrders divided(*this, orders[0].object);
  divided.read(children[0], true);
  // Alternatives that do not contradict one another share an order.
  std::vector<std::pair<DeclaredOrder, Formula>> groups;
  for (const KeyOrders::Alternative& each : divided.alternatives()) {
    std::vector<std::vector<uint32_t>> lists = each.lists;
    DeclaredOrder own;
    add_all(own, lists);
    if (own.is_contradicted()) lists = {own.names()};
    auto takes = [&](std::pair<DeclaredOrder, Formula>& group) {
      DeclaredOrder order = group.first;
      add_all(order, lists);
      if (order.is_contradicted()) return false;
      group.first = std::move(order);
      return true;
    };
    auto group = std::find_if(groups.begin(), groups.end(), takes);
    if (group == groups.end() && groups.size() < kMaxOrders) {
      group = groups.insert(group, {{}, kNever});
      add_all(group->first, lists);
    }
    if (group == groups.end()) group = groups.begin();
    group->second = either(group->second, each.object);
  }
  const std::vector<uint32_t> names = orders[0].names;
  if (!groups.empty()) orders.clear();
  for (auto& [order, object] : groups) {
    for (uint32_t name : names) order.add({name});
    orders.push_back({order.names(), object});
  }
  return orders;
}

}  // namespace structout::json
