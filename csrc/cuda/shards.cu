// The parts of sharded_masked_sample beside the draw.
//
// shard_mass: the sum of mass(t) over the allowed tokens of a shard. One block per row
// lists the allowed tokens and reads their logits alone; if they are many it streams
// the row, 16 bytes per load. Bytes moved: V/8 of mask, and the logits that
// masked_sample reads, once.
//
// merge_shard_results, merge_masses: one thread per row, over 16 (8) bytes of each
// shard.
#include "cuda/row_reader.cuh"
#include "cuda/row_state.cuh"
#include "cuda/run_rows.cuh"
#include "cuda/shards.h"

namespace structout::cuda {
namespace {

constexpr int kMassThreads = 256;

struct MassScratch {
  TeamScratch team;
  TokenList list;
};

template <FloatFormat kFormat>
__global__ void __launch_bounds__(kMassThreads)
    shard_mass_kernel(MaskedSampleParams params, const float* highest, int64_t* masses) {
  __shared__ MassScratch scratch;
  const int64_t row = blockIdx.x;
  if (!(highest[row] > -INFINITY)) {  // true for NaN
    if (threadIdx.x == 0) masses[row] = 0;
    return;
  }
  RowParams values;
  values.load(params, row);
  const Scale scale(highest[row], values.inverse_temperature());
  const MaskRow mask = params.has_mask ? mask_row(params.bitmask, params.rows, row) : MaskRow{nullptr, 0, true};
  BlockTeam team(scratch.team);
  RowReader<kFormat, BlockTeam::kLoadsInFlight> reader(params, row, mask);

  int64_t total = 0;
  const unsigned count =
      mask.is_free ? kMaxListed + 1 : list_allowed(scratch.list, mask, params.vocab_begin, params.vocab_end);
  if (count <= kMaxListed) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
      const float x = reader.logit(scratch.list.ids[i]);
      if (x > -INFINITY) total += mass(scale.t(x));
    }
  } else {
    reader.take_share(team, nullptr, 0);
    reader.for_each([&](float x, int32_t) {
      if (x > -INFINITY) total += mass(scale.t(x));
    });
  }
  total = static_cast<int64_t>(team.reduce(static_cast<uint64_t>(total), Sum{}));
  if (threadIdx.x == 0) masses[row] = total;
}

template <FloatFormat kFormat>
void launch_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, void* stream) {
  STRUCTOUT_LAUNCH(shard_mass_kernel<kFormat>, dim3(static_cast<unsigned>(params.num_rows)), dim3(kMassThreads),
                   static_cast<cudaStream_t>(stream), params, highest, masses);
}

}  // namespace

void shard_mass(const MaskedSampleParams& params, const float* highest, int64_t* masses, void* stream) {
  if (params.num_rows == 0) return;
  switch (params.format) {
    case FloatFormat::kFloat32:
      return launch_mass<FloatFormat::kFloat32>(params, highest, masses, stream);
    case FloatFormat::kFloat16:
      return launch_mass<FloatFormat::kFloat16>(params, highest, masses, stream);
    case FloatFormat::kBFloat16:
      return launch_mass<FloatFormat::kBFloat16>(params, highest, masses, stream);
  }
}

void merge_shard_results(const MergeShardResultsParams& params, void* stream) {
  launch_rows(params, params.num_rows, stream);
}

void merge_masses(const MergeMassesParams& params, void* stream) { launch_rows(params, params.num_rows, stream); }

}  // namespace structout::cuda
