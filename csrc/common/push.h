// The push collectives of tensor parallelism: the structs that cross from the torch
// bindings to the CUDA kernels, and the layout of the memory that the ranks share.
#pragma once

#include "common/bitmask.h"

namespace structout {

constexpr int64_t kMaxRanks = 32;       // one lane of a warp waits for each peer
constexpr int64_t kMaxPushBlocks = 32;  // all must be resident at once, on any GPU
constexpr int64_t kVectorBytes = 16;

STRUCTOUT_HOST_DEVICE int64_t vectors_for(int64_t bytes) { return (bytes + kVectorBytes - 1) / kVectorBytes; }
STRUCTOUT_HOST_DEVICE int64_t whole_vectors(int64_t bytes) { return vectors_for(bytes) * kVectorBytes; }

// A block's message to a peer: its data of this epoch has arrived. The token identifies
// the call that the sender made.
struct alignas(16) PushSignal {
  uint64_t token;
  uint64_t epoch;
};

enum class PushError : int64_t { kNone, kTimeout, kMismatch };

// A rank's private state, in ordinary memory of its device. All zero before the first
// call.
struct PushState {
  uint64_t epoch;       // of the latest call
  uint64_t rows_epoch;  // of the latest push_rows
  uint64_t blocks_done;
  uint64_t error;  // the first PushError; every later call ends at once with it
  uint64_t error_peer;
  uint64_t error_epoch;
};

// The layout of the symmetric buffer. Every rank has one, all zero before any rank's
// first call:
//
//   PushSignal [2][world_size][kMaxPushBlocks]   from each block of each rank
//   bytes      [2][world_size][gather_capacity]  data of push_all_gather
//   bytes      [rows_capacity]                   data of push_rows
//
// [2]: even and odd epochs take turns. Capacities are rounded up to whole vectors.
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
  const uint64_t* buffers;  // [world_size] in device memory: the local address of each rank's buffer
  char* multicast;          // the address of all ranks' buffers at once; null: no multicast
  PushState* state;
  int32_t rank;
  PushLayout layout;
  uint64_t token;  // equal on all ranks that make the same call
  int64_t timeout_ns;
};

// out = the shards of all ranks in rank order, or fill_on_error in every byte after an
// error.
struct PushAllGatherParams {
  PushGroup group;
  const char* shard;  // [bytes]
  int64_t bytes;      // equal on all ranks
  char* out;          // [world_size * bytes]
  uint32_t fill_on_error;
};

// Rank r owns rows first_row_of(r) to first_row_of(r + 1).
STRUCTOUT_HOST_DEVICE int64_t first_row_of(int64_t rank, int64_t world_size, int64_t num_rows) {
  return num_rows * rank / world_size;
}
STRUCTOUT_HOST_DEVICE int64_t owner_of(int64_t row, int64_t world_size, int64_t num_rows) {
  return ((row + 1) * world_size - 1) / num_rows;
}

constexpr int64_t kNoRow = -2;  // a row id that no bitmask has: it allows nothing

// Sends every allowed logit of every row to the buffer of the row's owner. A row takes
// whole_vectors(vocab_size * element_bytes) bytes there. Elements of disallowed logits
// are undefined.
//
// rows_out: for each owned row, the mask row that governs it. After an error it is
// kNoRow, so that a sampler called with rows_out draws nothing.
struct PushRowsParams {
  PushGroup group;
  const char* logits;  // [num_rows, width]: tokens vocab_begin to vocab_begin + width
  int64_t num_rows;
  int64_t width;
  int64_t row_stride;  // in elements
  int64_t vocab_begin;
  int64_t vocab_size;     // of all ranks
  int32_t element_bytes;  // 4 or 2
  bool has_mask;          // without one, every row is free
  Bitmask bitmask;        // over all ranks' vocabulary
  StridedIntegers rows;
  int64_t* rows_out;  // [rows owned]
};

}  // namespace structout
