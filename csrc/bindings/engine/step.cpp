// A decoding step of many requests, in calls that give Python's global lock away once,
// and only if they take long.
#include "language/step.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine/conversions.h"
#include "bindings/engine/matchers.h"
#include "bindings/engine/module.h"
#include "bindings/engine/run.h"

namespace structout::engine {

namespace {

// Gives Python's global lock away when it is first called, until it is destroyed.
class LongWork {
 public:
  Step::BeforeLongWork announcer() {
    return [this] {
      if (!released_) released_.emplace();
    };
  }

 private:
  std::optional<py::gil_scoped_release> released_;
};

template <typename Value>
py::array_t<Value> array_of(const std::vector<Value>& values) {
  return py::array_t<Value>(ptrdiff_t(values.size()), values.data());
}

// A new reference to the value of a key, or null. Hashes like a dict, so it may raise.
py::object value_of(const py::object& dict, PyObject* key) {
  if (dict.is_none()) return {};
  PyObject* value = PyDict_GetItemWithError(dict.ptr(), key);
  if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(value);
}

// A bound of drafts: above their number it counts as past the last row.
std::optional<size_t> bound_of(py::handle given) {
  int64_t value = token_of(given);
  return value < 0 ? std::nullopt : std::optional<size_t>(size_t(value));
}

std::string shown(const py::object& object) { return py::cast<std::string>(py::str(object)); }

// The nodes of a tree of drafts below node 0, each with its parent, which comes first.
// Throws std::invalid_argument if they are no tree.
std::vector<std::pair<size_t, size_t>> nodes_below(const std::vector<int64_t>& next_token,
                                                   const std::vector<int64_t>& next_sibling) {
  std::vector<std::pair<size_t, size_t>> order;
  std::vector<bool> seen(next_token.size());
  seen[0] = true;
  std::vector<std::pair<int64_t, size_t>> pending{{next_token[0], 0}};
  while (!pending.empty()) {
    auto [node, parent] = pending.back();
    pending.pop_back();
    if (node == -1) continue;
    if (node <= 0 || size_t(node) >= seen.size() || seen[size_t(node)]) {
      throw std::invalid_argument("the drafts must form a tree, got node " + std::to_string(node) +
                                  ", which is out of range or has two parents");
    }
    seen[size_t(node)] = true;
    order.emplace_back(size_t(node), parent);
    pending.emplace_back(next_sibling[size_t(node)], parent);
    pending.emplace_back(next_token[size_t(node)], size_t(node));
  }
  return order;
}

// A step, and the Python objects that it must keep alive.
class PythonStep {
 public:
  // `matchers` maps a request id to a matcher, or to None if its rows stay empty. A
  // request without an entry is unknown and gets no rows.
  // `expected`, unless None, has the entries of an earlier time: a request whose
  // matcher has changed since is unknown too. `drafts`, `bounds` and `trees` are dicts
  // by request id, or None.
  PythonStep(py::dict matchers, const py::list& ids, py::object drafts, py::object bounds, py::object trees,
             py::object expected)
      : matchers_(std::move(matchers)), expected_(std::move(expected)) {
    step_.requests.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      PyObject* id = PyList_GET_ITEM(ids.ptr(), Py_ssize_t(i));
      StepRequest& request = step_.requests[i];
      read_drafts(request, value_of(drafts, id), value_of(bounds, id), value_of(trees, id));
      py::object matcher = matcher_object_of(id);
      if (!matcher) {
        request.max_rows = 0;
      } else if (matcher.is_none()) {
        blocked_.push_back(i);
      } else {
        request.matcher = &matcher_of(matcher.ptr());
      }
      matchers_used_.push_back(std::move(matcher));
    }
  }

  // Adds the tokens that requests have drawn, by request id. The step accepts them when it
  // runs, for each request all or none. Looks ids up as the constructor does.
  void feed(const py::dict& tokens_by_id) {
    for (auto entry : tokens_by_id) {
      // Held, because reading the tokens may run Python code.
      auto id = py::reinterpret_borrow<py::object>(entry.first),
           tokens = py::reinterpret_borrow<py::object>(entry.second);
      py::object matcher = matcher_object_of(id.ptr());
      StepTokens of{nullptr, step_.tokens.size(), 0};
      if (matcher && !matcher.is_none() && append_tokens(tokens, step_.tokens)) {
        of.matcher = &matcher_of(matcher.ptr());
      }
      of.num_tokens = step_.tokens.size() - of.first_token;
      step_.drawn.push_back(of);
      drawn_ids_.append(id);
      matchers_used_.push_back(std::move(matcher));
    }
  }

