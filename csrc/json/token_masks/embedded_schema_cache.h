// A JSON Schema as an embedded language: a part of a grammar's texts, for example, is JSON.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json/token_masks/schema_cache.h"
#include "language/embedded.h"

namespace structout::json {

// Gives another language the states and masks of a schema (see EmbeddedCache for the
// calls). Texts that consist of JSON alone may use the same cache at the same time: the
// lock decides whose turn it is.
class EmbeddedSchemaCache final : public engine::EmbeddedCache {
 public:
  explicit EmbeddedSchemaCache(std::shared_ptr<SchemaCache> cache) : cache_(std::move(cache)) {}

  const std::shared_ptr<SchemaCache>& cache() const { return cache_; }
  std::bitset<256> first_bytes();  // needs lock()

  void lock() override;
  void unlock() noexcept override;
  engine::ConfigurationPtr start() override;
  engine::ConfigurationPtr after(const engine::EmbeddedConfiguration& config, const uint8_t*& at,
                                 const uint8_t* end) override;
  bool may_end(const engine::EmbeddedConfiguration& config) override;
  bool may_continue(const engine::EmbeddedConfiguration& config) override;
  bool has_end(const engine::EmbeddedConfiguration& config) override;
  bool are_equal(const engine::EmbeddedConfiguration& a, const engine::EmbeddedConfiguration& b) override;
  engine::EmbeddedView view(const engine::EmbeddedConfiguration& config, const engine::ByteSet& followers) override;
  std::optional<engine::EmbeddedView> known_view(const engine::EmbeddedConfiguration& config,
                                                 const engine::ByteSet& followers) override;
  void fill(const engine::EmbeddedConfiguration& config, uint32_t* row) override;
  void expand(const engine::Mask& mask, engine::MaskRow& row) override;
  std::string forced(const engine::EmbeddedConfiguration& config) override;
  std::optional<std::string> short_end(const engine::EmbeddedConfiguration& config, uint64_t& work) override;
  uint32_t cost_to_end(const engine::EmbeddedConfiguration& config) override;
  uint32_t most_cost(const engine::EmbeddedConfiguration& config, uint32_t max) override;
  engine::CostTable token_costs(const engine::EmbeddedConfiguration& config) override;
  uint32_t number() const override { return cache_->number_; }

 private:
  engine::EmbeddedView view_of(const Configuration& config, State top, const SchemaCache::Entry& entry);
  bool is_continuation(const Configuration& config, uint32_t node) const;

  // True if masks with this top look below the bottom of the stack: a token may
  // complete the whole JSON text inside, so the view needs continuations.
  bool reaches_bottom(const Configuration& config, State top) const;

  const std::shared_ptr<SchemaCache> cache_;
  std::unique_ptr<SchemaCache::Lock> lock_;  // of the thread that called lock()
  bool has_read_ = false;                    // since lock()
};

}  // namespace structout::json
