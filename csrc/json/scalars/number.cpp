#include "json/scalars/number.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "automata/compile.h"
#include "json/scalars/known_automata.h"
#include "json/scalars/number_reading.h"
#include "json/scalars/scientific.h"

namespace structout::json {

namespace {

// The state of a condition after some digits.
struct Progress {
  uint32_t position = 0;
  uint32_t value = 0;
  bool is_negative = false;
};

// Builds the minimal automaton of the numbers that fulfil a condition, a class with:
//   start(is_negative)          the progress before the first digit
//   whole_digit(progress, d)    after a digit before the point
//   point(progress)             after the point, or at the end of a number without one
//   fraction_digit(progress, d) after a digit of the fraction
//   accepts(progress)           true if the number may end, after point()
// point and fraction_digit return nothing if no further digits fulfil the condition.
template <typename Condition>
class NumberBuilder {
 public:
  NumberBuilder(const Condition& condition, engine::Budget& budget) : condition_(condition), budget_(budget) {}

  engine::Automaton build() {
    number_of({Phase::kStart, {}});
    for (size_t i = 0; i < states_.size(); ++i) {
      edges_.clear();
      State state = states_[i];
      add_edges(state);
      builder_.add_state(accepts(state), edges_);
      budget_.spend(edges_.size() + 1);
    }
    return builder_.minimal(0, budget_);
  }

 private:
  enum class Phase : uint8_t { kStart, kSign, kZero, kWhole, kPoint, kFraction };

  struct State {
    Phase phase;
    Progress progress;
  };

  uint32_t number_of(const State& state) {
    const Progress& progress = state.progress;
    uint64_t key = uint64_t(progress.value) << 32 | uint64_t(progress.position) << 4 | uint64_t(state.phase) << 1 |
                   uint64_t(progress.is_negative);
    auto [found, is_new] = numbers_.try_emplace(key, uint32_t(states_.size()));
    if (is_new) states_.push_back(state);
    return found->second;
  }

  void add_edge(char byte, Phase phase, const std::optional<Progress>& progress) {
    if (progress) edges_.push_back({uint8_t(byte), uint8_t(byte), number_of({phase, *progress})});
  }

  void add_edges(const State& state) {
    bool is_before_digits = state.phase == Phase::kStart || state.phase == Phase::kSign;
    bool is_whole = state.phase == Phase::kZero || state.phase == Phase::kWhole;
    Progress progress = is_before_digits ? condition_.start(state.phase == Phase::kSign) : state.progress;
    if (state.phase == Phase::kStart) add_edge('-', Phase::kSign, Progress{});
    if (is_whole) add_edge('.', Phase::kPoint, condition_.point(progress));
    if (state.phase == Phase::kZero) return;
    for (uint32_t digit = 0; digit < 10; ++digit) {
      if (is_before_digits || is_whole) {
        Phase phase = is_before_digits && digit == 0 ? Phase::kZero : Phase::kWhole;
        add_edge(char('0' + digit), phase, condition_.whole_digit(progress, digit));
      } else {
        add_edge(char('0' + digit), Phase::kFraction, condition_.fraction_digit(progress, digit));
      }
    }
  }

  bool accepts(const State& state) const {
    if (state.phase == Phase::kFraction) return condition_.accepts(state.progress);
    if (state.phase != Phase::kZero && state.phase != Phase::kWhole) return false;
    std::optional<Progress> progress = condition_.point(state.progress);
    return progress && condition_.accepts(*progress);
  }

  const Condition& condition_;
  engine::Budget& budget_;
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<State> states_;
  std::vector<engine::Edge> edges_;
  engine::AutomatonBuilder builder_;
};

// Accepts the numbers in an accepted ordering against a bound. Compares digit by digit with
// the bound's absolute value; each sign has its own accepted orderings of absolute values.
// Progress: the position is that in the bound's whole digits (one past their end for any
// longer number), then that in its fraction. The value is the ordering so far.
class Comparison {
 public:
  Comparison(const Decimal& bound, uint32_t accepted)
      : whole_(bound.whole_digits()), fraction_(bound.fraction_digits()), accepted_(bound, accepted) {}

  Progress start(bool is_negative) const { return {0, kEqual, is_negative}; }

