// Schema: translates a JSON Schema document into Boolean formulas, for each type of value.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/document/document.h"
#include "json/document/errors.h"
#include "json/formulas/constants.h"
#include "json/formulas/formula.h"
#include "json/scalars/texts.h"

namespace structout::json {

enum class Type : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };
constexpr int kNumTypes = 7;
constexpr Type kAllTypes[] = {Type::kNull,   Type::kFalse, Type::kTrue,  Type::kNumber,
                              Type::kString, Type::kArray, Type::kObject};

struct Format {
  std::vector<std::string> expressions;  // the whole value must match each of them
  uint32_t max_length = 0;               // in characters. 0: any
  bool is_narrower = false;              // the standard allows more values
};

struct Formats {
  std::map<std::string, Format> by_name;
};

struct SchemaOptions {
  std::vector<bool> allowed_bytes = std::vector<bool>(256, true);  // in texts of this schema
  std::shared_ptr<const Formats> formats = std::make_shared<Formats>();
  std::vector<std::string> refused_formats;      // that JSON Schema defines and no expression enforces
  std::map<std::string, std::string> documents;  // texts of other schemas that references may name, by URI
  std::vector<std::string> impossible_arrays{};  // JSON pointers to schemas that no array satisfies
  bool closes_objects = false;                   // if that leaves a value, see schema_closed.cpp
};

// Formulas have two levels. A child formula speaks of a whole value of any type: its atoms
// are schemas and constants of the document (Op::kSchema, Op::kConstant). expand()
// translates it for one type into a formula whose atoms speak of such values: a required
// key, a minimum of items, the language of a string. Applicators become connectives: `not`
// is a negation, `allOf` a conjunction.
//
// Each pair of a child and a type is expanded once, when it is first needed. The values of
// keys and items stay child formulas, so a recursive schema has finitely many.
class Schema {
 public:
  // Throws SchemaError, engine::PatternError or engine::LimitError. Errors in schemas that
  // are not expanded yet come with the calls below.
  Schema(const std::string& text, const SchemaOptions& options, const engine::Limits& limits);

  bool allows_byte(uint8_t byte) const { return options_.allowed_bytes[byte]; }
  Formulas& formulas() { return formulas_; }
  Texts& texts() { return texts_; }
  engine::Budget& budget() { return budget_; }

  // The child formula (see Op) of the whole document.
  Formula root();

  // Expands every schema that the root leads to, for every type of value, so that errors
  // come now and not in the middle of a text.
  void expand_all();

  // Some languages are narrower than their keyword: the expressions of a format, or some
  // multiples of a long step. Throws SchemaError if a value may satisfy the document
  // because it is outside of such a language (`not`, for example).
  void check_narrower_texts();
  bool has_narrower_texts() const { return !narrower_texts_.empty(); }
  // True once an expansion has joined both readings of `format`, asserted and as an
  // annotation, and they differed.
  bool has_two_readings() const { return has_two_readings_; }
  // True once a schema with uniqueItems has been expanded.
  bool has_unique_items() const { return !unique_items_.empty(); }

  // The first of SchemaOptions::impossible_arrays, if there are any.
  std::optional<std::string> impossible_array() const {
    const std::vector<std::string>& all = options_.impossible_arrays;
    return all.empty() ? std::nullopt : std::optional(all[0]);
  }

  // The child formulas of all schemas that were reached so far, as written and closed.
  std::vector<Formula> child_formulas();

  // Translates a child formula for one type: the result is a formula over the atoms on such
  // values. Null, false and true have no atoms, so theirs is kAlways or kNever.
  Formula expand(Formula child, Type type);

  // The pointer to the first schema that refers to itself for the same value, if there are any.
  const std::optional<std::string>& endless_reference() const { return endless_reference_; }

  Constants& constants() { return listed_; }

