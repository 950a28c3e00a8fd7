#include "json/scalars/scientific.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "automata/compile.h"
#include "json/scalars/known_automata.h"
#include "json/scalars/number_reading.h"

namespace structout::json {

namespace {

// JavaScript writes no zero in front of a digit.
const std::string kLargeExponent = "\\+(?:1[6-9]|[2-9][0-9]|[1-9][0-9]{2})";
const std::string kSmallExponent = "-(?:0[5-9]|[7-9]|[1-9][0-9]{1,2})";
const std::string kLargeDoubles = "\\+(?:1[6-9]|[2-9][0-9]|[12][0-9]{2}|30[0-7])";
const std::string kSmallDoubles = "-(?:0[5-9]|[7-9]|[1-9][0-9]|[12][0-9]{2}|30[0-7])";

constexpr int64_t kSmallestLarge = 16, kLargestSmall = -5;

std::string mantissa_and(const std::string& exponent) { return "[1-9](?:\\.[0-9]{0,15}[1-9])?e(?:" + exponent + ")"; }

engine::Automaton with_exponent(const std::string& exponent) {
  return engine::compile_regex("-?" + mantissa_and(exponent), engine::Limits());
}

// An automaton that compares a number with a bound: the exponent decides, and the digits,
// which come first, if the exponents are equal. It also reads texts that
// scientific_numbers() rejects, so callers intersect the two.
class ScientificComparison {
 public:
  enum class Phase : uint8_t { kStart, kSign, kWhole, kPoint, kFraction, kE, kExponentSign, kExponent };

  struct State {
    Phase phase = Phase::kStart;
    bool is_negative = false;
    uint32_t position = 0;  // in the digits of the bound
    uint32_t digits = kEqual;
    uint32_t num_exponent_digits = 0;  // at most one more than those of the bound
    uint32_t exponent = kEqual;        // of the absolute values; of the exponents if their signs differ

    uint64_t key() const {
      return uint64_t(position) << 32 | num_exponent_digits << 16 | uint32_t(phase) << 8 | digits << 5 | exponent << 2 |
             uint32_t(is_negative);
    }
  };

  ScientificComparison(const Decimal& bound, uint32_t accepted)
      : digits_(bound.digits()),
        bound_exponent_(bound.point() - 1),
        exponent_digits_(std::to_string(std::abs(bound_exponent_))),
        accepted_(bound, accepted) {}

  std::optional<State> next(State state, char byte) const {
    bool is_digit = byte >= '0' && byte <= '9';
    switch (state.phase) {
      case Phase::kStart:
        if (byte != '-') break;
        return State{Phase::kSign, true};
      case Phase::kPoint:
      case Phase::kFraction:
        if (!is_digit) break;
        return with_digit(state, byte, Phase::kFraction);
      case Phase::kWhole:
        if (byte != '.') break;
        state.phase = Phase::kPoint;
        return state;
      case Phase::kE:
        if (byte != '+' && byte != '-') return std::nullopt;
        return with_exponent_sign(state, byte == '-');
      case Phase::kExponentSign:
      case Phase::kExponent:
        return is_digit ? std::optional(with_exponent_digit(state, byte)) : std::nullopt;
      default:
        break;
    }
    bool is_before_digits = state.phase == Phase::kStart || state.phase == Phase::kSign;
    if (is_before_digits) {
      return is_digit && byte != '0' ? std::optional(with_digit(state, byte, Phase::kWhole)) : std::nullopt;
    }
    if (byte != 'e' || state.phase == Phase::kPoint) return std::nullopt;
    // The bound has digits left, and they are not all zeros.
    if (state.digits == kEqual && state.position < digits_.size()) state.digits = kLess;
    state.position = 0;
    state.phase = Phase::kE;
    return state;
  }

  bool accepts(const State& state) const {
    if (state.phase != Phase::kExponent) return false;
    uint32_t ordering = exponent_ordering(state);
    if (ordering == kEqual) ordering = state.digits;
    if (digits_.empty()) ordering = kGreater;  // the bound is 0
    return (ordering & (state.is_negative ? accepted_.negative : accepted_.positive)) != 0;
  }

 private:
  static uint32_t ordering(char digit, char other) {
    return digit < other ? kLess : digit == other ? kEqual : kGreater;
  }

