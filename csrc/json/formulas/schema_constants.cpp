// Lists of constants (`enum`) as formulas. A list of many objects is one atom, not a
// disjunction with an operand for each object.
#include <algorithm>

#include "automata/compile.h"
#include "json/document/decimal.h"
#include "json/formulas/schema.h"

namespace structout::json {

namespace {

// Numbers of at most this many digits are listed by their texts. Others may be written with
// exponents.
constexpr size_t kMaxDigits = 16;
constexpr const char* kSmall = "0000";  // the fraction of a small number begins so

bool is_plain_number(const Decimal& number) {
  std::string whole = number.whole_digits(), fraction = number.fraction_digits();
  bool is_small = whole == "0" && fraction.compare(0, 4, kSmall) == 0;
  return whole.size() + fraction.size() <= kMaxDigits && !is_small;
}

}  // namespace

// True if allowed bytes can spell all strings, names and numbers in a value.
bool Schema::is_spellable(const Value& value) const {
  auto has_bytes = [this](const std::string& text) {
    std::string spelled = engine::spelled_canonically(text);
    return std::all_of(spelled.begin(), spelled.end(),
                       [this](char byte) { return options_.allowed_bytes[uint8_t(byte)]; });
  };
  if (value.is_string()) return has_bytes(value.text);
  if (value.is_number()) return has_bytes(Decimal(value.text).text());
  return std::all_of(value.names.begin(), value.names.end(), has_bytes) &&
         std::all_of(value.items.begin(), value.items.end(), [this](const Value& each) { return is_spellable(each); });
}

Formula Schema::listed(uint32_t set, uint32_t which) { return formulas_.atom(Op::kListed, set, which); }

Formula Schema::among(std::vector<uint32_t> constants, uint32_t num_read) {
  return constants.empty() ? kNever : formulas_.atom(Op::kAmong, listed_.set_of(std::move(constants)), num_read);
}

bool Schema::is_whole(const FormulaNode& among) {
  const std::vector<uint32_t>& constants = listed_[among.a];
  return std::any_of(constants.begin(), constants.end(),
                     [&](uint32_t constant) { return listed_.parts(constant).size() == among.b; });
}

bool Schema::may_come(uint32_t constant, uint32_t num_read, const std::function<bool(uint32_t)>& is_past) const {
  const std::vector<Constants::Part>& parts = listed_.parts(constant);
  auto num_past =
      std::count_if(parts.begin(), parts.end(), [&](const Constants::Part& part) { return is_past(part.key); });
  return size_t(num_past) == num_read;
}

Formula Schema::without_among(Formula formula) {
  auto known = without_among_.find(formula);
  if (known != without_among_.end()) return known->second;
  const std::vector<Formula>& atoms = formulas_.atoms(formula);
  bool has_among =
      std::any_of(atoms.begin(), atoms.end(), [this](Formula atom) { return formulas_.op(atom) == Op::kAmong; });
  if (!has_among) return without_among_[formula] = formula;
  Formula lowered = formulas_.substitute(formula, [this](Formula atom) {
    const FormulaNode node = formulas_[atom];
    if (node.op != Op::kAmong) return atom;
    std::vector<Formula> any;
    for (uint32_t constant : std::vector<uint32_t>(listed_[node.a])) {
      const Value& value = listed_.value(constant);
      any.push_back(expand_constant(value, value.is_array() ? Type::kArray : Type::kObject));
    }
    return any_of(any);
  });
  return without_among_[formula] = lowered;
}

Formula Schema::expand_listed(uint32_t set, uint32_t which, Type type) {
  std::vector<uint32_t> of_type, indices;  // of the constants of the type, and their indices in the set
  std::vector<uint32_t> chosen;
  const std::vector<uint32_t> all = listed_[set];
  budget_.spend(all.size());
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (Type(uint8_t(listed_.value(all[i]).kind)) != type) continue;
    of_type.push_back(all[i]);
    indices.push_back(i);
    if (which == kAllListed || (i >> which & 1) != 0) chosen.push_back(all[i]);
  }
  if (chosen.empty()) return kNever;
  switch (type) {
    case Type::kArray:
    case Type::kObject:
      return among(std::move(chosen), 0);
    case Type::kNumber: {
      bool are_plain = std::all_of(of_type.begin(), of_type.end(), [this](uint32_t constant) {
        return is_plain_number(Decimal(listed_.value(constant).text));
      });
      if (!are_plain) {
        std::vector<Formula> any;
        for (uint32_t constant : chosen) any.push_back(numbers_equal(listed_.value(constant)));
        return any_of(any);
      }
      return texts_.listed(TextKind::kNumber, "numbers of " + std::to_string(set), which, [&] {
        ListedTexts texts;
        for (size_t i = 0; i < of_type.size(); ++i) {
          const std::string& given = listed_.value(of_type[i]).text;
          Decimal number(given);
          bool has_zero = number.is_integer() && given.find('.') != std::string::npos;  // written as 1.0
          for (std::string sign : {"", "-"}) {
            if (!number.is_zero() && !sign.empty()) continue;
            texts.add(sign + number.text(), indices[i]);
            if (has_zero) texts.add(sign + number.text() + ".0", indices[i]);
          }
        }
        texts.build();
        return texts;
      });
    }
    case Type::kString:
      return texts_.listed(TextKind::kString, "strings of " + std::to_string(set), which, [&] {
        ListedTexts texts;
        for (size_t i = 0; i < of_type.size(); ++i) {
          texts.add(engine::spelled_canonically(listed_.value(of_type[i]).text), indices[i]);
        }
        texts.build();
        return texts;
      });
    default:
      return kAlways;
  }
}

}  // namespace structout::json
