// The stack ops: they advance texts whose places are stacks of states, and find the slots
// of their masks. The struct of the tables crosses from the torch bindings to the CPU and
// CUDA kernels; the engine that makes the tables (step/stack_tables.h) follows them with
// the same code.
//
// Tables may be incomplete. A text that comes to an entry that is missing does not change,
// and says so: the engine completes the tables, and the op runs again.
//
// Nothing that the tensors contain can lead out of them.
#pragma once

#include "common/bitmask.h"

namespace structout {

// Tops of stacks that are not in the tables.
constexpr int32_t kFreeStack = -1;      // no constraint
constexpr int32_t kFinishedStack = -2;  // the text has ended
constexpr int32_t kDeadStack = -3;      // a token came that was not allowed
constexpr int32_t kAskedStack = -4;     // the engine itself follows the text

// Rows that are not slots.
constexpr int32_t kFreeStackRow = -1;
constexpr int32_t kEmptyStackRow = -2;   // allows nothing
constexpr int32_t kMissedStackRow = -3;  // the mask is not in the tables; allows nothing until it is

// What becomes of a text.
constexpr int32_t kStackAdvanced = 0;
constexpr int32_t kStackMissed = 1;  // it has not changed

// A place of a text, in the columns of a row: the top, the depth, the names that have come
// in the value of the top, then the frames below from the bottom up. A frame is a state
// that waits for a value, and the names that have come around it.
constexpr int64_t kNameWords = 2;
constexpr int64_t kTopColumn = 0, kDepthColumn = 1, kNamesColumn = 2;
constexpr int64_t kFramesColumn = kNamesColumn + kNameWords;
constexpr int64_t kFrameColumns = 1 + kNameWords;

constexpr int kMaxTokenFrames = 24;          // that one token pushes and does not pop
constexpr int kKeyFrames = 8;                // the top and the frames that name a mask
constexpr int kKeyColumns = kKeyFrames + 1;  // and its slot
constexpr int kMaxPairs = 64;                // of a state: verdicts with which it is resumed, or tokens that it reads
constexpr int kConditionWords = kKeyFrames - 1;
constexpr int kMaxConditions = 32 * kConditionWords;

// Fields of a state.
constexpr int64_t kClassMapField = 0;   // a row of class_maps; -1: what bytes do is not known yet
constexpr int64_t kActionsField = 1;    // the cell of the action of class 0
constexpr int64_t kPairsField = 2;      // the cell of a list of pairs; -1: none is known yet
constexpr int64_t kMaskStateField = 3;  // a state with the same masks; -1: not known yet
constexpr int64_t kFlagsField = 4;
constexpr int64_t kStateFields = 5;

// Flags of a state.
constexpr int32_t kStackAccepting = 1;  // the text may end here, with no frame but the bottom below
constexpr int32_t kStackKeepsNames = 2;
constexpr int32_t kStackLive = 4;         // a token may end here
constexpr int32_t kStackReadsTokens = 8;  // by their ids: the pairs are tokens and the states that follow
constexpr int kKeyFramesShift = 4;        // 4 bits: how many frames name a mask of this state; 0: not known yet
constexpr int kStackLanguageShift = 8;    // the number of the language

// An action is a kind, and from bit 3 on an operand.
constexpr int kActionKindBits = 3;
constexpr int32_t kActionFail = 0;
constexpr int32_t kActionReplace = 1;    // the top, by the state
constexpr int32_t kActionPush = 2;       // a cell: the state on top, the state that waits below
constexpr int32_t kActionPop = 3;        // the value is complete with verdicts
constexpr int32_t kActionPopBefore = 4;  // the same, and the byte is still to be read
constexpr int32_t kActionMiss = 5;       // the engine must be asked
constexpr int32_t kActionGuarded = 6;    // a cell: the cell of a guard, an action, the name that it completes or -1

// Cells of a guard: names that are required, in kNameWords; names of which one must be left;
// how many keys may follow, -1 without a limit; the flags below.
constexpr int64_t kGuardLimit = 2 * kNameWords;
constexpr int64_t kGuardFlags = kGuardLimit + 1;
constexpr int32_t kGuardCloses = 1;      // no required name may be missing; nothing else is asked
constexpr int32_t kGuardAllowsFree = 2;  // another key may come

// Where a pair leads: to a state, or here.
constexpr int32_t kResumeRefused = -1;
constexpr int32_t kResumeAsked = -2;

// In the place of a slot, -2 - cell of a list of conditions, which with their truth name a
// mask; or one of these.
constexpr int32_t kNoSlot = -1;
constexpr int32_t kAskedSlot = INT32_MIN;
constexpr int32_t kEndOfConditions = -2;
constexpr int32_t kRawNames = -1;                    // in the place of a guard: the names themselves
constexpr int32_t kNoFrame = -1, kBelowBottom = -2;  // in a key

// What following a token needs: the frames that it has pushed, until it is known to be
// allowed.
constexpr int64_t kScratchColumns = kMaxTokenFrames * kFrameColumns;

struct StackNames {
  uint32_t words[kNameWords];

