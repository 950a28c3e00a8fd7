// What compiles a text alone, without a vocabulary: thousands of inputs in the time that one
// takes with texts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "automata/compile.h"
#include "draws.h"
#include "json/formulas/schema.h"
#include "schema.h"
#include "texts.h"

namespace structout::fuzz {

inline engine::Limits smallest_limits() {
  engine::Limits limits = small_limits();
  limits.states = 100;
  limits.nodes = 1'000;
  limits.set_entries = 5'000;
  limits.conditions = 1'000;
  limits.schema_states = 500;
  return limits;
}

inline void fuzz_schema_parser(const uint8_t* bytes, size_t size) {
  static const json::SchemaOptions options = schema_options();
  TextAndDraws input(bytes, size);
  compiles([&] { json::Schema(input.text, options, smallest_limits()).expand_all(); });
}

inline void fuzz_regex_parser(const uint8_t* bytes, size_t size) {
  TextAndDraws input(bytes, size);
  compiles([&] { engine::compile_regex(input.text, smallest_limits()); });
  compiles([&] { engine::compile_string_content(input.text, smallest_limits()); });
}

}  // namespace structout::fuzz
