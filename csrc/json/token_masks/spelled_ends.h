// SpelledEnds: configurations from which tokens lead to the end, where bytes are no tokens.
#pragma once

#include <string>
#include <unordered_map>

#include "json/token_masks/schema_costs.h"

namespace structout::json {

// A schema's automaton reads bytes, and knows that those of strings and numbers are tokens.
// Where other bytes that texts need are none, an end that it knows may have no tokens: `f`,
// where only the token `false` has an `a`. Then this searches an end token by token.
class SpelledEnds {
 public:
  SpelledEnds(SchemaAutomaton& automaton, const engine::VocabularyTrie& vocabulary, SchemaCosts& costs);

  // True if tokens are known to complete the text. False if none do, or a search finds none soon.
  // If it is true, some token leads to a configuration for which it is true, too.
  bool has_end(const Configuration& config);

  // True if every byte that texts need is a token, so each text that can be completed has an end.
  bool are_all_spelled() const { return are_all_spelled_; }
  size_t memory_bytes() const { return bytes_; }

 private:
  static constexpr uint64_t kMaxReads = 1 << 13, kMaxConfigs = 256;  // of a search
  static constexpr uint64_t kMaxBytesRead = 1 << 9;                  // from one configuration
  static constexpr uint64_t kStepsPerRead = 16;                      // of a budget
  static constexpr size_t kBytesPerKey = 64;                         // of the hash table, roughly

  size_t distance(const Configuration& config);
  void note(const Configuration& config, bool has_end);

  SchemaAutomaton& automaton_;
  const engine::VocabularyTrie& vocabulary_;
  SchemaCosts& costs_;
  const bool are_all_spelled_;
  std::unordered_map<std::string, bool> known_;  // by Configuration::key()
  size_t bytes_ = 0;
};

}  // namespace structout::json
