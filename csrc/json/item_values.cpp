#include "json/item_values.h"

#include <set>

#include "fsm/compile.h"
#include "fsm/decimal.h"
#include "json/position.h"

namespace structout::json {

namespace {

constexpr size_t kMaxTexts = 1024;  // at once: equal values may have several
constexpr size_t kMaxReads = 1 << 20;

void append_canonical(const Value& value, std::string& text) {
  switch (value.kind) {
    case ValueKind::kNull:
      text += "null";
      break;
    case ValueKind::kFalse:
      text += "false";
      break;
    case ValueKind::kTrue:
      text += "true";
      break;
    case ValueKind::kNumber:
      text += fsm::Decimal(value.text).text();
      break;
    case ValueKind::kString:
      text += '"' + fsm::spelled_canonically(value.text) + '"';
      break;
    case ValueKind::kArray:
      text += '[';
      for (const Value& item : value.items) {
        append_canonical(item, text);
        text += ',';
      }
      text += ']';
      break;
    case ValueKind::kObject:
      text += '{';
      for (uint32_t index : value.by_name) {
        text += '"' + fsm::spelled_canonically(value.names[index]) + "\":";
        append_canonical(value.items[index], text);
        text += ',';
      }
      text += '}';
  }
}

constexpr char kDigits[] = "0123456789.";

// Whether a text that goes on behind a number has written that number in the shortest way.
bool ends_shortest_number(const std::string& text) {
  size_t begin = text.find_last_not_of(kDigits) + 1;
  bool is_exponent = begin > 1 && (text[begin - 1] == '+' || text[begin - 1] == '-') && text[begin - 2] == 'e';
  if (begin == text.size() || is_exponent) return true;  // equal numbers count once, however they are spelled
  std::string number = text.substr(begin);
  return number.back() != '.' && fsm::Decimal(number).text() == number;
}

bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

}  // namespace

std::string canonical(const std::string& value) {
  std::string text;
  try {
    append_canonical(parse_value(value), text);
  } catch (const SchemaError&) {  // it is a JSON text, so it is nested too deep
    throw fsm::LimitError("item_nesting", kMaxNestedValues + 1, kMaxNestedValues);
  }
  return text;
}

size_t num_different(const std::vector<ItemValue>& values) {
  std::set<std::string> different;
  for (const ItemValue& value : values) different.insert(value.canonical);
  return different.size();
}

std::string without_spaces(const std::string& text) {
  std::string rest;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_in_string && is_space(text[i])) continue;
    rest.push_back(text[i]);
    if (text[i] == '"') is_in_string = !is_in_string;
    if (text[i] == '\\' && i + 1 < text.size()) rest.push_back(text[++i]);
  }
  return rest;
}

ItemValues enumerated_values(Machine& machine, State start) {
  struct Partial {
    Position position;
    std::string text;
  };
  auto values = std::make_shared<std::vector<ItemValue>>();
  size_t num_reads = 0;
  for (std::vector<Partial> partials = {{Position(machine, start), ""}}; !partials.empty();) {
    std::vector<Partial> longer;
    for (const Partial& partial : partials) {
      if (partial.position.is_complete()) values->push_back({without_spaces(partial.text), canonical(partial.text)});
      bool may_go_on_without_space = false;
      auto go_on = [&](int byte) {
        Partial next = partial;
        if (!next.position.read(uint8_t(byte))) return false;
        next.text.push_back(char(byte));
        longer.push_back(std::move(next));
        return true;
      };
      bool is_in_string = without_spaces(partial.text + " ") != without_spaces(partial.text);
      bool may_end_number = is_in_string || ends_shortest_number(partial.text);
      for (int byte = 0; byte < 256; ++byte) {
        if (!is_in_string && is_space(char(byte))) continue;
        if (!may_end_number && std::string(kDigits).find(char(byte)) == std::string::npos) continue;
        may_go_on_without_space = go_on(byte) || may_go_on_without_space;
        if (values->size() + longer.size() > kMaxTexts || ++num_reads > kMaxReads) return nullptr;
      }
      if (!may_go_on_without_space && may_end_number) go_on(' ');
    }
    partials = std::move(longer);
  }
  return values;
}

}  // namespace structout::json
