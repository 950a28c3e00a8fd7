#include "automata/unicode_categories.h"

#include <cstdint>
#include <iterator>

namespace structout::engine {

namespace {

// clang-format off
enum Category : uint8_t {
  kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs, kPe, kPi, kPf, kPo,
  kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCs, kCo, kCn,
};
// clang-format on

struct Range {
  uint32_t first;
  Category category;
};

constexpr Range kRanges[] = {
#include "automata/unicode_categories.inc"
};

struct Name {
  const char* abbreviation;
  const char* name;
  Category first, last;  // a group of categories is a range
};

constexpr Name kNames[] = {
    {"L", "Letter", kLu, kLo},
    {"LC", "Cased_Letter", kLu, kLt},
    {"Lu", "Uppercase_Letter", kLu, kLu},
    {"Ll", "Lowercase_Letter", kLl, kLl},
    {"Lt", "Titlecase_Letter", kLt, kLt},
    {"Lm", "Modifier_Letter", kLm, kLm},
    {"Lo", "Other_Letter", kLo, kLo},
    {"M", "Mark", kMn, kMe},
    {"Mn", "Nonspacing_Mark", kMn, kMn},
    {"Mc", "Spacing_Mark", kMc, kMc},
    {"Me", "Enclosing_Mark", kMe, kMe},
    {"N", "Number", kNd, kNo},
    {"Nd", "Decimal_Number", kNd, kNd},
    {"Nl", "Letter_Number", kNl, kNl},
    {"No", "Other_Number", kNo, kNo},
    {"P", "Punctuation", kPc, kPo},
    {"Pc", "Connector_Punctuation", kPc, kPc},
    {"Pd", "Dash_Punctuation", kPd, kPd},
    {"Ps", "Open_Punctuation", kPs, kPs},
    {"Pe", "Close_Punctuation", kPe, kPe},
    {"Pi", "Initial_Punctuation", kPi, kPi},
    {"Pf", "Final_Punctuation", kPf, kPf},
    {"Po", "Other_Punctuation", kPo, kPo},
    {"S", "Symbol", kSm, kSo},
    {"Sm", "Math_Symbol", kSm, kSm},
    {"Sc", "Currency_Symbol", kSc, kSc},
    {"Sk", "Modifier_Symbol", kSk, kSk},
    {"So", "Other_Symbol", kSo, kSo},
    {"Z", "Separator", kZs, kZp},
    {"Zs", "Space_Separator", kZs, kZs},
    {"Zl", "Line_Separator", kZl, kZl},
    {"Zp", "Paragraph_Separator", kZp, kZp},
    {"C", "Other", kCc, kCn},
    {"Cc", "Control", kCc, kCc},
    {"Cf", "Format", kCf, kCf},
    {"Cs", "Surrogate", kCs, kCs},
    {"Co", "Private_Use", kCo, kCo},
    {"Cn", "Unassigned", kCn, kCn},
    {"Any", "Any", kLu, kCn},
    {"Assigned", "Assigned", kLu, kCo},
};

CodePointSet characters(Category first, Category last) {
  CodePointSet set;
  size_t count = std::size(kRanges);
  for (size_t i = 0; i < count; ++i) {
    if (kRanges[i].category < first || kRanges[i].category > last) continue;
    set.add(kRanges[i].first, i + 1 < count ? kRanges[i + 1].first - 1 : kLastCodePoint);
  }
  set.normalize();
  return set;
}

}  // namespace

std::optional<CodePointSet> characters_of_category(const std::string& name) {
  if (name == "ASCII") return CodePointSet{{0, 0x7F}};
  for (const Name& known : kNames) {
    if (name == known.abbreviation || name == known.name) return characters(known.first, known.last);
  }
  return std::nullopt;
}

}  // namespace structout::engine
