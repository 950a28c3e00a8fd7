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
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_begin, str group_name) -> Tensor");
  ops.def(
      "sharded_masked_sample_logprobs(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, "
      "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_begin, str group_name) "
      "-> (Tensor, Tensor)");

  // What sharded_masked_sample does on one rank. Its shard holds token ids from vocab_begin on; masks begin at token 0.
  // Outcomes are int32 [4, N] (csrc/common/shard_result.h); of several ranks [ranks, 3 or 4, N], of which one makes the row's own.
  ops.def(
      "_sample_shard(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor seed, "
      "Tensor position, int vocab_begin) -> Tensor");
  ops.def("_merge_outcomes(Tensor outcomes, Tensor temperature) -> (Tensor ids, Tensor merged)");
  // int64 [N]: the mass of the shard's allowed tokens, and from those of all ranks, [ranks, N], the logprobs.
  ops.def(
      "_shard_mass(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor seed, "
      "Tensor position, int vocab_begin, Tensor merged) -> Tensor");
  ops.def("_merge_masses(Tensor masses, Tensor merged, Tensor temperature) -> Tensor");
  // The allowed logits of the rows, in one line, and how many there are; and back, to where they were.
  ops.def(
      "_pack_allowed(Tensor logits_shard, Tensor? bitmask, Tensor? rows, int vocab_begin, Tensor(a!) packed) -> int");
  ops.def(
      "_unpack_allowed(Tensor(a!) logits_shard, Tensor packed, Tensor? bitmask, Tensor? rows, int vocab_begin) -> ()");

  // The push collectives: docs in csrc/push.h. `buffers` and `multicast` are the addresses that torch's symmetric
  // memory calls buffer_ptrs_dev and multicast_ptr (0: none); `state` is int64 [6], of this rank alone. Buffers and
  // states are all zero before any rank's first call, and all ranks make the same calls in the same order, each on one
  // stream. `token` is equal on all ranks whose calls belong together. A rank that does not come within timeout_ns, or
  // comes with another token, ends this call and all later ones: nothing hangs, and state says {.., error (1: timeout,
  // 2: mismatch), peer, epoch} in its last three entries.
  //
  // out, of world_size shards = the shards of all ranks; after an error each byte is fill_on_error.
  ops.def(
      "_push_all_gather(Tensor shard, Tensor(a!) out, Tensor(b!) state, int buffers, int multicast, int rank, "
      "int world_size, int gather_capacity, int token, int timeout_ns, int fill_on_error) -> ()");
  // Logits of tokens vocab_begin and up, [N, width], to the ranks that own rows: rank r those from N * r / world_size
  // on. They lie in its buffer from rows_offset on, each padded to 16 bytes, until the next push op of the stream;
  // disallowed ones may be anything. rows_out [rows owned] = the mask row of each for its sampler; after an error -2,
  // which allows nothing.
  ops.def(
      "_push_rows(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor(a!) rows_out, Tensor(b!) state, int buffers, "
      "int rank, int world_size, int gather_capacity, int token, int timeout_ns, int rows_capacity, int vocab_begin, "
      "int vocab_size) -> ()");
  ops.def("_push_buffer(int world_size, int gather_capacity, int rows_capacity) -> (int rows_offset, int size)");

  // A word in memory that processes share: int64, told and waited for.
  ops.def("_post_word(Tensor(a!) word, int value) -> ()");
  ops.def("_await_word(Tensor word, int value, int timeout_us) -> bool");

  // The refusals alone, for the backends written in Python.
  ops.def("_check_apply_bitmask(Tensor logits, Tensor bitmask, Tensor? rows=None) -> ()");
  ops.def(
      "_check_masked_sample(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position) -> ()");
  ops.def(
      "_check_sharded_masked_sample(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, "
      "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_begin) -> ()");
  ops.def(
      "_check_push_all_gather(Tensor shard, Tensor out, Tensor state, int buffers, int multicast, int rank, "
      "int world_size, int gather_capacity, int token, int timeout_ns, int fill_on_error) -> ()");
  ops.def(
      "_check_push_rows(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor rows_out, Tensor state, int buffers, "
      "int rank, int world_size, int gather_capacity, int token, int timeout_ns, int rows_capacity, int vocab_begin, "
      "int vocab_size) -> ()");

  // The vector instructions that the CPU kernels use.
  ops.def("_cpu_capability() -> str");
}
