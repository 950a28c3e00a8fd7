#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "automata/compile.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"
#include "json/document/decimal.h"
#include "json/scalars/number.h"

namespace structout::engine {

void define_scalars(py::module_& module) {
  module.def("compile_string_content", [](const py::bytes& given, const Limits& limits) {
    std::string pattern = given;
    return run(true, [&] { return compile_string_content(pattern, limits); });
  });
  module.def("any_string_content", [] { return any_string_content(Spelling::kJsonCanonical); });
  module.def("spelled_canonically", [](const py::bytes& utf8) { return py::bytes(spelled_canonically(utf8)); });
  module.def("exact_string_contents",
             [](const std::vector<py::bytes>& given) { return exact_string_contents({given.begin(), given.end()}); });

  py::class_<json::Decimal>(module, "Decimal")
      .def(py::init<const std::string&>())
      .def_property_readonly("text", &json::Decimal::text)
      .def_property_readonly("is_zero", &json::Decimal::is_zero)
      .def_property_readonly("is_integer", &json::Decimal::is_integer)
      .def("__lt__", &json::Decimal::operator<, py::is_operator())
      .def("__eq__", &json::Decimal::operator==, py::is_operator());
  module.def("any_number", json::any_number);
  module.def("integers", json::integers);
  module.def("without_zero_fraction", json::without_zero_fraction);
  py::enum_<json::NumberForm::Exponents>(module, "Exponents")
      .value("none", json::NumberForm::Exponents::kNone)
      .value("of_doubles", json::NumberForm::Exponents::kOfDoubles)
      .value("all", json::NumberForm::Exponents::kAll);
  module.def("numbers_of", [](uint32_t num_digits, uint32_t num_zeros, json::NumberForm::Exponents exponents) {
    Budget budget{Limits()};
    return json::numbers_of({num_digits, num_zeros, exponents}, budget);
  });
  module.def("numbers_from", json::numbers_from);
  module.def("numbers_to", json::numbers_to);
  module.def("numbers_equal", json::numbers_equal);
  module.def("multiples_of", [](const json::Decimal& step, const Limits& limits) {
    return run(true, [&] {
      Budget budget(limits);
      return json::multiples_of(step, budget);
    });
  });
}

}  // namespace structout::engine
