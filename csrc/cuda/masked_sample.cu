// masked_sample: docs/sampling_contract.md in one launch, one team of threads per row.
// The team first reads the row's mask and lists the allowed tokens in shared memory.
// Their number selects the path of the row:
//
//   none    id -1; no logit is read
//   one     that token; its logit is read only to refuse NaN and -inf
//   few     up to 3,072: their logits are gathered into shared memory and sampled there
//   many    the row is streamed, 16 bytes per load, without vectors that allow no token
//
// Bytes moved: V/8 of mask. Few tokens: 32 bytes (a sector) of logits per allowed
// token. Many tokens: the row once for a draw without filters, because z + g needs no
// maximum, and once more for a logprob. With filters: the row once for the threads'
// highest logits, once for the tokens that reach a bound derived from them (for top-p
// without top-k also once for the mass), and if those do not fit in a list, once per
// digit of a selection.
//
// Work: Philox for each vector of up to eight tokens, a second Philox call and two
// logarithms for the few tokens whose coarse bits could win (see DrawBound), one
// exponential per token for top-p and logprobs.
//
// Launch: row_launch.cuh. The blocks of a cluster share the row if it allows many tokens.
// Without room in shared memory later passes find the row in L2.
#include "common/shard_result.h"
#include "cuda/compat.h"
#include "cuda/draw.cuh"
#include "cuda/masked_sample.h"
#include "cuda/row_launch.cuh"

