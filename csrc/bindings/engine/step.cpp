// The calls of a decoding step, each for many matchers at once.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/engine/conversions.h"
#include "bindings/engine/matchers.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

namespace {

uint32_t* row_at(uintptr_t address, int64_t row, int64_t row_bytes) {
  return reinterpret_cast<uint32_t*>(address + uintptr_t(row * row_bytes));
}

// Whether each matcher has accepted all of its tokens. One that has not does not move.
py::list accept_batch(const py::list& matchers, const py::list& tokens_of_each) {
  size_t count = matchers.size();
  if (tokens_of_each.size() != count) throw std::invalid_argument("expected tokens for each matcher");
  py::list are_accepted(count);
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.clear();
    Matcher& matcher = matcher_of(PyList_GET_ITEM(matchers.ptr(), Py_ssize_t(i)));
    bool is_accepted = append_tokens(PyList_GET_ITEM(tokens_of_each.ptr(), Py_ssize_t(i)), tokens) &&
                       run_short_first([&] { return matcher.accept(tokens.data(), tokens.size()); });
    PyList_SET_ITEM(are_accepted.ptr(), Py_ssize_t(i), py::bool_(is_accepted).release().ptr());
  }
  return are_accepted;
}

constexpr uint32_t kUnplanned = kFreeRow - 1;  // in the place of a state that is not known yet

// The rows of a step: the matcher and the state of each.
struct Rows {
  std::vector<const Matcher*> matchers;
  std::vector<uint32_t> states;

  void add(const Matcher& matcher) { matchers.resize(states.size(), &matcher); }

  // Whether filling a row is short. Never waits.
  bool has_mask(size_t i) const try {
    if (states[i] == kUnplanned) return false;
    WorkAllowance allowance(kShortWork);
    return states[i] == kFreeRow || matchers[i]->has_mask(states[i]);
  } catch (const OverAllowance&) {
    return false;
  }

  bool has_masks() const {
    for (size_t i = 0; i < states.size(); ++i) {
      if (!has_mask(i)) return false;
    }
    return true;
  }

  // Fills a row and returns whether it allows anything.
  bool fill(size_t i, uint32_t* row) const {
    if (states[i] != kFreeRow) return matchers[i]->fill(states[i], row);
    std::fill(row, row + matchers[i]->row_words(), UINT32_MAX);
    return true;
  }
};

void fill_batch(const py::list& matchers, uintptr_t address, int64_t row_bytes, const std::vector<int64_t>& row_ids) {
  Rows rows;
  for (py::handle given : matchers) {
    const Matcher& matcher = matcher_of(given.ptr());
    rows.states.push_back(matcher.current_state());
    rows.add(matcher);
  }
  if (row_ids.size() != rows.states.size()) throw std::invalid_argument("expected a row for each matcher");
  run(!rows.has_masks(), [&] {
    for (size_t i = 0; i < row_ids.size(); ++i) rows.fill(i, row_at(address, row_ids[i], row_bytes));
  });
}

// The rows of a decoding step: for each matcher that has not terminated its next mask,
// and one for each of its drafts. To be used before a matcher moves.
class Step {
 public:
  // `drafts` has a sequence or None for each matcher, or is None.
  Step(py::list matchers, const py::object& drafts)
      : row_indptr{ptrdiff_t(matchers.size() + 1)},
        num_allowed{ptrdiff_t(matchers.size())},
        matchers_(std::move(matchers)),
        ends_(row_indptr.mutable_data()),
        allowed_(num_allowed.mutable_data()) {
    std::vector<int64_t> tokens;
    ends_[0] = 0;
    WorkAllowance allowance(kShortWork);
    for (size_t i = 0; i < matchers_.size(); ++i) {
      const Matcher& matcher = matcher_of(PyList_GET_ITEM(matchers_.ptr(), Py_ssize_t(i)));
      tokens.clear();
      if (!drafts.is_none()) {
        py::handle given = PyList_GET_ITEM(drafts.ptr(), Py_ssize_t(i));
        if (!given.is_none() && !append_tokens(given, tokens))
          throw py::type_error("drafts must be sequences of tokens");
      }
      allowed_[i] = 0;
      if (!matcher.is_terminated()) {
        rows_.states.resize(rows_.states.size() + tokens.size() + 1, kUnplanned);
        rows_.add(matcher);
      }
      ends_[i + 1] = int32_t(rows_.states.size());
      try {
        plan(i, tokens);
      } catch (const OverAllowance&) {
        drafts_left_[i] = tokens;
      }
    }
  }

  size_t num_rows() const { return rows_.states.size(); }

