#include "bindings/engine/conversions.h"

namespace structout::engine {

constexpr int64_t kNotAToken = -2;  // -1 has a meaning among drafts

int64_t token_of(py::handle given) {
  PyObject* object = given.ptr();
  if (PyBool_Check(object)) return kNotAToken;
  py::object index;
  if (!PyLong_CheckExact(object)) {
    index = py::reinterpret_steal<py::object>(PyNumber_Index(object));
    if (!index) {
      PyErr_Clear();
      return kNotAToken;
    }
    object = index.ptr();
  }
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow != 0 ? kNotAToken : value;
}

std::vector<int64_t> tokens_of(const py::sequence& given) {
  std::vector<int64_t> tokens;
  tokens.reserve(given.size());
  for (py::handle token : given) tokens.push_back(token_of(token));
  return tokens;
}

bool append_tokens(py::handle given, std::vector<int64_t>& tokens) {
  PyObject* sequence = PySequence_Fast(given.ptr(), "");
  if (sequence == nullptr) {
    PyErr_Clear();
    return false;
  }
  py::object owner = py::reinterpret_steal<py::object>(sequence);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    tokens.push_back(token_of(PySequence_Fast_GET_ITEM(sequence, i)));
  }
  return true;
}

}  // namespace structout::engine
