#include "automata/regex.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "automata/unicode_properties.h"

namespace structout::engine {

namespace {

const CodePointSet kDigits{{'0', '9'}};
const CodePointSet kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaces{{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                           {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePointSet kLineEnds{{0x0A, 0x0A}, {0x0D, 0x0D}, {0x2028, 0x2029}};
constexpr uint32_t kLargestBound = 1u << 30;

bool is_digit(uint32_t code) { return code >= '0' && code <= '9'; }

bool is_letter(uint32_t code) { return (code | 0x20) >= 'a' && (code | 0x20) <= 'z'; }

int hex_value(uint32_t code) {
  if (is_digit(code)) return int(code - '0');
  uint32_t lower = code | 0x20;
  return lower >= 'a' && lower <= 'f' ? int(lower - 'a') + 10 : -1;
}

// A recursive-descent parser. `depth` counts the groups around the present place. Errors of
// syntax fail(), features that a finite automaton or this engine lacks are refuse()d; both
// give the place in the pattern.
class Parser {
 public:
  Parser(const std::string& text, const Limits& limits, Pattern& pattern)
      : max_nesting_(limits.nesting), max_ranges_(limits.nodes), pattern_(pattern) {
    if (!decode_utf8(text, codes_)) throw PatternError("a regular expression must be UTF-8", true);
  }

  uint32_t parse() {
    uint32_t whole = parse_alternatives(0);
    if (at_ < codes_.size()) fail("there is a ) without a (");
    return whole;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw PatternError(problem + ", at character " + std::to_string(at_ + 1), true);
  }
  [[noreturn]] void refuse(const std::string& feature) const {
    throw PatternError(feature + " (at character " + std::to_string(at_ + 1) + ")", false);
  }

  bool is_at_end() const { return at_ == codes_.size(); }
  bool is_next(uint32_t code, size_t ahead = 0) const {
    return at_ + ahead < codes_.size() && codes_[at_ + ahead] == code;
  }
  bool take(uint32_t code) {
    if (!is_next(code)) return false;
    ++at_;
    return true;
  }

  uint32_t add(Part part) {
    pattern_.parts.push_back(std::move(part));
    return uint32_t(pattern_.parts.size() - 1);
  }

  uint32_t add_set(CodePointSet set) {
    set.normalize();
    num_ranges_ += set.ranges().size();
    if (num_ranges_ > max_ranges_) throw LimitError("pattern_ranges", num_ranges_, max_ranges_);
    Part part{PartKind::kSet};
    part.index = uint32_t(pattern_.sets.size());
    pattern_.sets.push_back(std::move(set));
    return add(std::move(part));
  }

  // Equal characters share a set: patterns consist mostly of a few characters that
  // repeat. So NfaBuilder builds the graph of each only once.
  uint32_t add_character(uint32_t code) {
    auto [found, is_new] = set_of_character_.try_emplace(code, uint32_t(pattern_.sets.size()));
    if (is_new) pattern_.sets.push_back(CodePointSet{{code, code}});
    Part part{PartKind::kSet};
    part.index = found->second;
    return add(std::move(part));
  }

  uint32_t parse_alternatives(uint32_t depth) {
    if (depth > max_nesting_) throw LimitError("nesting", depth, max_nesting_);
    Part alternatives{PartKind::kAlternatives};
    do {
      alternatives.children.push_back(parse_sequence(depth));
    } while (take('|'));
    return alternatives.children.size() == 1 ? alternatives.children[0] : add(std::move(alternatives));
  }

  uint32_t parse_sequence(uint32_t depth) {
    Part sequence{PartKind::kSequence};
    while (!is_at_end() && !is_next('|') && !is_next(')')) {
      size_t start = at_;
      uint32_t item = parse_item(depth);
      sequence.children.push_back(parse_repetition(item, start));
    }
    if (sequence.children.empty()) return add({PartKind::kEmpty});
    return sequence.children.size() == 1 ? sequence.children[0] : add(std::move(sequence));
  }

  uint32_t parse_item(uint32_t depth) {
    uint32_t code = codes_[at_++];
    switch (code) {
      case '(':
        return parse_group(depth);
      case '[':
        return add_set(parse_class());
      case '.':
        return add_set(kLineEnds.complement());
      case '^':
        return add({PartKind::kStart});
      case '$':
        return add({PartKind::kEnd});
      case '\\':
        return parse_escape();
      case '*':
      case '+':
      case '?':
        --at_;
        fail("there is nothing to repeat");
      case '{':
        --at_;
        fail("a literal { must be written \\{");
    }
    return add_character(code);
  }

  uint32_t parse_group(uint32_t depth) {
    std::optional<bool> is_negative_lookahead;
    if (take('?')) {
      if (take('=')) {
        is_negative_lookahead = false;
      } else if (take('!')) {
        is_negative_lookahead = true;
      } else if (!take(':')) {
        parse_group_name();
      }
    }
    uint32_t inside = parse_alternatives(depth + 1);
    if (!take(')')) fail("a ( is not closed");
    if (!is_negative_lookahead) return inside;
    Part lookahead{PartKind::kLookahead};
    lookahead.is_negative = *is_negative_lookahead;
    lookahead.children.push_back(inside);
    return add(std::move(lookahead));
  }

  // Takes the name of a group, (?<name> or (?P<name>, and drops it: captures do not matter.
  void parse_group_name() {
    if (is_next('<') && (is_next('=', 1) || is_next('!', 1))) refuse("lookbehind is not supported");
    if (is_next('P') && is_next('=', 1)) refuse("backreferences are not supported");
    bool is_name = is_next('<') || (is_next('P') && is_next('<', 1));
    if (!is_name) refuse("inline flags and special groups are not supported");
    at_ += is_next('P') ? 2 : 1;
    size_t start = at_;
    while (!is_at_end() &&
           (is_letter(codes_[at_]) || is_digit(codes_[at_]) || codes_[at_] == '_' || codes_[at_] == '$'))
      ++at_;
    if (at_ == start || is_digit(codes_[start]) || !take('>')) fail("a group has no valid name");
  }

  uint32_t parse_repetition(uint32_t item, size_t start) {
    uint32_t min, max;
    if (take('*')) {
      min = 0, max = kUnbounded;
    } else if (take('+')) {
      min = 1, max = kUnbounded;
    } else if (take('?')) {
      min = 0, max = 1;
    } else if (is_next('{')) {
      ++at_;
      parse_bounds(min, max);
    } else {
      return item;
    }
    PartKind kind = pattern_.parts[item].kind;
    bool is_assertion = kind == PartKind::kStart || kind == PartKind::kEnd || kind == PartKind::kLookahead;
    if (is_assertion && codes_[start] != '(') fail("an anchor cannot be repeated");
    take('?');  // lazy: the same texts
    if (is_next('*') || is_next('+') || is_next('?')) refuse("possessive and double repetitions are not supported");
    if (is_next('{')) refuse("double repetitions are not supported");
    Part repetition{PartKind::kRepetition};
    repetition.min = min;
    repetition.max = max;
    repetition.children.push_back(item);
    return add(std::move(repetition));
  }

  void parse_bounds(uint32_t& min, uint32_t& max) {
    if (is_next(',')) refuse("a repetition needs a lower bound: {0,n}");
    min = max = parse_bound();
    if (take(',')) max = is_next('}') ? kUnbounded : parse_bound();
    if (!take('}')) fail("a { must begin {n}, {n,} or {n,m}, or be written \\{");
    if (min > max) fail("the bounds of a repetition are out of order");
  }

  uint32_t parse_bound() {
    if (is_at_end() || !is_digit(codes_[at_])) fail("a { must begin {n}, {n,} or {n,m}, or be written \\{");
    uint64_t value = 0;
    for (; !is_at_end() && is_digit(codes_[at_]); ++at_) {
      value = std::min<uint64_t>(value * 10 + (codes_[at_] - '0'), kLargestBound);  // above every limit on nodes
    }
    return uint32_t(value);
  }

  uint32_t parse_escape() {
    if (is_at_end()) fail("a \\ stands at the end");
    uint32_t code = codes_[at_];
    if (code == 'b' || code == 'B') refuse("word boundaries are not supported");
    if (code == 'k' || (is_digit(code) && code != '0')) refuse("backreferences are not supported");
    if (code == 'A' || code == 'z' || code == 'Z') refuse("\\A, \\z and \\Z are not supported: use ^ and $");
    CodePointSet named;
    if (take_short_name(named)) return add_set(std::move(named));
    return add_character(parse_character_escape());
  }

  // Takes what follows the backslash of \d, \w, \s, \p{...} or their complements.
  bool take_short_name(CodePointSet& set) {
    uint32_t code = codes_[at_];
    if (code == 'p' || code == 'P') {
      set = parse_property();
      if (code == 'P') set = set.complement();
      return true;
    }
    uint32_t lower = code | 0x20;
    if (!is_letter(code) || (lower != 'd' && lower != 'w' && lower != 's')) return false;
    ++at_;
    const CodePointSet& named = lower == 'd' ? kDigits : lower == 'w' ? kWord : kSpaces;
    set = code == lower ? named : named.complement();
    return true;
  }

  CodePointSet parse_property() {
    size_t end = at_ + 1;
    while (end < codes_.size() && codes_[end] != '}') ++end;
    if (!is_next('{', 1) || end == codes_.size()) refuse("a Unicode class must be written \\p{...}");
    std::string name;
    for (size_t i = at_ + 2; i < end; ++i) name.push_back(codes_[i] < 0x80 ? char(codes_[i]) : '?');
    std::optional<CodePointSet> characters = characters_of_property(name);
    if (!characters && is_script(name)) refuse("a script must be written \\p{Script=" + name + "}");
    if (!characters) fail("there is no Unicode property " + name);
    at_ = end + 1;
    return *std::move(characters);
  }

  // Takes what follows the backslash of a single character.
  uint32_t parse_character_escape() {
    uint32_t code = codes_[at_++];
    switch (code) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case '0':
        if (!is_at_end() && is_digit(codes_[at_])) refuse("octal escapes are not supported");
        return 0;
      case 'c':
        if (is_at_end() || !is_letter(codes_[at_])) fail("\\c needs a letter");
        return codes_[at_++] & 0x1F;
      case 'x':
        return is_next('{') ? parse_braced_number() : parse_number(2);
      case 'u':
        return parse_unicode_escape();
    }
    if (is_letter(code) || is_digit(code)) {
      --at_;
      refuse("unknown escape");
    }
    return code;
  }

  uint32_t parse_number(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (is_at_end() || hex_value(codes_[at_]) < 0)
        fail("an escape needs " + std::to_string(digits) + " hexadecimal digits");
      value = value << 4 | uint32_t(hex_value(codes_[at_]));
    }
    return value;
  }

  uint32_t parse_braced_number() {
    ++at_;
    uint64_t value = 0;
    size_t start = at_;
    for (; !is_at_end() && hex_value(codes_[at_]) >= 0; ++at_) {
      value = std::min<uint64_t>(value << 4 | uint64_t(hex_value(codes_[at_])), kLastCodePoint + 1);
    }
    if (at_ == start || !take('}') || value > kLastCodePoint)
      fail("an escape in braces needs the number of a character");
    return check_not_surrogate(uint32_t(value));
  }

  // A high and a low surrogate, \uD83D\uDE00 for example, are one character.
  uint32_t parse_unicode_escape() {
    if (is_next('{')) return parse_braced_number();
    uint32_t code = parse_number(4);
    bool is_high = code >= 0xD800 && code <= 0xDBFF;
    if (is_high && is_next('\\') && is_next('u', 1)) {
      size_t start = at_;
      at_ += 2;
      uint32_t low = is_next('{') ? 0 : parse_number(4);
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      at_ = start;
    }
    return check_not_surrogate(code);
  }

  uint32_t check_not_surrogate(uint32_t code) const {
    if (code >= 0xD800 && code <= 0xDFFF) refuse("a surrogate alone is no character");
    return code;
  }

  // The characters between [ and ].
  CodePointSet parse_class() {
    bool is_negated = take('^');
    if (is_next(']')) refuse("a class that begins with ] is read in two ways and not supported: write \\]");
    CodePointSet set;
    while (!take(']')) {
      std::optional<uint32_t> first = parse_class_member(set);
      if (!is_next('-') || at_ + 1 >= codes_.size() || is_next(']', 1)) {
        if (first) set.add(*first, *first);
        continue;
      }
      ++at_;
      std::optional<uint32_t> last = parse_class_member(set);
      if (first && last) {
        if (*first > *last) fail("the ends of a range are out of order");
        set.add(*first, *last);
      } else {  // a hyphen beside a short name stands for itself
        set.add('-', '-');
        for (const auto& end : {first, last}) {
          if (end) set.add(*end, *end);
        }
      }
    }
    set.normalize();
    return is_negated ? set.complement() : set;
  }

  // One character, or nothing for a short name, whose characters are added to the set.
  std::optional<uint32_t> parse_class_member(CodePointSet& set) {
    if (is_at_end()) fail("a [ is not closed");
    uint32_t code = codes_[at_++];
    if (code != '\\') return code;
    if (is_at_end()) fail("a \\ stands at the end");
    CodePointSet named;
    if (take_short_name(named)) {
      set.add(named);
      return std::nullopt;
    }
    if (take('b')) return 0x08;
    if (codes_[at_] == 'B') refuse("unknown escape");
    return parse_character_escape();
  }

  const uint32_t max_nesting_;
  const uint64_t max_ranges_;
  uint64_t num_ranges_ = 0;  // of all classes
  std::vector<uint32_t> codes_;
  size_t at_ = 0;
  Pattern& pattern_;
  std::unordered_map<uint32_t, uint32_t> set_of_character_;
};

}  // namespace

uint32_t parse_regex(const std::string& text, const Limits& limits, Pattern& pattern) {
  return Parser(text, limits, pattern).parse();
}

}  // namespace structout::engine