namespace structout::cuda {
namespace {

enum class Path { kNone, kOne, kFew, kMany, kManySplit };

#ifdef STRUCTOUT_COUNT_PATHS  // defined by tests, to check that every path is covered
unsigned rows_of_path[5];
__device__ void count_path(Path path) {
  if (threadIdx.x == 0 && threadIdx.y == 0) atomicAdd(&rows_of_path[static_cast<int>(path)], 1u);
}
#else
__device__ __forceinline__ void count_path(Path) {}
#endif

// Shard results are written without filters only. With filters this code would cost one
// register too many.
template <bool kHasFilters>
__device__ __forceinline__ bool writes_shard_result(const MaskedSampleParams& params) {
  return !kHasFilters && params.shard_results != nullptr;
}

// Writes the result of a row from which nothing can be drawn. `highest` is the highest
// allowed logit, or NaN if a logit is NaN or a parameter is invalid.
template <bool kHasFilters>
__device__ __forceinline__ void write_nothing(const MaskedSampleParams& params, int64_t row, float highest) {
  if (writes_shard_result<kHasFilters>(params)) {
    return store_shard_result(params.shard_results, params.num_rows, row, ShardResult::nothing(highest));
  }
  params.ids[row] = -1;
  if (params.logprobs != nullptr) params.logprobs[row] = -INFINITY;
}

template <bool kHasFilters, class Team, class Source, class Reader>
__device__ __forceinline__ void sample_from(Team& team, Source& source, const Reader& reader, RowScratch& scratch,
                                            const MaskedSampleParams& params, int64_t row) {
  const bool return_logprobs = params.logprobs != nullptr;
  const Drawn drawn = draw<kHasFilters>(team, source, scratch, return_logprobs);
  if (team.block_rank() != 0 || threadIdx.x != 0) return;
  if (drawn.id < 0) return write_nothing<kHasFilters>(params, row, drawn.scale.highest);
  if (writes_shard_result<kHasFilters>(params)) {
    const float score = scratch.row.is_greedy() ? drawn.scale.highest : drawn.score;
    const ShardResult result{drawn.scale.highest, score, drawn.id, reader.logit(drawn.id)};
    return store_shard_result(params.shard_results, params.num_rows, row, result);
  }
  params.ids[row] = drawn.id;
  if (!return_logprobs) return;
  // + 0: -0 becomes 0, as it does in the highest logit. So t is 0 there, not -0.
  const float x = reader.logit(drawn.id) + 0.0f;
  params.logprobs[row] = drawn.scale.t(x) - log_of_mass(scratch.total_mass);
}

// The row's only allowed token has t = 0, and no filter removes the likeliest token.
template <bool kHasFilters, class Reader>
__device__ void sample_only_token(const Reader& reader, const RowParams& values, const MaskedSampleParams& params,
                                  int64_t row, int32_t token) {
  const float x = reader.logit(token);
  if (!(x > -INFINITY)) return write_nothing<kHasFilters>(params, row, x);
  if (writes_shard_result<kHasFilters>(params)) {
    const float z = Scale(x, values.inverse_temperature()).z(x);
    const float score =
        values.is_greedy() ? x : z + gumbel(noise_bits(values.seed, values.position, static_cast<uint32_t>(token)));
    return store_shard_result(params.shard_results, params.num_rows, row, {x, score, token, x});
  }
  params.ids[row] = token;
  if (params.logprobs != nullptr) params.logprobs[row] = 0.0f - log_of_mass(mass(0.0f));
}

template <FloatFormat kFormat, bool kHasFilters, class Team>
__device__ __forceinline__ void sample_row(const MaskedSampleParams& params, int64_t row, Team& team,
                                           RowScratch& scratch, uint4* store, int64_t store_vectors) {
  const bool is_first_block = team.block_rank() == 0;
  const bool is_writer = is_first_block && threadIdx.x == 0;
  // The parameters are loaded while the first words of the mask are on their way.
  const MaskRow mask = params.mask_of(row);
  MaskReader mask_reader(mask, params.vocab_begin, mask.is_free ? params.vocab_begin : params.vocab_end);
  if (threadIdx.x == 0) {
    RowParams values;
    values.load(params, row);
    scratch.row = values;
    scratch.top_p_target = 0;
    scratch.best_score_key = 0;
    scratch.list.size = 0;
  }
  __syncthreads();
  if (!scratch.row.is_valid()) {
    if (is_writer) write_nothing<kHasFilters>(params, row, NAN);
    return;
  }
  RowReader<kFormat> reader(params, row, mask);
  if (!mask.is_free) {
    // Every block of a cluster counts the tokens itself, which is cheaper than
    // exchanging the count. One block samples few tokens; the others return.
    const unsigned count = list_allowed(scratch.list, mask_reader);
    if (count <= kMaxListed && !is_first_block) return;
    if (count == 0) {
      count_path(Path::kNone);
      if (is_writer) write_nothing<kHasFilters>(params, row, -INFINITY);
      return;
    }
    if (count == 1) {
      count_path(Path::kOne);
      if (is_writer) sample_only_token<kHasFilters>(reader, scratch.row, params, row, scratch.list.ids[0]);
      return;
    }
    if (count <= kMaxListed) {
      count_path(Path::kFew);
      BlockTeam block(scratch.team);
      load_listed(scratch.list, reader);
      sample_from<kHasFilters>(block, scratch.list, reader, scratch, params, row);
      return;
    }
  }
  count_path(team.num_blocks() == 1 ? Path::kMany : Path::kManySplit);
  reader.take_share(team, store, store_vectors);
  sample_from<kHasFilters>(team, reader, reader, scratch, params, row);
  team.sync();  // the shared memory of a block that has returned must not be read
}

// The registers of one block per multiprocessor: before compute capability 9.0 the
// filters need more than two blocks have.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kMinFilteredBlocks = 1;
#else
constexpr int kMinFilteredBlocks = kBlocksPerSm;
#endif

template <FloatFormat kFormat, bool kHasFilters>
__global__ void __launch_bounds__(kMaxThreads, kHasFilters ? kMinFilteredBlocks : kBlocksPerSm)
    sample_by_blocks(MaskedSampleParams params, int64_t store_vectors) {
  __shared__ RowScratch scratch;
  BlockTeam team(scratch.team);
  sample_row<kFormat, kHasFilters>(params, blockIdx.x, team, scratch, row_store(), store_vectors);
}

template <FloatFormat kFormat, bool kHasFilters>
__global__ void __launch_bounds__(kMaxThreads, 1) sample_by_clusters(MaskedSampleParams params, int64_t store_vectors) {
  __shared__ RowScratch scratches[kNumScratches];
  const ClusterPlace place = cluster_place(store_vectors);
  RowScratch& scratch = scratches[place.scratch];
  ClusterTeam team(scratch.team, sizeof(RowScratch));
  sample_row<kFormat, kHasFilters>(params, place.row, team, scratch, place.store, store_vectors);
}

template <FloatFormat kFormat, bool kHasFilters>
void launch(const MaskedSampleParams& params, const DeviceFacts& device, void* stream) {
  const bool is_read_again = kHasFilters || params.logprobs != nullptr;
  launch_teams(sample_by_blocks<kFormat, kHasFilters>, sample_by_clusters<kFormat, kHasFilters>,
               team_shape(params, device, sizeof(RowScratch), is_read_again), params, params.num_rows, stream);
}

template <FloatFormat kFormat>
void launch(const MaskedSampleParams& params, const DeviceFacts& device, void* stream) {
  const bool has_filters =
      params.top_k.values != nullptr || params.top_p.values != nullptr || params.min_p.values != nullptr;
  has_filters ? launch<kFormat, true>(params, device, stream) : launch<kFormat, false>(params, device, stream);
}

template <FloatFormat kFormat, bool kHasFilters>
void allow_store(int64_t bytes) {
  allow_dynamic_shared(sample_by_blocks<kFormat, kHasFilters>, bytes);
  allow_dynamic_shared(sample_by_clusters<kFormat, kHasFilters>, bytes);
}

template <FloatFormat kFormat>
void allow_store(int64_t bytes) {
  allow_store<kFormat, false>(bytes);
  allow_store<kFormat, true>(bytes);
}

// The number of clusters of `num_blocks` blocks that run at a time if each block takes
// a multiprocessor's shared memory. It is the same for every kernel.
int max_active_clusters([[maybe_unused]] const DeviceFacts& device, [[maybe_unused]] int num_blocks) {
#ifdef __CUDACC__
  const LaunchConfig config(1, static_cast<unsigned>(num_blocks), kMaxThreads,
                            static_cast<size_t>(max_store_bytes(device, 1, sizeof(RowScratch))));
  int count = 0;
  cudaOccupancyMaxActiveClusters(&count, sample_by_clusters<FloatFormat::kFloat32, true>, &config);
  return count;
#else
  return device.num_sms / num_blocks;
#endif
}

}  // namespace

void prepare_masked_sample(DeviceFacts& device) {
  const int64_t bytes = max_store_bytes(device, 1, sizeof(RowScratch));
  allow_store<FloatFormat::kFloat32>(bytes);
  allow_store<FloatFormat::kFloat16>(bytes);
  allow_store<FloatFormat::kBFloat16>(bytes);
  if (device.compute_capability < 90) return;
  int num_blocks = 1;
  for (int& max_clusters : device.max_clusters) max_clusters = max_active_clusters(device, num_blocks *= 2);
}

void masked_sample(const MaskedSampleParams& params, const DeviceFacts& device, void* stream) {
  if (params.num_rows == 0) return;
  with_format(params.format, [&](auto format) { launch<format.value>(params, device, stream); });
}

}  // namespace structout::cuda
