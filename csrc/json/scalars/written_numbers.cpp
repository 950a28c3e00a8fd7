// Limits the spelling of numbers. Without a limit on their digits, a model that is not sure
// would write zeros for ever.
#include <algorithm>
#include <cstdlib>

#include "json/scalars/number.h"
#include "json/scalars/texts.h"

namespace structout::json {

namespace {

constexpr int64_t kSmallestExponent = 16, kLargestExponent = 998, kLargestOfDoubles = 306;
constexpr int64_t kExponentOfSmall = -5;
constexpr size_t kMaxScientificDigits = 16;  // one less than may be written, for the numbers between two others

std::string name_of(const NumberForm& form) {
  return "numbers of " + std::to_string(form.num_digits) + " digits, " + std::to_string(form.num_zeros) +
         " zeros, exponents " + std::to_string(int(form.exponents));
}

}  // namespace

NumberSpelling::NumberSpelling(const Decimal& value)
    : num_whole(uint32_t(std::max(value.point(), int64_t(0)))),
      num_decimals(uint32_t(std::max(-value.exponent(), int64_t(0)))) {
  if (value.is_zero()) return;
  int64_t exponent = value.point() - 1;
  bool is_large = exponent >= kSmallestExponent, is_small = exponent <= kExponentOfSmall;
  has_exponent =
      (is_large || is_small) && std::abs(exponent) <= kLargestExponent && value.digits().size() <= kMaxScientificDigits;
  exceeds_doubles = has_exponent && std::abs(exponent) > kLargestOfDoubles;
}

Formula Texts::with_forms(Formula formula) {
  const FormulaNode node = formulas_[formula];
  if (node.op == Op::kAnd || node.op == Op::kOr) {
    std::vector<Formula> operands = formulas_.operands(formula);
    for (Formula& operand : operands) operand = with_forms(operand);
    return node.op == Op::kAnd ? formulas_.conjunction(operands) : formulas_.disjunction(operands);
  }
  if (node.op == Op::kOne) {  // the one that holds has its form
    std::vector<Formula> all = {formula};
    for (Formula operand : formulas_.operands(formula)) {
      all.push_back(formulas_.disjunction({formulas_.negation(operand), with_forms(operand)}));
    }
    return formulas_.conjunction(std::move(all));
  }
  auto found = spellings_.find(formula);  // negations have none
  return found == spellings_.end() ? formula : formulas_.conjunction({formula, found->second.form});
}

Formula Texts::written(Formula formula) {
  if (formula == kNever) return kNever;
  auto known = written_.find(formula);
  if (known != written_.end()) return known->second;
  std::vector<NumberSpelling> spellings;
  bool has_step = false, may_need_plain = false;
  formulas_.visit_literals(formula, [&](Formula atom, bool is_negated) {
    auto found = spellings_.find(atom);
    if (found == spellings_.end()) return;
    spellings.push_back(found->second);
    has_step = has_step || found->second.is_step;
    may_need_plain = may_need_plain || found->second.is_step || (found->second.is_plain && !is_negated);
  });
  // Enough digits for a number between any two of the schema.
  uint32_t num_whole = 0, num_decimals = 0;
  NumberForm form;
  for (const NumberSpelling& spelling : spellings) {
    form.num_digits = std::max(form.num_digits, spelling.num_digits);
    if (spelling.exceeds_doubles) form.exponents = NumberForm::Exponents::kAll;
    if (spelling.has_exponent && !may_need_plain) continue;
    num_whole = std::max(num_whole, spelling.num_whole);
    num_decimals = std::max(num_decimals, spelling.num_decimals);
  }
  if (has_step) form.exponents = NumberForm::Exponents::kNone;
  form.num_digits = std::max(form.num_digits, num_whole + num_decimals + 1);
  form.num_zeros = std::max(form.num_zeros, num_decimals);
  Formula in_form = language(TextKind::kNumber, name_of(form), [&] { return numbers_of(form, budget_); });
  return written_[formula] = formulas_.conjunction({with_forms(formula), in_form});
}

}  // namespace structout::json
