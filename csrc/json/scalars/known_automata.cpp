#include "json/scalars/known_automata.h"

#include <mutex>
#include <unordered_map>

#include "base/process_mutex.h"

namespace structout::json {

namespace {

struct KnownAutomata {
  engine::ProcessMutex mutex;
  std::unordered_map<std::string, engine::Automaton> by_name;
};

// Made when the library is loaded, like everything that the process shares: a fork in the
// middle of a first use would leave it half made. Never destroyed, because threads may
// outlive main.
KnownAutomata& all = *new KnownAutomata;

}  // namespace

engine::Automaton known_automaton(const std::string& name, const std::function<engine::Automaton()>& make) {
  {
    std::lock_guard<engine::ProcessMutex> lock(all.mutex);
    auto known = all.by_name.find(name);
    if (known != all.by_name.end()) return known->second;
  }
  engine::Automaton made = make();
  std::lock_guard<engine::ProcessMutex> lock(all.mutex);
  return all.by_name.emplace(name, std::move(made)).first->second;
}

}  // namespace structout::json
