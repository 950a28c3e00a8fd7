// The steps of token_logprobs (common/token_logprobs.h), for whole rows in one launch.
//
// A team of threads lists the allowed tokens of its row in shared memory. If they are many
// it streams the row, 16 bytes per load. The n-th highest of the threads' own highest
// logits is a lower bound of the n-th highest logit, since n tokens reach it. Tokens
// that reach the bound are listed, usually little more than n, and each of these finds
// its place by counting those before it. If too many reach the bound, which takes ties, a
// radix selection finds a better one. The totals take another pass over the row.
//
// Bytes moved: V/8 of mask, and the allowed logits once where the team keeps them in
// shared memory. Launch: row_launch.cuh.
//
// Ranks that share a vocabulary launch each step: top_tokens the same way, row_totals
// with one block per row, and merge_totals with one thread per row, over 16 bytes of each
// shard and 12 bytes a token.
#include "cuda/row_launch.cuh"
#include "cuda/row_reader.cuh"
#include "cuda/run_rows.cuh"
#include "cuda/select.cuh"
#include "cuda/sort.cuh"
#include "cuda/token_list.cuh"
#include "cuda/token_logprobs.h"

namespace structout::cuda {
namespace {

constexpr int kTotalsThreads = 256;
constexpr int kTotalsBlocksPerSm = 4;

static_assert(kMaxTopTokens <= kMinThreads);  // each of the likeliest tokens may be the highest of a thread

struct RankingScratch {
  TeamScratch team;
  SelectScratch select;
  TokenList list;
};

// Orders tokens by logit, the lowest id first on ties. 0: no token.
__device__ __forceinline__ uint64_t rank_key(float x, int32_t token) {
  return uint64_t{order_key(x)} << 32 | ~static_cast<uint32_t>(token);
}

// Lists the tokens that the mask allows. Returns their number.
__device__ __forceinline__ unsigned list_allowed(const MaskedLogits& params, const MaskRow& mask, TokenList& list) {
  MaskReader mask_reader(mask, params.vocab_begin, params.vocab_end);
  if (threadIdx.x == 0) list.size = 0;
  __syncthreads();
  return list_allowed(list, mask_reader);
}

// Stores the likeliest tokens of the source, one after the other.
template <class Team, class Source>
__device__ void take_top(Team& team, Source& source, const TopTokensParams& params, int64_t row) {
  const bool is_writer = team.block_rank() == 0 && threadIdx.x == 0;
  uint64_t last = ~uint64_t{0};
  for (int64_t place = 0; place < params.num_top; ++place) {
    uint64_t best = 0;
    source.for_each([&](float x, int32_t token) {
      if (!(x > -INFINITY)) return;  // true for NaN
      const uint64_t key = rank_key(x, token);
      if (key < last && key > best) best = key;
    });
    best = team.reduce(best, Max{});
    if (best == 0) {
      if (is_writer) params.store_no_top(row, place);
      return;
    }
    if (is_writer) {
      const auto token = static_cast<int32_t>(~static_cast<uint32_t>(best));
      params.store_top(row, place, token, float_of_order_key(static_cast<uint32_t>(best >> 32)));
    }
    last = best;
  }
}

// Stores the likeliest tokens of a block's list.
__device__ void take_listed_top(RankingScratch& scratch, const TopTokensParams& params, int64_t row) {
  const TokenList& list = scratch.list;
  BlockTeam block(scratch.team);
  if (list.size > blockDim.x) return take_top(block, list, params, row);
  // A thread per token, whose place is the number of likelier ones.
  const float x = threadIdx.x < list.size ? list.x[threadIdx.x] : -INFINITY;
  const bool counts = x > -INFINITY;  // false for NaN
  if (counts) {
    const uint64_t key = rank_key(x, list.ids[threadIdx.x]);
    int64_t place = 0;
    for (unsigned i = 0; i < list.size; ++i) {
      place += list.x[i] > -INFINITY && rank_key(list.x[i], list.ids[i]) > key;
    }
    if (place < params.num_top) params.store_top(row, place, list.ids[threadIdx.x], float_of_order_key(order_key(x)));
  }
  const auto num_counting = static_cast<int64_t>(block.reduce(uint64_t{counts}, Sum{}));
  if (threadIdx.x == 0) params.store_no_top(row, num_counting);
}

// Lists tokens among which are the likeliest, by selecting digits of the n-th highest
// logit. Returns false if they do not fit.
template <class Team, class Reader>
__device__ bool list_selected(Team& team, Reader& reader, RankingScratch& scratch, uint32_t highest_key,
                              int64_t num_top) {
  const Selection& selection = scratch.select.selection;
  const auto for_each_key = [&](auto visit) {
    reader.for_each([&](float x, int32_t) {
      if (x > -INFINITY) visit(order_key(x), [&](uint32_t bin) { scratch.select.histogram.count(bin); });
    });
  };
  Digit digit(kLowestDrawableKey, highest_key);
  for (bool is_first = true;; is_first = false) {
    select_digit(team, scratch.select, digit, is_first, for_each_key,
                 [&](uint64_t) { return static_cast<uint64_t>(num_top); });
    const bool are_fewer = selection.remaining == 0;  // than num_top: list them all
    // After the first digit, fewer than num_top tokens are above those of the selection.
    if (are_fewer || selection.at_or_above + static_cast<uint64_t>(num_top) <= kMaxListed) {
      const uint32_t lowest_key = are_fewer ? 0 : selection.lowest_key;
      return list_if(team, reader, scratch.list, [&](float x) { return x > -INFINITY && order_key(x) >= lowest_key; });
    }
    if (digit.shift <= Reader::kKeyZeroBits) return false;
    digit = Digit(selection.lowest_key, selection.highest_key);
  }
}

// The highest logit of this thread's tokens that count: NaN does not.
template <class Team, class Reader>
__device__ float highest_counting(Team& team, Reader& reader) {
  float highest = reader.survey().highest();
  if (team.reduce(uint64_t{highest != highest}, Max{}) == 0) return highest;
  highest = -INFINITY;
  reader.for_each([&](float x, int32_t) { highest = fmaxf(highest, x); });
  return highest;
}

// Stores the likeliest tokens of a row, and returns its highest logit, or -inf if no
// token counts. The first pass over the row.
template <class Team, class Reader>
__device__ float take_top_of_row(Team& team, Reader& reader, RankingScratch& scratch, const TopTokensParams& params,
                                 int64_t row) {
  const float highest_of_thread = highest_counting(team, reader);
  const uint32_t key_of_thread = highest_of_thread > -INFINITY ? order_key(highest_of_thread) : 0;
  const uint32_t key = sort_descending(key_of_thread, blockDim.x, scratch.select.histogram.low);
  const auto bound_of_block = uint64_t{threadIdx.x + 1 == params.num_top ? key : 0};
  const Values<2> best = team.reduce(Values<2>{{key_of_thread, bound_of_block}}, Max{});
  const auto bound = static_cast<uint32_t>(best.at[1]);
  const bool are_listed =
      list_if(team, reader, scratch.list, [&](float x) { return x > -INFINITY && order_key(x) >= bound; }) ||
      list_selected(team, reader, scratch, static_cast<uint32_t>(best.at[0]), params.num_top);
  if (!are_listed) {
    take_top(team, reader, params, row);
  } else if (team.block_rank() == 0) {
    take_listed_top(scratch, params, row);
  }
  return best.at[0] == 0 ? -INFINITY : float_of_order_key(static_cast<uint32_t>(best.at[0]));
}

// The totals of the tokens at hand (RowTotalsParams).
struct Totals {
  int64_t mass = 0, num_likelier = 0;

