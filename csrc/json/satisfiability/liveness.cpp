#include "json/satisfiability/liveness.h"

#include <algorithm>
#include <functional>

namespace structout::json {

namespace {

constexpr size_t kMaxDecidedDepth = 256;  // of values inside each other that one decision looks at
constexpr size_t kMaxStackBytes = 2 << 20;
constexpr size_t kMaxValues = 256;

const KeyOrder kNoOrder;
const PastKeys kNoPast;

}  // namespace

// -- any value ----------------------------------------------------------------------

// Marks a child as being decided. If its own decision comes to the child again, the child
// counts as unsatisfiable there: recursion asks for the least fixpoint. So an object that
// requires a key of its own schema has no value, as it would never end.
class Liveness::Decision {
 public:
  Decision(Liveness& liveness, Formula child) : liveness_(liveness), child_(child) {
    if (liveness.being_decided_.empty()) liveness.stack_ = static_cast<const char*>(__builtin_frame_address(0));
    if (liveness.being_decided_.size() == kMaxDecidedDepth)
      throw engine::LimitError("schema_nesting", kMaxDecidedDepth + 1, kMaxDecidedDepth);
    is_first_ = liveness.being_decided_.insert(child).second;
    if (!is_first_) liveness.assumed_.insert(child);
  }
  ~Decision() {
    if (!is_first_) return;
    liveness_.being_decided_.erase(child_);
    liveness_.assumed_.erase(child_);
  }
  Decision(const Decision&) = delete;

  bool is_first() const { return is_first_; }

 private:
  Liveness& liveness_;
  const Formula child_;
  bool is_first_;
};

void Liveness::spend(uint64_t steps) {
  schema_.budget().spend(steps);
  if (being_decided_.empty()) return;
  auto bytes = size_t(stack_ - static_cast<const char*>(__builtin_frame_address(0)));
  if (bytes > kMaxStackBytes) throw engine::LimitError("schema_stack_bytes", bytes, kMaxStackBytes);
}

bool Liveness::is_satisfiable(Formula child) {
  if (child == kAlways || child == kNever) return child == kAlways;
  auto known = satisfiable_.find(child);
  if (known != satisfiable_.end()) return known->second;
  bool is_live = false;
  try {
    Decision decision(*this, child);
    if (!decision.is_first()) return false;
    spend(1);
    for (Type type :
         {Type::kNull, Type::kFalse, Type::kTrue, Type::kNumber, Type::kString, Type::kArray, Type::kObject}) {
      is_live = is_live || is_satisfiable(child, type);
    }
  } catch (engine::LimitError& error) {
    if (error.pointer.empty()) error.pointer = schema_.pointer_of(child);
    throw;
  }
  if (is_live || assumed_.empty()) satisfiable_.emplace(child, is_live);
  return is_live;
}

bool Liveness::is_satisfiable(Formula child, Type type) {
  Formula formula = schema_.expand(child, type);
  switch (type) {
    case Type::kNumber:
      return formula != kNever && texts_.is_live(texts_.start(TextKind::kNumber, formula));
    case Type::kString:
      return formula != kNever && texts_.is_live(texts_.start(TextKind::kString, formula));
    case Type::kArray:
      return is_array_live(formula);
    case Type::kObject:
      return is_object_live(formula, kNoOrder, kNoPast);
    default:
      return formula == kAlways;
  }
}

Liveness::Values Liveness::all_values(Formula child) {
  auto known = all_values_.find(child);
  if (known != all_values_.end()) return known->second;
  auto values = std::make_shared<std::vector<std::string>>();
  bool are_few = !has_compound(child);
  auto add_texts = [&](TextKind kind, Formula formula, const std::string& quote) {
    if (!are_few || formula == kNever) return;
    std::optional<std::vector<std::string>> texts = texts_.all_texts(kind, formula, kMaxValues);
    are_few = texts && values->size() + texts->size() <= kMaxValues;
    if (!are_few) return;
    for (const std::string& text : *texts) values->push_back(quote + text + quote);
  };
  for (auto [type, text] : {std::pair(Type::kNull, "null"), {Type::kFalse, "false"}, {Type::kTrue, "true"}}) {
    if (schema_.expand(child, type) == kAlways) values->push_back(text);
  }
  Formula numbers = formulas_.conjunction(
      {schema_.expand(child, Type::kNumber), schema_.expand(formulas_.atom(Op::kCanonicalNumber), Type::kNumber)});
  add_texts(TextKind::kNumber, numbers, "");
  add_texts(TextKind::kString, schema_.expand(child, Type::kString), "\"");
  if (!are_few) values = nullptr;
  if (!are_few || assumed_.empty()) all_values_.emplace(child, values);
  return values;
}

bool Liveness::has_compound(Formula child) {
  Decision decision(*this, child);
  return decision.is_first() && (is_satisfiable(child, Type::kArray) || is_satisfiable(child, Type::kObject));
}

}  // namespace structout::json
