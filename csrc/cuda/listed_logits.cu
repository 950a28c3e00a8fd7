// apply_penalties and apply_logit_bias: each row's listed logits are read, changed and
// written back. One block per row takes its list in chunks, one entry per thread.
//
// Bytes moved per entry: 4 to 8 of id, 4 to 8 of count or bias, and a sector of logits
// read and written. A row that lists nothing reads its two ends of row_indptr.
//
// Entries of one token must be applied in order. Callers should list each token once, so
// a chunk is first searched for duplicates, with a hash table in shared memory. A chunk
// that has any is applied by one thread, in order.
#include "cuda/compat.h"
#include "cuda/listed_logits.h"
#include "cuda/row_reader.cuh"

namespace structout::cuda {
namespace {

constexpr int kChunk = 512;  // entries, and threads
constexpr int kTableBits = 11;
constexpr unsigned kTableSize = 1u << kTableBits;
constexpr unsigned kGoldenRatio = 2654435769u;  // times 2^-32
constexpr unsigned kEmpty = ~0u;

// Adds a token to an open-addressing hash table, and returns whether it was there.
__device__ __forceinline__ bool insert(unsigned* table, unsigned token) {
  for (unsigned place = token * kGoldenRatio >> (32 - kTableBits);; place = (place + 1) % kTableSize) {
    const unsigned found = atomicCAS(&table[place], kEmpty, token);
    if (found == kEmpty) return false;
    if (found == token) return true;
  }
}

template <FloatFormat kFormat, class Params>
__device__ void change_entry(const Params& params, int64_t row, int64_t entry, int64_t token,
                             const typename Params::OfRow& values) {
  using Element = typename Vector<kFormat>::Element;
  Element* logit = static_cast<Element*>(params.logits) + row * params.row_stride + token;
  const float x = params.changed(Vector<kFormat>::widen(*logit), entry, values);
  if constexpr (kFormat == FloatFormat::kFloat32) {
    *logit = bits_of_float(x);
  } else {
    *logit = kFormat == FloatFormat::kFloat16 ? half_bits(x) : bfloat16_bits(x);
  }
}

template <FloatFormat kFormat, class Params>
__global__ void __launch_bounds__(kChunk, 2) change_listed_logits(Params params) {
  __shared__ unsigned table[kTableSize];
  __shared__ unsigned has_duplicates;
  const int64_t row = blockIdx.x;
  const TokenLists::Range entries = params.lists.entries(row);
  if (entries.begin >= entries.end) return;
  const auto values = params.row_values(row);
  const auto token_of = [&](int64_t entry) {
    const int64_t token = entry < entries.end ? params.lists.token_ids.at(entry) : -1;
    return token < params.vocab_size ? token : int64_t{-1};
  };
  for (int64_t chunk = entries.begin; chunk < entries.end; chunk += kChunk) {
    for (unsigned first = 0; first < kTableSize; first += kChunk) table[first + threadIdx.x] = kEmpty;
    if (threadIdx.x == 0) has_duplicates = 0;
    __syncthreads();
    const int64_t entry = chunk + threadIdx.x;
    const int64_t token = token_of(entry);
    if (token >= 0 && insert(table, static_cast<unsigned>(token))) atomicOr(&has_duplicates, 1u);
    __syncthreads();
    if (has_duplicates == 0) {
      if (token >= 0) change_entry<kFormat>(params, row, entry, token, values);
    } else if (threadIdx.x == 0) {
      for (int64_t i = chunk; i < entries.end && i < chunk + kChunk; ++i) {
        if (const int64_t listed = token_of(i); listed >= 0) change_entry<kFormat>(params, row, i, listed, values);
      }
    }
    __syncthreads();
  }
}

template <FloatFormat kFormat, class Params>
void launch(const Params& params, void* stream) {
  const auto kernel = change_listed_logits<kFormat, Params>;
  STRUCTOUT_LAUNCH(kernel, dim3(static_cast<unsigned>(params.num_rows)), dim3(kChunk),
                   static_cast<cudaStream_t>(stream), params);
}

template <class Params>
void launch_for_format(const Params& params, void* stream) {
  if (params.num_rows == 0 || params.vocab_size == 0 || params.lists.num_entries == 0) return;
  with_format(params.format, [&](auto format) { launch<format.value>(params, stream); });
}

}  // namespace

void apply_penalties(const PenaltiesParams& params, void* stream) { launch_for_format(params, stream); }

void apply_logit_bias(const LogitBiasParams& params, void* stream) { launch_for_format(params, stream); }

}  // namespace structout::cuda
