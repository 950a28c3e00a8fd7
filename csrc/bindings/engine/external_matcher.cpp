// Matchers of other engines, which Python code calls.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "bindings/engine/matchers.h"
#include "bindings/engine/module.h"
#include "language/matcher.h"

namespace structout::engine {

namespace {

// Calls Python code from any thread. Its exceptions become runtime errors, which a Matcher
// keeps as its error().
template <typename Call>
auto with_python(Call call) {
  py::gil_scoped_acquire acquired;
  try {
    return call();
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // raised again when Python code goes on
    std::string message = error.what();
    throw std::runtime_error(message.substr(0, message.find('\n')));
  }
}

// Gives up a text after three calls of one kind in a row that each take longer than a
// bound: its grammar is so ambiguous that it would hold up all requests.
class SlowCalls {
 public:
  SlowCalls(std::string what, std::string purpose, double max_seconds)
      : what_(std::move(what)), purpose_(std::move(purpose)), max_seconds_(max_seconds) {}

  // Throws std::runtime_error if the call that began at `start`, in CPU seconds of this
  // thread, is the third slow one. A busy machine fails nobody.
  void note(double start) {
    count_ = cpu_seconds() - start > max_seconds_ ? count_ + 1 : 0;
    if (count_ < kMaxCount) return;
    throw std::runtime_error("each of the last " + what_ + " took more than " + shown(max_seconds_) + " s " + purpose_ +
                             ": the grammar is too ambiguous for a text of this length");
  }

 private:
  static constexpr uint32_t kMaxCount = 3;

  static std::string shown(double seconds) { return py::cast<std::string>(py::str("{:g}").format(seconds)); }

  std::string what_, purpose_;
  double max_seconds_;
  uint32_t count_ = 0;
};

// One text in another engine. `text`, a structout.grammar.external.ExternalText, can only
// move: to look at the state after drafts it moves there, and back before the text itself
// moves. State 0 is the text's own position; the others are one token after another one.
class ExternalMatcher final : public Matcher {
 public:
  ExternalMatcher(std::shared_ptr<const VocabularyTrie> vocabulary, std::vector<uint32_t> stop_tokens, py::object text,
                  double slow_seconds)
      : Matcher(std::move(vocabulary), std::move(stop_tokens)),
        text_(std::move(text)),
        slow_tokens_("tokens", "to accept", slow_seconds),
        slow_masks_("masks", "to fill", slow_seconds) {}

  // Reads the text again.
  ExternalMatcher(const ExternalMatcher& other)
      : Matcher(other),
        text_(with_python([&] { return py::object(other.text_.attr("start")()); })),
        tokens_(other.tokens_),
        step_sizes_(other.step_sizes_),
        slow_tokens_(other.slow_tokens_),
        slow_masks_(other.slow_masks_) {
    with_python([&] {
      for (uint32_t token : tokens_) text_.attr("accept")(token);
    });
  }

  uint32_t current_state() const override { return 0; }
  bool has_mask(uint32_t) const override { return false; }
  std::unique_ptr<Matcher> copy() const override { return std::make_unique<ExternalMatcher>(*this); }

 private:
  struct Ahead {
    uint32_t before, token;
  };

  void prefetch_config() const override {}

  bool advance(uint32_t token) override {
    return with_python([&] { return advance_by({token}); });
  }

  // As the tokens of single bytes.
  bool advance_bytes(const std::string& bytes) override {
    std::vector<uint32_t> tokens;
    for (char byte : bytes) {
      uint32_t node = vocabulary().child(VocabularyTrie::kRoot, uint8_t(byte));
      if (node == VocabularyTrie::kNone || vocabulary().first_token(node) == vocabulary().nodes()[node].tokens_end) {
        return false;
      }
      tokens.push_back(vocabulary().tokens()[vocabulary().first_token(node)]);
    }
    return with_python([&] { return advance_by(tokens); });
  }

  // Advances by all tokens, as one step, or by none.
  bool advance_by(const std::vector<uint32_t>& tokens) {
    return_to_text();
    tokens_.reserve(tokens_.size() + tokens.size());
    step_sizes_.reserve(step_sizes_.size() + 1);
    size_t num_accepted = 0;
    try {
      while (num_accepted < tokens.size() && has_text(tokens[num_accepted]) && accept_next(tokens[num_accepted])) {
        ++num_accepted;
      }
    } catch (...) {
      take_back(num_accepted);
      throw;
    }
    if (num_accepted < tokens.size()) {
      take_back(num_accepted);
      return false;
    }
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    step_sizes_.push_back(tokens.size());
    return true;
  }

