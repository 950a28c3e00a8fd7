// Access to the caches of embedded languages, for the texts of a grammar.
#pragma once

#include <memory>
#include <vector>

#include "grammar/rules/network.h"
#include "language/embedded.h"

namespace structout::context_free {

// Finds and locks the caches of embedded languages. It locks one at a time, so
// threads never wait for each other in a circle.
class EmbeddedUse {
 public:
  // `has_own`: true if the texts get new caches, which they share with no others.
  EmbeddedUse(const Network& network, bool has_own) : network_(network), has_own_(has_own) {
    for (const auto& language : network.embedded()) {
      current_.push_back(has_own ? language->new_embedded_cache() : language->embedded_cache());
    }
  }
  ~EmbeddedUse() { unlock(); }
  EmbeddedUse(const EmbeddedUse&) = delete;

  // Returns the cache for new texts of a language. Unless it is an own one, the
  // language may have replaced it since the last call.
  const std::shared_ptr<engine::EmbeddedCache>& current(uint32_t language) {
    if (!has_own_) {
      std::shared_ptr<engine::EmbeddedCache> cache = network_.embedded()[language]->embedded_cache();
      if (cache != current_[language]) current_[language] = std::move(cache);
    }
    return current_[language];
  }

  // Locks the cache until unlock(), or until the next call with another one.
  engine::EmbeddedCache& locked(const std::shared_ptr<engine::EmbeddedCache>& cache) {
    if (locked_ != cache) {
      unlock();
      cache->lock();
      locked_ = cache;
    }
    return *cache;
  }

  void unlock() noexcept {
    if (locked_ != nullptr) locked_->unlock();
    locked_ = nullptr;
  }

 private:
  const Network& network_;
  const bool has_own_;
  std::vector<std::shared_ptr<engine::EmbeddedCache>> current_;  // by language
  std::shared_ptr<engine::EmbeddedCache> locked_;
};

}  // namespace structout::context_free
