// Automata over the texts of numbers with an exponent, as Python and JavaScript write
// large and small doubles: 1e+16, 1.5e+300, 2.5e-05, 1e-7. One digit stands before the
// point and at most 16 after it, the last of which is no zero. The magnitude is at least
// 1e16 or less than 1e-4, and the exponent has at most three digits.
#pragma once

#include "automata/automaton.h"
#include "base/limits.h"
#include "json/document/decimal.h"

namespace structout::json {

// Orderings of a number against a bound, as sets of bits.
constexpr uint32_t kLess = 1, kEqual = 2, kGreater = 4, kAllOrderings = 7;

// The accepted orderings of the absolute value of a number against that of a bound, for
// each sign of the number.
struct SignedOrderings {
  SignedOrderings(const Decimal& bound, uint32_t accepted);
  uint32_t positive, negative;
};

// `only_doubles`: without those that may be too large or too small for a double.
engine::Automaton scientific_numbers(bool only_doubles);

engine::Automaton scientific_integers();

// The numbers in an accepted ordering against a bound.
engine::Automaton scientific_compared(const Decimal& bound, uint32_t accepted, engine::Budget& budget);

}  // namespace structout::json
