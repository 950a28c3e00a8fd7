// Automata that a process makes once.
#pragma once

#include <functional>
#include <string>

#include "regular/automaton.h"

namespace structout::json {

// The automaton of a name. It is made when the name is first asked for; threads that ask at
// the same time may make it more than once.
engine::Automaton known_automaton(const std::string& name, const std::function<engine::Automaton()>& make);

}  // namespace structout::json