  // The different masks of the rows, as far as Matcher::mask_key tells: the key of each,
  // its first row, and for each row the index of its mask.
  py::tuple distinct_masks() {
    std::vector<uint64_t> keys;
    std::vector<int64_t> first_rows;
    py::array_t<int64_t> index_of_row{ptrdiff_t(num_rows())};
    int64_t* index = index_of_row.mutable_data();
    int bits = 1;
    while ((size_t(1) << bits) < 2 * num_rows()) ++bits;
    std::vector<int64_t> table(size_t(1) << bits, -1);  // indices of masks, by open addressing
    run(!rows_.has_masks(), [&] {
      plan_all();
      for (size_t i = 0; i < num_rows(); ++i) {
        uint64_t key = rows_.states[i] == kFreeRow ? kFreeKey : rows_.matchers[i]->mask_key(rows_.states[i]);
        size_t slot = size_t(key * 0x9E3779B97F4A7C15u >> (64 - bits));
        while (table[slot] >= 0 && keys[size_t(table[slot])] != key) slot = (slot + 1) & (table.size() - 1);
        if (table[slot] < 0 || key == kNoKey) {
          table[slot] = int64_t(keys.size());
          keys.push_back(key);
          first_rows.push_back(int64_t(i));
        }
        index[i] = table[slot];
      }
    });
    return py::make_tuple(py::array_t<uint64_t>(ptrdiff_t(keys.size()), keys.data()),
                          py::array_t<int64_t>(ptrdiff_t(first_rows.size()), first_rows.data()), index_of_row);
  }

  // Writes the masks of all rows, or of the given ones, to consecutive rows of a buffer.
  // Returns the rows of the buffer that allow nothing.
  std::vector<size_t> fill(const std::optional<std::vector<size_t>>& given, uintptr_t address, int64_t row_bytes,
                           size_t buffer_rows) {
    size_t count = given ? given->size() : num_rows();
    if (count > buffer_rows) throw std::invalid_argument("the buffer has too few rows");
    std::vector<size_t> empty_rows;
    run(!rows_.has_masks(), [&] {
      plan_all();
      for (size_t i = 0; i < count; ++i) {
        size_t row = given ? (*given)[i] : i;
        if (row >= num_rows()) throw py::index_error("the step has " + std::to_string(num_rows()) + " rows");
        bool allows_any = rows_.fill(row, row_at(address, int64_t(i), row_bytes));
        if (!allows_any) empty_rows.push_back(i);
      }
    });
    return empty_rows;
  }

  // Writes the masks of all rows to the rows of a buffer. Masks that have to be computed
  // take at most `steps` of work together, and a quarter of it for one matcher. Where that
  // is not enough, the rows of the matcher stay empty and it is unfinished.
  // Returns the rows that allow nothing, the unfinished matchers, and the steps taken.
  std::tuple<std::vector<size_t>, std::vector<size_t>, uint64_t> fill_within(uint64_t steps, uintptr_t address,
                                                                             int64_t row_bytes, size_t buffer_rows) {
    if (num_rows() > buffer_rows) throw std::invalid_argument("the buffer has too few rows");
    std::vector<size_t> empty_rows, unfinished;
    uint64_t left = steps;
    run(!rows_.has_masks(), [&] {
      std::vector<size_t> later;
      // Those that are short come first, so that they never wait for the others.
      for (size_t i = 0; i < matchers_.size(); ++i) {
        bool is_short = true;
        for (int32_t row = ends_[i]; row < ends_[i + 1]; ++row) is_short = is_short && rows_.has_mask(size_t(row));
        std::optional<uint64_t> left =
            is_short ? fill_matcher(i, kShortWork, address, row_bytes, empty_rows) : std::nullopt;
        if (!left) later.push_back(i);
      }
      // Many dear ones leave something for others behind them.
      for (uint64_t share : {steps / 32, steps / 4}) {
        unfinished.clear();
        for (size_t i : later) {
          uint64_t allowed = std::min(left, share);
          std::optional<uint64_t> left_of_it = fill_matcher(i, allowed, address, row_bytes, empty_rows);
          left -= allowed - left_of_it.value_or(0);
          if (!left_of_it) unfinished.push_back(i);
        }
        later = unfinished;
      }
    });
    return {std::move(empty_rows), std::move(unfinished), steps - left};
  }

  // Fills the rows of an unfinished matcher with at most `steps` of work. Returns how many
  // it has taken, or nothing if they were not enough.
  std::optional<uint64_t> finish(size_t matcher, uint64_t steps, uintptr_t address, int64_t row_bytes,
                                 size_t buffer_rows) {
    if (matcher >= matchers_.size()) throw py::index_error("the step has no such matcher");
    if (num_rows() > buffer_rows) throw std::invalid_argument("the buffer has too few rows");
    std::vector<size_t> empty_rows;
    std::optional<uint64_t> left =
        run(true, [&] { return fill_matcher(matcher, steps, address, row_bytes, empty_rows, true); });
    return left ? std::optional<uint64_t>(steps - *left) : std::nullopt;
  }

