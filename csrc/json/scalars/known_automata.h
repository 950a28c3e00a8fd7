// A cache of automata that all constraints of the process share.
#pragma once

#include <functional>
#include <string>

#include "automata/automaton.h"

namespace structout::json {

// The automaton of a name, such as "any number". A hit costs a lock, a lookup and a copy of
// the automaton. A miss calls make() without the lock, so threads that miss at the same
// time may each make it; the first result stays. Nothing is ever removed.
engine::Automaton known_automaton(const std::string& name, const std::function<engine::Automaton()>& make);

}  // namespace structout::json
