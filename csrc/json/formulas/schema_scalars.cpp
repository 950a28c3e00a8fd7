// Keywords of numbers and strings as formulas: bounds, steps, lengths, patterns and
// formats.
#include <algorithm>

#include "automata/compile.h"
#include "automata/regex.h"
#include "base/sorted_set.h"
#include "json/formulas/schema.h"
#include "json/scalars/number.h"

namespace structout::json {

namespace {

constexpr uint32_t kIntegerDigits = 19;  // those of the largest int64
constexpr uint32_t kLargestCount = 1u << 30;
constexpr size_t kMaxStepDigits = 15;
constexpr uint64_t kMaxFactor = 200;
constexpr int64_t kMaxFactorZeros = 3;

}  // namespace

Formula Schema::canonical_number() {
  Formula canonical = texts_.language(TextKind::kNumber, "canonical number", [&] {
    return engine::compile_regex("0|-?(?:[1-9][0-9]*(?:\\.[0-9]*[1-9])?|0\\.[0-9]*[1-9])", budget_.limits);
  });
  texts_.set_spelling(canonical, NumberSpelling::without_exponents());
  return canonical;
}

Formula Schema::integers(int draft) {
  Formula without_point =
      texts_.language(TextKind::kNumber, "integer without a point", [] { return json::integers(false); });
  NumberSpelling spelling = NumberSpelling::without_exponents();
  spelling.num_digits = kIntegerDigits;
  bool allows_fraction = draft > 4;
  Formula integers = without_point;
  if (allows_fraction) {
    integers = texts_.language(TextKind::kNumber, "integer", [] { return json::integers(true); });
    spelling.form = without_point;
  }
  texts_.set_spelling(integers, spelling);
  return integers;
}

Formula Schema::without_zero_fraction() {
  return texts_.language(TextKind::kNumber, "no zeros after the point", json::without_zero_fraction);
}

Formula Schema::numbers_equal(const Value& value) {
  Decimal decimal(value.text);
  NumberSpelling spelling(decimal);
  bool is_written_plainly = value.text.find_first_of("eE") == std::string::npos;
  if (is_written_plainly) spelling.has_exponent = false;
  bool is_written_with_fraction = value.text.find('.') != std::string::npos && decimal.is_integer();
  if (decimal.is_integer() && !is_written_with_fraction) spelling.form = without_zero_fraction();
  std::string name = "= " + decimal.text() + (is_written_with_fraction ? ".0" : "");
  Formula equal = texts_.language(TextKind::kNumber, name, [&] { return json::numbers_equal(decimal); });
  texts_.set_spelling(equal, spelling);
  return equal;
}

Formula Schema::number_bound(const Value& bound, bool is_lower, bool is_exclusive) {
  if (!bound.is_number()) return kAlways;
  Decimal decimal(bound.text);
  std::string name = std::string(is_lower ? ">" : "<") + (is_exclusive ? " " : "= ") + decimal.text();
  Formula numbers = texts_.language(TextKind::kNumber, name, [&] {
    return is_lower ? json::numbers_from(decimal, is_exclusive) : json::numbers_to(decimal, is_exclusive);
  });
  texts_.set_spelling(numbers, NumberSpelling(decimal));
  return numbers;
}

// An automaton of all multiples has a state for each remainder. So for a step with many
// digits it takes only multiples by integers of few digits: 0, 1 to 199, then 10, 20 to
// 1990, and so on. If the step has decimals, there are more powers of ten, so that some
// multiples are integers.
Formula Schema::some_multiples(const Decimal& step) {
  return texts_.language(TextKind::kNumber, "some multiples of " + step.text(), [&] {
    std::vector<std::string> texts = {"0"};
    uint64_t digits = std::stoull(step.digits());
    for (uint64_t factor = 1; factor < kMaxFactor; ++factor) {
      for (int64_t zeros = 0; zeros <= kMaxFactorZeros - std::min<int64_t>(step.exponent(), 0); ++zeros) {
        std::string exponent = std::to_string(step.exponent() + zeros);
        std::string text = Decimal(std::to_string(digits * factor) + "e" + exponent).text();
        texts.push_back("-" + text);
        texts.push_back(std::move(text));
      }
    }
    engine::make_set(texts);
    return engine::compile_choices(std::move(texts));
  });
}

void Schema::add_number(const Value& schema, std::vector<Formula>& all) {
  for (bool is_lower : {true, false}) {
    const Value* inclusive = schema.find(is_lower ? "minimum" : "maximum");
    const Value* exclusive = schema.find(is_lower ? "exclusiveMinimum" : "exclusiveMaximum");
    bool is_flag = exclusive != nullptr && exclusive->is_bool();  // until draft 4
    if (inclusive != nullptr) {
      all.push_back(number_bound(*inclusive, is_lower, is_flag && exclusive->kind == ValueKind::kTrue));
    }
    if (exclusive != nullptr && !is_flag) all.push_back(number_bound(*exclusive, is_lower, true));
  }
  const Value* step = schema.find("multipleOf");
  std::string_view keyword = "multipleOf";
  if (step == nullptr && document_.draft(schema) <= 3) {
    step = schema.find("divisibleBy");
    keyword = "divisibleBy";
  }
  if (step == nullptr || !step->is_number()) return;
  Decimal decimal(step->text);
  if (decimal.is_zero() || decimal.is_negative()) {
    throw SchemaError(ErrorKind::kMalformed, "must be above 0",
                      document_.pointer_to(schema) + "/" + std::string(keyword));
  }
  Formula multiples = kNever;
  try {
    multiples = texts_.language(TextKind::kNumber, "multiple of " + decimal.text(),
                                [&] { return multiples_of(decimal, budget_); });
  } catch (const engine::LimitError& error) {
    if (error.limit != "multiple_of_states" || decimal.digits().size() > kMaxStepDigits) throw;
    multiples = some_multiples(decimal);
    narrower_texts_.try_emplace(multiples, &schema, std::string(keyword));
  }
  NumberSpelling spelling(decimal);
  spelling.is_step = true;
  if (decimal.is_integer()) spelling.form = without_zero_fraction();
  texts_.set_spelling(multiples, spelling);
  all.push_back(multiples);
}

uint32_t Schema::count_of(const Value& count, const Value& schema, std::string_view keyword) {
  auto fail = [&](const std::string& message) {
    throw SchemaError(ErrorKind::kMalformed, message, document_.pointer_to(schema) + "/" + std::string(keyword));
  };
  if (!count.is_number()) fail("must be an integer");
  Decimal decimal(count.text);
  if (!decimal.is_integer()) fail("must be an integer, got " + count.text);
  if (decimal.is_negative()) return 0;
  std::string digits = decimal.whole_digits();
  return digits.size() > 9 ? kLargestCount : std::min(kLargestCount, uint32_t(std::stoul(digits)));
}

void Schema::add_string(const Value& schema, std::vector<Formula>& all) {
  if (const Value* pattern = schema.find("pattern")) {
    all.push_back(at(schema, "pattern", [&] { return texts_.strings_matching(pattern->text); }));
  }
  if (const Value* least = schema.find("minLength")) {
    all.push_back(texts_.min_length(count_of(*least, schema, "minLength")));
  }
  if (const Value* most = schema.find("maxLength")) {
    all.push_back(no(texts_.min_length(count_of(*most, schema, "maxLength") + 1)));
  }
  const Value* format = schema.find("format");
  if (format == nullptr || !format->is_string() || context_.formats == FormatReading::kAnnotation) return;
  const std::map<std::string, Format>& formats = options_.formats->by_name;
  auto known = formats.find(format->text);
  if (document_.draft(schema) <= 6) {  // drafts before 7 may read the same name by an older standard
    for (const char* draft : {"7", "4"}) {
      if (draft == std::string("4") && document_.draft(schema) > 3) continue;
      auto older = formats.find(format->text + " before draft " + draft);
      if (older != formats.end()) known = older;
    }
  }
  if (known != formats.end()) {
    const Format& of = known->second;
    for (const std::string& expression : of.expressions) {
      all.push_back(texts_.strings_matching("^(?:" + expression + ")$"));
      if (of.is_narrower) narrower_texts_.try_emplace(all.back(), &schema, "format");
    }
    if (of.max_length > 0) all.push_back(no(texts_.min_length(of.max_length + 1)));
  } else if (std::find(options_.refused_formats.begin(), options_.refused_formats.end(), format->text) !=
             options_.refused_formats.end()) {
    refuse(schema, "format", "the format " + format->text + " is not enforced");
  } else {
    std::string pointer = document_.pointer_to(schema) + "/format";  // maybe met in another reading before
    bool is_known = std::find(annotations_.begin(), annotations_.end(), pointer) != annotations_.end();
    if (!is_known) annotations_.push_back(std::move(pointer));
  }
}

}  // namespace structout::json