  // The child formula that a value is one of the constants of a set. With another `which`
  // than kAllListed: one of those whose index in the set has bit `which`.
  Formula listed(uint32_t set, uint32_t which = kAllListed);
  // The formula that an object or array is one of some constants, all of which agree with
  // the `num_read` keys or items that have come.
  Formula among(std::vector<uint32_t> constants, uint32_t num_read);
  // True if some constant of the set has no keys or items beyond those that have come, so
  // that the value may end.
  bool is_whole(const FormulaNode& among);
  // True if every key that an object still needs to equal `constant` may come. `is_past`
  // tells the names that cannot come any more.
  bool may_come(uint32_t constant, uint32_t num_read, const std::function<bool(uint32_t)>& is_past) const;
  // The formula with each kAmong replaced by the disjunction of its constants. Only such
  // formulas can be joined with others.
  Formula without_among(Formula formula);

  // A JSON pointer to a schema that a child formula mentions, or nothing.
  std::string pointer_of(Formula child);

  const std::string& name(uint32_t number) const { return names_[number].text; }
  uint32_t num_names() const { return uint32_t(names_.size()); }
  const std::string& spelled_name(uint32_t number) const { return names_[number].spelled; }

  // True if a formula on texts, such as a pattern of keys, accepts a name. Memoized.
  bool describes(Formula keys, uint32_t name);

  // The names that a formula on keys describes. Nothing if they are many, or if the formula
  // has a narrower language (see check_narrower_texts()).
  std::optional<std::vector<uint32_t>> few_names(Formula keys);

  // The names that an object formula mentions, in increasing order of their numbers.
  const std::vector<uint32_t>& names_in(Formula object);

  // An order of the names of keys, and the formula of the objects that may follow it.
  struct OrderedObjects {
    std::vector<uint32_t> names;
    Formula object;
  };
  // The orders of objects that satisfy the first of some child formulas, while the others
  // are tracked. An order keeps that of each schema's own properties; names that no schema
  // orders come in the order of the search: the object's own, then those that applicators
  // bring in, then those of `required`. There is one order unless lists of names contradict
  // one another. Then, if there `may_be_several`, each keeps the order of some branches of
  // anyOf or oneOf, whose objects may follow it; the disjunction of their formulas is the
  // first child's. All orders have the same names. Items that must differ are compared as
  // they are written, so where these may be objects there is one order.
  std::vector<OrderedObjects> declared_orders(const std::vector<Formula>& children, bool may_be_several);

  // JSON pointers to parts that constrain nothing, such as formats that nobody defines.
  const std::vector<std::string>& annotations() const { return annotations_; }

  size_t memory_bytes() const { return formulas_.memory_bytes() + texts_.memory_bytes() + listed_.memory_bytes(); }

 private:
  struct Name {
    std::string text, spelled;
  };
  // Validators assert `format`, or take it as an annotation. Under a negation neither
  // reading implies the other, so there a text must be valid in both.
  enum class FormatReading : uint8_t { kBoth, kAsserted, kAnnotation };
  // The circumstances in which a schema is reached, as far as they change its meaning.
  struct Context {
    Scope scope = 0;                    // in which dynamic references are resolved
    bool ignores_dependencies = false;  // as validators without `dependencies` read it
    FormatReading formats = FormatReading::kBoth;
    bool operator==(const Context& other) const {
      return scope == other.scope && ignores_dependencies == other.ignores_dependencies && formats == other.formats;
    }
  };
  struct Node {
    const Value* value;
    Context context;
    bool operator==(const Node& other) const { return value == other.value && context == other.context; }
  };
  struct NodeHash {
    size_t operator()(const Node& node) const {
      const Context& context = node.context;
      return std::hash<const Value*>()(node.value) * 31 + context.scope * 6 + context.ignores_dependencies * 3 +
             size_t(context.formats);
    }
  };
  // Scope guard: sets the context of the schemas that are visited, then restores the outer
  // one.
  class InContext {
   public:
    InContext(Schema& schema, Context context) : schema_(schema), outer_(schema.context_) { schema.context_ = context; }
    ~InContext() { schema_.context_ = outer_; }
    InContext(const InContext&) = delete;
    InContext& operator=(const InContext&) = delete;

