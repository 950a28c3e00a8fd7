#include "json/document/canonical.h"

#include "automata/compile.h"
#include "json/document/decimal.h"
#include "json/document/value.h"

namespace structout::json {

namespace {

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
      text += Decimal(value.text).text();
      break;
    case ValueKind::kString:
      text += '"' + engine::spelled_canonically(value.text) + '"';
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
        text += '"' + engine::spelled_canonically(value.names[index]) + "\":";
        append_canonical(value.items[index], text);
        text += ',';
      }
      text += '}';
  }
}

void append_written(const Value& value, std::string& text) {
  if (value.is_string()) {
    text += '"' + value.text + '"';
  } else if (!value.is_array() && !value.is_object()) {
    append_canonical(value, text);
  } else {
    text += value.is_array() ? '[' : '{';
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (i > 0) text += ',';
      if (value.is_object()) text += '"' + value.names[i] + "\":";
      append_written(value.items[i], text);
    }
    text += value.is_array() ? ']' : '}';
  }
}

}  // namespace

std::string written(const Value& value) {
  std::string text;
  append_written(value, text);
  return text;
}

std::string canonical(const Value& value) {
  std::string text;
  append_canonical(value, text);
  return text;
}

Value with_canonical_texts(Value value) {
  if (value.is_number()) value.text = Decimal(value.text).text();
  if (value.is_string()) value.text = engine::spelled_canonically(value.text);
  for (std::string& name : value.names) name = engine::spelled_canonically(name);
  for (Value& item : value.items) item = with_canonical_texts(std::move(item));
  return value;
}

}  // namespace structout::json