  State with_digit(State state, char digit, Phase phase) const {
    state.phase = phase;
    if (state.digits != kEqual) return state;
    bool has_ended = state.position == digits_.size();
    state.digits = ordering(digit, has_ended ? '0' : digits_[state.position]);
    state.position = state.digits == kEqual ? state.position + !has_ended : 0;
    return state;
  }

  State with_exponent_sign(State state, bool is_below) const {
    state.phase = Phase::kExponentSign;
    if (is_below != (bound_exponent_ < 0)) state.exponent = is_below ? kLess : kGreater;
    if (state.exponent != kEqual) state.num_exponent_digits = kDecided;
    return state;
  }

  State with_exponent_digit(State state, char digit) const {
    state.phase = Phase::kExponent;
    bool is_leading_zero = state.num_exponent_digits == 0 && digit == '0';
    if (state.num_exponent_digits == kDecided || is_leading_zero) return state;
    uint32_t& count = state.num_exponent_digits;
    if (count >= exponent_digits_.size()) {
      count = uint32_t(exponent_digits_.size() + 1);
      state.exponent = kGreater;
      return state;
    }
    if (state.exponent == kEqual) state.exponent = ordering(digit, exponent_digits_[count]);
    ++count;
    return state;
  }

  uint32_t exponent_ordering(const State& state) const {
    if (state.num_exponent_digits == kDecided) return state.exponent;
    uint32_t absolute = state.num_exponent_digits < exponent_digits_.size() ? kLess : state.exponent;
    if (bound_exponent_ >= 0 || absolute == kEqual) return absolute;
    return absolute == kLess ? kGreater : kLess;
  }

  static constexpr uint32_t kDecided = 255;  // the signs of the exponents differ

  std::string digits_;
  int64_t bound_exponent_;
  std::string exponent_digits_;
  SignedOrderings accepted_;
};

// The numbers in an accepted ordering against a bound that is neither large nor small.
engine::Automaton compared_with_between(const Decimal& bound, uint32_t accepted) {
  SignedOrderings orderings(bound, accepted);
  uint32_t of_small = bound.is_zero() ? kGreater : kLess;  // the absolute values of the small ones
  const bool has[] = {(orderings.positive & kGreater) != 0, (orderings.positive & of_small) != 0,
                      (orderings.negative & kGreater) != 0, (orderings.negative & of_small) != 0};
  std::string name = "between ";
  for (bool each : has) name += each ? '1' : '0';
  return known_automaton(name, [&] {
    engine::Automaton automaton;
    engine::Budget budget{engine::Limits()};
    for (int i = 0; i < 4; ++i) {
      if (!has[i]) continue;
      std::string sign = i < 2 ? "" : "-", exponent = i % 2 == 0 ? kLargeExponent : kSmallExponent;
      automaton =
          engine::union_of(automaton, engine::compile_regex(sign + mantissa_and(exponent), engine::Limits()), budget);
    }
    return automaton;
  });
}

}  // namespace

SignedOrderings::SignedOrderings(const Decimal& bound, uint32_t accepted) {
  uint32_t reversed = (accepted & kEqual) | (accepted & kLess ? kGreater : 0) | (accepted & kGreater ? kLess : 0);
  positive = !bound.is_negative() ? accepted : accepted & kGreater ? kAllOrderings : 0;
  negative = bound.is_negative() || bound.is_zero() ? reversed : accepted & kLess ? kAllOrderings : 0;
}

engine::Automaton scientific_numbers(bool only_doubles) {
  const std::string exponent =
      only_doubles ? kLargeDoubles + "|" + kSmallDoubles : kLargeExponent + "|" + kSmallExponent;
  return known_automaton(exponent, [&] { return with_exponent(exponent); });
}

engine::Automaton scientific_integers() {
  // A fraction has at most 16 digits, and the smallest exponent above 0 is 16, so all
  // numbers with such an exponent are integers.
  return known_automaton(kLargeExponent, [] { return with_exponent(kLargeExponent); });
}

engine::Automaton scientific_compared(const Decimal& bound, uint32_t accepted, engine::Budget& budget) {
  int64_t exponent = bound.point() - 1;
  bool is_between = bound.is_zero() || (exponent < kSmallestLarge && exponent > kLargestSmall);
  if (is_between) return compared_with_between(bound, accepted);
  ScientificComparison comparison(bound, accepted);
  return engine::intersection(automaton_of(comparison, budget), scientific_numbers(false), budget);
}

}  // namespace structout::json
