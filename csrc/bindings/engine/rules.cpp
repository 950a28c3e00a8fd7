// Grammars of rules.
#include "automata/rules.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "automata/free_text.h"
#include "automata/raw_strings.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"
#include "grammar/token_masks/bounded_texts.h"
#include "grammar/token_masks/embedded_grammar.h"
#include "json/token_masks/compiled_schema.h"

namespace structout::engine {

void define_rules(py::module_& module) {
  module.def("raw_strings", [](const Automaton& json_strings, const Limits& limits) {
    Budget budget(limits);
    return tags::raw_strings(json_strings, budget);
  });
  module.def("string_contents", [](const Automaton& values, const Limits& limits) {
    return run(true, [&] {
      Budget budget(limits);
      return tags::string_contents(values, budget);
    });
  });
  py::class_<context_free::BoundedAutomaton, std::shared_ptr<context_free::BoundedAutomaton>>(module,
                                                                                              "BoundedAutomaton")
      .def(py::init(
          [](const Automaton& automaton, std::shared_ptr<const VocabularyTrie> vocabulary, const Limits& limits) {
            return run(true, [&] {
              return std::make_shared<context_free::BoundedAutomaton>(automaton, std::move(vocabulary), limits);
            });
          }))
      .def("has_text", [](const context_free::BoundedAutomaton& self, uint32_t min, std::optional<uint32_t> max) {
        return self.is_live({0, min, max.value_or(context_free::BoundedPosition::kNoBound)});
      });
  py::class_<Rules>(module, "Rules")
      .def(py::init<>())
      .def_static("in_json_string", &Rules::in_json_string)
      .def("add_text", [](Rules& self, const py::bytes& text) { return self.add_text(text); })
      .def("add_characters",
           [](Rules& self, const std::vector<std::pair<uint32_t, uint32_t>>& ranges, bool is_negated) {
             CodePointSet set;
             for (auto [first, last] : ranges) {
               if (first > last || last > kLastCodePoint) throw std::invalid_argument("no range of code points");
               set.add(first, last);
             }
             return self.add_characters(std::move(set), is_negated);
           })
      .def("add_regex",
           [](Rules& self, const py::bytes& regex, const Limits& limits) { return self.add_regex(regex, limits); })
      .def("add_automaton", &Rules::add_automaton)
      .def("add_free_text",
           [](Rules& self, const std::vector<std::string>& stops, const std::vector<std::string>& excluded,
              std::vector<uint32_t> exits, const std::vector<bool>& returns, const Limits& limits) {
             if (exits.size() < stops.size()) throw std::invalid_argument("a stop needs an exit");
             Budget budget(limits);
             Branching text = tags::free_text(stops, excluded, uint32_t(exits.size() - stops.size()), budget);
             text.returns.assign(returns.begin(), returns.end());
             return self.add_branching(std::move(text), std::move(exits));
           })
      .def("add_sequence", &Rules::add_sequence)
      .def("add_alternatives", &Rules::add_alternatives)
      .def("add_repetition",
           [](Rules& self, uint32_t part, uint32_t min, std::optional<uint32_t> max) {
             return self.add_repetition(part, min, max.value_or(kUnbounded));
           })
      .def("add_intersection", &Rules::add_intersection)
      .def("add_complement", &Rules::add_complement)
      .def(
          "add_terminal",
          [](Rules& self, uint32_t part, bool is_lazy, const py::bytes& stop, std::optional<uint32_t> max_tokens,
             bool ends_at_limit_only) {
            return self.add_terminal(part, {is_lazy, ends_at_limit_only, max_tokens.value_or(kUnbounded), stop});
          },
          py::arg("part"), py::arg("is_lazy") = false, py::arg("stop") = py::bytes(),
          py::arg("max_tokens") = py::none(), py::arg("ends_at_limit_only") = false)
      .def("add_json",
           [](Rules& self, std::shared_ptr<json::CompiledSchema> schema) {
             return self.add_embedded(std::move(schema));
           })
      .def("add_bounded",
           [](Rules& self, std::shared_ptr<context_free::BoundedAutomaton> automaton, uint32_t min,
              std::optional<uint32_t> max) {
             uint32_t most = max.value_or(context_free::BoundedPosition::kNoBound);
             return self.add_embedded(std::make_shared<context_free::BoundedTexts>(std::move(automaton), min, most));
           })
      .def("add_grammar",
           [](Rules& self, std::shared_ptr<context_free::CompiledGrammar> grammar) {
             return run(true, [&] {
               return self.add_embedded(std::make_shared<context_free::EmbeddedGrammar>(std::move(grammar)));
             });
           })
      .def("add_tokens", &Rules::add_tokens)
      .def("add_rule", &Rules::add_rule)
      .def("define", &Rules::define)
      .def("set_priority", &Rules::set_priority)
      .def("check_recursion", &Rules::check_recursion)
      .def("compile", &Rules::compile, py::call_guard<py::gil_scoped_release>());
}

}  // namespace structout::engine
