#include "bindings/engine/matchers.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine/conversions.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"
#include "language/index_matcher.h"

namespace structout::engine {

namespace {

std::vector<PyTypeObject*> matcher_types;  // a few, that live as long as the process

}  // namespace

void add_matcher_type(py::handle type) { matcher_types.push_back(reinterpret_cast<PyTypeObject*>(type.ptr())); }

bool is_matcher(PyObject* object) {
  return std::find(matcher_types.begin(), matcher_types.end(), Py_TYPE(object)) != matcher_types.end();
}

Matcher& matcher_of(PyObject* object) {
  if (!is_matcher(object)) {
    throw py::type_error("expected a Matcher, got a " + std::string(Py_TYPE(object)->tp_name));
  }
  void* value = reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder().value_ptr();
  if (value == nullptr) throw py::type_error("the Matcher was not initialised");
  return *static_cast<Matcher*>(value);
}

void define_matchers(py::module_& module) {
  py::class_<Matcher>(module, "Matcher")
      .def("copy", [](const Matcher& self) { return self.copy().release(); })
      .def_property_readonly("is_terminated", &Matcher::is_terminated)
      .def_property_readonly("is_reasoning", &Matcher::is_reasoning)
      .def_property_readonly("is_unconstrained", &Matcher::is_unconstrained)
      .def_property_readonly("num_tokens", &Matcher::num_tokens)
      .def("begin_after", &Matcher::begin_after)
      .def_property_readonly("error", &Matcher::error)
      .def(
          "end_within",
          [](Matcher& self, uint64_t max_tokens, bool is_fair) {
            run_short_first([&] { return self.end_within(max_tokens, is_fair), 0; });
          },
          py::arg("max_tokens"), py::arg("is_fair") = true)
      .def_property_readonly("was_narrowed", &Matcher::was_narrowed)
      .def_property_readonly("num_needed",
                             [](const Matcher& self) -> std::optional<uint32_t> {
                               uint32_t needed = run_short_first([&] { return self.num_needed(); });
                               return needed == kUnknownCost ? std::nullopt : std::optional(needed);
                             })
      .def("accept",
           [](Matcher& self, const py::sequence& given) {
             std::vector<int64_t> tokens = tokens_of(given);
             return run_short_first([&] { return self.accept(tokens.data(), tokens.size()); });
           })
      .def("num_allowed",
           [](Matcher& self, const py::sequence& given) {
             std::vector<int64_t> tokens = tokens_of(given);
             return run_short_first([&] { return self.num_allowed(tokens.data(), tokens.size()); });
           })
      .def("allows_any", [](const Matcher& self) { return run_short_first([&] { return self.allows_any(); }); })
      .def("recent_tokens", &Matcher::recent_tokens)
      .def("rollback",
           [](Matcher& self, int64_t count) {
             if (count < 0 || uint64_t(count) > self.num_tokens()) {
               throw std::invalid_argument("cannot roll back " + std::to_string(count) + " of " +
                                           std::to_string(self.num_tokens()) + " tokens");
             }
             self.rollback(size_t(count));
           })
      .def("accept_bytes",
           [](Matcher& self, const py::bytes& given) {
             std::string bytes = given;
             return run_short_first([&] { return self.accept_bytes(bytes); });
           })
      .def("undo_bytes", &Matcher::undo_bytes)
      .def("forced", [](const Matcher& self) { return py::bytes(run_short_first([&] { return self.forced(); })); });

  define_matcher<IndexMatcher>(module, "IndexMatcher")
      .def(py::init<std::shared_ptr<TokenIndex>, std::vector<uint32_t>>())
      .def_property_readonly("state", &IndexMatcher::current_state);
}

}  // namespace structout::engine
