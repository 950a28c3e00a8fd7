// The protocol of the push collectives: how the ranks meet, and when memory may be written again.
//
// Calls are counted, on the device, so that a captured graph can be replayed: the call's number is its epoch. In an
// epoch every block of a rank pushes its share into the peers' buffers, signals, and waits for the same block of every
// peer. Nobody asks whether the peer is ready, because of this:
//
//   What is written to a buffer in epoch e, and read on the owner's stream before its epoch e + 1, may be written again
//   in epoch e + 2 and later, by anyone.
//
// For a rank begins epoch e + 2 after its epoch e + 1 has ended, for which at least one block has acquired a signal
// that the owner released in its epoch e + 1; and what came before that on the owner's stream came before that signal.
// So two halves, taken in turn, suffice for data and for signals. All ranks number calls alike, whatever their sizes
// and numbers of blocks; and a signal waits in its half with the epoch's number, however far (one epoch) its sender is
// ahead.
//
// Release and acquire are by one thread each, for the whole block: __syncthreads is between the others' accesses and
// theirs, and causality order is transitive.
#pragma once

#include "common/push.h"
#include "cuda/system_scope.h"

namespace structout::cuda {

static_assert(kMaxRanks <= kLanes);

// What the threads of a block tell each other.
struct PushScratch {
  uint64_t epoch, rows_epoch;
  bool has_failed, have_all_come, is_last_block;
};

// One call, as a block sees it. All threads of the block call its functions together.
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

  __device__ bool has_failed() const { return scratch_.has_failed; }  // earlier
  __device__ uint64_t epoch() const { return epoch_; }
  __device__ bool follows_push_rows() const { return scratch_.rows_epoch + 1 == epoch_; }
  __device__ void begin_next_epoch() { ++epoch_; }

  __device__ char* buffer_of(int64_t rank) const { return reinterpret_cast<char*>(__ldg(group_.buffers + rank)); }

  // The rank that comes `distance` after this one: ranks that begin at 1 and go on do not all push to the same one.
  __device__ int64_t peer(int64_t distance) const { return (group_.rank + distance) % group_.layout.world_size; }

  // Tells all peers that this block has pushed, and waits until theirs have. False: one of them did not, or pushed
  // something else.
  __device__ bool meet() {
    __syncthreads();
    if (threadIdx.x < kLanes) {
      const int64_t distance = threadIdx.x + 1;
      bool has_come = true;
      if (distance < group_.layout.world_size) {
        signal(peer(distance));
        has_come = wait_for(peer(distance));
      }
      const bool have_all_come = __all_sync(kWholeWarp, has_come) != 0;
      if (threadIdx.x == 0) scratch_.have_all_come = have_all_come;
    }
    __syncthreads();
    return scratch_.have_all_come;
  }

  // True in the block that ends last. It sees all that the others did, and nobody reads the state after it.
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
      if (load_relaxed(&group_.state->error) != 0) return false;  // of another block
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
