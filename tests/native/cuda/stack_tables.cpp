// The CUDA kernels of the stack ops on the CPU: a library for the Python tests, and a
// program (COUNT SEED) that runs random cases under sanitizers, in buffers of exactly the
// right size. Many of the numbers in the tables are out of range.
#include "cuda/stack_tables.cu"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

using namespace structout;

extern "C" {
void stack_advance_on_host(const StackAdvanceParams* params) { cuda::stack_advance(*params, nullptr); }
void stack_rows_on_host(const StackRowsParams* params) { cuda::stack_rows(*params, nullptr); }
void stack_draft_rows_on_host(const StackDraftRowsParams* params) { cuda::stack_draft_rows(*params, nullptr); }
}

struct Case {
  std::mt19937_64& rng;
  std::vector<int32_t> states, cells, keys, stop_tokens, token_begin;
  std::vector<uint8_t> class_maps, token_bytes;
  StackTables tables{};
  int64_t max_depth, num_columns;

  int64_t below(int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); }

  // A number below `bound`, or now and then any number.
  int32_t mostly_below(int64_t bound) {
    return static_cast<int32_t>(below(30) == 0 ? static_cast<int64_t>(rng()) : below(bound));
  }

  // Most actions lead somewhere.
  int32_t random_action(int64_t num_states, int64_t num_cells) {
    static constexpr int32_t kKinds[] = {kActionReplace, kActionReplace, kActionPush,      kActionPush,
                                         kActionPop,     kActionPop,     kActionPopBefore, kActionGuarded};
    const int32_t kind = below(12) ? kKinds[below(8)] : static_cast<int32_t>(below(8));
    const bool is_cell = kind == kActionPush || kind == kActionGuarded;
    const int64_t operand =
        kind == kActionPop || kind == kActionPopBefore ? below(3) : below(is_cell ? num_cells : num_states);
    return static_cast<int32_t>(operand << kActionKindBits) | kind;
  }

  explicit Case(std::mt19937_64& rng) : rng(rng) {
    const int64_t num_states = 1 + below(9), num_maps = 1 + below(3), num_cells = 8 + below(200);
    const int64_t num_languages = below(3), max_stops = below(4), vocab_size = 1 + below(60),
                  num_keys = 1ll << below(5);
    max_depth = below(4) ? below(6) : 40;
    num_columns = kFramesColumn + max_depth * kFrameColumns;
    for (int64_t i = 0; i < num_cells; ++i) {
      cells.push_back(below(3) ? mostly_below(num_states) : random_action(num_states, num_cells));
    }
    for (int64_t i = 0; i < num_states; ++i) {
      // The actions of a state are among the cells of its own row.
      const int64_t row = below(num_cells - 4);
      for (int64_t k = 0; k < 4; ++k) cells[row + k] = random_action(num_states, num_cells);
      const int32_t flags = static_cast<int32_t>(below(1 << kStackLanguageShift) | (below(10) ? kStackLive : 0) |
                                                 below(num_languages + 1) << kStackLanguageShift);
      for (int32_t field : {mostly_below(num_maps), static_cast<int32_t>(row), mostly_below(num_cells),
                            mostly_below(num_states), flags}) {
        states.push_back(field);
      }
    }
    class_maps.resize(num_maps * 256);
    for (uint8_t& each : class_maps) each = static_cast<uint8_t>(below(40) ? below(4) : below(256));
    for (int64_t i = 0; i < num_keys * kKeyColumns; ++i) keys.push_back(below(2) ? -1 : mostly_below(num_states));
    for (int64_t i = 0; i < num_languages * max_stops; ++i) stop_tokens.push_back(mostly_below(vocab_size));
    token_begin.push_back(0);
    for (int64_t i = 0; i < vocab_size; ++i) {
      token_begin.push_back(token_begin.back() + static_cast<int32_t>(below(20) ? below(5) : 40));
    }
    token_bytes.resize(token_begin.back());
    for (uint8_t& byte : token_bytes) byte = static_cast<uint8_t>(rng());
    for (int64_t i = below(3); i > 0; --i) token_begin[below(vocab_size + 1)] = static_cast<int32_t>(rng());
    tables = {states.data(),      class_maps.data(),
              cells.data(),       keys.data(),
              stop_tokens.data(), token_bytes.data(),
              token_begin.data(), num_states,
              num_maps,           num_cells,
              num_keys,           num_languages,
              max_stops,          static_cast<int64_t>(token_bytes.size()),
              vocab_size};
  }

  std::vector<int32_t> random_stacks(int64_t count) {
    std::vector<int32_t> stacks(count * num_columns);
    for (int64_t i = 0; i < count; ++i) {
      int32_t* stack = stacks.data() + i * num_columns;
      for (int64_t k = 0; k < num_columns; ++k) stack[k] = mostly_below(tables.num_states);
      stack[kTopColumn] = mostly_below(tables.num_states + 4) - 4;
      stack[kDepthColumn] = mostly_below(max_depth + 1);
    }
    return stacks;
  }

  // Some of the keys that the stacks have, with slots and lists of conditions.
  void add_keys(const std::vector<int32_t>& stacks) {
    for (size_t i = 0; i + num_columns <= stacks.size(); i += num_columns) {
      const int32_t top = stacks[i], depth = stacks[i + kDepthColumn];
      if (!tables.is_state(top) || depth < 0 || depth > max_depth) continue;
      const int32_t state = tables.field(top, kMaskStateField);
      if (!tables.is_state(state)) continue;
      const int num_frames = (tables.field(state, kFlagsField) >> kKeyFramesShift) & 15;
      int32_t key[kKeyFrames] = {state};
      for (int k = 1; k < kKeyFrames; ++k) {
        const int64_t at = kFramesColumn + (depth - k) * kFrameColumns;
        key[k] = k >= num_frames || depth + 1 < k ? kNoFrame : depth < k ? kBelowBottom : stacks[i + at];
      }
      int32_t* entry = keys.data() + (hash_of_key(key) & (tables.num_keys - 1)) * kKeyColumns;
      for (int k = 0; k < kKeyFrames; ++k) entry[k] = key[k];
      entry[kKeyFrames] = static_cast<int32_t>(below(2) ? below(5) : -2 - below(tables.num_cells));
    }
  }

  bool advance() {
    const int64_t num_rows = below(200);
    std::vector<int32_t> stacks = random_stacks(num_rows), expected = stacks, tokens(num_rows), results(num_rows);
    for (int32_t& token : tokens) token = mostly_below(tables.vocab_size);
    std::vector<int32_t> expected_results, scratch(kScratchColumns), all_scratch(num_rows * kScratchColumns);
    for (int64_t i = 0; i < num_rows; ++i) {
      expected_results.push_back(
          tables.advance({expected.data() + i * num_columns, 1}, max_depth, tokens[i], scratch.data()));
    }
    cuda::stack_advance({tables,
                         num_rows,
                         stacks.data(),
                         num_columns,
                         1,
                         max_depth,
                         {tokens.data(), 1, false},
                         all_scratch.data(),
                         results.data()},
                        nullptr);
    return stacks == expected && results == expected_results;
  }

  bool rows() {
    const int64_t num_rows = below(200);
    std::vector<int32_t> stacks = random_stacks(num_rows), rows(num_rows), expected;
    add_keys(stacks);
    for (int64_t i = 0; i < num_rows; ++i) {
      expected.push_back(tables.mask_row({stacks.data() + i * num_columns, 1}, max_depth));
    }
    cuda::stack_rows({tables, num_rows, stacks.data(), num_columns, 1, max_depth, rows.data()}, nullptr);
    return rows == expected;
  }

  bool draft_rows() {
    const int64_t num_requests = below(100), num_rows = below(3) ? 4 * num_requests : below(50);
    const std::vector<int32_t> stacks = random_stacks(num_requests);
    add_keys(stacks);
    std::vector<int64_t> drafts(num_rows);
    for (int64_t& draft : drafts) draft = static_cast<int32_t>(mostly_below(tables.vocab_size + 1) - 1);
    std::vector<int32_t> indptr(num_requests + 1);
    for (int64_t i = 0; i <= num_requests; ++i) indptr[i] = static_cast<int32_t>(4 * i + 1);  // clamped at the end
    std::vector<int32_t> rows(num_rows, -77), expected(num_rows, -77),
        scratch(num_requests * (num_columns + kScratchColumns));
    StackDraftRowsParams params{tables,
                                num_requests,
                                stacks.data(),
                                num_columns,
                                1,
                                max_depth,
                                num_rows,
                                {drafts.data(), 1, true},
                                {indptr.data(), 1, false},
                                scratch.data(),
                                expected.data()};
    for (int64_t i = 0; i <= num_requests; ++i) params.run(i);
    params.rows = rows.data();
    cuda::stack_draft_rows(params, nullptr);
    return rows == expected;
  }
};

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  std::mt19937_64 rng(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  for (int i = 0; i < count; ++i) {
    Case random(rng);
    if (!random.advance() || !random.rows() || !random.draft_rows()) {
      std::printf("case %d differs\n", i);
      return 1;
    }
  }
  std::printf("%d cases agree\n", count);
  return 0;
}
