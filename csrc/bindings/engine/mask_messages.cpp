// Masks of a step as messages among ranks.
#include "masks/mask_messages.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

namespace {

// A message of this size takes about as long to read as it may take to get Python's global
// lock back.
constexpr size_t kLongMessage = 32 << 10;  // words

py::array_t<uint32_t> message(MaskSender& sender, MaskBuffer& masks, size_t num_rows) {
  if (num_rows > masks.num_rows()) throw std::invalid_argument("the buffer has too few rows");
  const std::vector<uint32_t> words = sender.message(masks, num_rows);
  return py::array_t<uint32_t>(ptrdiff_t(words.size()), words.data());
}

void write(MaskReceiver& receiver, const py::array_t<uint32_t, py::array::c_style>& message, MaskBuffer& masks,
           size_t first_row) {
  const uint32_t* words = message.data();
  const size_t size = size_t(message.size());
  run(size > kLongMessage, [&] { receiver.write(words, size, masks, first_row); });
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