  void drop(size_t count) override {
    if (count == 0) return;
    with_python([&] {
      return_to_text();
      size_t num_tokens = std::accumulate(step_sizes_.end() - ptrdiff_t(count), step_sizes_.end(), size_t{0});
      take_back(num_tokens);
      tokens_.resize(tokens_.size() - num_tokens);
      step_sizes_.resize(step_sizes_.size() - count);
    });
  }

  bool is_complete(uint32_t state) const override {
    return with_python([&] {
      move_to(state);
      return py::cast<bool>(text_.attr("may_end")());
    });
  }

  uint32_t next_state(uint32_t state, uint32_t token) const override {
    auto is_next = [&](const Ahead& ahead) { return ahead.before == state && ahead.token == token; };
    auto known = std::find_if(ahead_.begin(), ahead_.end(), is_next);
    if (known != ahead_.end()) return uint32_t(known - ahead_.begin()) + 1;
    return with_python([&] {
      move_to(state);
      ahead_.reserve(ahead_.size() + 1);
      if (!has_text(token) || !accept_next(token)) return kNoState;
      ahead_.push_back({state, token});
      return at_ = uint32_t(ahead_.size());
    });
  }

  bool fill_text(uint32_t state, MaskRow& row) const override {
    return with_python([&] {
      move_to(state);
      double start = cpu_seconds();
      auto words = py::cast<py::array_t<int32_t, py::array::c_style>>(text_.attr("mask")());
      slow_masks_.note(start);
      if (size_t(words.size()) != row_words()) throw std::runtime_error("the mask is of another vocabulary");
      std::copy_n(reinterpret_cast<const uint32_t*>(words.data()), row_words(), row.overwrite());
      return row.allows_any();
    });
  }

  std::string forced_bytes() const override {
    return with_python([&] {
      move_to(0);
      return std::string(py::cast<py::bytes>(text_.attr("forced_bytes")()));
    });
  }

  bool has_text(uint32_t token) const { return vocabulary().begin(token) != vocabulary().end(token); }

  // Moves `text_` by a token, or returns false.
  bool accept_next(uint32_t token) const {
    double start = cpu_seconds();
    if (!py::cast<bool>(text_.attr("accept")(token))) return false;
    try {
      slow_tokens_.note(start);
    } catch (const std::runtime_error&) {
      take_back(1);
      throw;
    }
    return true;
  }

  void take_back(size_t num_tokens) const {
    if (num_tokens > 0) text_.attr("rollback")(num_tokens);
  }

  // Moves `text_` to a state.
  void move_to(uint32_t state) const {
    std::vector<uint32_t> here = way_to(at_), there = way_to(state);
    size_t shared = size_t(std::mismatch(here.begin(), here.end(), there.begin(), there.end()).first - here.begin());
    take_back(here.size() - shared);
    at_ = shared == 0 ? 0 : here[shared - 1];
    for (; shared < there.size(); ++shared) {
      if (!accept_next(ahead_[there[shared] - 1].token)) throw std::runtime_error("the engine refuses its own draft");
      at_ = there[shared];
    }
  }

  // Moves `text_` to state 0, and forgets the others.
  void return_to_text() {
    move_to(0);
    ahead_.clear();
  }

  // The states from the text's position to `state`, without the first.
  std::vector<uint32_t> way_to(uint32_t state) const {
    std::vector<uint32_t> way;
    for (; state != 0; state = ahead_[state - 1].before) way.push_back(state);
    std::reverse(way.begin(), way.end());
    return way;
  }

  py::object text_;
  std::vector<uint32_t> tokens_;      // that `text_` has accepted in state 0
  std::vector<size_t> step_sizes_;    // how many of them each step has
  mutable std::vector<Ahead> ahead_;  // state i is after ahead_[i - 1]
  mutable uint32_t at_ = 0;           // the state of `text_`
  mutable SlowCalls slow_tokens_, slow_masks_;
};

}  // namespace

void define_external_matcher(py::module_& module) {
  define_matcher<ExternalMatcher>(module, "ExternalMatcher")
      .def(py::init<std::shared_ptr<const VocabularyTrie>, std::vector<uint32_t>, py::object, double>(),
           py::arg("vocabulary"), py::arg("stop_tokens"), py::arg("text"), py::arg("slow_seconds"));
}

}  // namespace structout::engine
