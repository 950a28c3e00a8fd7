// Masks of a step as messages among ranks.
#include "masks/mask_messages.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

namespace {

// Messages of this size, and rows of so many bytes, may take as long as it may take to get
// Python's global lock back.
constexpr size_t kLongMessage = 32 << 10;  // words
constexpr size_t kLongRows = 8 << 20;

py::array_t<uint32_t> message(MaskSender& sender, MaskBuffer& masks, size_t num_rows) {
  if (num_rows > masks.num_rows()) throw std::invalid_argument("the buffer has too few rows");
  auto words = std::make_unique<std::vector<uint32_t>>();
  run(num_rows * masks.row_bytes() > kLongRows, [&] { *words = sender.message(masks, num_rows); });
  std::vector<uint32_t>* kept = words.get();
  py::capsule owner(words.release(), [](void* pointer) { delete static_cast<std::vector<uint32_t>*>(pointer); });
  return py::array_t<uint32_t>({kept->size()}, {sizeof(uint32_t)}, kept->data(), owner);
}

void write(MaskReceiver& receiver, const py::array_t<uint32_t, py::array::c_style>& message, MaskBuffer& masks,
           size_t first_row) {
  const uint32_t* words = message.data();
  const size_t size = size_t(message.size());
  const bool is_long = size > kLongMessage || masks.num_rows() * masks.row_bytes() > kLongRows;
  run(is_long, [&] { receiver.write(words, size, masks, first_row); });
}

}  // namespace

void define_mask_messages(py::module_& module) {
  py::register_exception<MissedMasks>(module, "MissedMasks", PyExc_RuntimeError);
  py::class_<MaskSender>(module, "MaskSender")
      .def(py::init<>())
      .def("message", message, py::arg("masks"), py::arg("num_rows"))
      .def("restart", &MaskSender::restart);
  py::class_<MaskReceiver>(module, "MaskReceiver")
      .def(py::init<>())
      .def("write", write, py::arg("message"), py::arg("masks"), py::arg("first_row"));
}

}  // namespace structout::engine
