#include "language/step.h"

#include <algorithm>

namespace structout::engine {

namespace {

constexpr uint32_t kUnplanned = kFreeRow - 1;  // in the place of a state that is not known yet
constexpr uint32_t kEmptyRow = kFreeRow - 2;   // of a row that others fill

// In steps of a Budget:
constexpr uint64_t kLookupWork = 3'000;        // of what is expected to be known: about 0.1 ms
constexpr uint64_t kWorkBeforeYield = 30'000;  // before others may go on: about 1 ms

// Mask bytes that a thread copies at a time. For smaller ranges, waking the threads would
// take longer than what they save.
constexpr size_t kGrainBytes = size_t{1} << 18;

// Prefetches the matchers of the next requests. Their objects are scattered in memory and
// have left the caches since the last step: the cache misses, one after the other, would
// take longer than the work.
template <typename Requests>
void prefetch_after(const Requests& requests, size_t i) {
  constexpr size_t kObjectsAhead = 8, kPlacesAhead = 4;
  auto matcher_at = [&](size_t at) { return at < requests.size() ? requests[at].matcher : nullptr; };
  if (const Matcher* matcher = matcher_at(i + kObjectsAhead)) {
    const char* address = reinterpret_cast<const char*>(matcher);
    for (size_t line = 0; line < 5; ++line) __builtin_prefetch(address + line * 64);
  }
  if (const Matcher* matcher = matcher_at(i + kPlacesAhead)) matcher->prefetch();
}

}  // namespace

size_t Step::max_rows() const {
  size_t sum = 0;
  for (const StepRequest& request : requests) sum += request.max_rows;
  return sum;
}

void Step::accept(const BeforeLongWork& before_long_work) {
  if (std::exchange(has_accepted_, true)) return;
  uint64_t left = kWorkBeforeYield;
  std::vector<StepTokens*> later;
  for (size_t i = 0; i < drawn.size(); ++i) {
    prefetch_after(drawn, i);
    StepTokens& of = drawn[i];
    if (of.matcher == nullptr) continue;
    try {
      uint64_t allowed = std::min(left, kLookupWork);
      StepBudget step_budget(allowed);
      of.is_accepted = of.matcher->accept(tokens.data() + of.first_token, of.num_tokens);
      left -= allowed - step_budget.left();
    } catch (const StepBudgetExceeded&) {
      left -= std::min(left, kLookupWork);
      later.push_back(&of);
    }
  }
  if (!later.empty()) before_long_work();
  for (StepTokens* of : later) of->is_accepted = of->matcher->accept(tokens.data() + of->first_token, of->num_tokens);
}

// Gives each request its rows: none if it is unconstrained now, or else max_rows.
void Step::lay_out() {
  ends.assign(1, 0);
  num_allowed.assign(requests.size(), 0);
  states_.clear();
  matchers_.clear();
  num_ahead_.clear();
  is_planned_.assign(requests.size(), false);
  is_dead_end_.assign(requests.size(), false);
  unfinished.clear();
  for (StepRequest& request : requests) {
    if (request.matcher != nullptr) {
      bool is_single = request.num_drafts == 0 && !request.has_bounds;
      request.is_unconstrained = is_single ? request.matcher->is_unconstrained() : request.matcher->is_terminated();
    }
    size_t count = request.is_unconstrained ? 0 : request.max_rows;
    bool is_empty = request.matcher == nullptr || !request.problem.empty();
    states_.resize(states_.size() + count, request.is_unconstrained ? kFreeRow : is_empty ? kEmptyRow : kUnplanned);
    matchers_.resize(states_.size(), request.matcher);
    for (uint32_t i = 0; i < count; ++i) num_ahead_.push_back(i);
    ends.push_back(int32_t(states_.size()));
  }
}

// Finds the states of a request's rows.
void Step::plan(size_t i) {
  size_t first = size_t(ends[i]), count = size_t(ends[i + 1]) - first;
  is_planned_[i] = count == 0 || states_[first] != kUnplanned;
  if (is_planned_[i]) return;
  const StepRequest& request = requests[i];
  const int64_t* of_request = drafts.data() + request.first_draft;
  const Matcher& matcher = *request.matcher;
  std::vector<uint32_t>& states = planned_states_;
  states.clear();
  if (request.is_tree) {
    // The chain to each node. Each node replays its chain from node 0: trees are small,
    // and the states of shared prefixes exist already.
    std::vector<std::vector<int64_t>> chains(count);
    states.resize(count);
    std::vector<uint32_t> along;
    matcher.append_draft_states(nullptr, 0, along);
    states[0] = along.back();
    for (auto [node, parent] : request.tree) {
      chains[node] = chains[parent];
      chains[node].push_back(of_request[node]);
      along.clear();
      size_t allowed = matcher.append_draft_states(chains[node].data(), chains[node].size(), along);
      num_allowed[i] += allowed == chains[node].size();
      num_ahead_[first + node] = uint32_t(chains[node].size());
      states[node] = along.back();
    }
  } else {
    size_t start = std::min(request.grammar_start, request.num_drafts);
    states.assign(start, kFreeRow);
    num_allowed[i] =
        int32_t(start + matcher.append_draft_states(of_request + start, request.num_drafts - start, states));
    // The matcher's limit does not count the tokens before its grammar.
    for (size_t row = start; row < count; ++row) num_ahead_[first + row] = uint32_t(row - start);
    size_t num_free = std::max(request.grammar_start, request.constraint_start);
    std::fill_n(states.begin(), std::min(count, num_free), kFreeRow);
  }
  std::copy(states.begin(), states.end(), states_.begin() + ptrdiff_t(first));
  is_planned_[i] = true;
}

// True if filling the row takes a lookup and a copy. Does not wait for another thread
// that takes long: then it returns false.
bool Step::has_mask(size_t row) const try {
  if (states_[row] == kUnplanned) return false;
  if (states_[row] == kFreeRow || states_[row] == kEmptyRow || is_of_reasoning(states_[row])) return true;
  StepBudget step_budget(kLookupWork);
  return matchers_[row]->has_mask(states_[row]);
} catch (const StepBudgetExceeded&) {
  return false;
}

// Writes the mask of a row. Returns whether it allows anything.
bool Step::write_row(size_t row, MaskRow& to) const {
  uint32_t state = states_[row];
  if (state == kFreeRow) {
    to.write(kAllTokens);
    return true;
  }
  if (state == kEmptyRow) {
    to.write(kNoTokens);
    return false;
  }
  return matchers_[row]->fill(state, to, num_ahead_[row]);
}

// Fills row i of `rows` with the mask of a row. Returns whether it allows anything.
bool Step::fill_row(size_t row, RowWriter& rows, size_t i) const {
  return rows.write(i, [&](MaskRow& to) { return write_row(row, to); });
}

// Plans and fills the rows of a request. Returns the steps of `work` that remain, or
// nothing if they were not enough; then the rows allow nothing.
std::optional<uint64_t> Step::fill_request(size_t i, uint64_t work, RowWriter& rows, bool may_wait) {
  size_t first = size_t(ends[i]), last = size_t(ends[i + 1]);
  int32_t allowed_before = num_allowed[i];
  try {
    StepBudget step_budget(work, may_wait);
    if (!is_planned_[i]) plan(i);
    for (size_t row = first; row < last; ++row) {
      bool allows_any = fill_row(row, rows, row);
      if (row == first) is_dead_end_[i] = !allows_any && states_[row] != kEmptyRow;
    }
    return step_budget.left();
  } catch (const StepBudgetExceeded&) {
    if (!is_planned_[i]) num_allowed[i] = allowed_before;
    is_dead_end_[i] = false;
    for (size_t row = first; row < last; ++row) rows.clear(row);
    return std::nullopt;
  }
}

// Fills the rows of requests with stored masks, on several threads. Returns the requests
// for which that failed.
std::vector<size_t> Step::fill_known(const std::vector<size_t>& known, MaskBuffer& masks, ThreadPool& pool) {
  std::vector<uint8_t> is_filled(known.size());
  size_t grain_size = std::max<size_t>(1, kGrainBytes * requests.size() / (num_rows() * masks.row_bytes() + 1));
  pool.parallel_for(known.size(), grain_size, [&](size_t begin, size_t end) {
    try {
      RowWriter rows(masks, num_rows());
      for (size_t i = begin; i < end; ++i) {
        is_filled[i] = fill_request(known[i], kLookupWork, rows, false).has_value();
      }
    } catch (const std::bad_alloc&) {  // for the caller, whose thread tries again
    }
  });
  std::vector<size_t> left;
  for (size_t i = 0; i < known.size(); ++i) {
    if (!is_filled[i]) left.push_back(known[i]);
  }
  return left;
}

uint64_t Step::run(uint64_t work, MaskBuffer& masks, const BeforeLongWork& before_long_work, ThreadPool* pool) {
  lay_out();
  RowWriter rows(masks, num_rows());
  std::vector<size_t> known, later;
  // Requests with known masks come first, so that they never wait for the others.
  for (size_t i = 0; i < requests.size(); ++i) {
    bool is_short = true;
    prefetch_after(requests, i);
    try {
      StepBudget step_budget(kLookupWork);
      plan(i);
    } catch (const StepBudgetExceeded&) {
      num_allowed[i] = 0;
      is_short = false;
    }
    for (int32_t row = ends[i]; is_short && row < ends[i + 1]; ++row) is_short = has_mask(size_t(row));
    if (is_short && pool != nullptr) {
      known.push_back(i);
    } else if (!is_short || !fill_request(i, kLookupWork, rows, false)) {
      later.push_back(i);
    }
  }
  if (pool != nullptr) {
    std::vector<size_t> unknown = fill_known(known, masks, *pool);
    later.insert(later.end(), unknown.begin(), unknown.end());
  }
  uint64_t left = work;
  bool is_long = false;
  // Two rounds, with small shares first: cheap requests finish even if many expensive
  // ones come before them.
  for (uint64_t share : {work / 32, work / 4}) {
    std::vector<size_t> over;
    for (size_t i : later) {
      uint64_t allowed = std::min(left, share);
      if (!is_long && work - left + allowed > kWorkBeforeYield) {
        is_long = true;
        before_long_work();
      }
      std::optional<uint64_t> left_of_it = fill_request(i, allowed, rows, false);
      left -= allowed - left_of_it.value_or(0);
      if (!left_of_it) over.push_back(i);
    }
    later = over;
  }
  unfinished = later;
  return work - left;
}

std::optional<uint64_t> Step::finish(size_t request, uint64_t work, MaskBuffer& masks) {
  RowWriter rows(masks, num_rows());
  std::optional<uint64_t> left = fill_request(request, work, rows, true);
  return left ? std::optional<uint64_t>(work - *left) : std::nullopt;
}

std::vector<size_t> Step::dead_ends() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < is_dead_end_.size(); ++i) {
    if (is_dead_end_[i]) found.push_back(i);
  }
  return found;
}

}  // namespace structout::engine
