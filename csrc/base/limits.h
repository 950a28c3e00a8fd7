// Limits on the memory and the time that a constraint takes, and the errors of the
// engine.
#pragma once

#include <cstdint>
#include <ctime>
#include <stdexcept>
#include <string>

namespace structout::engine {

struct Limits {
  uint32_t nesting = 256;             // of groups in a pattern
  uint32_t nodes = 1u << 20;          // of the nondeterministic automaton, with repetitions expanded
  uint32_t states = 1u << 16;         // of the deterministic automaton
  uint64_t set_entries = 6u << 20;    // sum of the sizes of the node sets of all states; bounds the memory
  uint64_t conditions = 1u << 19;     // sum of the lengths of the lists of pending lookaheads
  uint32_t schema_states = 1u << 18;  // of a JSON schema, for the texts that share them
  double seconds = 0.8;               // CPU time of the calling thread
};

class LimitError : public std::runtime_error {
 public:
  LimitError(std::string limit, uint64_t got, uint64_t max)
      : std::runtime_error(limit + " is limited to " + std::to_string(max) + ", got " + std::to_string(got)),
        limit(std::move(limit)),
        got(got),
        max(max) {}

  std::string limit;
  uint64_t got;
  uint64_t max;
  std::string pointer;  // in the constraint, if that is known: a JSON pointer
};

// A table that the texts of a constraint share is full, perhaps because of other texts.
// A matcher then reads its text again with a cache of its own.
class CacheFull : public LimitError {
 public:
  using LimitError::LimitError;
};

// A pattern that is not well formed, or that uses what is not supported.
class PatternError : public std::runtime_error {
 public:
  PatternError(const std::string& message, bool is_malformed)
      : std::runtime_error(message), is_malformed(is_malformed) {}

  bool is_malformed;
};

// Work has taken more than what a StepBudget gave it. No error of the text or of the
// constraint: the same call may be made again.
class StepBudgetExceeded : public std::exception {
 public:
  const char* what() const noexcept override { return "the work takes more than was allowed for it"; }
};

// Bounds the work of this thread, in steps of a Budget, while it lives. Unlike a Budget
// it reads no clock, so the same calls always stop at the same place. Work beyond it
// throws StepBudgetExceeded, and so does waiting for another thread unless `may_wait`.
// The caller may repeat the call later with a larger one.
class StepBudget {
 public:
  explicit StepBudget(uint64_t steps, bool may_wait = false) : left_(steps), may_wait_(may_wait), outer_(present_) {
    present_ = this;
  }
  ~StepBudget() { present_ = outer_; }
  StepBudget(const StepBudget&) = delete;

  // The innermost one of this thread, or null.
  static StepBudget* present() { return present_; }

  uint64_t left() const { return left_; }
  bool may_wait() const { return may_wait_; }
  void spend(uint64_t steps) {
    if (steps > left_) {
      left_ = 0;
      throw StepBudgetExceeded();
    }
    left_ -= steps;
  }

 private:
  uint64_t left_;
  const bool may_wait_;  // for other threads
  StepBudget* const outer_;
  static inline thread_local StepBudget* present_ = nullptr;
};

// CPU time of the calling thread.
inline double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// Counts work in steps, and throws LimitError once the thread has used its CPU time; it
// reads the clock every 65,536 steps. Wall time would refuse good patterns on a busy
// machine.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits(limits), start_(cpu_seconds()) {}

  // Restarts the clock, with the next step: reading it takes longer than a lookup that
  // takes no step. Until the next time, at most `max_steps` may be spent.
  void restart(uint64_t max_steps = UINT64_MAX) {
    is_running_ = false;
    unchecked_ = 0;
    max_steps_ = max_steps;
    max_total_ = max_steps < UINT64_MAX - total_ ? total_ + max_steps : UINT64_MAX;
  }

  void spend(uint64_t steps) {
    total_ += steps;
    if (total_ > max_total_) throw LimitError("work_of_a_token", max_steps_ + total_ - max_total_, max_steps_);
    if (step_budget_ != nullptr) step_budget_->spend(steps);
    if (!is_running_) {
      start_ = cpu_seconds();
      is_running_ = true;
    }
    unchecked_ += steps;
    if (unchecked_ < kStepsPerCheck) return;
    unchecked_ = 0;
    double seconds = cpu_seconds() - start_;
    if (seconds > limits.seconds)
      throw LimitError("cpu_milliseconds", uint64_t(seconds * 1e3), uint64_t(limits.seconds * 1e3));
  }

  // The steps so far.
  uint64_t total() const { return total_; }

  // Also spends from a step's budget, unless null, which must live until then.
  void draw_from(StepBudget* step_budget) { step_budget_ = step_budget; }

  void check_states(uint64_t states) const {
    if (states > limits.states) throw LimitError("pattern_states", states, limits.states);
  }

  const Limits limits;

 private:
  static constexpr uint64_t kStepsPerCheck = 1 << 16;

  double start_;  // of the clock
  bool is_running_ = true;
  uint64_t unchecked_ = 0, total_ = 0;
  uint64_t max_steps_ = UINT64_MAX, max_total_ = UINT64_MAX;
  StepBudget* step_budget_ = nullptr;
};

}  // namespace structout::engine