   private:
    Schema& schema_;
    const Context outer_;
  };
  // Keys or items that some keyword evaluates under a condition, and the child formula of
  // their values. The keywords unevaluatedProperties and unevaluatedItems apply to all
  // others.
  struct EvaluatedKeys {
    Formula condition;
    uint32_t name;  // kNoName: the keys that `keys` describes
    Formula keys, value;
  };
  struct EvaluatedItems {
    Formula condition;
    uint32_t begin, end;  // of the items
    Formula contains;     // only those that satisfy this child
    Formula value;
  };
  // The child formula of the items begin ... end - 1.
  struct Items {
    uint32_t begin, end;
    Formula child;
  };
  struct Evaluated {
    std::vector<EvaluatedKeys> keys;
    std::vector<EvaluatedKeys> required;  // that are named in `required` and its like, and evaluated nowhere
    std::vector<EvaluatedItems> items;
    bool names_keys = false;  // some schema has `properties` or `patternProperties`
  };
  // A schema, as a child formula, that some value satisfies: surely, or maybe.
  struct Source {
    Formula schema;
    bool is_certain;
    bool operator<(const Source& other) const {
      return std::pair(schema, is_certain) < std::pair(other.schema, other.is_certain);
    }
    bool operator==(const Source& other) const { return schema == other.schema && is_certain == other.is_certain; }
  };
  class KeyOrders;
  static constexpr uint32_t kNoName = UINT32_MAX;
  static constexpr uint32_t kNoEnd = UINT32_MAX;  // of items
  static constexpr int kMaxReferences = 64;       // one after another, where their targets are looked into
  static constexpr int kManyReferences = 8;       // after which loops are looked for

  // The child formula of a schema that is reached in the present context. A schema that
  // only refers to another has the formula of its target.
  Formula child(const Value& schema, int num_references = kMaxReferences);
  Formula child_of_keywords(const Node& node, int num_references);
  // True if all other keywords of the schema are annotations, such as `title`.
  bool asks_nothing_beside(const Value& schema, std::string_view keyword) const;
  // The context inside of a schema that is reached in the present one.
  Context entered(const Value& schema) {
    FormatReading formats = document_.may_differ_in_formats(schema) ? context_.formats : FormatReading::kBoth;
    return {document_.entered(context_.scope, schema), context_.ignores_dependencies, formats};
  }
  bool has_narrower_text(Formula texts);
  // The number of an earlier schema whose normalized text is the same, or a new number.
  uint32_t shared_number_of(const Node& node);
  Formula constant(const Value& value);
  Formula all_of(const std::vector<Formula>& operands) { return formulas_.conjunction(operands); }
  Formula any_of(const std::vector<Formula>& operands) { return formulas_.disjunction(operands); }
  Formula both(Formula a, Formula b) { return formulas_.conjunction({a, b}); }
  Formula either(Formula a, Formula b) { return formulas_.disjunction({a, b}); }
  Formula no(Formula formula) { return formulas_.negation(formula); }

