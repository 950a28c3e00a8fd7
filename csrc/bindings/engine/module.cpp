// structout._fsm: the engine's automata and matchers for Python.
#include "bindings/engine/module.h"

#include <pybind11/pybind11.h>

#include <exception>

#include "base/limits.h"
#include "json/document/errors.h"

namespace py = pybind11;
using namespace structout;
using namespace structout::engine;

namespace {

template <typename Error>
void translate(const Error& error, py::handle type);

template <>
void translate(const LimitError& error, py::handle type) {
  PyErr_SetObject(type.ptr(), py::make_tuple(error.limit, error.got, error.max, error.pointer).ptr());
}

template <>
void translate(const PatternError& error, py::handle type) {
  PyErr_SetObject(type.ptr(), py::make_tuple(error.what(), error.is_malformed).ptr());
}

template <>
void translate(const json::SchemaError& error, py::handle type) {
  static constexpr const char* kKinds[] = {"malformed", "unsupported", "impossible"};
  PyErr_SetObject(type.ptr(), py::make_tuple(error.what(), kKinds[int(error.kind)], error.pointer).ptr());
}

void define_errors(py::module_& module) {
  static py::handle limit_error = PyErr_NewException("structout._fsm.LimitError", PyExc_ValueError, nullptr);
  static py::handle pattern_error = PyErr_NewException("structout._fsm.PatternError", PyExc_ValueError, nullptr);
  static py::handle schema_error = PyErr_NewException("structout._fsm.SchemaError", PyExc_ValueError, nullptr);
  module.attr("SchemaError") = schema_error;
  module.attr("LimitError") = limit_error;
  module.attr("PatternError") = pattern_error;
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const LimitError& error) {
      translate(error, limit_error);
    } catch (const PatternError& error) {
      translate(error, pattern_error);
    } catch (const json::SchemaError& error) {
      translate(error, schema_error);
    }
  });
}

}  // namespace

PYBIND11_MODULE(_fsm, module) {
  define_errors(module);
  define_automata(module);
  define_scalars(module);
  define_rules(module);
  define_token_index(module);
  define_matchers(module);
  define_external_matcher(module);
  define_step(module);
  define_json(module);
  define_grammars(module);
  define_apply_bitmask(module);
}
