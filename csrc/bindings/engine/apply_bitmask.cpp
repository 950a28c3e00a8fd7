// apply_bitmask on a numpy row, for engines that draw without torch.
#include "cpu/apply_bitmask.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>

#include "bindings/engine/module.h"

namespace structout::engine {

namespace {

template <typename Value>
void check_row(const char* name, const char* dtype, const py::array& row) {
  const bool is_aligned = (row.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
  if (row.ndim() == 1 && py::isinstance<py::array_t<Value>>(row) && is_aligned) return;
  throw py::value_error(py::str("apply_bitmask: {} must be an aligned {} array of one dimension, got {} {}")
                            .format(name, dtype, row.dtype(), row.attr("shape")));
}

// Writes -inf to every logit that the mask disallows, those past its last word included.
void apply_bitmask(py::array logits, const py::array& bitmask) {
  check_row<float>("logits", "float32", logits);
  check_row<int32_t>("bitmask", "int32", bitmask);
  if (!logits.writeable()) throw py::value_error("apply_bitmask: logits is written in place, but it is read-only");
  if (bitmask.strides(0) != ptrdiff_t(sizeof(int32_t)) && bitmask.size() > 1) {
    throw py::value_error("apply_bitmask: bitmask must be contiguous; copy it with numpy.ascontiguousarray");
  }
  const auto* words = static_cast<const uint32_t*>(bitmask.data());
  const ptrdiff_t stride = logits.strides(0), vocab_size = logits.size();
  if (stride == ptrdiff_t(sizeof(float)) && vocab_size > 0) {
    const Bitmask mask{words, 1, bitmask.size(), 0};
    const uint32_t neg_inf = 0xff800000u;
    const cpu::ApplyBitmaskTiles tiles({logits.mutable_data(), 1, vocab_size, 0, 4, neg_inf, mask, {}}, 1);
    for (int64_t tile = 0; tile < tiles.size(); ++tile) tiles.run(tile);
    return;
  }
  auto* bytes = static_cast<char*>(logits.mutable_data());
  for (ptrdiff_t token = 0; token < vocab_size; ++token) {
    const ptrdiff_t word = token / kBitsPerWord;
    const bool is_allowed = word < bitmask.size() && (words[word] >> token % kBitsPerWord & 1) != 0;
    if (!is_allowed) *reinterpret_cast<float*>(bytes + token * stride) = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void define_apply_bitmask(py::module_& module) {
  module.def("apply_bitmask", apply_bitmask, py::arg("logits").noconvert(), py::arg("bitmask").noconvert());
}

}  // namespace structout::engine