  py::array_t<int32_t> row_indptr;   // matcher i owns the rows row_indptr[i] ... row_indptr[i + 1]
  py::array_t<int32_t> num_allowed;  // of each matcher's drafts

 private:
  static constexpr uint64_t kNoKey = 0, kFreeKey = 1;  // below the keys of states

  // Finds the states of a matcher's rows.
  void plan(size_t i, const std::vector<int64_t>& drafts) {
    if (ends_[i] == ends_[i + 1]) return;
    std::vector<uint32_t> states;
    allowed_[i] = int32_t(rows_.matchers[size_t(ends_[i])]->append_draft_states(drafts.data(), drafts.size(), states));
    std::copy(states.begin(), states.end(), rows_.states.begin() + ends_[i]);
  }

  void plan_left(size_t i) {
    auto left = drafts_left_.find(i);
    if (left == drafts_left_.end()) return;
    plan(i, left->second);
    drafts_left_.erase(left);
  }

  void plan_all() {
    while (!drafts_left_.empty()) plan_left(drafts_left_.begin()->first);
  }

  // Fills the rows of a matcher, and returns how many steps of work are left. If they are
  // not enough, the rows are empty.
  std::optional<uint64_t> fill_matcher(size_t i, uint64_t steps, uintptr_t address, int64_t row_bytes,
                                       std::vector<size_t>& empty_rows, bool may_wait = false) {
    size_t num_empty = empty_rows.size();
    try {
      WorkAllowance allowance(steps, may_wait);
      plan_left(i);
      for (int32_t row = ends_[i]; row < ends_[i + 1]; ++row) {
        bool allows_any = rows_.fill(size_t(row), row_at(address, row, row_bytes));
        if (!allows_any) empty_rows.push_back(size_t(row));
      }
      return allowance.left();
    } catch (const OverAllowance&) {
      empty_rows.resize(num_empty);
      for (int32_t row = ends_[i]; row < ends_[i + 1]; ++row) {
        std::fill_n(row_at(address, row, row_bytes), rows_.matchers[size_t(row)]->row_words(), 0);
      }
      return std::nullopt;
    }
  }

  py::list matchers_;
  int32_t *ends_, *allowed_;  // of row_indptr and num_allowed
  Rows rows_;
  std::map<size_t, std::vector<int64_t>> drafts_left_;  // of the matchers whose rows are not planned yet
};

std::vector<size_t> fill_drafts_batch(const py::list& matchers, uintptr_t address, int64_t row_bytes,
                                      const std::vector<int64_t>& first_rows, const std::vector<py::sequence>& drafts) {
  if (first_rows.size() != matchers.size() || drafts.size() != matchers.size()) {
    throw std::invalid_argument("expected a first row and drafts for each matcher");
  }
  Rows rows;
  std::vector<int64_t> row_ids;
  std::vector<size_t> num_allowed;
  for (size_t i = 0; i < matchers.size(); ++i) {
    const Matcher& matcher = matcher_of(PyList_GET_ITEM(matchers.ptr(), Py_ssize_t(i)));
    std::vector<int64_t> tokens = tokens_of(drafts[i]);
    std::vector<uint32_t> states;
    num_allowed.push_back(run_short_first([&] {
      states.clear();
      return matcher.append_draft_states(tokens.data(), tokens.size(), states);
    }));
    rows.states.insert(rows.states.end(), states.begin(), states.end());
    rows.add(matcher);
    for (size_t j = 0; j <= tokens.size(); ++j) row_ids.push_back(first_rows[i] + int64_t(j));
  }
  run(!rows.has_masks(), [&] {
    for (size_t i = 0; i < row_ids.size(); ++i) rows.fill(i, row_at(address, row_ids[i], row_bytes));
  });
  return num_allowed;
}

}  // namespace

void define_step(py::module_& module) {
  py::class_<Step>(module, "Step")
      .def(py::init<py::list, py::object>())
      .def_readonly("row_indptr", &Step::row_indptr)
      .def_readonly("num_allowed", &Step::num_allowed)
      .def_property_readonly("num_rows", &Step::num_rows)
      .def("distinct_masks", &Step::distinct_masks)
      .def("fill", &Step::fill)
      .def("fill_within", &Step::fill_within)
      .def("finish", &Step::finish);

  module.def("accept_batch", accept_batch);
  module.def("fill_batch", fill_batch);
  module.def("fill_drafts_batch", fill_drafts_batch);
}

}  // namespace structout::engine