  template <class Source>
  __device__ void add_all(const Source& source, const Scale& scale, float token_logit) {
    source.for_each([&](float x, int32_t) {
      mass += structout::mass(scale.t(fmaxf(x, -INFINITY)));  // of -inf, and of NaN: 0
      num_likelier += x > token_logit;
    });
  }
  template <class Team>
  __device__ Totals of_team(Team& team) const {
    const auto summed =
        team.reduce(Values<2>{{static_cast<uint64_t>(mass), static_cast<uint64_t>(num_likelier)}}, Sum{});
    return {static_cast<int64_t>(summed.at[0]), static_cast<int64_t>(summed.at[1])};
  }
};

// Stores a row's totals and what they are merged to. All threads of the block call this
// after the likeliest tokens are stored.
template <class Team, class Source>
__device__ void store_logprobs(Team& team, const Source& source, const TokenLogprobsParams& params, int64_t row,
                               float highest, float token_logit) {
  if (params.totals.totals == nullptr) return;
  Totals totals;
  if (highest > -INFINITY) {
    totals.add_all(source, scale_of(highest + 0.0f, params.totals.temperature.at(row, 1.0f)), token_logit);
    totals = totals.of_team(team);
  }
  __syncthreads();  // the writer reads what other threads have stored
  if (team.block_rank() != 0 || threadIdx.x != 0) return;
  params.totals.store(row, totals.mass, totals.num_likelier);
  params.merged.run(row);
}

template <FloatFormat kFormat, class Team>
__device__ void rank_row(const TokenLogprobsParams& params, int64_t row, Team& team, RankingScratch& scratch,
                         uint4* store, int64_t store_vectors) {
  const TopTokensParams& top = params.top;
  const bool is_first_block = team.block_rank() == 0;
  const MaskRow mask = top.mask_of(row);
  RowReader<kFormat> reader(top, row, mask);
  BlockTeam block(scratch.team);
  if (top.is_skipped(row)) {
    if (!is_first_block) return;
    if (threadIdx.x == 0) {
      top.token_logits[row] = -INFINITY;
      top.store_no_top(row, 0);
    }
    return store_logprobs(block, reader, params, row, -INFINITY, -INFINITY);
  }
  const float token_logit =
      top.token_logit(row, mask, [&](int64_t token) { return reader.logit(static_cast<int32_t>(token)); });
  if (is_first_block && threadIdx.x == 0) top.token_logits[row] = token_logit;
  if (!mask.is_free && list_allowed(top, mask, scratch.list) <= kMaxListed) {
    // Every block of a cluster has the same list. One ranks it; the others return.
    if (!is_first_block) return;
    load_listed(scratch.list, reader);
    float highest = -INFINITY;
    scratch.list.for_each([&](float x, int32_t) { highest = fmaxf(highest, x); });
    __syncthreads();
    take_listed_top(scratch, top, row);
    const uint64_t key = block.reduce(uint64_t{highest > -INFINITY ? order_key(highest) : 0}, Max{});
    highest = key == 0 ? -INFINITY : float_of_order_key(static_cast<uint32_t>(key));
    return store_logprobs(block, scratch.list, params, row, highest, token_logit);
  }
  reader.take_share(team, store, store_vectors);
  const float highest = take_top_of_row(team, reader, scratch, top, row);
  store_logprobs(team, reader, params, row, highest, token_logit);
  team.sync();  // the shared memory of a block that has returned must not be read
}

template <FloatFormat kFormat>
__global__ void __launch_bounds__(kMaxThreads, kBlocksPerSm)
    rank_by_blocks(TokenLogprobsParams params, int64_t store_vectors) {
  __shared__ RankingScratch scratch;
  BlockTeam team(scratch.team);
  rank_row<kFormat>(params, blockIdx.x, team, scratch, row_store(), store_vectors);
}

template <FloatFormat kFormat>
__global__ void __launch_bounds__(kMaxThreads, 1) rank_by_clusters(TokenLogprobsParams params, int64_t store_vectors) {
  __shared__ RankingScratch scratches[kNumScratches];
  const ClusterPlace place = cluster_place(store_vectors);
  RankingScratch& scratch = scratches[place.scratch];
  ClusterTeam team(scratch.team, sizeof(RankingScratch));
  rank_row<kFormat>(params, place.row, team, scratch, place.store, store_vectors);
}

struct TotalsScratch {
  TeamScratch team;
  TokenList list;
};

template <FloatFormat kFormat>
__global__ void __launch_bounds__(kTotalsThreads, kTotalsBlocksPerSm) row_totals_kernel(RowTotalsParams params) {
  __shared__ TotalsScratch scratch;
  const int64_t row = blockIdx.x;
  const float highest = params.highest.at(row) + 0.0f, token_logit = params.token_logits[row];
  if (!(highest > -INFINITY)) {  // true for NaN
    if (threadIdx.x == 0) params.store(row, 0, 0);
    return;
  }
  const Scale scale = scale_of(highest, params.temperature.at(row, 1.0f));
  const MaskRow mask = params.mask_of(row);
  BlockTeam team(scratch.team);
  RowReader<kFormat> reader(params, row, mask);

  Totals totals;
  if (!mask.is_free && list_allowed(params, mask, scratch.list) <= kMaxListed) {
    load_listed(scratch.list, reader);
    totals.add_all(scratch.list, scale, token_logit);
  } else {
    reader.take_share(team, nullptr, 0);
    totals.add_all(reader, scale, token_logit);
  }
  totals = totals.of_team(team);
  if (threadIdx.x == 0) params.store(row, totals.mass, totals.num_likelier);
}

template <FloatFormat kFormat>
void launch_ranking(const TokenLogprobsParams& params, const DeviceFacts& device, void* stream) {
  launch_teams(rank_by_blocks<kFormat>, rank_by_clusters<kFormat>,
               team_shape(params.top, device, sizeof(RankingScratch), /*is_read_again=*/true), params,
               params.top.num_rows, stream);
}

template <FloatFormat kFormat>
void launch_totals(const RowTotalsParams& params, void* stream) {
  STRUCTOUT_LAUNCH(row_totals_kernel<kFormat>, dim3(static_cast<unsigned>(params.num_rows)), dim3(kTotalsThreads),
                   static_cast<cudaStream_t>(stream), params);
}

template <FloatFormat kFormat>
void allow_row_store(int64_t bytes) {
  allow_dynamic_shared(rank_by_blocks<kFormat>, bytes);
  allow_dynamic_shared(rank_by_clusters<kFormat>, bytes);
}

}  // namespace

void prepare_token_logprobs(const DeviceFacts& device) {
  const int64_t bytes = max_store_bytes(device, 1, sizeof(RankingScratch));
  allow_row_store<FloatFormat::kFloat32>(bytes);
  allow_row_store<FloatFormat::kFloat16>(bytes);
  allow_row_store<FloatFormat::kBFloat16>(bytes);
}

void token_logprobs(const TokenLogprobsParams& params, const DeviceFacts& device, void* stream) {
  if (params.top.num_rows == 0) return;
  with_format(params.top.format, [&](auto format) { launch_ranking<format.value>(params, device, stream); });
}

void top_tokens(const TopTokensParams& params, const DeviceFacts& device, void* stream) {
  token_logprobs({params, {}, {}}, device, stream);
}

void row_totals(const RowTotalsParams& params, void* stream) {
  if (params.num_rows == 0) return;
  with_format(params.format, [&](auto format) { launch_totals<format.value>(params, stream); });
}

void merge_totals(const MergeTotalsParams& params, void* stream) { launch_rows(params, params.num_rows, stream); }

}  // namespace structout::cuda