  Progress whole_digit(Progress progress, uint32_t digit) const {
    if (progress.position >= whole_.size()) return {uint32_t(whole_.size() + 1), kGreater, progress.is_negative};
    if (progress.value == kEqual) progress.value = ordering(digit, whole_[progress.position]);
    ++progress.position;
    return progress;
  }

  std::optional<Progress> point(const Progress& progress) const {
    bool is_shorter = progress.position < whole_.size();  // no whole number begins with a zero
    return Progress{0, is_shorter ? kLess : progress.value, progress.is_negative};
  }

  std::optional<Progress> fraction_digit(const Progress& progress, uint32_t digit) const {
    if (progress.value != kEqual) return progress;
    bool has_ended = progress.position == fraction_.size();
    uint32_t value = ordering(digit, has_ended ? '0' : fraction_[progress.position]);
    uint32_t position = value != kEqual ? 0 : progress.position + !has_ended;
    return Progress{position, value, progress.is_negative};
  }

  bool accepts(const Progress& progress) const {
    // The bound's fraction has more digits, and never ends with a zero, so the bound is
    // greater.
    bool is_shorter = progress.value == kEqual && progress.position < fraction_.size();
    uint32_t value = is_shorter ? kLess : progress.value;
    return (value & (progress.is_negative ? accepted_.negative : accepted_.positive)) != 0;
  }

 private:
  static uint32_t ordering(uint32_t digit, char other) {
    uint32_t expected = uint32_t(other - '0');
    return digit < expected ? kLess : digit == expected ? kEqual : kGreater;
  }

  std::string whole_, fraction_;
  SignedOrderings accepted_;
};

// Accepts the multiples of modulus * 10^exponent. Progress before the point: the number of
// final zeros, at most as many as the step has, and the remainder of the digits before
// them. Progress after the point: the number of digits there, and the remainder of all
// digits as one integer. The sign does not matter.
class Multiple {
 public:
  Multiple(uint32_t modulus, int64_t exponent)
      : modulus_(modulus),
        num_zeros_(uint32_t(std::max(exponent, int64_t(0)))),
        num_decimals_(uint32_t(std::max(-exponent, int64_t(0)))),
        powers_(1, 1 % modulus) {
    while (powers_.size() <= 1 + num_zeros_ + num_decimals_) powers_.push_back(powers_.back() * 10 % modulus);
  }

  // Zero ends with as many zeros as the step.
  Progress start(bool) const { return {num_zeros_, 0}; }

  Progress whole_digit(const Progress& progress, uint32_t digit) const {
    bool is_another_zero = digit == 0 && progress.position < num_zeros_;
    if (is_another_zero) return {progress.position + 1, progress.value};
    if (digit == 0) return {num_zeros_, remainder(progress.value * powers_[1])};
    return {0, remainder(progress.value * powers_[progress.position + 1] + digit)};
  }

  std::optional<Progress> point(const Progress& progress) const {
    if (progress.position < num_zeros_) return std::nullopt;
    return unless_hopeless({0, progress.value});
  }

  std::optional<Progress> fraction_digit(const Progress& progress, uint32_t digit) const {
    if (progress.position < num_decimals_) {
      return unless_hopeless({progress.position + 1, remainder(progress.value * powers_[1] + digit)});
    }
    if (digit != 0) return std::nullopt;
    return progress;
  }

  bool accepts(const Progress& progress) const {
    return remainder(progress.value * powers_[num_decimals_ - progress.position]) == 0;
  }

 private:
  uint32_t remainder(uint64_t value) const { return uint32_t(value % modulus_); }

  // After the last decimal of the step there may only be zeros.
  std::optional<Progress> unless_hopeless(const Progress& progress) const {
    if (progress.position == num_decimals_ && progress.value != 0) return std::nullopt;
    return progress;
  }

  uint32_t modulus_, num_zeros_, num_decimals_;
  std::vector<uint64_t> powers_;  // of ten, modulo modulus_
};

// Reads plain numbers of a form.
class PlainForm {
 public:
  enum class Phase : uint8_t { kStart, kSign, kZero, kWhole, kPoint, kOnlyZero, kZeros, kFraction };

  struct State {
    Phase phase = Phase::kStart;
    uint32_t num_digits = 0;  // from the first that is no zero on
    uint32_t num_zeros = 0;   // after the point, while there are no such digits

    uint64_t key() const { return uint64_t(num_digits) << 32 | uint64_t(num_zeros) << 8 | uint64_t(phase); }
  };

  explicit PlainForm(const NumberForm& form) : form_(form) {}

