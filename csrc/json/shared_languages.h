// Languages of texts that several schemas use, such as those of formats.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/process_mutex.h"
#include "regular/automaton.h"

namespace structout::json {

struct SharedLanguage {
  // `syntax`: of all texts of the kind.
  SharedLanguage(engine::Automaton automaton, const engine::Automaton& syntax);

  // A state of a language with one of its syntax.
  static uint64_t pair_of(uint32_t state, uint32_t syntax_state) { return uint64_t(state) << 32 | syntax_state; }

  engine::Automaton automaton;
  // Pairs of its states with states of the syntax at which it accepts whatever may follow.
  std::unordered_set<uint64_t> is_everything;
  std::vector<uint32_t> distances;  // of each state to the nearest that accepts
};

// The oldest go first. Threads may share it.
class SharedLanguages {
 public:
  static SharedLanguages& of_process();

  // Null if there is none of this name.
  std::shared_ptr<const SharedLanguage> find(const std::string& name);
  void add(const std::string& name, std::shared_ptr<const SharedLanguage> language);

 private:
  using Entries = std::list<std::pair<std::string, std::shared_ptr<const SharedLanguage>>>;

  engine::ProcessMutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_name_;
  size_t bytes_ = 0;
};

}  // namespace structout::json
