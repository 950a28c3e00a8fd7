// Automata over the texts of JSON numbers: plain ones, -?(0|[1-9][0-9]*)(\.[0-9]+)?, and
// those with exponents that json/scalars/scientific.h describes. Values are exact, and -0 is 0.
#pragma once

#include "automata/automaton.h"
#include "base/limits.h"
#include "json/document/decimal.h"

namespace structout::json {

engine::Automaton any_number();

// `allows_fraction`: 1.0 and 1e+16 are integers too.
engine::Automaton integers(bool allows_fraction);

// The numbers that are at least the bound, or greater if it is exclusive. The number of
// states is linear in the digits of the bound.
engine::Automaton numbers_from(const Decimal& bound, bool is_exclusive);

// The numbers that are at most the bound, or less if it is exclusive.
engine::Automaton numbers_to(const Decimal& bound, bool is_exclusive);

// All texts of one value: 1, 1.0, 1.00; 1e+16, 10000000000000000.
engine::Automaton numbers_equal(const Decimal& value);

// The integer multiples of a step, written without an exponent. For a step of digits *
// 10^exponent the number of states is linear in digits * (1 + |exponent|). Throws
// LimitError if this exceeds limits.states, and std::invalid_argument if the step is not
// positive.
engine::Automaton multiples_of(const Decimal& step, engine::Budget& budget);

// The spelling of written numbers: bounds on their digits, and the use of exponents.
struct NumberForm {
  uint32_t num_digits = 17;  // at most, from the first that is no zero on
  uint32_t num_zeros = 17;   // at most, between the point and such a digit, 1 or more
  enum class Exponents : uint8_t { kNone, kOfDoubles, kAll } exponents = Exponents::kOfDoubles;
};

// The numbers of a form whose fraction, if they have one, is .0 or does not end with a
// zero.
engine::Automaton numbers_of(const NumberForm& form, engine::Budget& budget);

// All numbers but those whose fraction is zeros only: 1 and 1.5, but not 1.0.
engine::Automaton without_zero_fraction();

}  // namespace structout::json
