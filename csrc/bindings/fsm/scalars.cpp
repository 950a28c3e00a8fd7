#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/fsm/module.h"
#include "bindings/fsm/run.h"
#include "fsm/compile.h"
#include "fsm/decimal.h"
#include "fsm/number.h"

namespace structout::fsm {

void define_scalars(py::module_& module) {
  module.def("compile_string_content", [](const py::bytes& given, const Limits& limits) {
    std::string pattern = given;
    return run(true, [&] { return compile_string_content(pattern, limits); });
  });
  module.def("any_string_content", any_string_content);
  module.def("spelled_canonically", [](const py::bytes& utf8) { return py::bytes(spelled_canonically(utf8)); });
  module.def("exact_string_contents",
             [](const std::vector<py::bytes>& given) { return exact_string_contents({given.begin(), given.end()}); });

  py::class_<Decimal>(module, "Decimal")
      .def(py::init<const std::string&>())
      .def_property_readonly("text", &Decimal::text)
      .def_property_readonly("is_zero", &Decimal::is_zero)
      .def_property_readonly("is_integer", &Decimal::is_integer)
      .def("__lt__", &Decimal::operator<, py::is_operator())
      .def("__eq__", &Decimal::operator==, py::is_operator());
  module.def("any_number", any_number);
  module.def("integers", integers);
  module.def("without_zero_fraction", without_zero_fraction);
  py::enum_<NumberForm::Exponents>(module, "Exponents")
      .value("none", NumberForm::Exponents::kNone)
      .value("of_doubles", NumberForm::Exponents::kOfDoubles)
      .value("all", NumberForm::Exponents::kAll);
  module.def("numbers_of", [](uint32_t num_digits, uint32_t num_zeros, NumberForm::Exponents exponents) {
    Budget budget{Limits()};
    return numbers_of({num_digits, num_zeros, exponents}, budget);
  });
  module.def("numbers_from", numbers_from);
  module.def("numbers_to", numbers_to);
  module.def("numbers_equal", numbers_equal);
  module.def("multiples_of", [](const Decimal& step, const Limits& limits) {
    return run(true, [&] {
      Budget budget(limits);
      return multiples_of(step, budget);
    });
  });
}

}  // namespace structout::fsm
