// Numbered configurations of texts of a schema, and the tokens that lead from one to
// another.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/automaton/configuration.h"
#include "token_masks/mask_store.h"

namespace structout::json {

// A Configuration as texts of a schema share it: with a number, and with its mask once that
// is computed.
struct CachedConfiguration {
  static constexpr uint32_t kNoNumber = UINT32_MAX;

  CachedConfiguration(Configuration config, bool is_complete, uint32_t number)
      : config(std::move(config)), is_complete(is_complete), number(number) {}

  bool is_shared() const { return number != kNoNumber; }

  const Configuration config;
  const bool is_complete;
  const uint32_t number;                                   // kNoNumber: the configuration belongs to one text
  mutable std::atomic<const engine::Mask*> mask{nullptr};  // the exact one; null until it is computed

  // Under a limit on tokens: a bound on the cost after any token, kNoNumber until it is known;
  // and bytes that complete the text, if only a search finds them.
  mutable std::atomic<uint32_t> most_cost{kNoNumber};
  mutable std::string ending{};
};

// Owns the configuration of one text. A shared one belongs to its ConfigurationTable, and
// lives as long.
using CachedConfigurationPtr = std::shared_ptr<const CachedConfiguration>;

// The configurations that texts share, and the tokens that lead from one to another: an
// automaton that is determinized while it runs (Thompson, 1968; re2). A token without a
// move costs a read of its bytes and a lookup by the key of the new configuration, which is
// as long as the stack. A known move is one lookup in a hash table. Configurations without
// a key are not shared, and beyond limits nothing is added.
class ConfigurationTable {
 public:
  // The configuration after a token, from one that is shared. Null if the token has not
  // been read there.
  CachedConfigurationPtr after(const CachedConfiguration& from, uint32_t token) const {
    if (moves_.empty()) return nullptr;
    const Move& move = moves_[bucket_of(from.number, token)];
    return move.from == CachedConfiguration::kNoNumber ? nullptr : shared(*move.to);
  }

  // Caches a configuration. Equal ones give the same result, if they are shared.
  CachedConfigurationPtr of(Configuration config);

  // Notes a token that leads from one configuration to another, if there is room.
  void add_move(const CachedConfiguration& from, uint32_t token, const CachedConfiguration& to);

  size_t memory_bytes() const { return bytes_; }

 private:
  struct Move {
    uint32_t from = CachedConfiguration::kNoNumber, token = 0;
    const CachedConfiguration* to = nullptr;
  };

  static CachedConfigurationPtr shared(const CachedConfiguration& cached) {
    return CachedConfigurationPtr(CachedConfigurationPtr(), &cached);
  }

  // The bucket of a move in the table, or the free one in which it belongs.
  size_t bucket_of(uint32_t from, uint32_t token) const {
    size_t mask = moves_.size() - 1;
    size_t bucket = size_t((uint64_t(from) << 32 | token) * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (moves_[bucket].from != CachedConfiguration::kNoNumber &&
           (moves_[bucket].from != from || moves_[bucket].token != token)) {
      bucket = (bucket + 1) & mask;
    }
    return bucket;
  }

  std::deque<CachedConfiguration> configs_;  // by number
  std::unordered_map<std::string, const CachedConfiguration*> by_key_;
  std::vector<Move> moves_;  // by open addressing, at most half full
  size_t num_moves_ = 0;
  size_t bytes_ = 0;
};

}  // namespace structout::json