  // Accepts what was drawn, unless the step was run. Returns by id whether the tokens were
  // accepted, and the ids of requests that have reached a limit.
  std::pair<py::dict, py::list> accept() {
    {
      LongWork long_work;
      step_.accept(long_work.announcer());
    }
    py::dict accepted;
    py::list exhausted;
    for (size_t i = 0; i < step_.drawn.size(); ++i) {
      const StepTokens& of = step_.drawn[i];
      PyObject* id = PyList_GET_ITEM(drawn_ids_.ptr(), Py_ssize_t(i));
      if (!of.is_accepted && of.matcher != nullptr && !of.matcher->error().empty()) exhausted.append(py::handle(id));
      if (PyDict_SetItem(accepted.ptr(), id, of.is_accepted ? Py_True : Py_False) != 0) throw py::error_already_set();
    }
    return {std::move(accepted), std::move(exhausted)};
  }

  // Accepts what was drawn, then plans and fills all rows, as Step::run says. A step
  // `apart` gives the global lock away from the start.
  uint64_t run(uint64_t work, MaskBuffer& masks, bool apart, ThreadPool* pool) {
    check(masks, step_.max_rows());
    LongWork long_work;
    if (apart) long_work.announcer()();
    step_.accept(long_work.announcer());
    return step_.run(work, masks, long_work.announcer(), pool);
  }

  std::optional<uint64_t> finish(size_t request, uint64_t work, MaskBuffer& masks) {
    if (request >= step_.requests.size()) throw py::index_error("the step has no such request");
    check(masks, num_rows());
    return structout::engine::run(true, [&] { return step_.finish(request, work, masks); });
  }

  const Step& step() const { return step_; }
  const std::vector<size_t>& blocked() const { return blocked_; }

  // The requests whose drafts, bounds or tree are malformed, with a message each. Only
  // requests that have rows.
  std::vector<std::pair<size_t, std::string>> problems() const {
    num_rows();
    std::vector<std::pair<size_t, std::string>> found;
    for (size_t i = 0; i < step_.requests.size(); ++i) {
      const StepRequest& request = step_.requests[i];
      if (request.problem.empty() || request.is_unconstrained || request.max_rows == 0) continue;
      found.emplace_back(i, request.problem);
    }
    return found;
  }

 private:
  size_t num_rows() const {
    if (step_.ends.empty()) throw std::logic_error("the step has no rows before it is run");
    return size_t(step_.ends.back());
  }

  // Null for a request that is unknown, or another one than expected. None for one whose
  // rows stay empty, also if it is not ready any more, or was not yet.
  py::object matcher_object_of(PyObject* id) const {
    py::object matcher = value_of(matchers_, id);
    if (!matcher || expected_.is_none()) return matcher;
    py::object expected = value_of(expected_, id);
    if (expected && expected.is(matcher)) return matcher;
    return matcher.is_none() || (expected && expected.is_none()) ? py::object(py::none()) : py::object();
  }

  void read_drafts(StepRequest& request, const py::object& drafts, const py::object& bounds, const py::object& tree) {
    request.first_draft = step_.drafts.size();
    if (drafts && !drafts.is_none() && !append_tokens(drafts, step_.drafts)) {
      request.problem = "drafts must be a sequence of tokens, got " + shown(py::type::of(drafts));
    }
    request.num_drafts = step_.drafts.size() - request.first_draft;
    request.max_rows = request.num_drafts + 1;
    if (bounds) read_bounds(request, bounds);
    if (tree && request.num_drafts > 0) read_tree(request, tree);
  }

  void read_bounds(StepRequest& request, const py::object& given) {
    request.has_bounds = true;
    try {
      auto bounds = py::cast<std::pair<py::object, py::object>>(given);
      std::optional<size_t> grammar = bound_of(bounds.first), constraint = bound_of(bounds.second);
      if (!grammar || !constraint) {
        request.problem = "bounds must not be negative, got " + shown(given);
        return;
      }
      request.grammar_start = *grammar;
      request.constraint_start = *constraint;
    } catch (const py::cast_error&) {
      request.problem = "bounds must be (grammar_start, constraint_start), got " + shown(given);
    }
  }

