// The steps of token_logprobs (common/token_logprobs.h).
//
// top_tokens: one block per row lists the allowed tokens in shared memory. If they are
// many it streams the row, 16 bytes per load: a radix selection finds a lower bound of the
// n-th highest logit, usually from its first digit, and what reaches it is listed. From
// the list (or from the row, where more than 3,072 tokens tie) the block takes the
// likeliest token n times. Bytes moved: V/8 of mask, and the allowed logits once, or the
// row twice.
//
// row_totals: one block per row, one pass over the same logits.
//
// merge_totals: one thread per row, over 16 bytes of each shard and 12 bytes a token.
#include "cuda/row_reader.cuh"
#include "cuda/run_rows.cuh"
#include "cuda/select.cuh"
#include "cuda/token_list.cuh"
#include "cuda/token_logprobs.h"

namespace structout::cuda {
namespace {

constexpr int kRankingThreads = 256;
constexpr int kRankingBlocksPerSm = 4;

struct TopScratch {
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

// Stores the likeliest tokens of the source.
template <class Source>
__device__ void take_top(BlockTeam& team, Source& source, const TopTokensParams& params, int64_t row) {
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
      if (threadIdx.x == 0) params.store_no_top(row, place);
      return;
    }
    if (threadIdx.x == 0) {
      const auto token = static_cast<int32_t>(~static_cast<uint32_t>(best));
      params.store_top(row, place, token, float_of_order_key(static_cast<uint32_t>(best >> 32)));
    }
    last = best;
  }
}

// Lists tokens among which are the likeliest. Returns false if they do not fit.
template <class Reader>
__device__ bool list_top(BlockTeam& team, Reader& reader, TopScratch& scratch, int64_t num_top) {
  const Selection& selection = scratch.select.selection;
  const auto for_each_key = [&](auto visit) {
    reader.for_each([&](float x, int32_t) {
      if (x > -INFINITY) visit(order_key(x), [&](uint32_t bin) { scratch.select.histogram.count(bin); });
    });
  };
  for (int digit = 0; digit < Reader::kNumKeyDigits; ++digit) {
    select_digit(team, scratch.select, digit, for_each_key, [&](uint64_t) { return static_cast<uint64_t>(num_top); });
    const bool are_fewer = selection.remaining == 0;  // than num_top: list them all
    // After the first digit, fewer than num_top tokens are above the prefix.
    if (are_fewer || selection.at_or_above + static_cast<uint64_t>(num_top) <= kMaxListed) {
      const uint32_t lowest_key = are_fewer ? 0 : selection.prefix;
      return list_if(team, reader, scratch.list, [&](float x) { return x > -INFINITY && order_key(x) >= lowest_key; });
    }
  }
  return false;
}

template <FloatFormat kFormat>
__global__ void __launch_bounds__(kRankingThreads, kRankingBlocksPerSm) top_tokens_kernel(TopTokensParams params) {
  __shared__ TopScratch scratch;
  const int64_t row = blockIdx.x;
  if (params.is_skipped(row)) {
    if (threadIdx.x == 0) {
      params.token_logits[row] = -INFINITY;
      params.store_no_top(row, 0);
    }
    return;
  }
  const MaskRow mask = params.mask_of(row);
  BlockTeam team(scratch.team);
  RowReader<kFormat> reader(params, row, mask);
  if (threadIdx.x == 0) {
    params.token_logits[row] =
        params.token_logit(row, mask, [&](int64_t token) { return reader.logit(static_cast<int32_t>(token)); });
  }
  if (!mask.is_free && list_allowed(params, mask, scratch.list) <= kMaxListed) {
    load_listed(scratch.list, reader);
    return take_top(team, scratch.list, params, row);
  }
  reader.take_share(team, nullptr, 0);
  if (list_top(team, reader, scratch, params.num_top)) return take_top(team, scratch.list, params, row);
  take_top(team, reader, params, row);
}

struct TotalsScratch {
  TeamScratch team;
  TokenList list;
};

template <FloatFormat kFormat>
__global__ void __launch_bounds__(kRankingThreads, kRankingBlocksPerSm) row_totals_kernel(RowTotalsParams params) {
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

  int64_t total = 0, num_likelier = 0;
  const auto add = [&](float x, int32_t) {
    total += mass(scale.t(fmaxf(x, -INFINITY)));  // of -inf, and of NaN: 0
    num_likelier += x > token_logit;
  };
  if (!mask.is_free && list_allowed(params, mask, scratch.list) <= kMaxListed) {
    load_listed(scratch.list, reader);
    scratch.list.for_each(add);
  } else {
    reader.take_share(team, nullptr, 0);
    reader.for_each(add);
  }
  total = static_cast<int64_t>(team.reduce(static_cast<uint64_t>(total), Sum{}));
  num_likelier = static_cast<int64_t>(team.reduce(static_cast<uint64_t>(num_likelier), Sum{}));
  if (threadIdx.x == 0) params.store(row, total, num_likelier);
}

// Launches the kernel of the logits' format, one block per row.
template <class Params>
void launch_ranking(const Params& params, void* stream, void (*of_float32)(Params), void (*of_float16)(Params),
                    void (*of_bfloat16)(Params)) {
  if (params.num_rows == 0) return;
  const auto kernel = params.format == FloatFormat::kFloat32   ? of_float32
                      : params.format == FloatFormat::kFloat16 ? of_float16
                                                               : of_bfloat16;
  STRUCTOUT_LAUNCH(kernel, dim3(static_cast<unsigned>(params.num_rows)), dim3(kRankingThreads),
                   static_cast<cudaStream_t>(stream), params);
}

}  // namespace

void top_tokens(const TopTokensParams& params, void* stream) {
  launch_ranking(params, stream, top_tokens_kernel<FloatFormat::kFloat32>, top_tokens_kernel<FloatFormat::kFloat16>,
                 top_tokens_kernel<FloatFormat::kBFloat16>);
}

void row_totals(const RowTotalsParams& params, void* stream) {
  launch_ranking(params, stream, row_totals_kernel<FloatFormat::kFloat32>, row_totals_kernel<FloatFormat::kFloat16>,
                 row_totals_kernel<FloatFormat::kBFloat16>);
}

void merge_totals(const MergeTotalsParams& params, void* stream) { launch_rows(params, params.num_rows, stream); }

}  // namespace structout::cuda
