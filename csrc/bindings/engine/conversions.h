// Tokens, states and rows as Python code gives them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "automata/automaton.h"

namespace structout::engine {

namespace py = pybind11;

// A token id as Python code may give it. Whatever is no integer is no token.
int64_t token_of(py::handle given);

std::vector<int64_t> tokens_of(const py::sequence& given);

// Appends the tokens of any iterable. Returns false for what is none.
bool append_tokens(py::handle given, std::vector<int64_t>& tokens);

inline int64_t state_or_minus_one(uint32_t state) { return state == kDead ? -1 : int64_t(state); }

template <typename States>
uint32_t checked_state(States& of, int64_t state) {
  if (state < 0 || state >= of.num_states()) {
    throw py::index_error("a state must be in [0, " + std::to_string(of.num_states()) + "), got " +
                          std::to_string(state));
  }
  return uint32_t(state);
}

}  // namespace structout::engine
