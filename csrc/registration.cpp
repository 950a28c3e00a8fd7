// Every op of torch.ops.structout: the schemas in one place. Loading this library is what registers them.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(structout, ops) {
  ops.def("apply_bitmask(Tensor(a!) logits, Tensor bitmask, Tensor? rows=None) -> ()");

  ops.def(
      "masked_sample(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, Tensor? top_p, "
      "Tensor? min_p, Tensor seed, Tensor position) -> Tensor");
  ops.def(
      "masked_sample_logprobs(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position) -> (Tensor, Tensor)");

  // The refusals alone, for the backends written in Python.
  ops.def("_check_apply_bitmask(Tensor logits, Tensor bitmask, Tensor? rows=None) -> ()");
  ops.def(
      "_check_masked_sample(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position) -> ()");

  // The vector instructions that the CPU kernels use.
  ops.def("_cpu_capability() -> str");
}
