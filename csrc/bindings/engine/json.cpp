#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine/matchers.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"
#include "json/token_masks/compiled_schema.h"
#include "json/token_masks/schema_matcher.h"

namespace structout::engine {

namespace {

std::shared_ptr<json::CompiledSchema> compile(const py::bytes& given, const json::SchemaOptions& options,
                                              const json::TextForm& form, const Limits& limits,
                                              std::shared_ptr<const VocabularyTrie> vocabulary, size_t max_growth) {
  std::string schema = given;
  return run(true, [&] {
    json::SchemaOptions with_bytes = options;
    for (int byte = 0; byte < 256; ++byte) with_bytes.allowed_bytes[size_t(byte)] = vocabulary->has_byte(uint8_t(byte));
    return std::make_shared<json::CompiledSchema>(std::move(schema), std::move(with_bytes), form, limits,
                                                  std::move(vocabulary), max_growth);
  });
}

}  // namespace

void define_json(py::module_& module) {
  py::class_<json::Format>(module, "Format")
      .def(py::init([](const std::vector<std::string>& expressions, uint32_t max_length, bool is_narrower) {
             return json::Format{expressions, max_length, is_narrower};
           }),
           py::arg("expressions"), py::arg("max_length"), py::arg("is_narrower"));

  py::class_<json::Formats, std::shared_ptr<json::Formats>>(module, "Formats")
      .def(py::init([](std::map<std::string, json::Format> by_name) { return json::Formats{std::move(by_name)}; }),
           py::arg("by_name"));

  py::class_<json::SchemaOptions>(module, "SchemaOptions")
      .def(py::init<>())
      .def_property("formats", nullptr,
                    [](json::SchemaOptions& self, std::shared_ptr<json::Formats> formats) { self.formats = formats; })
      .def_readwrite("refused_formats", &json::SchemaOptions::refused_formats)
      .def_readwrite("documents", &json::SchemaOptions::documents)
      .def_readwrite("closes_objects", &json::SchemaOptions::closes_objects);

  py::enum_<json::WhitespaceRule>(module, "WhitespaceRule")
      .value("INDENTED", json::WhitespaceRule::kIndented)
      .value("COMPACT", json::WhitespaceRule::kCompact)
      .value("ANY", json::WhitespaceRule::kAny);

  py::class_<json::TextForm>(module, "TextForm")
      .def(py::init<>())
      .def("set_whitespace",
           [](json::TextForm& self, json::WhitespaceRule rule, std::optional<uint32_t> max_length) {
             self.whitespace.rule = rule;
             self.whitespace.max_length = max_length;
           })
      .def("set_whitespace_pattern",
           [](json::TextForm& self, const std::string& pattern, const Limits& limits) {
             self.whitespace.pattern = run(true, [&] { return json::whitespace_of_pattern(pattern, limits); });
           })
      .def_property(
          "declared_key_order",
          [](const json::TextForm& self) { return self.key_order == json::KeyOrderRule::kDeclared; },
          [](json::TextForm& self, bool is_declared) {
            self.key_order = is_declared ? json::KeyOrderRule::kDeclared : json::KeyOrderRule::kAny;
          });

  py::class_<json::CompiledSchema, std::shared_ptr<json::CompiledSchema>>(module, "CompiledSchema")
      .def(py::init(&compile), py::arg("schema"), py::arg("options"), py::arg("form"), py::arg("limits"),
           py::arg("vocabulary"), py::arg("max_growth") = json::CompiledSchema::kMaxGrowth)
      .def_property_readonly(
          "num_states",
          [](json::CompiledSchema& self) { return run_short_first([&] { return self.cache()->num_states(); }); })
      .def_property_readonly("num_masks", [](json::CompiledSchema& self) { return self.cache()->num_masks(); })
      .def_property_readonly("memory_bytes", &json::CompiledSchema::memory_bytes)
      .def_property_readonly(
          "work", [](json::CompiledSchema& self) { return run_short_first([&] { return self.cache()->work(); }); })
      .def_property_readonly("annotations", &json::CompiledSchema::annotations)
      .def("closed", [](json::CompiledSchema& self,
                        const Limits& limits) { return run(true, [&] { return self.cache()->closed(limits); }); })
      .def("strings",
           [](json::CompiledSchema& self, uint32_t max_copied, const Limits& limits) {
             auto found = run(true, [&] { return self.cache()->strings(max_copied, limits); });
             if (!found) return py::object(py::none());
             bool has_maximum = found->max_length != json::Texts::kNoMaximum;
             py::object maximum = has_maximum ? py::object(py::int_(found->max_length)) : py::object(py::none());
             return py::object(py::make_tuple(std::move(found->automaton), found->min_length, maximum));
           })
      .def("matches", [](json::CompiledSchema& self, const py::bytes& given) {
        std::string text = given;
        return run(true, [&] {
          std::shared_ptr<json::SchemaCache> cache = self.cache();
          json::CachedConfigurationPtr config = cache->after(*cache->start(), text);
          return config != nullptr && config->is_complete;
        });
      });

  define_matcher<json::SchemaMatcher>(module, "SchemaMatcher")
      .def(py::init([](const std::shared_ptr<json::CompiledSchema>& schema, const std::vector<uint32_t>& stop_tokens) {
        return run_short_first([&] { return std::make_unique<json::SchemaMatcher>(schema, stop_tokens); });
      }))
      .def_property_readonly("control_state", [](const json::SchemaMatcher& self) {
        return py::tuple(py::cast(run_short_first([&] { return self.control_state(); })));
      });
}

}  // namespace structout::engine
