// The schemas of all ops of torch.ops.structout. Loading this library registers them.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(structout, ops) {
  ops.def("apply_bitmask(Tensor(a!) logits, Tensor bitmask, Tensor? rows=None) -> ()");

  ops.def(
      "masked_sample(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, Tensor? top_p, "
      "Tensor? min_p, Tensor seed, Tensor position) -> Tensor");
  ops.def(
      "masked_sample_logprobs(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position) -> (Tensor, Tensor)");

  // The logprobs and ranks of given tokens, and the top_n likeliest tokens of each row.
  ops.def(
      "token_logprobs(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor? temperature, Tensor token_ids, int top_n) "
      "-> (Tensor logprobs, Tensor ranks, Tensor top_ids, Tensor top_logprobs)");
  // masked_sample, and token_logprobs of what it draws. raw: without mask and
  // temperature.
  ops.def(
      "masked_sample_topn(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int top_n, bool raw) "
      "-> (Tensor ids, Tensor logprobs, Tensor ranks, Tensor top_ids, Tensor top_logprobs)");

  // Draws for each draft and for the token after the last: request i owns rows
  // row_indptr[i] to row_indptr[i + 1], one more than it has drafts.
  ops.def(
      "verify_drafts(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, Tensor? top_p, "
      "Tensor? min_p, Tensor seed, Tensor position, Tensor drafts, Tensor row_indptr) -> (Tensor, Tensor)");

  // The part of verify_drafts after the draw, for ids [T] that were drawn by shards.
  ops.def("_accept_drafts(Tensor(a!) ids, Tensor drafts, Tensor row_indptr) -> Tensor");

  // Lists of tokens for each row (CSR): row i lists entries indptr[i] to
  // indptr[i + 1]. Only the listed logits are touched.
  ops.def(
      "apply_penalties(Tensor(a!) logits, Tensor indptr, Tensor token_ids, Tensor output_counts, "
      "Tensor repetition, Tensor frequency, Tensor presence) -> ()");
  ops.def("apply_logit_bias(Tensor(a!) logits, Tensor indptr, Tensor token_ids, Tensor bias) -> ()");

  // Automata of grammars, whose states are numbers (common/fsm_states.h). Advances states
  // [N] by one token each.
  ops.def(
      "fsm_advance(Tensor(a!) states, Tensor tokens, Tensor transitions, Tensor state_flags, Tensor stop_tokens, "
      "Tensor token_bytes, Tensor token_begin) -> ()");
  // The row of `masks` that holds each state's mask, for apply_bitmask and masked_sample.
  // The mask of states[i] that is in none of the first num_slots rows is computed, in row
  // num_slots + i; num_computed [1] counts these.
  ops.def(
      "fsm_rows(Tensor states, Tensor(a!) masks, Tensor(b!) num_computed, Tensor mask_slots, Tensor transitions, "
      "Tensor state_flags, Tensor stop_tokens, Tensor token_bytes, Tensor token_begin, int num_slots) -> Tensor");
  // The state before each draft and after the last, for the rows of verify_drafts.
  ops.def(
      "fsm_draft_states(Tensor states, Tensor drafts, Tensor row_indptr, Tensor transitions, Tensor state_flags, "
      "Tensor stop_tokens, Tensor token_bytes, Tensor token_begin) -> Tensor");

  // Ops over a process group, which is named; "" stands for a single rank. They are
  // implemented in Python (structout/distributed/registration.py), because the stable
  // ABI cannot reach a process group.
  ops.def("all_gather_bitmask(Tensor shard, str group_name) -> Tensor");
  ops.def(
      "sharded_masked_sample(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_begin, str group_name) -> Tensor");
  ops.def(
      "sharded_masked_sample_logprobs(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, "
      "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_begin, str group_name) "
      "-> (Tensor, Tensor)");
  ops.def(
      "sharded_masked_sample_topn(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, "
      "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position, int vocab_begin, int top_n, "
      "bool raw, str group_name) -> (Tensor ids, Tensor logprobs, Tensor ranks, Tensor top_ids, Tensor top_logprobs)");
  ops.def(
      "sharded_token_logprobs(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor? temperature, "
      "Tensor token_ids, int vocab_begin, int top_n, str group_name) "
      "-> (Tensor logprobs, Tensor ranks, Tensor top_ids, Tensor top_logprobs)");

  // The parts of sharded_masked_sample that run on one rank. The shard's first column
  // is token vocab_begin; masks begin at token 0. A rank's shard result is int32 [4, N]
  // (common/shard_result.h). Those of all ranks, [ranks, 3 or 4, N], are merged into
  // `merged` [4, N].
  ops.def(
      "_sample_shard(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor seed, "
      "Tensor position, int vocab_begin) -> Tensor");
  ops.def("_merge_shard_results(Tensor shard_results, Tensor temperature) -> (Tensor ids, Tensor merged)");

  // The steps of token_logprobs, on one rank's shard (common/token_logprobs.h). `highest`
  // and `token_logits` are float32 [N], of the whole rows. The totals of a rank are int64
  // [2, N]; those of all ranks are merged.
  ops.def(
      "_top_tokens(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor? temperature, Tensor token_ids, "
      "int vocab_begin, int num_top) -> (Tensor top_ids, Tensor top_logits, Tensor token_logits)");
  ops.def(
      "_row_totals(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor? temperature, Tensor highest, "
      "Tensor token_logits, int vocab_begin) -> Tensor");
  ops.def(
      "_merge_totals(Tensor totals, Tensor? temperature, Tensor highest, Tensor token_logits, Tensor top_logits) "
      "-> (Tensor logprobs, Tensor ranks, Tensor top_logprobs)");

  // The push collectives (common/push.h). `buffers` and `multicast` are the addresses
  // that torch's symmetric memory calls buffer_ptrs_dev and multicast_ptr (0: none).
  // `state` is int64 [6] and private to the rank. Buffers and states must be all zero
  // before any rank's first call. All ranks must make the same calls in the same order,
  // each rank on one stream. `token` must be equal on all ranks that make the same
  // call. If a rank does not arrive within timeout_ns, or arrives with another token,
  // this call and all later ones end without hanging, and the last three entries of
  // state are error (1: timeout, 2: mismatch), peer and epoch.
  //
  // out = the shards of all ranks in rank order; after an error every byte is
  // fill_on_error.
  ops.def(
      "_push_all_gather(Tensor shard, Tensor(a!) out, Tensor(b!) state, int buffers, int multicast, int rank, "
      "int world_size, int gather_capacity, int token, int timeout_ns, int fill_on_error) -> ()");
  // Sends logits [N, width], whose first column is token vocab_begin, to the ranks that
  // own the rows: rank r owns rows from N * r / world_size on. A row lies in its
  // owner's buffer from rows_offset on, padded to 16 bytes, until the next push op of
  // the stream. Elements of disallowed tokens are undefined. rows_out [rows owned] =
  // the mask row of each owned row; after an error -2, which allows nothing.
  ops.def(
      "_push_rows(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor(a!) rows_out, Tensor(b!) state, int buffers, "
      "int rank, int world_size, int gather_capacity, int token, int timeout_ns, int rows_capacity, int vocab_begin, "
      "int vocab_size) -> ()");
  ops.def("_push_buffer(int world_size, int gather_capacity, int rows_capacity) -> (int rows_offset, int size)");

  // The argument checks alone, for the backends written in Python.
  ops.def("_check_apply_bitmask(Tensor logits, Tensor bitmask, Tensor? rows=None) -> ()");
  ops.def(
      "_check_apply_penalties(Tensor logits, Tensor indptr, Tensor token_ids, Tensor output_counts, "
      "Tensor repetition, Tensor frequency, Tensor presence) -> ()");
  ops.def("_check_apply_logit_bias(Tensor logits, Tensor indptr, Tensor token_ids, Tensor bias) -> ()");
  ops.def(
      "_check_fsm_advance(Tensor states, Tensor tokens, Tensor transitions, Tensor state_flags, Tensor stop_tokens, "
      "Tensor token_bytes, Tensor token_begin) -> ()");
  ops.def(
      "_check_fsm_rows(Tensor states, Tensor masks, Tensor num_computed, Tensor mask_slots, Tensor transitions, "
      "Tensor state_flags, Tensor stop_tokens, Tensor token_bytes, Tensor token_begin, int num_slots) -> ()");
  ops.def(
      "_check_fsm_draft_states(Tensor states, Tensor drafts, Tensor row_indptr, Tensor transitions, "
      "Tensor state_flags, Tensor stop_tokens, Tensor token_bytes, Tensor token_begin) -> ()");
  ops.def(
      "_check_masked_sample(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor temperature, Tensor? top_k, "
      "Tensor? top_p, Tensor? min_p, Tensor seed, Tensor position) -> ()");
  ops.def(
      "_check_token_logprobs(Tensor logits, Tensor? bitmask, Tensor? rows, Tensor? temperature, Tensor token_ids, "
      "int top_n) -> ()");
  ops.def(
      "_check_sharded_token_logprobs(Tensor logits_shard, Tensor? bitmask, Tensor? rows, Tensor? temperature, "
      "Tensor token_ids, int vocab_begin, int top_n) -> ()");
  ops.def("_check_verify_drafts(Tensor ids_or_logits, Tensor drafts, Tensor row_indptr) -> ()");
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

  // The vector instructions that the CPU kernels use: "default", "avx2" or "avx512".
  ops.def("_cpu_capability() -> str");
  // What decides the shape of a launch on a CUDA device (cuda/masked_sample.h).
  ops.def(
      "_cuda_device_facts(int device) -> (int num_sms, int compute_capability, int shared_bytes, int clusters_of_2, "
      "int clusters_of_4, int clusters_of_8)");
}
