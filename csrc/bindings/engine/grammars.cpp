// Grammars with recursion, and with a lexer.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/engine/matchers.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"
#include "grammar/rules/as_automaton.h"
#include "grammar/rules/captures.h"
#include "grammar/rules/network.h"
#include "grammar/token_masks/compiled_grammar.h"
#include "grammar/token_masks/grammar_matcher.h"

namespace structout::engine {

using context_free::Capture;
using context_free::CaptureParser;
using context_free::CompiledGrammar;
using context_free::GrammarCache;
using context_free::GrammarMatcher;
using context_free::Network;
using context_free::NetworkOptions;

namespace {

// `ignored`: parts that may stand between terminals. Without a list symbols are bytes.
NetworkOptions options_of(const std::optional<std::vector<uint32_t>>& ignored, bool ignores_once) {
  NetworkOptions options;
  options.has_lexer = ignored.has_value();
  options.ignores_once = ignores_once;
  if (ignored) options.ignored = *ignored;
  return options;
}

std::shared_ptr<Network> build(const Rules& rules, uint32_t root, const std::optional<std::vector<uint32_t>>& ignored,
                               const Limits& limits, const std::shared_ptr<const VocabularyTrie>& vocabulary,
                               bool ignores_once) {
  NetworkOptions options = options_of(ignored, ignores_once);
  for (int byte = 0; byte < 256 && vocabulary != nullptr; ++byte) {
    options.allowed_bytes[size_t(byte)] = vocabulary->has_byte(uint8_t(byte));
  }
  return run(true, [&] { return std::make_shared<Network>(rules, root, options, limits); });
}

}  // namespace

void define_grammars(py::module_& module) {
  py::class_<Network, std::shared_ptr<Network>>(module, "Network")
      .def(py::init(&build), py::arg("rules"), py::arg("root"), py::arg("ignored"), py::arg("limits"),
           py::arg("vocabulary") = nullptr, py::arg("ignores_once") = false)
      .def_property_readonly("is_empty", &Network::is_empty)
      .def_property_readonly("matches_empty", &Network::matches_empty)
      .def_property_readonly("is_recursive", &Network::is_recursive)
      .def_property_readonly("num_rules", &Network::num_rules)
      .def_property_readonly("num_states", &Network::num_states)
      .def("as_automaton", [](const Network& self, const Limits& limits) {
        return run(true, [&] { return context_free::as_automaton(self, limits); });
      });

  py::class_<CaptureParser>(module, "CaptureParser")
      .def(py::init([](const Rules& rules, uint32_t root, const std::optional<std::vector<uint32_t>>& ignored,
                       bool ignores_once, const std::vector<uint32_t>& captured, const Limits& limits) {
             return run(true, [&] {
               return std::make_unique<CaptureParser>(rules, root, options_of(ignored, ignores_once), captured, limits);
             });
           }),
           py::arg("rules"), py::arg("root"), py::arg("ignored"), py::arg("ignores_once"), py::arg("captured"),
           py::arg("limits"))
      .def("captures", [](const CaptureParser& self, const std::vector<std::pair<uint32_t, py::bytes>>& tokens) {
        std::vector<context_free::TokenText> text;
        for (const auto& [id, bytes] : tokens) text.push_back({id, bytes});
        std::optional<std::vector<Capture>> found = run(true, [&] { return self.captures(text); });
        std::optional<std::vector<std::tuple<uint32_t, size_t, size_t>>> spans;
        if (!found) return spans;
        spans.emplace();
        for (const Capture& each : *found) spans->emplace_back(each.rule, each.begin, each.end);
        return spans;
      });

  py::class_<CompiledGrammar, std::shared_ptr<CompiledGrammar>>(module, "CompiledGrammar")
      .def(py::init([](std::shared_ptr<Network> network, const Limits& limits,
                       std::shared_ptr<const VocabularyTrie> vocabulary, size_t max_growth) {
             return run(true, [&] {
               return std::make_shared<CompiledGrammar>(std::move(network), limits, std::move(vocabulary), max_growth);
             });
           }),
           py::arg("network"), py::arg("limits"), py::arg("vocabulary"),
           py::arg("max_growth") = CompiledGrammar::kMaxGrowth)
      .def_property_readonly("is_empty",
                             [](CompiledGrammar& self) { return run(true, [&] { return self.is_empty(); }); })
      .def_property_readonly("num_states", [](CompiledGrammar& self) { return self.cache()->num_states(); })
      .def_property_readonly("num_masks", [](CompiledGrammar& self) { return self.parts().masks.num_masks(); })
      .def_property_readonly("num_partial_masks",
                             [](CompiledGrammar& self) { return self.parts().masks.num_partial_masks(); })
      .def_property_readonly("num_trie_steps",
                             [](CompiledGrammar& self) { return self.parts().masks.num_trie_steps(); })
      .def_property_readonly("work", [](CompiledGrammar& self) { return self.parts().budget.total(); })
      .def_property_readonly("memory_bytes", &CompiledGrammar::memory_bytes)
      .def("matches", [](CompiledGrammar& self, const py::bytes& given) {
        std::string text = given;
        return run(true, [&] {
          std::shared_ptr<GrammarCache> cache = self.cache();
          const uint8_t* begin = reinterpret_cast<const uint8_t*>(text.data());
          context_free::TextConfiguration config = cache->start();
          for (size_t i = 0; i < text.size() && !config.is_dead(); ++i) {
            config = cache->after(config, begin + i, begin + i + 1);
          }
          return !config.is_dead() && cache->may_end(config);
        });
      });

  define_matcher<GrammarMatcher>(module, "GrammarMatcher")
      .def(py::init([](const std::shared_ptr<CompiledGrammar>& grammar, const std::vector<uint32_t>& stop_tokens) {
        return run_short_first([&] { return std::make_unique<GrammarMatcher>(grammar, stop_tokens); });
      }))
      .def_property_readonly("state",
                             [](const GrammarMatcher& self) { return run(true, [&] { return self.config_number(); }); })
      .def_property_readonly("stack_tops",
                             [](const GrammarMatcher& self) {
                               std::vector<std::pair<int64_t, uint32_t>> tops;  // -1: the end of the text
                               for (const context_free::StackTop& top : self.tops()) {
                                 bool is_end = top.state == context_free::kEndOfText;
                                 tops.emplace_back(is_end ? -1 : int64_t(top.state), top.below);
                               }
                               return tops;
                             })
      .def("shortest_end",
           [](const GrammarMatcher& self) -> py::object {
             std::optional<std::string> bytes = run(true, [&] { return self.shortest_end(); });
             return bytes ? py::object(py::bytes(*bytes)) : py::none();
           })
      .def("walked_row", [](const GrammarMatcher& self) { return run(true, [&] { return self.walked_row(); }); });
}

}  // namespace structout::engine