  bool is_impossible_array(const Value& schema) const;
  // The formula ask() in one reading of formats.
  template <typename Ask>
  Formula in_reading(FormatReading formats, Ask ask);
  // The formula ask(type) of a keyword under which the schemas `failing` may have to fail,
  // in both readings of `format`, joined. If no value of any type satisfies it with formats
  // as annotations, only the asserted reading counts.
  template <typename Ask>
  Formula in_both_readings(const std::vector<const Value*>& failing, Type type, Ask ask);
  // True if no value of the type satisfies a schema, which is kNever at this place, in one
  // of the readings alone.
  bool fails_in_each_reading(const Value& schema, Type type);
  // True if a schema refers to itself for the same value, whatever the value is.
  bool always_refers_to_itself(const Value& schema);
  Formula expand_schema(const Value& schema, Type type);
  // Throws SchemaError if a keyword that maps names, such as `properties`, is not an
  // object.
  void check_names(const Value& schema) const;
  Formula expand_constant(const Value& value, Type type);
  Formula expand_enum(const Value& values, Type type);
  Formula expand_listed(uint32_t set, uint32_t which, Type type);
  bool is_spellable(const Value& value) const;
  Formula expand_types(const Value& types, int draft, Type type);
  void add_applicators(const Value& schema, Type type, std::vector<Formula>& all);
  Formula exactly_one(const Value& schemas, Type type);
  // The formula `object` for objects without the key `name`.
  Formula without_name(Formula object, uint32_t name);
  // The values that a schema lists, as texts. Nothing if it does not, or if arrays or
  // objects are among them.
  std::optional<std::vector<std::string>> listed_values(const Value& schema, int num_references);
  bool has_unique_compounds();  // arrays or objects as items that must differ
  void add_number(const Value& schema, std::vector<Formula>& all);
  void add_string(const Value& schema, std::vector<Formula>& all);
  void add_array(const Value& schema, std::vector<Formula>& all);
  void add_object(const Value& schema, std::vector<Formula>& all);

  Formula canonical_number();  // every number has one such text
  Formula some_multiples(const Decimal& step);
  Formula number_bound(const Value& bound, bool is_lower, bool is_exclusive);
  Formula numbers_equal(const Value& value);
  Formula integers(int draft);
  Formula without_zero_fraction();
  Formula for_items(uint32_t begin, uint32_t end, Formula child);
  Formula min_items(uint32_t count) { return count == 0 ? kAlways : formulas_.atom(Op::kMinItems, count); }
  Formula min_keys(uint32_t count) { return count == 0 ? kAlways : formulas_.atom(Op::kMinKeys, count); }
  Formula required(uint32_t name) { return formulas_.atom(Op::kRequired, name); }
  Formula for_name(uint32_t name, Formula child) {
    return child == kAlways ? kAlways : formulas_.atom(Op::kForName, name, child);
  }
  // The formula that `child` holds for the values of all described keys. Few such keys get
  // an atom each, by name.
  Formula for_keys(Formula keys, Formula child);
  void bound_keys(Formula keys, std::vector<Formula>& all);
  Formula other_keys(const Value& schema);  // than those of properties and patternProperties
  Formula keys_named(const std::vector<uint32_t>& names);
  Formula unevaluated_keys(const Value& schema);
  Formula unevaluated_items(const Value& schema);
  // The formula that the values of all other keys satisfy a child.
  Formula for_other_keys(const std::vector<EvaluatedKeys>& evaluated, Formula value);
  // `is_top`: the keywords unevaluatedProperties and unevaluatedItems of the schema itself
  // do not count.
  void collect_evaluated(const Value& schema, Type type, Formula condition, bool is_top, int depth, Evaluated& found);
  void collect_own_keys(const Value& schema, Formula condition, bool is_top, Evaluated& found);
  void collect_own_items(const Value& schema, Formula condition, bool is_top, Evaluated& found);

  // The child formula that closes the objects of values for which the schemas hold.
  Formula closed(std::vector<Source> schemas);
  // False if a schema says nothing about keys, not even inside of arrays and objects.
  bool may_name_keys(const Value& schema);
  Formula expand_closed(uint32_t number, Type type);
  // What `items`, `prefixItems` and `additionalItems` of a schema ask of its items.
  std::vector<Items> own_items(const Value& schema);
  Evaluated evaluated_by(const std::vector<Source>& schemas, Type type);
  Formula expand_closed_object(const std::vector<Source>& schemas);
  Formula expand_closed_array(const std::vector<Source>& schemas);

