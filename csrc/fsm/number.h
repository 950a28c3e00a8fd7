// Automata over the texts of JSON numbers without exponents:
// -?(0|[1-9][0-9]*)(\.[0-9]+)?. Values are exact, and -0 is 0.
#pragma once

#include "fsm/automaton.h"
#include "fsm/decimal.h"
#include "fsm/limits.h"

namespace structout::fsm {

Automaton any_number();

// `allows_fraction`: whether 1.0 is an integer.
Automaton integers(bool allows_fraction);

// The numbers that are at least the bound, or greater if it is exclusive. The number of
// states is linear in the digits of the bound.
Automaton numbers_from(const Decimal& bound, bool is_exclusive);

// The numbers that are at most the bound, or less if it is exclusive.
Automaton numbers_to(const Decimal& bound, bool is_exclusive);

// All texts of one value: 1, 1.0, 1.00.
Automaton numbers_equal(const Decimal& value);

// The multiples of a step by integers. The step is digits * 10^exponent, and the number
// of states is linear in digits * (1 + |exponent|). Throws LimitError if this exceeds
// limits.states, and std::invalid_argument if the step is not positive.
Automaton multiples_of(const Decimal& step, Budget& budget);

}  // namespace structout::fsm
