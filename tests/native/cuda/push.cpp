// The push collectives on the CPU. Every rank is an OS thread with its own buffer and
// state. All ranks make the same calls, with random delays.
//
//   gather EPOCHS SEED RANKS...   push_all_gather
//   mixed EPOCHS SEED RANKS...    push_all_gather and push_rows
//   absent RANKS [BYTES [CALLS]]     the last rank never arrives
//   mismatch RANKS [BYTES [CALLS]]   the last rank makes another call
// in push_rows of elements of so many bytes, after CALLS of them (0 or 1) that succeeded,
// or without BYTES in push_all_gather
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/push_all_gather.cu"
#include "cuda/push_rows.cu"

using namespace structout;

namespace {

using Rng = std::mt19937_64;
using Bytes = std::vector<char>;

int64_t below(Rng& rng, int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); }

// A rank that is present must not look absent because the machine is busy.
constexpr int64_t kLongTime = 120'000'000'000, kShortTime = 2'000'000'000;
constexpr int kFill = 0xA5;

[[noreturn]] void fail(const std::string& message) {
  std::printf("%s\n", message.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

// Memory of exactly the right size, so that AddressSanitizer sees any overrun. malloc
// aligns it to 16 bytes.
struct Buffer {
  explicit Buffer(int64_t size) : memory(static_cast<char*>(std::calloc(1, static_cast<size_t>(size)))) {}
  ~Buffer() { std::free(memory); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* memory;
};

struct World {
  World(int64_t ranks, int64_t gather_capacity, int64_t rows_capacity, bool has_multicast)
      : layout{ranks, gather_capacity}, states(static_cast<size_t>(ranks)) {
    const int64_t size = layout.size(rows_capacity);
    std::vector<char*> memories;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      buffers.push_back(std::make_unique<Buffer>(size));
      memories.push_back(buffers.back()->memory);
      addresses.push_back(reinterpret_cast<uint64_t>(memories.back()));
    }
    // Only memory that ranks share is watched for data races from launch to launch.
    for (char* memory : memories) simt::PtxBackend::get().watch(memory, static_cast<size_t>(size));
    has_multicast &= simt::PtxBackend::get().max_compute_capability() >= 90;
    if (has_multicast) multicast = std::make_unique<simt::Multicast>(memories, static_cast<size_t>(size));
  }

  ~World() { simt::PtxBackend::get().watch_nothing(); }

  PushGroup group(int64_t rank, uint64_t token, int64_t timeout_ns) {
    return {addresses.data(),
            multicast ? multicast->address() : nullptr,
            &states[static_cast<size_t>(rank)],
            static_cast<int32_t>(rank),
            layout,
            token,
            timeout_ns};
  }

  PushLayout layout;
  std::vector<PushState> states;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<uint64_t> addresses;
  std::unique_ptr<simt::Multicast> multicast;
};

void on_all_ranks(int64_t ranks, const std::function<void(int64_t)>& run) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
}

// The parameters of a call. They follow from the seed, so all ranks agree on them.
struct Call {
  uint64_t seed;
  cuda::PushGrid max_grid;

  Call(uint64_t seed, Rng& rng) : seed(seed), max_grid{1 + below(rng, 6), 32 * (1 + below(rng, 2))} {}
};

Bytes random_bytes(uint64_t seed, int64_t count) {
  Rng rng(seed);
  Bytes bytes(static_cast<size_t>(count));
  for (char& byte : bytes) byte = static_cast<char>(rng());
  return bytes;
}

void all_gather(World& world, const Call& call, int64_t rank, int64_t capacity) {
  Rng rng(call.seed);
  const int64_t bytes = below(rng, 4) == 0 ? below(rng, 40) : below(rng, capacity + 1);
  const int64_t alignment = int64_t{1} << below(rng, 5);
  Rng own(call.seed + 1000 + static_cast<uint64_t>(rank));
  const auto aligned = [&](int64_t offset) { return offset / alignment * alignment; };
  const int64_t ranks = world.layout.world_size, shard_at = aligned(below(own, 64)), out_at = aligned(below(own, 64));

  Buffer shard(shard_at + bytes + 1), out(out_at + ranks * bytes + 1);
  const Bytes shard_bytes = random_bytes(call.seed + static_cast<uint64_t>(rank), bytes);
  std::copy(shard_bytes.begin(), shard_bytes.end(), shard.memory + shard_at);

  PushAllGatherParams params{};
  params.group = world.group(rank, call.seed, kLongTime);
  params.shard = shard.memory + shard_at;
  params.bytes = bytes;
  params.out = out.memory + out_at;
  cuda::push_all_gather(params, call.max_grid, nullptr);

  for (int64_t source = 0; source < ranks; ++source) {
    const Bytes expected = random_bytes(call.seed + static_cast<uint64_t>(source), bytes);
    if (!std::equal(expected.begin(), expected.end(), params.out + source * bytes)) {
      fail("rank " + std::to_string(rank) + " has other bytes from rank " + std::to_string(source));
    }
  }
}

template <class T>
T logit(uint64_t seed, int64_t row, int64_t token) {
  return static_cast<T>((seed + static_cast<uint64_t>(row * 100'003 + token)) * 0x9E3779B97F4A7C15u >> 29);
}

struct Rows {
  int64_t num_rows, vocab_size;
  std::vector<int64_t> shard_begin;  // per rank, then the vocabulary's size
  bool has_mask, has_row_map;
  int64_t num_masks, mask_words;
  std::vector<uint32_t> mask;
  std::vector<int64_t> map;

  Rows(Rng& rng, int64_t ranks, int64_t capacity) {
    num_rows = below(rng, 12);
    const int64_t owned = num_rows / ranks + 1;
    vocab_size = 1 + below(rng, std::min<int64_t>(capacity / owned / 4 - 4, below(rng, 3) ? 300 : 3000));
    shard_begin = {0};
    const int64_t unit = int64_t{1} << below(rng, 6);
    for (int64_t rank = 1; rank < ranks; ++rank) {
      const int64_t even = vocab_size * rank / ranks / unit * unit;
      const int64_t uneven = below(rng, vocab_size + 1);
      shard_begin.push_back(std::max(shard_begin.back(), rng() % 4 ? even : uneven));
    }
    shard_begin.push_back(vocab_size);
    has_mask = below(rng, 4) != 0;
    has_row_map = has_mask && below(rng, 2);
    num_masks = has_row_map ? 1 + below(rng, 4) : num_rows;
    mask_words = std::max<int64_t>(0, words_for(vocab_size) + below(rng, 3) - 1);
    const int64_t density = below(rng, 4);
    for (int64_t i = 0; i < num_masks * mask_words; ++i) {
      const auto word = static_cast<uint32_t>(rng());
      mask.push_back(density == 0 ? below(rng, 9) == 0 ? 1u << word % 32 : 0u : density == 1 ? ~0u : word);
    }
    for (int64_t row = 0; row < num_rows; ++row) map.push_back(has_row_map ? below(rng, num_masks + 4) - 2 : row);
  }

  bool is_allowed(int64_t row, int64_t token) const {
    const int64_t id = map[static_cast<size_t>(row)];
    if (!has_mask || id == -1) return true;
    if (id < 0 || id >= num_masks || token / 32 >= mask_words) return false;
    return mask[static_cast<size_t>(id * mask_words + token / 32)] >> (token % 32) & 1;
  }
};

template <class T>
void exchange_rows(World& world, const Call& call, int64_t rank, int64_t capacity) {
  Rng rng(call.seed);
  const int64_t ranks = world.layout.world_size;
  const Rows rows(rng, ranks, capacity);
  const int64_t begin = rows.shard_begin[static_cast<size_t>(rank)];
  const int64_t width = rows.shard_begin[static_cast<size_t>(rank) + 1] - begin;
  Rng own(call.seed + 1000 + static_cast<uint64_t>(rank));
  const int64_t row_stride = width + (own() % 2 ? below(own, 20) : 0), offset = own() % 2 ? below(own, 9) : 0;

  std::vector<T> logits(static_cast<size_t>(offset + std::max<int64_t>(0, rows.num_rows - 1) * row_stride + width));
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      logits[static_cast<size_t>(offset + row * row_stride + i)] = logit<T>(call.seed, row, begin + i);
    }
  }
  const int64_t first = first_row_of(rank, ranks, rows.num_rows), end = first_row_of(rank + 1, ranks, rows.num_rows);
  std::vector<int64_t> rows_out(static_cast<size_t>(end - first), 77);

  PushRowsParams params{};
  params.group = world.group(rank, call.seed, kLongTime);
  params.logits = reinterpret_cast<const char*>(logits.data() + offset);
  params.num_rows = rows.num_rows;
  params.width = width;
  params.row_stride = row_stride;
  params.vocab_begin = begin;
  params.vocab_size = rows.vocab_size;
  params.element_bytes = sizeof(T);
  params.has_mask = rows.has_mask;
  params.bitmask = {rows.mask.data(), rows.num_masks, rows.mask_words, rows.mask_words};
  const std::vector<int32_t> narrow_map(rows.map.begin(), rows.map.end());
  if (rows.has_row_map && call.seed % 2) params.rows = {rows.map.data(), 1, true};
  if (rows.has_row_map && call.seed % 2 == 0) params.rows = {narrow_map.data(), 1, false};
  params.rows_out = rows_out.data();
  cuda::push_rows(params, call.max_grid, nullptr);

  const char* buffer = world.buffers[static_cast<size_t>(rank)]->memory + world.layout.rows();
  for (int64_t row = first; row < end; ++row) {
    const int64_t governing = rows.has_mask ? rows.map[static_cast<size_t>(row)] : -1;
    if (rows_out[static_cast<size_t>(row - first)] != governing) fail("rows_out names another mask");
    const auto* got =
        reinterpret_cast<const T*>(buffer + (row - first) * whole_vectors(rows.vocab_size * int64_t{sizeof(T)}));
    for (int64_t token = 0; token < rows.vocab_size; ++token) {
      if (!rows.is_allowed(row, token)) continue;
      if (got[token] != logit<T>(call.seed, row, token)) {
        fail("rank " + std::to_string(rank) + " has another logit of row " + std::to_string(row) + ", token " +
             std::to_string(token));
      }
    }
  }
}

void run_calls(bool has_rows, int64_t ranks, int64_t epochs, uint64_t seed) {
  Rng rng(seed);
  const int64_t gather_capacity = 1 + below(rng, 2000), rows_capacity = 16 * (1000 + below(rng, 200));
  World world(ranks, gather_capacity, rows_capacity, rng() % 3 == 0);
  const uint64_t late_rank = rng() % static_cast<uint64_t>(ranks);
  on_all_ranks(ranks, [&](int64_t rank) {
    Rng same(seed), own(seed + 1 + static_cast<uint64_t>(rank));
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      const Call call(same(), same);
      const uint64_t kind = has_rows ? same() % 3 : 0;
      const bool is_late = static_cast<uint64_t>(rank) == late_rank ? own() % 4 == 0 : own() % 16 == 0;
      if (is_late) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
      if (kind == 0) all_gather(world, call, rank, gather_capacity);
      if (kind == 1) exchange_rows<uint32_t>(world, call, rank, rows_capacity);
      if (kind == 2) exchange_rows<uint16_t>(world, call, rank, rows_capacity);
    }
  });
  for (const PushState& state : world.states) {
    if (state.error != 0 || state.blocks_done != 0)
      fail("a state has an error or unfinished blocks after calls that succeeded");
    if (state.epoch < static_cast<uint64_t>(epochs)) fail("an epoch was not counted");
  }
}

void expect_error(const PushState& state, PushError error, int64_t peer, uint64_t epoch) {
  if (state.error != static_cast<uint64_t>(error)) fail("error is " + std::to_string(state.error));
  if (peer >= 0 && state.error_peer != static_cast<uint64_t>(peer)) fail("peer is " + std::to_string(state.error_peer));
  if (state.error_epoch != epoch) fail("epoch is " + std::to_string(state.error_epoch));
}

// Makes calls that succeed, one that fails, of push_rows if `element_bytes` is not 0, and
// one more of each kind, which must end at once.
void run_failure(PushError error, int64_t ranks, int32_t element_bytes, bool has_pushed_rows) {
  constexpr int64_t kBytes = 1000, kRows = 5, kVocab = 100;
  World world(ranks, kBytes, 4096, false);
  const auto gather = [&](int64_t rank, uint64_t token, int64_t timeout_ns, bool succeeds) {
    const Bytes shard = random_bytes(static_cast<uint64_t>(rank), kBytes);
    Bytes out(static_cast<size_t>(ranks * kBytes), 1);
    PushAllGatherParams params{};
    params.group = world.group(rank, token, timeout_ns);
    params.shard = shard.data();
    params.bytes = kBytes;
    params.out = out.data();
    params.fill_on_error = kFill;
    cuda::push_all_gather(params, {4, 32}, nullptr);
    const bool is_filled =
        std::all_of(out.begin(), out.end(), [](char byte) { return byte == static_cast<char>(kFill); });
    if (is_filled == succeeds)
      fail(succeeds ? "out is filled after a call that succeeded" : "out is not filled after a call that failed");
  };
  const auto push_rows = [&](int64_t rank, uint64_t token, int64_t timeout_ns, bool succeeds) {
    const std::vector<float> logits(kRows * kVocab);
    std::vector<int64_t> rows_out(kRows, 77);
    PushRowsParams params{};
    params.group = world.group(rank, token, timeout_ns);
    params.logits = reinterpret_cast<const char*>(logits.data());
    params.num_rows = kRows;
    params.width = params.vocab_size = params.row_stride = kVocab;
    params.element_bytes = element_bytes == 0 ? 4 : element_bytes;
    params.rows_out = rows_out.data();
    cuda::push_rows(params, {4, 32}, nullptr);
    const int64_t owned = first_row_of(rank + 1, ranks, kRows) - first_row_of(rank, ranks, kRows);
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t expected = i >= owned ? 77 : succeeds ? -1 : kNoRow;
      if (rows_out[static_cast<size_t>(i)] != expected) fail("rows_out has " + std::to_string(rows_out[i]));
    }
  };
  on_all_ranks(ranks, [&](int64_t rank) {
    for (uint64_t epoch = 1; epoch <= 2; ++epoch) gather(rank, epoch, kLongTime, true);
    if (has_pushed_rows) push_rows(rank, 2, kLongTime, true);
    const bool is_last = rank == ranks - 1;
    if (error == PushError::kTimeout && is_last) return;
    const bool is_other = error == PushError::kMismatch && is_last;
    const uint64_t token = is_other ? 99 : 3;
    const int64_t timeout_ns = error == PushError::kTimeout ? kShortTime : kLongTime;
    element_bytes == 0 ? gather(rank, token, timeout_ns, false) : push_rows(rank, token, timeout_ns, false);
    gather(rank, 4, kLongTime, false);
    push_rows(rank, 5, kLongTime, false);
    expect_error(world.states[static_cast<size_t>(rank)], error, is_other ? -1 : ranks - 1, has_pushed_rows ? 4 : 3);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argv[1];
  const int64_t number = std::atoll(argv[2]);
  if (what == "absent" || what == "mismatch") {
    const int32_t element_bytes = argc > 3 ? std::atoi(argv[3]) : 0;
    run_failure(what == "absent" ? PushError::kTimeout : PushError::kMismatch, number, element_bytes,
                argc > 4 && std::atoi(argv[4]) == 1);
  } else {
    const uint64_t seed = std::strtoull(argv[3], nullptr, 10);
    for (int i = 4; i < argc; ++i)
      run_calls(what == "mixed", std::atoll(argv[i]), number, seed + static_cast<uint64_t>(i));
  }
  std::puts("ok");
}
