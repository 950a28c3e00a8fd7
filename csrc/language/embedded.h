// Embedded languages: an automaton of its own reads a part of a text, for example a JSON
// schema inside a grammar.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "token_masks/mask_store.h"
#include "token_masks/token_costs.h"
#include "token_masks/vocabulary.h"

namespace structout::engine {

// The configuration inside an embedded text, after its first byte. Reading on gives a new
// one; see EmbeddedCache::after.
class EmbeddedConfiguration {
 public:
  virtual ~EmbeddedConfiguration() = default;
};

using ConfigurationPtr = std::shared_ptr<const EmbeddedConfiguration>;

using ByteSet = std::bitset<256>;

// The effect of all tokens from a configuration: those that stay inside the embedded text,
// and those that leave it.
struct EmbeddedView {
  static constexpr uint32_t kNoEntry = UINT32_MAX;

  // The tokens whose bytes all belong to the embedded text. Null if they depend on what
  // the configuration remembers, for example on the keys that an object has already, or if
  // they are not stored.
  const Mask* mask = nullptr;

  // A cache key: configurations of the same entry have equal masks and, for equal
  // followers, equal `continuations`. kNoEntry if nothing is cached for the configuration.
  uint32_t entry = kNoEntry;

  // Lists of nodes of the vocabulary's trie after which the text may end inside a
  // token. List i counts only if bit i of `counting_continuations` is set.
  std::shared_ptr<const std::vector<std::vector<uint32_t>>> continuations;
  uint64_t counting_continuations = 0;

  // More such nodes, which are not part of the entry. They may depend on what the
  // configuration remembers.
  std::vector<uint32_t> own_continuations;

  // Calls visit(nodes) for the lists of `continuations` that count.
  template <typename Visit>
  void visit_counting(Visit visit) const {
    for (size_t i = 0; continuations != nullptr && i < continuations->size() && i < 64; ++i) {
      if ((counting_continuations >> i & 1) != 0) visit((*continuations)[i]);
    }
  }
};

// The states and masks that texts of an embedded language share. A cache is not safe
// for threads by itself: a thread calls lock() before any other function, except
// number().
//
// Exceptions leave configurations as they were.
class EmbeddedCache {
 public:
  virtual ~EmbeddedCache() = default;

  // Locks the cache for this thread until unlock(), and bounds the work until then.
  virtual void lock() = 0;
  virtual void unlock() noexcept = 0;

  virtual ConfigurationPtr start() = 0;

  // Reads bytes up to the first after which the text may end, and moves `at` past them.
  // Null if a byte is not allowed.
  virtual ConfigurationPtr after(const EmbeddedConfiguration& config, const uint8_t*& at, const uint8_t* end) = 0;

  virtual bool may_end(const EmbeddedConfiguration& config) = 0;
  virtual bool may_continue(const EmbeddedConfiguration& config) = 0;  // where the text may end

  // True if the text can still be completed.
  virtual bool has_end(const EmbeddedConfiguration& config) = 0;

  // Conservative equality: true only if both configurations accept the same continuations.
  // Cheap; false does not prove a difference.
  virtual bool are_equal(const EmbeddedConfiguration& a, const EmbeddedConfiguration& b) = 0;

  // The effect of all tokens. Computes it on a miss, at the cost of a mask.
  // `followers`: the bytes that may follow the text. Continuations with no such byte below
  // them may be missing.
  virtual EmbeddedView view(const EmbeddedConfiguration& config, const ByteSet& followers) = 0;

  // The cached view, or nothing on a miss. Never computes a mask.
  virtual std::optional<EmbeddedView> known_view(const EmbeddedConfiguration& config, const ByteSet& followers) = 0;

  // Fills a row with the tokens whose bytes all belong to the embedded text.
  virtual void fill(const EmbeddedConfiguration& config, uint32_t* row) = 0;
  virtual void expand(const Mask& mask, MaskRow& row) = 0;

  // The bytes that must follow, where the text may not end.
  virtual std::string forced(const EmbeddedConfiguration& config) = 0;

  // Bytes that complete the text, the fewest if they are found quickly. Adds the steps of
  // a Budget that this takes to `work`.
  virtual std::optional<std::string> short_end(const EmbeddedConfiguration& config, uint64_t& work) = 0;

  // The tokens that complete the text, as TokenCosts says; a bound on that cost after any
  // token that stays inside, without a look at the tokens, which is rougher where even that is
  // at most `max`; and the costs after each.
  virtual uint32_t cost_to_end(const EmbeddedConfiguration& config) = 0;
  virtual uint32_t most_cost(const EmbeddedConfiguration& config, uint32_t max) = 0;
  virtual CostTable token_costs(const EmbeddedConfiguration& config) = 0;

  // A unique_number() of this cache.
  virtual uint32_t number() const = 0;
};

// A language whose texts are not empty, over the tokens of a vocabulary.
class EmbeddedLanguage {
 public:
  virtual ~EmbeddedLanguage() = default;
  virtual const VocabularyTrie& embedded_vocabulary() const = 0;
  virtual const ByteSet& first_bytes() const = 0;
  virtual size_t memory_bytes() = 0;  // of all caches in use

  // The cache for new texts to use now.
  virtual std::shared_ptr<EmbeddedCache> embedded_cache() = 0;

  // A cache that no other text has used.
  virtual std::shared_ptr<EmbeddedCache> new_embedded_cache() = 0;
};

}  // namespace structout::engine
