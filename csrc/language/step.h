// A decoding step of a batch of requests: accepts their tokens and fills their masks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "language/matcher.h"
#include "token_masks/mask_buffer.h"

namespace structout::engine {

// The input of a step for one request: its matcher and its draft tokens, a chain or a
// tree.
struct StepRequest {
  Matcher* matcher = nullptr;  // null if others fill its rows, which are left empty
  size_t first_draft = 0;      // among the drafts of the step
  size_t num_drafts = 0;
  size_t max_rows = 1;  // all of them, if `matcher` is null
  // True if the request needs no masks in this step, for example after its end: it gets no
  // rows. The caller sets it only if `matcher` is null; otherwise the step does.
  bool is_unconstrained = false;

  // Drafts from grammar_start on advance the matcher, rows from constraint_start on are
  // masked, and rows before the grammar's start are free.
  bool has_bounds = false;
  size_t grammar_start = 0, constraint_start = 0;

  // The nodes of a tree of drafts below node 0, each with its parent. Parents come first.
  std::vector<std::pair<size_t, size_t>> tree;
  bool is_tree = false;

  std::string problem;  // what is wrong with the drafts: the rows are left empty
};

// The tokens that a request has drawn.
struct StepTokens {
  Matcher* matcher;
  size_t first_token;  // among the tokens of the step
  size_t num_tokens;
  bool is_accepted = false;
};

// One step of the batch: accept(), then run(), then finish() for the requests in
// `unfinished`. Nothing else may move the matchers until the last call is over.
// Requests with stored masks are filled first, the others then share a budget of work.
// Not safe to use from two threads at once.
class Step {
 public:
  // Called before work that may take long; the Python bindings release the global lock
  // in it.
  using BeforeLongWork = std::function<void()>;

  std::vector<StepTokens> drawn;
  std::vector<int64_t> tokens;
  std::vector<StepRequest> requests;
  std::vector<int64_t> drafts;

  // The rows that the step may have at most.
  size_t max_rows() const;

  // Accepts what each request has drawn: all of it, or nothing. Once.
  void accept(const BeforeLongWork& before_long_work);

  // Plans and fills all rows. Computing masks takes at most `work` steps of a Budget in
  // total, and a quarter of that in one attempt for one request. A request that needs
  // more becomes unfinished, and its rows allow nothing. Returns the steps taken.
  // `pool`, unless null, copies stored masks on several threads.
  uint64_t run(uint64_t work, MaskBuffer& masks, const BeforeLongWork& before_long_work, ThreadPool* pool);

  // Fills the rows of an unfinished request with at most `work` steps. Returns how many
  // it has taken, or nothing if they were not enough. Waits for other threads.
  std::optional<uint64_t> finish(size_t request, uint64_t work, MaskBuffer& masks);

  // The requests whose first row allows nothing. After run().
  std::vector<size_t> dead_ends() const;

  // After run(): request i owns the rows ends[i] ... ends[i + 1].
  std::vector<int32_t> ends;
  std::vector<int32_t> num_allowed;  // of each request's drafts
  std::vector<size_t> unfinished;    // see run()

 private:
  size_t num_rows() const { return states_.size(); }
  void lay_out();
  void plan(size_t request);
  bool has_mask(size_t row) const;
  bool fill_row(size_t row, RowWriter& rows, size_t i) const;
  bool write_row(size_t row, MaskRow& to) const;
  std::optional<uint64_t> fill_request(size_t request, uint64_t work, RowWriter& rows, bool may_wait);
  std::vector<size_t> fill_known(const std::vector<size_t>& requests, MaskBuffer& masks, ThreadPool& pool);

  bool has_accepted_ = false;
  std::vector<uint32_t> states_;          // of each row, kUnplanned, kFreeRow or kEmptyRow
  std::vector<const Matcher*> matchers_;  // of each row
  std::vector<uint32_t> num_ahead_;       // of each row: the drafts in front of it
  std::vector<bool> is_planned_;          // for each request
  std::vector<uint8_t> is_dead_end_;      // for each request
  std::vector<uint32_t> planned_states_;  // of the request that plan() is at
};

}  // namespace structout::engine