  void read_tree(StepRequest& request, const py::object& given) {
    request.is_tree = true;
    request.max_rows = request.num_drafts;
    if (request.has_bounds) {
      request.problem = "bounds apply to chains of drafts, got a tree; pass bounds or draft_trees, not both";
      return;
    }
    try {
      auto tree = py::cast<std::pair<py::object, py::object>>(given);
      std::vector<int64_t> next_token, next_sibling;
      append_tokens(tree.first, next_token);
      append_tokens(tree.second, next_sibling);
      size_t count = request.num_drafts;
      if (next_token.size() == count && next_sibling.size() == count) {
        request.tree = nodes_below(next_token, next_sibling);
        return;
      }
      request.problem = "a tree of " + std::to_string(count) + " drafts needs " + std::to_string(count) +
                        " entries in next_token and in next_sibling, got " + std::to_string(next_token.size()) +
                        " and " + std::to_string(next_sibling.size());
    } catch (const std::invalid_argument& error) {
      request.problem = error.what();
    } catch (const py::cast_error&) {
      request.problem = "a tree must be (next_token, next_sibling), got " + shown(given);
    }
  }

  // Throws std::invalid_argument unless the rows fit into the buffer. All matchers of a step
  // share a vocabulary, so only the first is checked.
  void check(const MaskBuffer& masks, size_t needed_rows) const {
    if (needed_rows > masks.num_rows()) throw std::invalid_argument("the buffer has too few rows");
    auto has_matcher = [](const StepRequest& request) { return request.matcher != nullptr; };
    auto first = std::find_if(step_.requests.begin(), step_.requests.end(), has_matcher);
    if (first != step_.requests.end() && first->matcher->row_words() != masks.row_words()) {
      throw std::invalid_argument("the buffer's rows are of another vocabulary");
    }
  }

  Step step_;
  py::dict matchers_;
  py::object expected_;
  std::vector<py::object> matchers_used_;
  std::vector<size_t> blocked_;
  py::list drawn_ids_;
};

void fill_batch(const py::list& matchers, uintptr_t address, int64_t row_bytes, const std::vector<int64_t>& row_ids) {
  if (row_ids.size() != matchers.size()) throw std::invalid_argument("expected a row for each matcher");
  std::vector<const Matcher*> of_rows;
  for (py::handle given : matchers) of_rows.push_back(&matcher_of(given.ptr()));
  auto fill = [&](size_t i) {
    uint32_t* row = reinterpret_cast<uint32_t*>(address + uintptr_t(row_ids[i] * row_bytes));
    const Matcher& matcher = *of_rows[i];
    uint32_t state = matcher.row_state();
    if (state == kFreeRow) {
      std::fill_n(row, matcher.row_words(), UINT32_MAX);
    } else {
      matcher.fill(state, row);
    }
  };
  size_t done = 0;
  try {
    StepBudget step_budget(kShortWork);
    for (; done < of_rows.size(); ++done) fill(done);
  } catch (const StepBudgetExceeded&) {
    run(true, [&] {
      for (; done < of_rows.size(); ++done) fill(done);
    });
  }
}

}  // namespace

void define_step(py::module_& module) {
  py::class_<ThreadPool>(module, "ThreadPool").def(py::init<size_t>(), py::arg("count"));
  py::class_<MaskBuffer>(module, "MaskBuffer")
      .def(py::init<uintptr_t, int64_t, size_t>(), py::arg("address"), py::arg("row_bytes"), py::arg("num_rows"))
      .def("forget", &MaskBuffer::forget, py::arg("first"), py::arg("end"))
      .def("clear", &MaskBuffer::clear, py::arg("first"), py::arg("end"));
  py::class_<PythonStep>(module, "Step")
      .def(py::init<py::dict, py::list, py::object, py::object, py::object, py::object>(), py::arg("matchers"),
           py::arg("ids"), py::arg("drafts") = py::none(), py::arg("bounds") = py::none(),
           py::arg("trees") = py::none(), py::arg("expected") = py::none())
      .def("feed", &PythonStep::feed)
      .def("accept", &PythonStep::accept)
      .def("run", &PythonStep::run, py::arg("work"), py::arg("masks"), py::arg("apart") = false,
           py::arg("pool") = py::none())
      .def("finish", &PythonStep::finish)
      .def_property_readonly("max_rows", [](const PythonStep& self) { return self.step().max_rows(); })
      .def_property_readonly("row_indptr", [](const PythonStep& self) { return array_of(self.step().ends); })
      .def_property_readonly("num_allowed", [](const PythonStep& self) { return array_of(self.step().num_allowed); })
      .def_property_readonly("dead_ends", [](const PythonStep& self) { return self.step().dead_ends(); })
      .def_property_readonly("unfinished", [](const PythonStep& self) { return self.step().unfinished; })
      .def_property_readonly("blocked", &PythonStep::blocked)
      .def_property_readonly("problems", &PythonStep::problems);
  module.def("fill_batch", fill_batch);
}

}  // namespace structout::engine
