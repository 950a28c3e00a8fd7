// Vocabularies, and automata over their tokens.
#include "token_masks/token_index.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bindings/engine/conversions.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

namespace {

py::array_t<int32_t> mask_of(const TokenIndex& index, int64_t state) {
  py::array_t<int32_t> row(ptrdiff_t(index.vocabulary().row_words()));
  uint32_t checked = checked_state(index, state);
  uint32_t* words = reinterpret_cast<uint32_t*>(row.mutable_data());
  run(!index.has_mask(checked), [&] { return index.fill(checked, words); });
  return row;
}

py::tuple token_classes_of(const TokenIndex& index, uint64_t max_bytes) {
  TokenClasses classes = run(true, [&] { return index.token_classes(max_bytes); });
  py::array_t<int32_t> class_of_token(ptrdiff_t(classes.class_of_token.size()), classes.class_of_token.data());
  py::array_t<int32_t> next({ptrdiff_t(index.num_states()), ptrdiff_t(classes.num_classes)}, classes.next.data());
  return py::make_tuple(class_of_token, next);
}

// Three tables: the state after each byte [num_states, 256], the accepting states, and
// the live states.
py::tuple byte_tables_of(const TokenIndex& index) {
  ptrdiff_t num_states = index.num_states();
  py::array_t<int32_t> transitions({num_states, ptrdiff_t(256)});
  py::array_t<bool> is_accepting(num_states), is_live(num_states);
  std::fill_n(transitions.mutable_data(), num_states * 256, -1);
  for (uint32_t state = 0; state < index.num_states(); ++state) {
    int32_t* row = transitions.mutable_data(state);
    const Automaton& automaton = index.automaton();
    for (const Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      std::fill(row + edge->first, row + edge->last + 1, int32_t(edge->target));
    }
    is_accepting.mutable_at(state) = index.accepts(state);
    is_live.mutable_at(state) = index.is_live(state);
  }
  return py::make_tuple(transitions, is_accepting, is_live);
}

}  // namespace

void define_token_index(py::module_& module) {
  py::class_<VocabularyTrie, std::shared_ptr<VocabularyTrie>>(module, "VocabularyTrie")
      .def(py::init([](const std::vector<std::string>& token_bytes) {
        return run(true, [&] { return std::make_shared<VocabularyTrie>(token_bytes); });
      }))
      .def_property_readonly("size", &VocabularyTrie::size)
      .def_property_readonly("has_all_bytes", &VocabularyTrie::has_all_bytes)
      .def_property_readonly("num_nodes", [](const VocabularyTrie& self) { return self.nodes().size(); })
      .def_property_readonly("fingerprint", &VocabularyTrie::fingerprint)
      .def_property_readonly("memory_bytes", &VocabularyTrie::memory_bytes);

  py::class_<TokenIndex, std::shared_ptr<TokenIndex>>(module, "TokenIndex")
      .def(py::init([](const Automaton& automaton, const std::shared_ptr<VocabularyTrie>& vocabulary) {
        return run(true, [&] { return std::make_shared<TokenIndex>(automaton, vocabulary); });
      }))
      .def_property_readonly("automaton", &TokenIndex::automaton, py::return_value_policy::reference_internal)
      .def_property_readonly("num_states", &TokenIndex::num_states)
      .def_property_readonly("num_masks", &TokenIndex::num_masks)
      .def_property_readonly("vocabulary_fingerprint",
                             [](const TokenIndex& self) { return self.vocabulary().fingerprint(); })
      .def_property_readonly("memory_bytes", &TokenIndex::memory_bytes)
      .def("accepts", [](const TokenIndex& self, int64_t state) { return self.accepts(checked_state(self, state)); })
      .def("is_live", [](const TokenIndex& self, int64_t state) { return self.is_live(checked_state(self, state)); })
      .def("next",
           [](const TokenIndex& self, int64_t state, py::handle token) {
             return state_or_minus_one(self.next(checked_state(self, state), token_of(token)));
           })
      .def("mask", mask_of)
      .def("mask_slot",
           [](const TokenIndex& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             return state_or_minus_one(run(!self.has_mask(checked), [&] { return self.mask_slot(checked); }));
           })
      .def("forced",
           [](const TokenIndex& self, int64_t state) { return py::bytes(self.forced(checked_state(self, state))); })
      .def("compute_masks", &TokenIndex::compute_masks, py::call_guard<py::gil_scoped_release>())
      .def("token_classes", token_classes_of)
      .def("byte_tables", byte_tables_of)
      .def("serialize", [](const TokenIndex& self) { return py::bytes(self.serialize()); })
      .def_static("deserialize", [](const py::bytes& given, const std::shared_ptr<VocabularyTrie>& vocabulary) {
        std::string bytes = given;
        return run(true, [&] { return TokenIndex::deserialize(bytes, vocabulary); });
      });
}

}  // namespace structout::engine
