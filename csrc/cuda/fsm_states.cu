// The FSM ops. fsm_advance and fsm_draft_states take one thread per state: a chain of
// two dependent loads per byte, of the byte and of its transition.
//
// In fsm_rows all blocks look up all states. A mask that has no slot is computed by all
// warps of the grid: each takes a word in turn, and each of its lanes follows one token.
// Most tokens end at their first byte, and those bytes are loads of neighbours.
//
// Bytes moved per computed mask: 4 V of token_begin, all token bytes at most, the rows of
// the transitions on the way, V / 8 written.
#include <algorithm>

#include "cuda/compat.h"
#include "cuda/fsm_states.h"
#include "cuda/run_rows.cuh"

namespace structout::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int64_t kBlocksPerSm = 4;

__global__ void __launch_bounds__(kThreads) fsm_rows_kernel(FsmRowsParams params) {
  __shared__ int64_t missing[kThreads];
  __shared__ unsigned num_missing;
  const FsmTables& tables = params.tables;
  const unsigned lane = threadIdx.x % kLanes;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  for (int64_t first = 0; first < params.num_rows; first += kThreads) {
    if (threadIdx.x == 0) num_missing = 0;
    __syncthreads();
    if (const int64_t row = first + threadIdx.x; row < params.num_rows) {
      const int32_t mask_row = params.mask_row(row);
      if (blockIdx.x == 0) params.rows[row] = mask_row;
      if (mask_row >= params.num_slots) missing[atomicAdd(&num_missing, 1u)] = row;
    }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) *params.num_computed += num_missing;
    for (unsigned i = 0; i < num_missing; ++i) {
      const int32_t state = params.states.at(missing[i]);
      uint32_t* mask = params.masks + (params.num_slots + missing[i]) * params.row_stride;
      for (int64_t word = warp; word < params.words_per_row; word += int64_t{gridDim.x} * kWarps) {
        const int64_t token = word * kBitsPerWord + lane;
        const bool is_allowed = token < tables.vocab_size && tables.after_text(state, token) >= 0;
        const uint32_t bits = __ballot_sync(kWholeWarp, is_allowed);
        if (lane == 0) mask[word] = tables.with_stop_tokens(state, word, bits);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void fsm_advance(const FsmAdvanceParams& params, void* stream) { launch_rows(params, params.num_rows, stream); }

void fsm_rows(const FsmRowsParams& params, int num_sms, void* stream) {
  if (params.num_rows == 0) return;
  const int64_t blocks_for_words = (params.words_per_row + kWarps - 1) / kWarps;
  const int64_t num_blocks = std::max<int64_t>(1, std::min(num_sms * kBlocksPerSm, blocks_for_words));
  STRUCTOUT_LAUNCH(fsm_rows_kernel, dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads),
                   static_cast<cudaStream_t>(stream), params);
}

void fsm_draft_states(const FsmDraftStatesParams& params, void* stream) {
  if (params.num_rows > 0) launch_rows(params, params.num_requests + 1, stream);
}

}  // namespace structout::cuda
