// Child formulas of schemas and constants. Schemas with the same normalized text share one.
#include <algorithm>
#include <cstdint>
#include <string>

#include "json/document/keyword_types.h"
#include "json/formulas/schema.h"

namespace structout::json {

namespace {

// Normalizes schemas, so that equivalent ones often get the same text: without annotations,
// and with the address of the target in place of a reference. The order of keywords still
// counts.
class SchemaWriter {
 public:
  SchemaWriter(const Document& document, const Formats& formats) : document_(document), formats_(formats) {}

  // Returns false if the meaning of the schema depends on its pointer (an identifier, a
  // dynamic reference, an unknown format), or if the text gets long.
  bool write(const Value& schema) {
    if (!schema.is_object()) return write_value(schema);
    text_ += '{';
    int draft = document_.draft(schema);
    for (size_t i = 0; i < schema.items.size(); ++i) {
      const std::string& keyword = schema.names[i];
      if (is_annotation(keyword)) continue;
      write_text(keyword);
      if (!write_keyword(schema, keyword, schema.items[i], draft)) return false;
    }
    text_ += '}';
    return true;
  }

  bool has_reference() const { return has_reference_; }
  std::string&& text() { return std::move(text_); }

 private:
  static constexpr size_t kMaxText = 256;

  bool write_keyword(const Value& schema, const std::string& keyword, const Value& value, int draft) {
    if (keyword == "$ref" && value.is_string()) return write_reference(document_.referred(schema, value.text));
    // Schema::annotations() lists unknown formats with their pointers.
    bool is_unknown = keyword == "format" && formats_.by_name.count(value.text) == 0;
    if (is_unknown || keyword == "id" || keyword[0] == '$') return false;
    switch (subschema_form(keyword, draft)) {
      case SubschemaForm::kNone:
        return write_value(value);
      case SubschemaForm::kSchemas:
        return value.is_array() ? write_all(value, true) : write(value);
      case SubschemaForm::kNamedSchemas:
        return write_all(value, true);
    }
    return false;
  }

  bool write_reference(const Value* target) {
    has_reference_ = true;
    text_ += std::to_string(reinterpret_cast<uintptr_t>(target));
    return target != nullptr;
  }

  bool write_value(const Value& value) {
    write_text(value.text);
    return write_all(value, false);
  }

  bool write_all(const Value& value, bool are_schemas) {
    if (text_.size() > kMaxText) return false;
    text_ += char('0' + int(value.kind));
    for (size_t i = 0; i < value.items.size(); ++i) {
      if (value.is_object()) write_text(value.names[i]);
      if (!(are_schemas ? write(value.items[i]) : write_value(value.items[i]))) return false;
    }
    text_ += '.';
    return true;
  }

  void write_text(const std::string& text) { text_ += std::to_string(text.size()) + ":" + text; }

  const Document& document_;
  const Formats& formats_;
  std::string text_;
  bool has_reference_ = false;
};

}  // namespace

Formula Schema::child(const Value& schema, int num_references) {
  if (schema.kind == ValueKind::kTrue) return kAlways;
  if (schema.kind == ValueKind::kFalse) return kNever;
  if (!schema.is_object()) {
    throw SchemaError(ErrorKind::kMalformed, "a schema must be an object or a boolean", document_.pointer_to(schema));
  }
  Node node = {&schema, entered(schema)};
  auto known = children_.find(node);
  if (known != children_.end()) return known->second;
  check_keyword_types(document_, schema);
  Formula child = asks_nothing_beside(schema, "") ? kAlways : child_of_keywords(node, num_references);
  children_.emplace(node, child);
  return child;
}

Formula Schema::child_of_keywords(const Node& node, int num_references) {
  const Value& schema = *node.value;
  if (num_references > 0 && (is_lone_reference(schema) || asks_nothing_beside(schema, "$ref"))) {
    InContext within(*this, node.context);
    if (const Value* target = reference_target(schema, "$ref")) return child(*target, num_references - 1);
  }
  return formulas_.atom(Op::kSchema, shared_number_of(node));
}

bool Schema::asks_nothing_beside(const Value& schema, std::string_view keyword) const {
  return std::all_of(schema.names.begin(), schema.names.end(),
                     [&](const std::string& name) { return name == keyword || is_annotation(name); });
}

uint32_t Schema::shared_number_of(const Node& node) {
  SchemaWriter writer(document_, *options_.formats);
  bool is_shared = writer.write(*node.value);
  std::string text = std::to_string(document_.draft(*node.value)) + (node.context.ignores_dependencies ? "-" : "+") +
                     std::to_string(int(node.context.formats));
  if (writer.has_reference()) text += std::to_string(node.context.scope);
  text += writer.text();
  auto known = is_shared ? schemas_by_text_.find(text) : schemas_by_text_.end();
  if (known != schemas_by_text_.end()) return known->second;
  schemas_.push_back(node);
  if (is_shared) schemas_by_text_.emplace(std::move(text), uint32_t(schemas_.size() - 1));
  return uint32_t(schemas_.size() - 1);
}

Formula Schema::constant(const Value& value) {
  auto known = constant_numbers_.find(&value);
  if (known == constant_numbers_.end()) {
    constants_.push_back(&value);
    known = constant_numbers_.emplace(&value, uint32_t(constants_.size() - 1)).first;
  }
  return formulas_.atom(Op::kConstant, known->second);
}

}  // namespace structout::json
