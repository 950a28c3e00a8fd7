// The protocol of the push collectives: how the ranks synchronize, and when memory may
// be written again.
//
// Calls are counted on the device, so that a captured graph can be replayed. A call's
// number is its epoch. In an epoch every block of a rank pushes its share into the
// peers' buffers, signals the same block of every peer, and waits for the signals of
// these blocks. A rank does not ask whether its peers are ready. It need not, because
// of this rule:
//
//   Data written to a buffer in epoch e, and read on the owner's stream before its
//   epoch e + 1, may be overwritten by any rank in epoch e + 2 and later.
//
// Proof: a rank begins epoch e + 2 after its epoch e + 1 has ended. In that epoch one
// of its blocks has acquired a signal that the owner released in its own epoch e + 1.
// Everything earlier on the owner's stream, the reads included, happened before that
// signal.
//
// So two halves that take turns suffice for data and for signals. All ranks number
// their calls alike, whatever the sizes and numbers of blocks. A sender can be one
// epoch ahead at most, and its signal then waits in the other half, marked with its
// epoch.
//
// One thread releases and one acquires for the whole block. This is enough because a
// __syncthreads lies between their accesses and those of the other threads, and
// causality order is transitive.
#pragma once

#include "common/push.h"
#include "cuda/system_scope.h"

namespace structout::cuda {

static_assert(kMaxRanks <= kLanes);

// Shared memory of a block.
struct PushScratch {
  uint64_t epoch, rows_epoch;
  bool has_failed, have_all_arrived, is_last_block;
};

// One call, as seen by a block. All threads of the block must call its functions
// together.
class PushCall {
 public:
  __device__ PushCall(const PushGroup& group, PushScratch& scratch) : group_(group), scratch_(scratch) {
    if (threadIdx.x == 0) {
      scratch.epoch = group.state->epoch;
      scratch.rows_epoch = group.state->rows_epoch;
      scratch.has_failed = load_relaxed(&group.state->error) != 0;
    }
    __syncthreads();
    epoch_ = scratch.epoch + 1;
  }

  __device__ bool has_failed() const { return scratch_.has_failed; }  // in this call or an earlier one
  __device__ uint64_t epoch() const { return epoch_; }
  __device__ bool follows_push_rows() const { return scratch_.rows_epoch + 1 == epoch_; }
  __device__ void begin_next_epoch() { ++epoch_; }

  __device__ char* buffer_of(int64_t rank) const { return reinterpret_cast<char*>(__ldg(group_.buffers + rank)); }

  // The rank `distance` after this one. Ranks loop over distances, so that they do not
  // all push to the same peer at once.
  __device__ int64_t peer(int64_t distance) const { return (group_.rank + distance) % group_.layout.world_size; }

  // Signals all peers that this block has pushed, and waits for their signals. Returns
  // false if a peer did not arrive in time or made another call.
  __device__ bool meet() {
    __syncthreads();
    if (threadIdx.x < kLanes) {
      const int64_t distance = threadIdx.x + 1;
      bool has_arrived = true;
      if (distance < group_.layout.world_size) {
        signal(peer(distance));
        has_arrived = wait_for(peer(distance));
      }
      const bool have_all_arrived = __all_sync(kWholeWarp, has_arrived) != 0;
      if (threadIdx.x == 0) scratch_.have_all_arrived = have_all_arrived;
    }
    __syncthreads();
    return scratch_.have_all_arrived;
  }

  // Returns true in the block that ends last. It sees everything that the other blocks
  // wrote, and no block reads the state after it.
  __device__ bool end() {
    __syncthreads();
    if (threadIdx.x == 0) {
      PushState& state = *group_.state;
      __threadfence();
      scratch_.is_last_block = atomicAdd(as_counter(&state.blocks_done), 1) + 1 == gridDim.x;
      if (scratch_.is_last_block) {
        __threadfence();
        state.blocks_done = 0;
        state.epoch = epoch_;
        scratch_.has_failed = load_relaxed(&state.error) != 0;
      }
    }
    __syncthreads();
    return scratch_.is_last_block;
  }

 private:
  __device__ static unsigned long long* as_counter(uint64_t* word) {
    return reinterpret_cast<unsigned long long*>(word);
  }

  __device__ PushSignal* signal_at(int64_t rank, int64_t source) const {
    return reinterpret_cast<PushSignal*>(buffer_of(rank) + group_.layout.signal(epoch_, source, blockIdx.x));
  }

  __device__ void signal(int64_t peer) const {
    PushSignal* signal = signal_at(peer, group_.rank);
    if (group_.multicast != nullptr) fence_multicast();
    signal->token = group_.token;
    store_release_system(&signal->epoch, epoch_);
  }

  __device__ bool wait_for(int64_t peer) const {
    const PushSignal* signal = signal_at(group_.rank, peer);
    const int64_t begin = clock_ns();
    while (load_acquire_system(&signal->epoch) != epoch_) {
      if (load_relaxed(&group_.state->error) != 0) return false;  // another block failed
      if (clock_ns() - begin > group_.timeout_ns) return fail(PushError::kTimeout, peer);
      __nanosleep(20);
    }
    return signal->token == group_.token || fail(PushError::kMismatch, peer);
  }

  __device__ bool fail(PushError error, int64_t peer) const {
    PushState& state = *group_.state;
    if (atomicCAS(as_counter(&state.error), 0, static_cast<unsigned long long>(error)) == 0) {
      state.error_peer = static_cast<uint64_t>(peer);
      state.error_epoch = epoch_;
    }
    return false;
  }

  const PushGroup& group_;
  PushScratch& scratch_;
  uint64_t epoch_;
};

}  // namespace structout::cuda
