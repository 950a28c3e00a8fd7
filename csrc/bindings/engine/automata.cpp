// Bindings of automata over bytes and of the functions that compile them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "automata/compile.h"
#include "automata/regex.h"
#include "base/hash.h"
#include "bindings/engine/conversions.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

void define_automata(py::module_& module) {
  py::class_<Limits>(module, "Limits")
      .def(py::init<>())
      .def_readwrite("nesting", &Limits::nesting)
      .def_readwrite("nodes", &Limits::nodes)
      .def_readwrite("states", &Limits::states)
      .def_readwrite("schema_states", &Limits::schema_states)
      .def_readwrite("seconds", &Limits::seconds);

  py::class_<Automaton>(module, "Automaton")
      .def_property_readonly("num_states", &Automaton::num_states)
      .def_property_readonly("num_edges", &Automaton::num_edges)
      .def_property_readonly("memory_bytes", &Automaton::memory_bytes)
      .def("accepts", [](const Automaton& self, int64_t state) { return self.accepts(checked_state(self, state)); })
      .def("next", [](const Automaton& self, int64_t state,
                      uint8_t byte) { return state_or_minus_one(self.next(checked_state(self, state), byte)); })
      .def("edges",
           [](const Automaton& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             py::list edges;
             for (const Edge* edge = self.begin(checked); edge < self.end(checked); ++edge) {
               edges.append(py::make_tuple(edge->first, edge->last, edge->target));
             }
             return edges;
           })
      .def("matches", [](const Automaton& self, const py::bytes& text) { return self.matches(text); })
      .def("serialize", [](const Automaton& self) { return py::bytes(self.serialize()); })
      .def_static("deserialize",
                  [](const py::bytes& given) {
                    std::string bytes = given;
                    return run(true, [&] { return Automaton::deserialize(bytes); });
                  })
      .def("__eq__", &Automaton::operator==, py::is_operator())
      .def("__hash__", [](const Automaton& self) {
        std::string bytes = self.serialize();
        return hash_bytes(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()) >> 1;  // of a signed type
      });

  auto define_operation = [&module](const char* name,
                                    Automaton (*operation)(const Automaton&, const Automaton&, Budget&)) {
    module.def(name, [operation](const Automaton& a, const Automaton& b, const Limits& limits) {
      return run(true, [&] {
        Budget budget(limits);
        return operation(a, b, budget);
      });
    });
  };
  define_operation("intersection", intersection);
  define_operation("union", union_of);
  define_operation("difference", difference);
  module.def("complement", [](const Automaton& a, const Limits& limits) {
    return run(true, [&] {
      Budget budget(limits);
      return complement(a, budget);
    });
  });
  module.def("compile_regex", [](const py::bytes& given, const Limits& limits) {
    std::string pattern = given;
    return run(true, [&] { return compile_regex(pattern, limits); });
  });
  module.def("check_regex", [](const py::bytes& regex, const Limits& limits) {
    Pattern pattern;
    parse_regex(regex, limits, pattern);
  });
  module.def("compile_json_string", [](const std::vector<py::bytes>& given, uint32_t min_length,
                                       std::optional<uint32_t> max_length, const Limits& limits) {
    std::vector<std::string> patterns(given.begin(), given.end());
    return run(true,
               [&] { return compile_json_string(patterns, min_length, max_length.value_or(kUnbounded), limits); });
  });
  module.def("compile_choices", [](std::vector<std::string> texts) {
    return run(true, [&] { return compile_choices(std::move(texts)); });
  });
}

}  // namespace structout::engine
