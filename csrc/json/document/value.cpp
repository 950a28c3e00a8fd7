#include "json/document/value.h"

#include <algorithm>
#include <numeric>

#include "automata/code_points.h"
#include "json/document/errors.h"

namespace structout::json {

namespace {

constexpr uint32_t kFirstHigh = 0xD800, kFirstLow = 0xDC00, kEndOfSurrogates = 0xE000;

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Value parse() {
    Value value = parse_value(0);
    skip_spaces();
    if (at_ < text_.size()) fail("expected the end of the text");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw SchemaError(ErrorKind::kMalformed, problem + " at byte " + std::to_string(at_));
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  bool take(char byte) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != byte) return false;
    ++at_;
    return true;
  }

  Value parse_value(int depth) {
    if (depth > kMaxNestedValues) fail("expected at most " + std::to_string(kMaxNestedValues) + " nested values");
    skip_spaces();
    if (at_ == text_.size()) fail("expected a value");
    Value value;
    switch (text_[at_]) {
      case '{':
        parse_object(value, depth);
        break;
      case '[':
        parse_array(value, depth);
        break;
      case '"':
        value.kind = ValueKind::kString;
        value.text = parse_string();
        break;
      case 'n':
        expect("null");
        break;
      case 't':
        expect("true");
        value.kind = ValueKind::kTrue;
        break;
      case 'f':
        expect("false");
        value.kind = ValueKind::kFalse;
        break;
      default:
        value.kind = ValueKind::kNumber;
        value.text = parse_number();
    }
    return value;
  }

  void expect(std::string_view word) {
    if (text_.compare(at_, word.size(), word) != 0) fail("expected a value");
    at_ += word.size();
  }

  void parse_array(Value& value, int depth) {
    value.kind = ValueKind::kArray;
    ++at_;
    if (take(']')) return;
    do {
      value.items.push_back(parse_value(depth + 1));
    } while (take(','));
    if (!take(']')) fail("expected , or ]");
  }

  void parse_object(Value& value, int depth) {
    value.kind = ValueKind::kObject;
    ++at_;
    if (take('}')) return;
    do {
      skip_spaces();
      if (at_ == text_.size() || text_[at_] != '"') fail("expected a name");
      value.names.push_back(parse_string());
      if (!take(':')) fail("expected :");
      value.items.push_back(parse_value(depth + 1));
    } while (take(','));
    if (!take('}')) fail("expected , or }");
    sort_names(value);
  }

  // Sorts the names. If a name repeats, its last value stays, in the place of the first.
  static void sort_names(Value& value) {
    auto by_name = [&value](uint32_t a, uint32_t b) { return value.names[a] < value.names[b]; };
    auto sort = [&] {
      value.by_name.resize(value.names.size());
      std::iota(value.by_name.begin(), value.by_name.end(), 0);
      std::stable_sort(value.by_name.begin(), value.by_name.end(), by_name);
    };
    sort();
    std::vector<bool> is_dropped(value.names.size());
    size_t num_dropped = 0;
    for (size_t i = 0; i + 1 < value.by_name.size();) {
      uint32_t first = value.by_name[i];
      for (++i; i < value.by_name.size() && value.names[value.by_name[i]] == value.names[first]; ++i) {
        value.items[first] = std::move(value.items[value.by_name[i]]);
        is_dropped[value.by_name[i]] = true;
        ++num_dropped;
      }
    }
    if (num_dropped == 0) return;
    size_t kept = 0;
    for (size_t i = 0; i < value.names.size(); ++i) {
      if (is_dropped[i]) continue;
      if (kept != i) {
        value.names[kept] = std::move(value.names[i]);
        value.items[kept] = std::move(value.items[i]);
      }
      ++kept;
    }
    value.names.resize(kept);
    value.items.resize(kept);
    sort();
  }

