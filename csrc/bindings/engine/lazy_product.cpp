// Products of automata, computed as far as a search needs them.
#include "regular/lazy_product.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "bindings/engine/conversions.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

void define_lazy_product(py::module_& module) {
  py::class_<LazyProduct, std::shared_ptr<LazyProduct>>(module, "LazyProduct")
      .def(py::init([](const std::vector<std::variant<py::bytes, Automaton>>& given, const Limits& limits) {
        std::vector<LazyProduct::Component> components;
        for (const auto& component : given) {
          if (const py::bytes* regex = std::get_if<py::bytes>(&component)) {
            components.emplace_back(std::string(*regex));
          } else {
            components.emplace_back(std::get<Automaton>(component));
          }
        }
        return run(true, [&] { return std::make_shared<LazyProduct>(components, limits); });
      }))
      .def_property_readonly("num_states", &LazyProduct::num_states)
      .def_property_readonly("is_busy", &LazyProduct::is_busy)
      .def("next",
           [](LazyProduct& self, int64_t state, uint8_t byte) {
             uint32_t checked = checked_state(self, state);
             return state_or_minus_one(run(self.is_busy(), [&] { return self.next(checked, byte); }));
           })
      .def("verdict",
           [](LazyProduct& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             return run(self.is_busy(), [&] { return self.verdict(checked); });
           })
      .def("live",
           [](LazyProduct& self, int64_t state) {
             uint32_t checked = checked_state(self, state);
             return run(self.is_busy(), [&] { return self.live(checked); });
           })
      .def("find",
           [](LazyProduct& self, int64_t state, const Condition& condition,
              uint64_t max_states) -> std::optional<py::bytes> {
             uint32_t checked = checked_state(self, state);
             auto text = run(true, [&] { return self.find(checked, condition, max_states); });
             if (!text) return std::nullopt;
             return py::bytes(*text);
           });
}

}  // namespace structout::engine
