// JSON Schema: documents, texts that follow the masks, and schemas that are regular.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "draws.h"
#include "json/token_masks/compiled_schema.h"
#include "json/token_masks/schema_matcher.h"
#include "language/index_matcher.h"
#include "texts.h"
#include "token_masks/token_index.h"

namespace structout::fuzz {

inline json::SchemaOptions schema_options() {
  json::SchemaOptions options;
  options.formats = std::make_shared<json::Formats>(
      json::Formats{{{"date", {{"^[0-9]{4}-(0[1-9]|1[0-2])$"}, 10, false}}, {"short", {{"^.{0,2}$", "a"}, 0, true}}}});
  options.refused_formats = {"uri-template"};
  options.documents = {{"http://a/b", R"({"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})"},
                       {"http://a/c", R"({"$id": "http://a/d/", "$anchor": "x", "type": "string"})"}};
  return options;
}

inline json::TextForm text_form(Draws& draws) {
  json::TextForm form;
  size_t choice = draws.below(16);
  if ((choice & 1) != 0) form.key_order = json::KeyOrderRule::kDeclared;
  form.whitespace.rule = std::array{json::WhitespaceRule::kIndented, json::WhitespaceRule::kCompact,
                                    json::WhitespaceRule::kAny}[(choice >> 1) % 3];
  if (draws.one_in(2)) form.whitespace.max_length = 2;
  if (choice == 8) form.whitespace.pattern = json::whitespace_of_pattern("( |\\n {2}){0,2}", small_limits());
  return form;
}

inline void fuzz_schema(const uint8_t* bytes, size_t size) {
  TextAndDraws input(bytes, size);
  Draws draws = input.draws();
  const engine::Limits limits = small_limits();
  const json::TextForm form = text_form(draws);
  size_t max_growth = draws.one_in(4) ? 1 : json::CompiledSchema::kMaxGrowth;
  compiles([&] {
    auto index =
        std::make_shared<json::CompiledSchema>(input.text, schema_options(), form, limits, vocabulary(), max_growth);
    json::SchemaMatcher matcher(index, {stop_token()});
    read_text(matcher, draws);
    if (!draws.one_in(4)) return;
    std::optional<engine::Automaton> automaton = index->cache()->closed(limits);
    if (!automaton) return;
    check(automaton->num_states() > 0, "a schema that compiles has a value");
    json::SchemaMatcher as_schema(index, {stop_token()});
    engine::IndexMatcher as_automaton(std::make_shared<engine::TokenIndex>(*automaton, vocabulary()), {stop_token()});
    read_alike(as_schema, as_automaton, draws);
  });
}

}  // namespace structout::fuzz