  STRUCTOUT_HOST_DEVICE bool any() const { return (words[0] | words[1]) != 0; }
  STRUCTOUT_HOST_DEVICE void clear() { words[0] = words[1] = 0; }
  STRUCTOUT_HOST_DEVICE void add(int32_t name) {
    for (int i = 0; i < kNameWords; ++i) words[i] |= name >> 5 == i ? 1u << (name & 31) : 0u;
  }
};

// A frame, at its columns.
struct StackFrame {
  int32_t* values;
  int64_t stride;

  STRUCTOUT_HOST_DEVICE int32_t state() const { return values[0]; }
  STRUCTOUT_HOST_DEVICE StackNames names() const {
    return {{static_cast<uint32_t>(values[stride]), static_cast<uint32_t>(values[2 * stride])}};
  }
  STRUCTOUT_HOST_DEVICE void set(int32_t state, const StackNames& names) const {
    values[0] = state;
    values[stride] = static_cast<int32_t>(names.words[0]);
    values[2 * stride] = static_cast<int32_t>(names.words[1]);
  }
};

// A row of `stacks` [num_rows, columns].
struct StackRow {
  int32_t* values;
  int64_t stride;  // of columns

  STRUCTOUT_HOST_DEVICE int32_t& at(int64_t column) const { return values[column * stride]; }
  STRUCTOUT_HOST_DEVICE StackFrame frame(int64_t i) const { return {&at(kFramesColumn + i * kFrameColumns), stride}; }
  STRUCTOUT_HOST_DEVICE StackNames names() const {
    return {{static_cast<uint32_t>(at(kNamesColumn)), static_cast<uint32_t>(at(kNamesColumn + 1))}};
  }
  STRUCTOUT_HOST_DEVICE void set_names(const StackNames& names) const {
    at(kNamesColumn) = static_cast<int32_t>(names.words[0]);
    at(kNamesColumn + 1) = static_cast<int32_t>(names.words[1]);
  }
};

STRUCTOUT_HOST_DEVICE uint32_t hash_of_key(const int32_t (&key)[kKeyFrames]) {
  uint32_t hash = 0x9E3779B1u;
  for (int i = 0; i < kKeyFrames; ++i) {
    hash = (hash ^ static_cast<uint32_t>(key[i])) * 0x85EBCA6Bu;
    hash ^= hash >> 15;
  }
  return hash;
}

STRUCTOUT_HOST_DEVICE int32_t num_bits(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

// Where a text has come to a missing entry.
struct StackMiss {
  int32_t state = -1;     // whose actions or pairs are not known; -1: the engine must be asked
  int32_t verdicts = -1;  // of the pair; -1: the actions are missing, or the tokens that are read by their ids
};

// The machines of many constraints, and the vocabulary that they share.
struct StackTables {
  const int32_t* states;       // [num_states, kStateFields]
  const uint8_t* class_maps;   // [num_class_maps, 256]
  const int32_t* cells;        // [num_cells]: actions and lists
  const int32_t* keys;         // [num_keys, kKeyColumns]: open addressing; num_keys is a power of 2
  const int32_t* stop_tokens;  // [num_languages, max_stop_tokens], padded with -1
  const uint8_t* token_bytes;  // [num_bytes]
  const int32_t* token_begin;  // [vocab_size + 1]: token i has bytes token_begin[i] ... token_begin[i + 1]
  int64_t num_states;
  int64_t num_class_maps;
  int64_t num_cells;
  int64_t num_keys;
  int64_t num_languages;
  int64_t max_stop_tokens;
  int64_t num_bytes;
  int64_t vocab_size;

  STRUCTOUT_HOST_DEVICE bool is_state(int64_t state) const { return state >= 0 && state < num_states; }

  STRUCTOUT_HOST_DEVICE int32_t field(int32_t state, int64_t field) const {
    return states[state * kStateFields + field];
  }

  STRUCTOUT_HOST_DEVICE bool has_cells(int64_t first, int64_t count) const {
    return first >= 0 && first + count <= num_cells;
  }

  // What a byte does; kActionMiss where that is not known.
  STRUCTOUT_HOST_DEVICE int32_t action(int32_t state, uint8_t byte) const {
    const int64_t map = field(state, kClassMapField);
    if (map < 0 || map >= num_class_maps) return kActionMiss;
    const int64_t cell = int64_t{field(state, kActionsField)} + class_maps[map * 256 + byte];
    return has_cells(cell, 1) ? cells[cell] : kActionMiss;
  }

  STRUCTOUT_HOST_DEVICE bool keeps_names(int64_t state) const {
    return is_state(state) && (field(static_cast<int32_t>(state), kFlagsField) & kStackKeepsNames) != 0;
  }

  STRUCTOUT_HOST_DEVICE bool holds(int64_t guard, const StackNames& names) const {
    if (!has_cells(guard, kGuardFlags + 1)) return false;
    const int32_t flags = cells[guard + kGuardFlags], limit = cells[guard + kGuardLimit];
    int32_t num_missing = 0;
    for (int64_t i = 0; i < kNameWords; ++i) {
      num_missing += num_bits(static_cast<uint32_t>(cells[guard + i]) & ~names.words[i]);
    }
    if ((flags & kGuardCloses) != 0) return num_missing == 0;
    const bool must_be_required = limit >= 0 && num_missing >= limit;
    if ((flags & kGuardAllowsFree) != 0 && !must_be_required) return true;
    uint32_t left = 0;
    for (int64_t i = 0; i < kNameWords; ++i) {
      uint32_t good = static_cast<uint32_t>(cells[guard + kNameWords + i]) & ~names.words[i];
      if (must_be_required) good &= static_cast<uint32_t>(cells[guard + i]);
      left |= good;
    }
    return left != 0;
  }

  // The state that follows one that waits for a value, or reads a token by its id; negative
  // as above, kNoPair where that is not known.
  static constexpr int32_t kNoPair = -3;
  STRUCTOUT_HOST_DEVICE int32_t paired(int32_t state, int64_t verdicts_or_token) const {
    if (!is_state(state)) return kResumeRefused;
    int64_t cell = field(state, kPairsField);
    for (int i = 0; i < kMaxPairs && has_cells(cell, 2); ++i, cell += 2) {
      if (cells[cell] < 0) break;
      if (cells[cell] == verdicts_or_token) {
        const int32_t next = cells[cell + 1];
        return is_state(next) ? next : next == kResumeAsked ? kResumeAsked : kResumeRefused;
      }
    }
    return kNoPair;
  }

  STRUCTOUT_HOST_DEVICE bool is_accepting(int32_t top, int32_t depth) const {
    return depth <= 1 && (field(top, kFlagsField) & kStackAccepting) != 0;
  }

  // Whether a token ends texts in the state.
  STRUCTOUT_HOST_DEVICE bool is_stop(int32_t state, int64_t token) const {
    const int64_t language = field(state, kFlagsField) >> kStackLanguageShift;
    if (language < 0 || language >= num_languages) return false;
    const int32_t* stops = stop_tokens + language * max_stop_tokens;
    for (int64_t i = 0; i < max_stop_tokens; ++i) {
      if (stops[i] == token) return true;
    }
    return false;
  }

  // Advances a text by a token. `max_depth`: frames that fit into the row. `scratch`: of
  // kScratchColumns.
  STRUCTOUT_HOST_DEVICE int32_t advance(const StackRow& row, int64_t max_depth, int64_t token, int32_t* scratch,
                                        StackMiss* miss = nullptr) const {
    int32_t top = row.at(kTopColumn);
    if (top == kAskedStack) return kStackMissed;
    if (top < 0 && top > kDeadStack) return kStackAdvanced;
    const int32_t depth = row.at(kDepthColumn);
    const bool is_token = token >= 0 && token < vocab_size;
    int32_t after = kDeadStack;
    if (is_state(top) && depth >= 0 && depth <= max_depth && is_token) {
      if (is_stop(top, token)) {
        after = is_accepting(top, depth) ? kFinishedStack : kDeadStack;
      } else {
        if ((field(top, kFlagsField) & kStackReadsTokens) != 0) {
          if (field(top, kClassMapField) < 0) {
            if (miss != nullptr) *miss = {top, -1};
            return kStackMissed;
          }
          const int32_t next = paired(top, token);
          if (next != kNoPair) return moved(row, next);
        }
        const int64_t begin = token_begin[token], end = token_begin[token + 1];
        if (begin >= 0 && end <= num_bytes && begin < end) {
          return walk(row, depth, max_depth, token_bytes + begin, token_bytes + end, scratch, miss);
        }
      }
    }
    row.at(kTopColumn) = after;
    return kStackAdvanced;
  }

  // The slot of the mask of a text, or what there is in its place.
  STRUCTOUT_HOST_DEVICE int32_t mask_row(const StackRow& row, int64_t max_depth) const {
    const int32_t top = row.at(kTopColumn), depth = row.at(kDepthColumn);
    if (top == kAskedStack) return kMissedStackRow;
    if (top < 0 && top > kDeadStack) return kFreeStackRow;
    if (!is_state(top) || depth < 0 || depth > max_depth) return kEmptyStackRow;
    const int32_t state = field(top, kMaskStateField);
    if (!is_state(state)) return kMissedStackRow;
    const int num_frames = (field(state, kFlagsField) >> kKeyFramesShift) & 15;
    if (num_frames == 0 || num_frames > kKeyFrames) return kMissedStackRow;
    int32_t key[kKeyFrames];
    key[0] = state;
    for (int i = 1; i < kKeyFrames; ++i) {
      key[i] = i >= num_frames || depth + 1 < i ? kNoFrame : depth < i ? kBelowBottom : row.frame(depth - i).state();
    }
    int32_t slot = find(key);
    if (slot <= -2 && slot != kAskedSlot) {
      fill_with_conditions(key, -2 - slot, row, depth);
      slot = find(key);
    }
    return slot >= 0 ? slot : kMissedStackRow;
  }

  STRUCTOUT_HOST_DEVICE int32_t find(const int32_t (&key)[kKeyFrames]) const {
    int64_t at = hash_of_key(key) & (num_keys - 1);
    for (int64_t i = 0; i < num_keys; ++i, at = (at + 1) & (num_keys - 1)) {
      const int32_t* entry = keys + at * kKeyColumns;
      if (entry[kKeyFrames] == kNoSlot) return kNoSlot;
      bool is_equal = true;
      for (int k = 0; k < kKeyFrames; ++k) is_equal = is_equal && entry[k] == key[k];
      if (is_equal) return entry[kKeyFrames];
    }
    return kNoSlot;
  }

  // The key of a mask that depends on names: the cell of its conditions, then a bit for
  // each, or the names themselves.
  STRUCTOUT_HOST_DEVICE void fill_with_conditions(int32_t (&key)[kKeyFrames], int32_t first, const StackRow& row,
                                                  int32_t depth) const {
    key[0] = -2 - first;
    for (int i = 1; i < kKeyFrames; ++i) key[i] = 0;
    int64_t cell = first;
    for (int bit = 0; bit < kMaxConditions && has_cells(cell, 3); ++bit, cell += 3) {
      const int32_t before = cells[cell], frame = cells[cell + 1], guard = cells[cell + 2];
      if (before == kEndOfConditions) break;
      StackNames names{};
      if (frame == 0) names = row.names();
      if (frame > 0 && frame <= depth) names = row.frame(depth - frame).names();
      if (guard == kRawNames) {
        if (1 + (bit + 1) * kNameWords > kKeyFrames) break;
        for (int i = 0; i < kNameWords; ++i) set_word(key, bit * int{kNameWords} + i, names.words[i]);
        continue;
      }
      const bool is_open = before < 0 || before >= bit || ((word_at(key, before / 32) >> (before % 32)) & 1) != 0;
      if (is_open && holds(guard, names)) {
        set_word(key, bit / 32, static_cast<uint32_t>(word_at(key, bit / 32)) | 1u << (bit % 32));
      }
    }
  }

 private:
  STRUCTOUT_HOST_DEVICE int32_t walk(const StackRow& row, int32_t depth, int64_t max_depth, const uint8_t* byte,
                                     const uint8_t* end, int32_t* scratch, StackMiss* miss) const {
    int32_t num_kept = depth, num_pushed = 0;
    int32_t top = row.at(kTopColumn);
    StackNames names = row.names();
    while (byte < end) {
      int32_t action = this->action(top, *byte), name = -1;
      if (action == kActionMiss && miss != nullptr && field(top, kClassMapField) < 0) *miss = {top, -1};
      if ((action & 7) == kActionGuarded) {
        const int64_t cell = action >> kActionKindBits;
        if (!has_cells(cell, 3)) return kStackMissed;
        if (!holds(cells[cell], names)) return dead(row);
        action = cells[cell + 1];
        name = cells[cell + 2];
      }
      const int32_t kind = action & 7, operand = action >> kActionKindBits;
      if (kind == kActionReplace) {
        top = operand;
        names.add(name);
        ++byte;
      } else if (kind == kActionPush) {
        if (!has_cells(operand, 2) || num_pushed == kMaxTokenFrames || num_kept + num_pushed >= max_depth) {
          return kStackMissed;
        }
        top = cells[operand];
        const int32_t below = cells[operand + 1];
        if (names.any() && !keeps_names(below)) names.clear();
        pushed(scratch, num_pushed++).set(below, names);
        names.clear();
        ++byte;
      } else if (kind == kActionPop || kind == kActionPopBefore) {
        if (num_kept + num_pushed == 0) return dead(row);
        const StackFrame frame = num_pushed > 0 ? pushed(scratch, num_pushed - 1) : row.frame(num_kept - 1);
        if (num_pushed > 0) {
          --num_pushed;
        } else {
          --num_kept;
        }
        top = paired(frame.state(), operand);
        if (top == kNoPair && miss != nullptr) *miss = {frame.state(), operand};
        if (top == kResumeAsked || top == kNoPair) return kStackMissed;
        names = frame.names();
        if (kind == kActionPop) ++byte;
      } else {
        return kind == kActionFail ? dead(row) : kStackMissed;
      }
      if (!is_state(top)) return dead(row);
      if (names.any() && !keeps_names(top)) names.clear();
    }
    if ((field(top, kFlagsField) & kStackLive) == 0) return dead(row);
    for (int32_t i = 0; i < num_pushed; ++i) {
      row.frame(num_kept + i).set(pushed(scratch, i).state(), pushed(scratch, i).names());
    }
    row.at(kTopColumn) = top;
    row.at(kDepthColumn) = num_kept + num_pushed;
    row.set_names(names);
    return kStackAdvanced;
  }

  STRUCTOUT_HOST_DEVICE static StackFrame pushed(int32_t* scratch, int32_t i) {
    return {scratch + i * kFrameColumns, 1};
  }

  // Arrays whose places are computed would be in memory, not in registers.
  STRUCTOUT_HOST_DEVICE static int32_t word_at(const int32_t (&key)[kKeyFrames], int i) {
    int32_t word = 0;
    for (int k = 1; k < kKeyFrames; ++k) word = k == 1 + i ? key[k] : word;
    return word;
  }
  STRUCTOUT_HOST_DEVICE static void set_word(int32_t (&key)[kKeyFrames], int i, uint32_t word) {
    for (int k = 1; k < kKeyFrames; ++k) key[k] = k == 1 + i ? static_cast<int32_t>(word) : key[k];
  }

  // After a token that is read by its id: the stack below stays.
  STRUCTOUT_HOST_DEVICE int32_t moved(const StackRow& row, int32_t next) const {
    if (next == kResumeAsked) return kStackMissed;
    if (!is_state(next) || (field(next, kFlagsField) & kStackLive) == 0) return dead(row);
    row.at(kTopColumn) = next;
    row.set_names({});
    return kStackAdvanced;
  }

  STRUCTOUT_HOST_DEVICE static int32_t dead(const StackRow& row) {
    row.at(kTopColumn) = kDeadStack;
    return kStackAdvanced;
  }
};

struct StackAdvanceParams {
  StackTables tables;
  int64_t num_rows;
  int32_t* stacks;  // [num_rows, columns]
  int64_t row_stride;
  int64_t column_stride;
  int64_t max_depth;       // frames that fit into the columns
  StridedIntegers tokens;  // [num_rows]
  int32_t* scratch;        // [num_rows, kScratchColumns]
  int32_t* results;        // [num_rows], contiguous: kStackAdvanced or kStackMissed

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    int32_t* own = scratch + row * kScratchColumns;
    results[row] = tables.advance({stacks + row * row_stride, column_stride}, max_depth, tokens.at(row), own);
  }
};

struct StackRowsParams {
  StackTables tables;
  int64_t num_rows;
  int32_t* stacks;  // [num_rows, columns], which are not written
  int64_t row_stride;
  int64_t column_stride;
  int64_t max_depth;
  int32_t* rows;  // [num_rows], contiguous: the result