  uint32_t number_of_name(const std::string& name);
  Formula keys_matching(const std::string& pattern, const Value& schema, const std::string& pointer);
  const Value* reference_target(const Value& schema, std::string_view keyword);
  uint32_t count_of(const Value& count, const Value& schema, std::string_view keyword);
  bool is_lone_reference(const Value& schema) const;
  [[noreturn]] void refuse(const Value& schema, std::string_view keyword, const std::string& cause) const;
  // Calls compile(), and adds the JSON pointer of the keyword to the errors that it throws.
  template <typename Compile>
  auto at(const Value& schema, std::string_view keyword, Compile compile);

  Document document_;
  const SchemaOptions options_;
  engine::Budget budget_;
  Formulas formulas_;
  Texts texts_;
  Context context_;  // of the schema that is being expanded
  std::vector<Node> schemas_;
  std::unordered_map<Node, Formula, NodeHash> children_;  // of the schemas that were reached
  std::vector<const Value*> constants_;
  std::unordered_map<const Value*, uint32_t> constant_numbers_;
  std::unordered_map<std::string, uint32_t> schemas_by_text_;
  std::unordered_map<uint64_t, Formula> expanded_;
  std::vector<std::pair<Formula, Type>> being_expanded_;
  std::optional<std::string> endless_reference_;
  bool has_two_readings_ = false;
  std::vector<Formula> unique_items_;        // child formulas of items that must differ
  std::vector<std::vector<Source>> closed_;  // the lists of Op::kClosed
  std::map<std::vector<Source>, uint32_t> closed_numbers_;
  std::vector<Name> names_;
  std::unordered_map<std::string, uint32_t> name_numbers_;
  std::unordered_map<Formula, std::vector<uint32_t>> names_in_;
  std::unordered_map<Formula, std::vector<uint32_t>> names_outside_;  // names that formulas on keys exclude
  std::unordered_map<uint64_t, bool> describes_;
  std::vector<std::string> annotations_;
  Constants listed_;
  std::unordered_map<Formula, Formula> without_among_;
  std::unordered_map<Formula, std::pair<const Value*, std::string>>
      narrower_texts_;  // schemas and keywords, by their languages
};

template <typename Ask>
Formula Schema::in_reading(FormatReading formats, Ask ask) {
  InContext within(*this, {context_.scope, context_.ignores_dependencies, formats});
  return ask();
}

template <typename Ask>
Formula Schema::in_both_readings(const std::vector<const Value*>& failing, Type type, Ask ask) {
  auto may_differ = [this](const Value* schema) { return document_.may_differ_in_formats(*schema); };
  bool are_one = context_.formats != FormatReading::kBoth || std::none_of(failing.begin(), failing.end(), may_differ);
  if (are_one) return ask(type);
  auto read = [&](FormatReading formats, Type of) { return in_reading(formats, [&] { return ask(of); }); };
  Formula asserted = read(FormatReading::kAsserted, type);
  auto is_possible = [&](Type of) { return read(FormatReading::kAnnotation, of) != kNever; };
  if (std::none_of(std::begin(kAllTypes), std::end(kAllTypes), is_possible)) return asserted;
  Formula as_annotation = read(FormatReading::kAnnotation, type);
  has_two_readings_ = has_two_readings_ || as_annotation != asserted;
  return both(asserted, as_annotation);
}

template <typename Compile>
auto Schema::at(const Value& schema, std::string_view keyword, Compile compile) {
  try {
    return compile();
  } catch (const engine::PatternError& error) {
    throw SchemaError(error.is_malformed ? ErrorKind::kMalformed : ErrorKind::kUnsupported, error.what(),
                      document_.pointer_to(schema) + "/" + std::string(keyword));
  } catch (engine::LimitError& error) {
    if (error.pointer.empty()) error.pointer = document_.pointer_to(schema) + "/" + std::string(keyword);
    throw;
  }
}

}  // namespace structout::json
