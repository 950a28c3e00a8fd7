#include "json/scalars/shared_languages.h"

#include <algorithm>

namespace structout::json {

using engine::Automaton;
using engine::Edge;

namespace {

constexpr size_t kMaxSharedBytes = 64 << 20;
constexpr size_t kBytesOfPair = 40;  // in a set

size_t size_of(const std::string& name, const SharedLanguage& language) {
  return 2 * name.size() + language.automaton.memory_bytes() + kBytesOfPair * language.is_everything.size() +
         language.distances.size() * sizeof(uint32_t);
}

// Finds the pairs of a state of `automaton` and one of `syntax`, among those that some text
// leads to, from which the automaton accepts all that the syntax does. First it builds the
// product, then it goes backwards from the pairs that differ.
std::unordered_set<uint64_t> pairs_that_accept_everything(const Automaton& automaton, const Automaton& syntax) {
  std::unordered_map<uint64_t, uint32_t> numbers;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  std::vector<std::vector<uint32_t>> sources;
  std::vector<uint32_t> different;
  auto number_of = [&](uint32_t state, uint32_t other) {
    auto [found, is_new] = numbers.try_emplace(SharedLanguage::pair_of(state, other), uint32_t(pairs.size()));
    if (is_new) {
      pairs.emplace_back(state, other);
      sources.emplace_back();
    }
    return found->second;
  };
  std::vector<bool> is_different;
  if (automaton.num_states() == 0) return {};
  number_of(0, 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    auto [state, other] = pairs[i];
    bool differs = automaton.accepts(state) != syntax.accepts(other);
    const Edge* edge = automaton.begin(state);
    int byte = 0;  // those below are covered
    for (const Edge* expected = syntax.begin(other); expected < syntax.end(other); ++expected) {
      for (byte = expected->first; byte <= expected->last;) {
        while (edge < automaton.end(state) && edge->last < byte) ++edge;
        bool has_edge = edge < automaton.end(state) && edge->first <= byte;
        differs = differs || !has_edge;
        if (!has_edge) break;
        sources[number_of(edge->target, expected->target)].push_back(i);
        byte = std::min<int>(edge->last, expected->last) + 1;
      }
      // The automaton may have more edges below, which lead to pairs of their own.
      for (const Edge* more = edge; more < automaton.end(state) && more->first <= expected->last; ++more) {
        if (more->last >= expected->first) number_of(more->target, expected->target);
      }
    }
    is_different.push_back(differs);
    if (differs) different.push_back(i);
  }
  while (!different.empty()) {
    uint32_t last = different.back();
    different.pop_back();
    for (uint32_t source : sources[last]) {
      if (is_different[source]) continue;
      is_different[source] = true;
      different.push_back(source);
    }
  }
  std::unordered_set<uint64_t> everything;
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    if (!is_different[i]) everything.insert(SharedLanguage::pair_of(pairs[i].first, pairs[i].second));
  }
  return everything;
}

std::vector<uint32_t> distances_to_an_end(const Automaton& automaton) {
  std::vector<std::vector<uint32_t>> sources(automaton.num_states());
  std::vector<uint32_t> distances(automaton.num_states(), 0), reached;
  for (uint32_t state = 0; state < automaton.num_states(); ++state) {
    if (automaton.accepts(state)) reached.push_back(state);
    for (const Edge* edge = automaton.begin(state); edge < automaton.end(state); ++edge) {
      sources[edge->target].push_back(state);
    }
  }
  for (size_t i = 0; i < reached.size(); ++i) {
    for (uint32_t source : sources[reached[i]]) {
      if (automaton.accepts(source) || distances[source] != 0) continue;
      distances[source] = distances[reached[i]] + 1;
      reached.push_back(source);
    }
  }
  return distances;
}

// Made when the library is loaded; see known_automata.cpp.
SharedLanguages& languages = *new SharedLanguages;

}  // namespace

SharedLanguage::SharedLanguage(Automaton given, const Automaton& syntax)
    : automaton(std::move(given)),
      is_everything(pairs_that_accept_everything(automaton, syntax)),
      distances(distances_to_an_end(automaton)) {}

SharedLanguages& SharedLanguages::of_process() { return languages; }

std::shared_ptr<const SharedLanguage> SharedLanguages::find(const std::string& name) {
  std::lock_guard<engine::ProcessMutex> lock(mutex_);
  auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().second;
}

void SharedLanguages::add(const std::string& name, std::shared_ptr<const SharedLanguage> language) {
  std::lock_guard<engine::ProcessMutex> lock(mutex_);
  if (by_name_.count(name) != 0) return;
  bytes_ += size_of(name, *language);
  entries_.emplace_front(name, std::move(language));
  by_name_[name] = entries_.begin();
  while (bytes_ > kMaxSharedBytes && entries_.size() > 1) {
    bytes_ -= size_of(entries_.back().first, *entries_.back().second);
    by_name_.erase(entries_.back().first);
    entries_.pop_back();
  }
}

}  // namespace structout::json
