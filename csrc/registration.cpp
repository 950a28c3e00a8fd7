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

  // Of a process group, by its name; "" is a rank alone. They are written in Python, over the group
  // (structout/sharding.py).
  ops.def("all_gather_bitmask(Tensor shard, str group_name) -> Tensor");
  ops.def(
      "sharded_masked_sample(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_start, str group_name) -> Tensor");
  ops.def(
      "sharded_masked_sample_logprobs(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, "
      "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_start, str group_name) "
      "-> (Tensor, Tensor)");

  // What sharded_masked_sample does on one rank. Its shard holds token ids from vocab_start on; masks begin at token 0.
  // Outcomes are int32 [4, N] (csrc/outcome.h); of several ranks [ranks, 3 or 4, N], of which one makes the row's own.
  ops.def(
      "_sample_shard(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor seed, "
      "Tensor position, int vocab_start) -> Tensor");
  ops.def("_merge_outcomes(Tensor outcomes, Tensor temperature) -> (Tensor ids, Tensor merged)");
  // int64 [N]: the mass of the shard's allowed tokens, and from those of all ranks, [ranks, N], the logprobs.
  ops.def(
      "_shard_mass(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor seed, "
      "Tensor position, int vocab_start, Tensor merged) -> Tensor");
  ops.def("_merge_masses(Tensor masses, Tensor merged, Tensor temperature) -> Tensor");
  // The allowed logits of the rows, in one line; and back, to where they were.
  ops.def("_pack_allowed(Tensor logits_shard, Tensor? bitmask, Tensor? rows, int vocab_start) -> Tensor");
  ops.def(
      "_unpack_allowed(Tensor(a!) logits_shard, Tensor packed, Tensor? bitmask, Tensor? rows, int vocab_start) -> ()");

  // The refusals alone, for the backends written in Python.
  ops.def("_check_apply_bitmask(Tensor logits, Tensor bitmask, Tensor? rows=None) -> ()");
  ops.def(
      "_check_masked_sample(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position) -> ()");
  ops.def(
      "_check_sharded_masked_sample(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, "
      "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_start) -> ()");

  // The vector instructions that the CPU kernels use.
  ops.def("_cpu_capability() -> str");
}
