// The push collectives of tensor parallelism: the structs that cross from the torch bindings to the CUDA kernels, and
// the layout of the memory that they share.
#pragma once

#include "common/bitmask.h"

namespace structout {

constexpr int64_t kMaxRanks = 32;       // one lane of a warp waits for each
constexpr int64_t kMaxPushBlocks = 32;  // few enough to be resident together on any GPU
constexpr int64_t kVectorBytes = 16;

STRUCTOUT_HOST_DEVICE int64_t vectors_for(int64_t bytes) { return (bytes + kVectorBytes - 1) / kVectorBytes; }
STRUCTOUT_HOST_DEVICE int64_t whole_vectors(int64_t bytes) { return vectors_for(bytes) * kVectorBytes; }

// A block's word to a peer: all that it pushes in this epoch is there. The token says what the sender took part in.
struct alignas(16) PushSignal {
  uint64_t token;
  uint64_t epoch;
};

enum class PushError : int64_t { kNone, kTimeout, kMismatch };

// What a rank keeps to itself, in ordinary memory of its device. All zero before the first call.
struct PushState {
  uint64_t epoch;       // of the last call
  uint64_t rows_epoch;  // of the last push_rows
  uint64_t blocks_done;
  uint64_t error;  // a PushError: the first one, which every later call ends on
  uint64_t error_peer;
  uint64_t error_epoch;
};

// Of the symmetric buffer, one on every rank, all zero before the first call of any rank:
//
//   PushSignal [2][world_size][kMaxPushBlocks]       of even and of odd epochs, from each rank, of each block
//   bytes      [2][world_size][gather_capacity]      what push_all_gather moves, in even and in odd epochs
//   bytes      [rows_capacity]                       what push_rows moves
//
// capacities rounded up to whole vectors.
struct PushLayout {
  int64_t world_size;
  int64_t gather_capacity;

  STRUCTOUT_HOST_DEVICE int64_t signal(uint64_t epoch, int64_t source, int64_t block) const {
    const int64_t half = static_cast<int64_t>(epoch % 2);
    return ((half * world_size + source) * kMaxPushBlocks + block) * static_cast<int64_t>(sizeof(PushSignal));
  }
  STRUCTOUT_HOST_DEVICE int64_t gathered(uint64_t epoch, int64_t source) const {
    const int64_t half = static_cast<int64_t>(epoch % 2);
    return signal(0, 2 * world_size, 0) + (half * world_size + source) * whole_vectors(gather_capacity);
  }
  STRUCTOUT_HOST_DEVICE int64_t rows() const { return gathered(0, 2 * world_size); }
  STRUCTOUT_HOST_DEVICE int64_t size(int64_t rows_capacity) const { return rows() + whole_vectors(rows_capacity); }
};

struct PushGroup {
  const uint64_t* buffers;  // [world_size] in device memory: where each rank's buffer is mapped here
  char* multicast;          // where all ranks' buffers are mapped at once; null: nowhere
  PushState* state;
  int32_t rank;
  PushLayout layout;
  uint64_t token;  // equal on all ranks that take part in the same call
  int64_t timeout_ns;
};

// out = the shards of all ranks, in their order; or, after an error, fill_on_error in every byte.
struct PushAllGatherParams {
  PushGroup group;
  const char* shard;  // [bytes]
  int64_t bytes;      // equal on all ranks
  char* out;          // [world_size * bytes]
  uint32_t fill_on_error;
};

// Of num_rows rows, rank r owns first_row_of(r) to first_row_of(r + 1).
STRUCTOUT_HOST_DEVICE int64_t first_row_of(int64_t rank, int64_t world_size, int64_t num_rows) {
  return num_rows * rank / world_size;
}
STRUCTOUT_HOST_DEVICE int64_t owner_of(int64_t row, int64_t world_size, int64_t num_rows) {
  return ((row + 1) * world_size - 1) / num_rows;
}

constexpr int64_t kNoRow = -2;  // a row id that no bitmask has: what it governs allows nothing

// Every allowed logit of every row, to the buffer of the row's owner: there lie, after this, the owner's rows, each of
// whole_vectors(vocab_size * element_bytes) bytes. Places of disallowed logits hold anything.
//
// rows_out: for each owned row, the mask row that governs it; or, after an error, kNoRow, so that a sampler that is
// given rows_out draws nothing.
struct PushRowsParams {
  PushGroup group;
  const char* logits;  // [num_rows, width], of tokens vocab_begin to vocab_begin + width
  int64_t num_rows;
  int64_t width;
  int64_t row_stride;  // in elements
  int64_t vocab_begin;
  int64_t vocab_size;     // of all ranks
  int32_t element_bytes;  // 4 or 2
  bool has_mask;          // without one, every row is free
  Bitmask bitmask;        // of all ranks' vocabulary
  StridedIntegers rows;
  int64_t* rows_out;  // [rows owned]
};

}  // namespace structout
