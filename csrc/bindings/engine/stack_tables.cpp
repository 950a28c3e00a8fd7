// Stack tables, and the texts that the engine follows beside them.
#include "step/stack_tables.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/engine/module.h"
#include "bindings/engine/run.h"
#include "context_free/stack_grammar.h"
#include "json/schema_index.h"
#include "json/stack_schema.h"
#include "step/stack_index.h"

namespace structout::engine {

namespace {

using Row = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

template <typename Value>
py::array_t<Value> array_of(const std::vector<Value>& values, std::vector<ptrdiff_t> shape) {
  return py::array_t<Value>(std::move(shape), values.data());
}

// The frames that fit into a row.
int64_t depth_of(const Row& row) {
  if (row.ndim() != 1 || row.size() < kFramesColumn || (row.size() - kFramesColumn) % kFrameColumns != 0) {
    throw py::value_error("a row of stacks must have " + std::to_string(kFramesColumn) + " columns and " +
                          std::to_string(kFrameColumns) + " for each frame, got " + std::to_string(row.size()));
  }
  return (row.size() - kFramesColumn) / kFrameColumns;
}

Row new_row(int64_t max_depth) {
  if (max_depth < 0) throw py::value_error("max_depth must be at least 0, got " + std::to_string(max_depth));
  return Row(ptrdiff_t(kFramesColumn + max_depth * kFrameColumns));
}

py::tuple arrays_of(const StackTableBuilder& self) {
  StackTables tables = self.tables();
  return py::make_tuple(array_of(self.states(), {tables.num_states, kStateFields}),
                        array_of(self.class_maps(), {tables.num_class_maps, 256}),
                        array_of(self.cells(), {tables.num_cells}),
                        array_of(self.keys(), {tables.num_keys, kKeyColumns}),
                        array_of(self.stop_tokens(), {tables.num_languages, tables.max_stop_tokens}));
}

py::array_t<int32_t> masks_of(const StackTableBuilder& self, size_t first) {
  if (first > self.num_masks()) throw py::index_error("there are fewer masks");
  const uint32_t* masks = self.masks().data() + first * self.row_words();
  return py::array_t<int32_t>({ptrdiff_t(self.num_masks() - first), ptrdiff_t(self.row_words())},
                              reinterpret_cast<const int32_t*>(masks));
}

}  // namespace

void define_stack_tables(py::module_& module) {
  py::class_<StackLanguage, std::shared_ptr<StackLanguage>>(module, "StackLanguage")
      .def(py::init([](const std::shared_ptr<json::SchemaIndex>& index) -> std::shared_ptr<StackLanguage> {
        return run(true, [&] { return std::make_shared<json::StackSchema>(index->states()); });
      }))
      .def(py::init([](const std::shared_ptr<TokenIndex>& index) -> std::shared_ptr<StackLanguage> {
        return std::make_shared<StackIndex>(index);
      }))
      .def(py::init([](const std::shared_ptr<context_free::GrammarIndex>& index) -> std::shared_ptr<StackLanguage> {
        return run(true, [&] { return std::make_shared<context_free::StackGrammar>(index); });
      }));

  py::class_<StackLanguage::Text>(module, "StackText")
      .def("copy", &StackLanguage::Text::copy)
      .def("read",
           [](StackLanguage::Text& self, uint32_t token) { return run(true, [&] { return self.read(token); }); })
      .def("is_complete", &StackLanguage::Text::is_complete);

  py::class_<StackTableBuilder>(module, "StackTables")
      .def(py::init([](std::shared_ptr<VocabularyTrie> vocabulary, size_t max_mask_bytes) {
             return std::make_unique<StackTableBuilder>(std::move(vocabulary), max_mask_bytes);
           }),
           py::arg("vocabulary"), py::arg("max_mask_bytes"))
      .def("add", &StackTableBuilder::add, py::call_guard<py::gil_scoped_release>())
      .def("build", &StackTableBuilder::build, py::arg("language"), py::arg("max_states"), py::arg("seconds"),
           py::call_guard<py::gil_scoped_release>())
      .def("start",
           [](StackTableBuilder& self, uint32_t language, int64_t max_depth) {
             Row row = new_row(max_depth);
             self.start(language, row.mutable_data(), max_depth);
             return row;
           })
      .def("complete",
           [](StackTableBuilder& self, const Row& row, int64_t token) {
             int64_t max_depth = depth_of(row);
             const int32_t* values = row.data();
             return run(true, [&] { return self.complete(values, max_depth, token); });
           })
      .def("keep_mask",
           [](StackTableBuilder& self, const Row& row) {
             int64_t max_depth = depth_of(row);
             const int32_t* values = row.data();
             return run(true, [&] { return self.keep_mask(values, max_depth); });
           })
      .def("slot",
           [](StackTableBuilder& self, const Row& row) {
             int64_t max_depth = depth_of(row);
             const int32_t* values = row.data();
             return run(true, [&] { return self.slot_of_place(values, max_depth); });
           })
      .def("text", &StackTableBuilder::text)
      .def("place",
           [](StackTableBuilder& self, uint32_t language, StackLanguage::Text& text, int64_t max_depth) {
             Row row = new_row(max_depth);
             self.write_place(language, text, row.mutable_data(), max_depth);
             return row;
           })
      .def("mask",
           [](StackTableBuilder& self, uint32_t language, StackLanguage::Text& text) {
             py::array_t<int32_t> row(ptrdiff_t(self.row_words()));
             auto* words = reinterpret_cast<uint32_t*>(row.mutable_data());
             run(true, [&] { self.fill(language, text, words); });
             return row;
           })
      .def("arrays", &arrays_of)
      .def("masks", &masks_of, py::arg("first") = 0)
      .def_property_readonly("num_states", &StackTableBuilder::num_states)
      .def_property_readonly("num_masks", &StackTableBuilder::num_masks)
      .def_property_readonly("num_keys", &StackTableBuilder::num_keys)
      .def_property_readonly("table_bytes", &StackTableBuilder::table_bytes);
}

}  // namespace structout::engine
