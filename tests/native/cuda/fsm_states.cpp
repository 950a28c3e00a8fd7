// The CUDA kernels of the FSM ops on the CPU: a library for the Python tests, and a
// program (COUNT SEED) that runs random cases under sanitizers, in buffers of exactly the
// right size. Many of the numbers in the tables are out of range.
#include "cuda/fsm_states.cu"

#include <vector>

#include "random_cases.h"

using namespace structout;

extern "C" {
void fsm_advance_on_host(const FsmAdvanceParams* params) { cuda::fsm_advance(*params, nullptr); }
void fsm_rows_on_host(const FsmRowsParams* params) { cuda::fsm_rows(*params, 2, nullptr); }
void fsm_draft_states_on_host(const FsmDraftStatesParams* params) { cuda::fsm_draft_states(*params, nullptr); }
}

struct Case {
  std::mt19937_64& rng;
  std::vector<int32_t> transitions, state_flags, stop_tokens, token_begin, mask_slots;
  std::vector<uint8_t> token_bytes;
  FsmTables tables{};

  int64_t below(int64_t bound) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)); }

  // A number below `bound`, or now and then any number.
  int32_t mostly_below(int64_t bound) {
    return static_cast<int32_t>(below(20) == 0 ? static_cast<int64_t>(rng()) : below(bound));
  }

  explicit Case(std::mt19937_64& rng) : rng(rng) {
    const int64_t num_states = 1 + below(9), num_grammars = below(3), max_stops = below(7);
    const int64_t vocab_size = 1 + below(below(3) ? 100 : 700);
    transitions.resize(num_states * kNumByteValues);
    for (int32_t& next : transitions) next = below(3) ? mostly_below(num_states) : -1;
    for (int64_t i = 0; i < num_states; ++i) state_flags.push_back(mostly_below(4 * (num_grammars + 1)));
    for (int64_t i = 0; i < num_grammars * max_stops; ++i) stop_tokens.push_back(mostly_below(vocab_size));
    token_begin.push_back(0);
    for (int64_t i = 0; i < vocab_size; ++i) token_begin.push_back(token_begin.back() + static_cast<int32_t>(below(5)));
    token_bytes.resize(token_begin.back());
    for (uint8_t& byte : token_bytes) byte = static_cast<uint8_t>(rng());
    for (int64_t i = below(3); i > 0; --i) token_begin[below(vocab_size + 1)] = static_cast<int32_t>(rng());
    tables = {transitions.data(), state_flags.data(), stop_tokens.data(),
              token_bytes.data(), token_begin.data(), num_states,
              num_grammars,       max_stops,          static_cast<int64_t>(token_bytes.size()),
              vocab_size};
  }

  std::vector<int32_t> random_states(int64_t count) {
    std::vector<int32_t> states(count);
    for (int32_t& state : states) state = mostly_below(tables.num_states + 3) - 3;
    return states;
  }

  bool advance() {
    const int64_t num_rows = below(400), stride = 1 + below(2);
    std::vector<int32_t> states = random_states(num_rows * stride), expected = states, tokens(num_rows);
    for (int32_t& token : tokens) token = mostly_below(tables.vocab_size);
    for (int64_t i = 0; i < num_rows; ++i) expected[i * stride] = tables.advance(expected[i * stride], tokens[i]);
    const std::vector<int64_t> wide_tokens(tokens.begin(), tokens.end());
    const bool is_int64 = below(2);
    const void* any_tokens = is_int64 ? static_cast<const void*>(wide_tokens.data()) : tokens.data();
    cuda::fsm_advance({tables, num_rows, states.data(), stride, {any_tokens, 1, is_int64}}, nullptr);
    return states == expected;
  }

  bool rows() {
    const int64_t num_rows = below(2) ? below(5) : 256 + below(5), num_slots = below(4);
    const int64_t width = words_for(tables.vocab_size), stride = width + below(3);
    for (int64_t i = 0; i < tables.num_states; ++i) mask_slots.push_back(mostly_below(num_slots + 1) - 1);
    const std::vector<int32_t> states = random_states(num_rows);
    const int64_t num_masks = num_slots + num_rows;
    std::vector<uint32_t> masks(num_masks == 0 ? 0 : (num_masks - 1) * stride + width, 0xabababab), expected = masks;
    std::vector<int32_t> rows(num_rows);
    int64_t num_computed = 5, expected_computed = 5;
    const FsmRowsParams params{tables, num_rows, {states.data(), 1}, mask_slots.data(), masks.data(),
                               width,  stride,   num_slots,          &num_computed,     rows.data()};
    cuda::fsm_rows(params, static_cast<int>(1 + below(3)), nullptr);
    for (int64_t i = 0; i < num_rows; ++i) {
      if (rows[i] != params.mask_row(i)) return false;
      if (rows[i] < num_slots) continue;
      ++expected_computed;
      uint32_t* mask = expected.data() + rows[i] * stride;
      for (int64_t word = 0; word < width; ++word) mask[word] = 0;
      for (int64_t token = 0; token < tables.vocab_size; ++token) {
        if (tables.advance(states[i], token) != kDeadState) mask[token / 32] |= 1u << (token % 32);
      }
    }
    return masks == expected && num_computed == expected_computed;
  }

  bool draft_states() {
    const int64_t num_requests = below(200), num_rows = below(3) ? 4 * num_requests : below(50);
    const std::vector<int32_t> states = random_states(num_requests);
    std::vector<int64_t> drafts(num_rows);
    for (int64_t& draft : drafts) draft = static_cast<int32_t>(mostly_below(tables.vocab_size + 1) - 1);
    std::vector<int32_t> indptr(num_requests + 1);
    for (int64_t i = 0; i <= num_requests; ++i) indptr[i] = static_cast<int32_t>(4 * i + 1);  // clamped at the end
    std::vector<int32_t> row_states(num_rows, -77), expected(num_rows, -77);
    const std::vector<int32_t> narrow_drafts(drafts.begin(), drafts.end());
    const std::vector<int64_t> wide_indptr(indptr.begin(), indptr.end());
    StridedIntegers any_drafts{drafts.data(), 1, true}, any_indptr{indptr.data(), 1, false};
    if (below(2)) any_drafts = {narrow_drafts.data(), 1, false};
    if (below(2)) any_indptr = {wide_indptr.data(), 1, true};
    FsmDraftStatesParams params{tables,     num_requests, {states.data(), 1}, num_rows,
                                any_drafts, any_indptr,   expected.data()};
    for (int64_t i = 0; i <= num_requests; ++i) params.run(i);
    params.row_states = row_states.data();
    cuda::fsm_draft_states(params, nullptr);
    return row_states == expected;
  }
};

int main(int argc, char** argv) {
  return run_random_cases(argc, argv, [](std::mt19937_64& rng) {
    Case random(rng);
    return random.advance() && random.rows() && random.draft_states();
  });
}