  STRUCTOUT_HOST_DEVICE void run(int64_t row) const {
    rows[row] = tables.mask_row({stacks + row * row_stride, column_stride}, max_depth);
  }
};

struct StackDraftRowsParams {
  StackTables tables;
  int64_t num_requests;
  const int32_t* stacks;  // [num_requests, columns]
  int64_t row_stride;
  int64_t column_stride;
  int64_t max_depth;
  int64_t num_rows;
  StridedIntegers drafts;      // [num_rows]; the last of each request is not read
  StridedIntegers row_indptr;  // [num_requests + 1]; request i owns rows row_indptr[i] ... row_indptr[i + 1]
  int32_t* scratch;            // [num_requests, columns + kScratchColumns], with the stacks along the drafts
  int32_t* rows;               // [num_rows], contiguous: the result

  // Writes the rows of one request, or those of no request for `num_requests`.
  STRUCTOUT_HOST_DEVICE void run(int64_t request) const {
    if (request == num_requests) {
      for (int64_t row = 0; row < row_begin(0); ++row) rows[row] = kFreeStackRow;
      for (int64_t row = row_begin(num_requests); row < num_rows; ++row) rows[row] = kFreeStackRow;
      return;
    }
    const int64_t end = row_begin(request + 1);
    const StackRow stack = copied(request);
    int32_t& top = stack.at(kTopColumn);
    int32_t mask_row = tables.mask_row(stack, max_depth);
    bool is_open = true;
    for (int64_t row = row_begin(request); row < end; ++row) {
      rows[row] = mask_row;
      if (top < 0 || !is_open || row + 1 == end) continue;
      const int64_t draft = drafts.at(row);
      if (draft == -1) {
        top = kFreeStack;
        mask_row = kFreeStackRow;
      } else if (tables.advance(stack, max_depth, draft, stack.values + num_columns()) == kStackMissed) {
        mask_row = kMissedStackRow;
        is_open = false;
      } else if (top == kDeadStack) {
        is_open = false;
      } else {
        mask_row = tables.mask_row(stack, max_depth);
      }
    }
  }

 private:
  STRUCTOUT_HOST_DEVICE int64_t num_columns() const { return kFramesColumn + max_depth * kFrameColumns; }

  STRUCTOUT_HOST_DEVICE StackRow copied(int64_t request) const {
    const int32_t* from = stacks + request * row_stride;
    int32_t* to = scratch + request * (num_columns() + kScratchColumns);
    const int32_t depth = from[kDepthColumn * column_stride];
    const int64_t num_frames = depth < 0 ? 0 : depth < max_depth ? depth : max_depth;
    for (int64_t i = 0; i < kFramesColumn + num_frames * kFrameColumns; ++i) to[i] = from[i * column_stride];
    return {to, 1};
  }

  // A row_indptr that is out of range cannot lead out of the rows.
  STRUCTOUT_HOST_DEVICE int64_t row_begin(int64_t request) const {
    const int64_t row = row_indptr.at(request);
    return row < 0 ? 0 : row > num_rows ? num_rows : row;
  }
};

}  // namespace structout
