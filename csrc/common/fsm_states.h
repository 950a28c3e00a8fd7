// The FSM ops: they advance states of automata by tokens, and turn states into mask
// rows. The structs cross from the torch bindings to the CPU and CUDA kernels.
//
// Nothing that the tensors contain can lead out of them: an id that is out of range
// allows nothing.
#pragma once

#include "common/bitmask.h"

namespace structout {

// States that are not in the tables.
constexpr int32_t kFreeState = -1;      // no constraint
constexpr int32_t kFinishedState = -2;  // the text has ended
constexpr int32_t kDeadState = -3;      // a token came that was not allowed

// Rows that are not in the masks.
constexpr int32_t kFreeRow = -1;
constexpr int32_t kEmptyRow = -2;  // allows nothing

constexpr int64_t kNumByteValues = 256;

// The automata of many grammars, and the vocabulary that they share.
struct FsmTables {
  const int32_t* transitions;  // [num_states, 256]: the state after a byte, -1: none
  const int32_t* state_flags;  // [num_states]: the flags below, and the grammar's number
  const int32_t* stop_tokens;  // [num_grammars, max_stop_tokens], padded with -1
  const uint8_t* token_bytes;  // [num_bytes]
  const int32_t* token_begin;  // [vocab_size + 1]: token i has bytes token_begin[i] ... token_begin[i + 1]
  int64_t num_states;
  int64_t num_grammars;
  int64_t max_stop_tokens;
  int64_t num_bytes;
  int64_t vocab_size;

  static constexpr int32_t kAccepting = 1;  // the text may end here
  static constexpr int32_t kLive = 2;       // a token may end here
  static constexpr int kGrammarShift = 2;

  STRUCTOUT_HOST_DEVICE bool is_state(int64_t state) const { return state >= 0 && state < num_states; }

  // Makes every id that is neither a state nor one of the constants above dead.
  STRUCTOUT_HOST_DEVICE int32_t known_state(int32_t state) const {
    return is_state(state) || (state < 0 && state > kDeadState) ? state : kDeadState;
  }

  // The state after the bytes of a token of the vocabulary. kDeadState if they are not
  // allowed, or if there are none.
  STRUCTOUT_HOST_DEVICE int32_t after_text(int32_t state, int64_t token) const {
    int64_t byte = token_begin[token], end = token_begin[token + 1];
    if (byte < 0 || end > num_bytes || byte >= end) return kDeadState;
    for (; byte < end; ++byte) {
      state = transitions[state * kNumByteValues + token_bytes[byte]];
      if (!is_state(state)) return kDeadState;
    }
    return (state_flags[state] & kLive) != 0 ? state : kDeadState;
  }

  // The state after a token.
  STRUCTOUT_HOST_DEVICE int32_t advance(int32_t state, int64_t token) const {
    state = known_state(state);
    if (state < 0) return state;
    if (token < 0 || token >= vocab_size) return kDeadState;
    const int32_t flags = state_flags[state];
    if (const int32_t* stop = stops(flags)) {
      for (int64_t i = 0; i < max_stop_tokens; ++i) {
        if (stop[i] == token) return (flags & kAccepting) != 0 ? kFinishedState : kDeadState;
      }
    }
    return after_text(state, token);
  }

  // `bits`, a word of a state's mask, with the bits of its grammar's stop tokens.
  STRUCTOUT_HOST_DEVICE uint32_t with_stop_tokens(int32_t state, int64_t word, uint32_t bits) const {
    const int32_t flags = state_flags[state];
    const int32_t* stop = stops(flags);
    if (stop == nullptr) return bits;
    for (int64_t i = 0; i < max_stop_tokens; ++i) {
      if (stop[i] < 0 || stop[i] >= vocab_size || stop[i] / kBitsPerWord != word) continue;
      const uint32_t bit = 1u << (stop[i] % kBitsPerWord);
      bits = (flags & kAccepting) != 0 ? bits | bit : bits & ~bit;
    }
    return bits;
  }

 private:
  STRUCTOUT_HOST_DEVICE const int32_t* stops(int32_t flags) const {
    const int64_t grammar = flags >> kGrammarShift;
    return grammar >= 0 && grammar < num_grammars ? stop_tokens + grammar * max_stop_tokens : nullptr;
  }
};

struct FsmAdvanceParams {
  FsmTables tables;
  int64_t num_rows;
  int32_t* states;  // [num_rows]
  int64_t states_stride;
  StridedIntegers tokens;  // [num_rows]

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    int32_t& state = states[row * states_stride];
    state = tables.advance(state, tokens.at(row));
  }
};

struct FsmRowsParams {
  FsmTables tables;
  int64_t num_rows;
  Strided<int32_t> states;    // [num_rows]
  const int32_t* mask_slots;  // [num_states]: the row of masks that holds the state's mask, -1: none
  uint32_t* masks;            // [at least num_slots + num_rows, words_per_row], last dimension contiguous
  int64_t words_per_row;
  int64_t row_stride;     // of masks, in words
  int64_t num_slots;      // the masks below are computed here, row num_slots + i for states[i]
  int64_t* num_computed;  // [1]: grows by the number of masks that were computed
  int32_t* rows;          // [num_rows], contiguous: the result

  // The row of masks for a state. It has to be computed if it is num_slots or above.
  STRUCTOUT_HOST_DEVICE int32_t mask_row(int64_t row) const {
    const int32_t state = tables.known_state(states.at(row));
    if (state < 0) return state == kDeadState ? kEmptyRow : kFreeRow;
    const int32_t slot = mask_slots[state];
    return slot >= 0 && slot < num_slots ? slot : static_cast<int32_t>(num_slots + row);
  }
};

struct FsmDraftStatesParams {
  FsmTables tables;
  int64_t num_requests;
  Strided<int32_t> states;  // [num_requests]
  int64_t num_rows;
  StridedIntegers drafts;      // [num_rows]; the last of each request is not read
  StridedIntegers row_indptr;  // [num_requests + 1]; request i owns rows row_indptr[i] ... row_indptr[i + 1]
  int32_t* row_states;         // [num_rows], contiguous: the result

  // Writes the rows of one request, or those of no request for `num_requests`.
  STRUCTOUT_HOST_DEVICE void run(int64_t request) const {
    if (request == num_requests) {
      for (int64_t row = 0; row < row_begin(0); ++row) row_states[row] = kFreeState;
      for (int64_t row = row_begin(num_requests); row < num_rows; ++row) row_states[row] = kFreeState;
      return;
    }
    const int64_t end = row_begin(request + 1);
    int32_t state = tables.known_state(states.at(request));
    bool is_legal = true;
    for (int64_t row = row_begin(request); row < end; ++row) {
      row_states[row] = state;
      if (state < 0 || !is_legal || row + 1 == end) continue;
      const int64_t draft = drafts.at(row);
      const int32_t next = draft == -1 ? kFreeState : tables.advance(state, draft);
      is_legal = next != kDeadState;
      if (is_legal) state = next;
    }
  }

 private:
  // A row_indptr that is out of range cannot lead out of the rows.
  STRUCTOUT_HOST_DEVICE int64_t row_begin(int64_t request) const {
    const int64_t row = row_indptr.at(request);
    return row < 0 ? 0 : row > num_rows ? num_rows : row;
  }
};

}  // namespace structout
