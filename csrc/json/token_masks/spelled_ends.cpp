#include "json/token_masks/spelled_ends.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/satisfiability/value_search.h"

namespace structout::json {

using engine::VocabularyTrie;

namespace {

// True if the bytes of brackets, separators, words, whitespace and the schema's names are tokens.
bool has_needed_bytes(const Schema& schema, const VocabularyTrie& vocabulary) {
  std::string needed = "{}[]:,\" \ntruefalsn";
  for (uint32_t name = 0; name < schema.num_names(); ++name) needed += schema.spelled_name(name);
  return std::all_of(needed.begin(), needed.end(), [&](char byte) { return vocabulary.has_byte(uint8_t(byte)); });
}

}  // namespace

SpelledEnds::SpelledEnds(SchemaAutomaton& automaton, const VocabularyTrie& vocabulary, SchemaCosts& costs)
    : automaton_(automaton),
      vocabulary_(vocabulary),
      costs_(costs),
      are_all_spelled_(has_needed_bytes(automaton.schema(), vocabulary)) {}

// 0 if tokens complete the text; the bytes of an ending that they do not spell; or SIZE_MAX.
size_t SpelledEnds::distance(const Configuration& config) {
  size_t num_bytes = costs_.unspelled_bytes(config);
  return num_bytes == SIZE_MAX && some_completion(config, kMaxBytesRead) ? 0 : num_bytes;
}

bool SpelledEnds::has_end(const Configuration& start) {
  if (are_all_spelled_) return true;
  if (std::optional<std::string> key = start.key()) {
    auto known = known_.find(*key);
    if (known != known_.end()) return known->second;
  }
  // The configurations whose endings have the fewest bytes come first.
  struct Step {
    Configuration config;
    size_t before;
  };
  using Promise = std::pair<size_t, size_t>;  // bytes to the end; the step
  std::vector<Step> steps;
  std::priority_queue<Promise, std::vector<Promise>, std::greater<>> pending;
  std::unordered_set<std::string> seen;
  uint64_t num_reads = 0, num_configs = 0;
  auto reach = [&](const Configuration& config, size_t before) {
    if (!seen.insert(SchemaCosts::key_of(config, config.state())).second) return;
    size_t num_bytes = distance(config);
    if (num_bytes == SIZE_MAX) num_reads += kMaxBytesRead;
    pending.push({num_bytes, steps.size()});
    steps.push_back({config, before});
  };
  reach(start, 0);
  while (!pending.empty()) {
    auto [num_bytes, at] = pending.top();
    pending.pop();
    if (num_bytes == 0) {
      for (size_t on_way = at; on_way != 0; on_way = steps[on_way].before) note(steps[on_way].config, true);
      note(start, true);
      return true;
    }
    if (num_reads > kMaxReads || ++num_configs > kMaxConfigs) {
      note(start, false);
      return false;
    }
    std::vector<Configuration> path = {steps[at].config};  // one for each byte of a token
    vocabulary_.visit_below(VocabularyTrie::kRoot, [&](uint32_t node, uint8_t byte, uint32_t depth) {
      path.resize(depth + 1, start);
      if (automaton_.action(path[depth].state(), byte).kind == Action::kFail) return false;
      automaton_.schema().budget().spend(kStepsPerRead);
      ++num_reads;
      Configuration next = path[depth];
      if (!next.read(byte)) return false;
      bool is_token = vocabulary_.first_token(node) < vocabulary_.nodes()[node].tokens_end;
      if (is_token && next.has_unused()) reach(next, at);
      path.push_back(std::move(next));
      return true;
    });
  }
  for (const Step& step : steps) note(step.config, false);
  return false;
}

void SpelledEnds::note(const Configuration& config, bool has_end) {
  std::optional<std::string> key = config.key();
  if (!key) return;
  bytes_ += key->size() + kBytesPerKey;
  known_.emplace(std::move(*key), has_end);
}

}  // namespace structout::json