  std::string parse_number() {
    size_t begin = at_;
    auto digits = [this] {
      size_t first = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      return at_ - first;
    };
    if (text_[at_] == '-') ++at_;
    size_t first_digit = at_, num_digits = digits();
    if (num_digits == 0 || (num_digits > 1 && text_[first_digit] == '0')) fail("expected a value");
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      if (digits() == 0) fail("expected a digit");
    }
    if (at_ < text_.size() && (text_[at_] | 0x20) == 'e') {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (digits() == 0) fail("expected a digit");
    }
    return text_.substr(begin, at_ - begin);
  }

  std::string parse_string() {
    std::string value;
    for (++at_;;) {
      if (at_ == text_.size()) fail("expected \"");
      uint8_t byte = uint8_t(text_[at_]);
      if (byte < 0x20) fail("expected no control character");
      ++at_;
      if (byte == '"') {
        code_points_.clear();
        if (!engine::decode_utf8(value, code_points_)) fail("expected UTF-8");
        return value;
      }
      if (byte == '\\') {
        append_escape(value);
      } else {
        value.push_back(char(byte));
      }
    }
  }

  uint32_t parse_unit() {
    uint32_t unit = 0;
    for (int i = 0; i < 4; ++i) {
      if (at_ == text_.size()) fail("expected four hexadecimal digits");
      char digit = text_[at_], lower = char(digit | 0x20);
      bool is_decimal = digit >= '0' && digit <= '9';
      if (!is_decimal && (lower < 'a' || lower > 'f')) fail("expected four hexadecimal digits");
      unit = unit << 4 | uint32_t(is_decimal ? digit - '0' : lower - 'a' + 10);
      ++at_;
    }
    return unit;
  }

  void append_escape(std::string& value) {
    if (at_ == text_.size()) fail("expected an escape");
    char letter = text_[at_++];
    static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    size_t short_escape = kLetters.find(letter);
    if (short_escape != std::string_view::npos) {
      value.push_back(kMeanings[short_escape]);
      return;
    }
    if (letter != 'u') fail("expected an escape");
    uint32_t code = parse_unit();
    if (code >= kFirstHigh && code < kEndOfSurrogates) {
      bool has_low = code < kFirstLow && text_.compare(at_, 2, "\\u") == 0;
      at_ += has_low ? 2 : 0;
      uint32_t low = has_low ? parse_unit() : 0;
      if (low < kFirstLow || low >= kEndOfSurrogates) fail("expected no half of a surrogate pair");
      code = 0x10000 + ((code - kFirstHigh) << 10) + (low - kFirstLow);
    }
    append_utf8(value, code);
  }

  static void append_utf8(std::string& value, uint32_t code) {
    if (code < 0x80) {
      value.push_back(char(code));
      return;
    }
    int num_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static constexpr uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
    value.push_back(char(kLead[num_more] | code >> (6 * num_more)));
    while (num_more-- > 0) value.push_back(char(0x80 | (code >> (6 * num_more) & 0x3F)));
  }

  const std::string& text_;
  size_t at_ = 0;
  std::vector<uint32_t> code_points_;  // of the last string
};

}  // namespace

const Value* Value::find(std::string_view name) const {
  auto found = std::lower_bound(by_name.begin(), by_name.end(), name,
                                [this](uint32_t index, std::string_view other) { return names[index] < other; });
  return found != by_name.end() && names[*found] == name ? &items[*found] : nullptr;
}

void remove_members(Value& object, const std::vector<std::string>& names) {
  Value kept;
  kept.kind = ValueKind::kObject;
  std::vector<uint32_t> new_index(object.names.size(), UINT32_MAX);
  for (size_t i = 0; i < object.names.size(); ++i) {
    if (std::find(names.begin(), names.end(), object.names[i]) != names.end()) continue;
    new_index[i] = uint32_t(kept.names.size());
    kept.names.push_back(std::move(object.names[i]));
    kept.items.push_back(std::move(object.items[i]));
  }
  for (uint32_t index : object.by_name) {
    if (new_index[index] != UINT32_MAX) kept.by_name.push_back(new_index[index]);
  }
  object = std::move(kept);
}

Value parse_value(const std::string& text) { return Parser(text).parse(); }

}  // namespace structout::json
