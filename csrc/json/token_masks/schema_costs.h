// SchemaCosts: the tokens that texts of a schema still need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/token_masks/least_endings.h"
#include "json/token_masks/token_walk.h"
#include "token_masks/token_costs.h"

namespace structout::json {

// Costs as TokenCosts defines them, by the endings of LeastEndings. Where keys or items must
// differ from earlier ones, that ending may be no end: then another one is searched, and
// the text carries it along.
class SchemaCosts {
 public:
  SchemaCosts(SchemaAutomaton& automaton, const engine::VocabularyTrie& vocabulary)
      : automaton_(automaton), vocabulary_(vocabulary), endings_(automaton, vocabulary) {}

  // The cost of a configuration. kUnknownCost if no end is found soon. `carried`: an ending that the
  // text carries along, or empty; set if this one is the first.
  uint32_t cost(const Configuration& config, std::string& carried) {
    return engine::num_tokens(ending(config, &carried).ending);
  }

  // The bytes of an ending that is known without a search, or 0 if tokens spell it. SIZE_MAX if
  // none is known.
  size_t unspelled_bytes(const Configuration& config);

  std::shared_ptr<const engine::TokenCosts> token_costs(const Configuration& config, std::string& carried);

  // The strings and numbers that the ending of a configuration begins.
  uint32_t values_to_come(const Configuration& config, std::string& carried);

  // A bound on the cost after any token, without a look at the tokens: what is open now, and
  // the longest rest for each value that a token can open; or the longest rest of the string
  // that no token can end. The states to which tokens lead must exist.
  uint32_t rough_bound(const Configuration& config, std::string& carried);
  // The same, also without a look at the states of the stack.
  uint32_t rougher_bound(const Configuration& config);

  // The states on the stack, their keys, and whether free keys have come; with another state on top.
  static std::string key_of(const Configuration& config, State top);

  size_t memory_bytes() const { return endings_.memory_bytes() + bytes_; }

 private:
  // `is_least`: LeastEndings alone has found it, so it depends on the states and keys alone.
  struct Found {
    const engine::Ending* ending;  // null: the text is complete; no_end_: none is found
    bool is_least;
  };
  class Collector;
  static constexpr size_t kBytesPerTable = 96;         // of the hash table, roughly
  static constexpr size_t kMaxBytes = 16 << 20;        // beyond, tables are not kept
  static constexpr uint32_t kMostToEndCharacter = 12;  // or an escape, in bytes
  // Tokens for which keys and items need more, since they must differ from earlier ones.
  static constexpr uint32_t kToDiffer = 8;

  // `carried`: null if no search is worth its time. `may_add`: the ending of a key or string may
  // add a character, so that it is none of the earlier ones.
  Found ending(const Configuration& config, std::string* carried, bool may_add = true);
  uint32_t bound(uint64_t cost, uint64_t num_more);
  bool stays_in_string(const Configuration& config);
  bool completes(const Configuration& config, const engine::Ending* ending) const;
  const engine::Ending* with_another_character(const Configuration& config);
  std::string searched(const Configuration& config);
  // The costs after the tokens of a configuration with another state on top.
  std::shared_ptr<const engine::TokenCosts> table(const Configuration& config, State top);
  std::shared_ptr<const engine::TokenCosts> kept(std::string key, engine::TokenCosts costs);

  SchemaAutomaton& automaton_;
  const engine::VocabularyTrie& vocabulary_;
  LeastEndings endings_;
  std::vector<std::pair<State, LeastEndings::Keys>> stack_;
  const engine::Ending no_end_{engine::Ending::Kind::kJump, nullptr, {nullptr}, {engine::kUnknownCost}};
  std::unordered_map<std::string, std::shared_ptr<const engine::TokenCosts>> tables_;
  size_t bytes_ = 0;
};

}  // namespace structout::json