  std::optional<State> next(State state, char byte) const {
    bool is_digit = byte >= '0' && byte <= '9', is_zero = byte == '0';
    Phase before = state.phase;
    switch (before) {
      case Phase::kStart:
      case Phase::kSign:
        if (byte == '-' && before == Phase::kStart) return State{Phase::kSign};
        state.phase = is_zero ? Phase::kZero : Phase::kWhole;
        break;
      case Phase::kZero:
      case Phase::kWhole:
        if (byte == '.') return State{Phase::kPoint, state.num_digits};
        if (before == Phase::kZero) return std::nullopt;
        break;
      default:
        state.phase = !is_zero ? Phase::kFraction : before == Phase::kPoint ? Phase::kOnlyZero : Phase::kZeros;
    }
    if (!is_digit) return std::nullopt;
    bool is_fraction = state.phase >= Phase::kPoint;
    if (state.num_digits > 0 || !is_zero) {
      ++state.num_digits;
      state.num_zeros = 0;
    } else if (is_fraction) {
      ++state.num_zeros;
    }
    if (state.num_digits > form_.num_digits || state.num_zeros > form_.num_zeros) return std::nullopt;
    return state;
  }

  bool accepts(const State& state) const {
    return state.phase == Phase::kZero || state.phase == Phase::kWhole || state.phase == Phase::kOnlyZero ||
           state.phase == Phase::kFraction;
  }

 private:
  NumberForm form_;
};

engine::Automaton compared(const Decimal& bound, uint32_t accepted) {
  engine::Budget budget{engine::Limits()};
  engine::Automaton plain = NumberBuilder(Comparison(bound, accepted), budget).build();
  engine::Automaton scientific = scientific_compared(bound, accepted, budget);
  return scientific.num_states() == 0 ? plain : engine::union_of(plain, scientific, budget);
}

const std::string kWhole = "-?(?:0|[1-9][0-9]*)";

}  // namespace

engine::Automaton any_number() {
  return known_automaton("any number", [] {
    engine::Budget budget{engine::Limits()};
    return engine::union_of(engine::compile_regex(kWhole + "(?:\\.[0-9]+)?", engine::Limits()),
                            scientific_numbers(false), budget);
  });
}

engine::Automaton integers(bool allows_fraction) {
  if (!allows_fraction) return engine::compile_regex(kWhole, engine::Limits());
  engine::Budget budget{engine::Limits()};
  return engine::union_of(engine::compile_regex(kWhole + "(?:\\.0+)?", engine::Limits()), scientific_integers(),
                          budget);
}

engine::Automaton without_zero_fraction() {
  engine::Budget budget{engine::Limits()};
  return engine::difference(any_number(), engine::compile_regex(kWhole + "\\.0+", engine::Limits()), budget);
}

engine::Automaton numbers_of(const NumberForm& form, engine::Budget& budget) {
  engine::Automaton plain = automaton_of(PlainForm(form), budget);
  if (form.exponents == NumberForm::Exponents::kNone) return plain;
  bool only_doubles = form.exponents == NumberForm::Exponents::kOfDoubles;
  return engine::union_of(plain, scientific_numbers(only_doubles), budget);
}

engine::Automaton numbers_from(const Decimal& bound, bool is_exclusive) {
  return compared(bound, is_exclusive ? kGreater : kGreater | kEqual);
}

engine::Automaton numbers_to(const Decimal& bound, bool is_exclusive) {
  return compared(bound, is_exclusive ? kLess : kLess | kEqual);
}

engine::Automaton numbers_equal(const Decimal& value) { return compared(value, kEqual); }

engine::Automaton multiples_of(const Decimal& step, engine::Budget& budget) {
  if (step.is_zero() || step.is_negative()) {
    throw std::invalid_argument("expected a positive step, got " + step.text().substr(0, 100));
  }
  uint64_t max_states = budget.limits.states, modulus = 0;
  uint64_t num_positions = 1 + uint64_t(std::abs(step.exponent()));
  for (char digit : step.digits()) {
    modulus = 10 * modulus + uint64_t(digit - '0');
    if (modulus * num_positions > max_states) {
      throw engine::LimitError("multiple_of_states", modulus * num_positions, max_states);
    }
  }
  return NumberBuilder(Multiple(uint32_t(modulus), step.exponent()), budget).build();
}

}  // namespace structout::json
