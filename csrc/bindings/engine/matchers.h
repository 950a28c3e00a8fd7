// The matchers of all kinds of grammars.
#pragma once

#include <pybind11/pybind11.h>

#include <type_traits>

#include "language/matcher.h"

namespace structout::engine {

// Makes `type` known to matcher_of. Its instances must hold a Matcher as their first base.
void add_matcher_type(pybind11::handle type);

// Defines the Python type of a kind of matchers. Python code may not derive from it.
template <typename Kind>
pybind11::class_<Kind, Matcher> define_matcher(pybind11::module_& module, const char* name) {
  static_assert(std::is_base_of_v<Matcher, Kind> && std::is_final_v<Kind>);
  pybind11::class_<Kind, Matcher> type(module, name, pybind11::is_final());
  add_matcher_type(type);
  return type;
}

bool is_matcher(PyObject* object);

// The matcher of a Python object. A batch converts thousands of them, so it does without
// pybind11's search for the type.
Matcher& matcher_of(PyObject* object);

}  // namespace structout::engine
