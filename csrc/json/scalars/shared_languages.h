// SharedLanguages: a cache of the process for compiled languages of texts that several
// schemas use, such as formats.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "automata/automaton.h"
#include "base/process_mutex.h"

namespace structout::json {

struct SharedLanguage {
  // `syntax`: the automaton of all texts of the kind, of strings or of numbers.
  SharedLanguage(engine::Automaton automaton, const engine::Automaton& syntax);

  // Packs a state of the language and one of its syntax, as is_everything holds them.
  static uint64_t pair_of(uint32_t state, uint32_t syntax_state) { return uint64_t(state) << 32 | syntax_state; }

  engine::Automaton automaton;
  // Pairs of a state and a state of the syntax from which the language accepts every text
  // that the syntax allows to follow. There an atom of the language is simply true.
  std::unordered_set<uint64_t> is_everything;
  std::vector<uint32_t> distances;  // of each state to the nearest that accepts
};

// Beyond a total size, the languages that were unused for longest go first. Threads may
// share it.
class SharedLanguages {
 public:
  static SharedLanguages& of_process();

  // Null if no language of this name is in the cache.
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
