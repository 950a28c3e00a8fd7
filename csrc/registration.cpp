// Every op of torch.ops.structout: the schemas in one place. Loading this library is what registers them.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(structout, ops) {
  ops.def("apply_bitmask(Tensor(a!) logits, Tensor bitmask, Tensor? rows=None) -> ()");

  // The refusals of apply_bitmask alone, for the backends written in Python.
  ops.def("_check_apply_bitmask(Tensor logits, Tensor bitmask, Tensor? rows=None) -> ()");

  // The vector instructions that the CPU kernels use.
  ops.def("_cpu_capability() -> str");
}
