// The parts of structout._fsm. Each function defines the types and functions of one part,
// which may need those of the parts before it.
#pragma once

#include <pybind11/pybind11.h>

namespace structout::engine {

namespace py = pybind11;

void define_automata(py::module_& module);
void define_scalars(py::module_& module);
void define_rules(py::module_& module);
void define_token_index(py::module_& module);
void define_matchers(py::module_& module);
void define_external_matcher(py::module_& module);
void define_step(py::module_& module);
void define_json(py::module_& module);
void define_grammars(py::module_& module);
void define_apply_bitmask(py::module_& module);

}  // namespace structout::engine
