#include "json/token_masks/compiled_schema.h"

#include <algorithm>
#include <utility>

namespace structout::json {

CompiledSchema::CompiledSchema(std::string schema, SchemaOptions options, const TextForm& form,
                               const engine::Limits& limits, std::shared_ptr<const engine::VocabularyTrie> vocabulary,
                               size_t max_growth)
    : schema_(std::move(schema)),
      options_(std::move(options)),
      form_(form),
      limits_(limits),
      vocabulary_(std::move(vocabulary)),
      max_growth_(max_growth),
      cache_(new_cache()),
      compiled_bytes_(cache_->memory_bytes()) {
  cache_->rehearse();
  annotations_ = cache_->annotations();
  EmbeddedSchemaCache embedded(cache_);
  embedded.lock();
  first_bytes_ = embedded.first_bytes();
  embedded.unlock();
  compiled_bytes_ = cache_->memory_bytes();
}

// An automaton is built on the assumption that some array satisfies each of its schemas.
// If its start finds schemas that no array satisfies (uniqueItems with too few values),
// a new automaton that knows of them replaces it. So does one that closes no objects, if
// closed ones leave no value.
std::shared_ptr<SchemaCache> CompiledSchema::new_cache() const {
  SchemaOptions options = options_;
  for (;;) {
    auto automaton = std::make_unique<SchemaAutomaton>(schema_, options, form_, limits_);
    automaton->schema().expand_all();
    automaton->schema().check_narrower_texts();
    // A schema that is too large even for its first states is refused now.
    State start;
    try {
      start = automaton->start();
    } catch (const SchemaError&) {
      if (!options.closes_objects) throw;
      options.closes_objects = false;
      continue;
    }
    const std::vector<std::string>& impossible = automaton->impossible_arrays();
    if (impossible.empty()) {
      for (int byte = 0; byte < 256; ++byte) automaton->action(start, uint8_t(byte));
      return std::make_shared<SchemaCache>(std::move(automaton), vocabulary_);
    }
    options.impossible_arrays.insert(options.impossible_arrays.end(), impossible.begin(), impossible.end());
  }
}

std::shared_ptr<SchemaCache> CompiledSchema::cache() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (cache_->memory_bytes() > compiled_bytes_ + max_growth_) {
    earlier_.erase(std::remove_if(earlier_.begin(), earlier_.end(), [](const auto& other) { return other.expired(); }),
                   earlier_.end());
    earlier_.push_back(cache_);
    cache_ = new_cache();
    compiled_bytes_ = cache_->memory_bytes();
  }
  return cache_;
}

std::shared_ptr<engine::EmbeddedCache> CompiledSchema::embedded_cache() {
  std::shared_ptr<SchemaCache> cache = this->cache();
  std::lock_guard<std::mutex> lock(mutex_);
  if (embedded_ == nullptr || embedded_->cache() != cache) embedded_ = std::make_shared<EmbeddedSchemaCache>(cache);
  return embedded_;
}

size_t CompiledSchema::memory_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t size = cache_->memory_bytes();
  for (const std::weak_ptr<SchemaCache>& each : earlier_) {
    if (std::shared_ptr<SchemaCache> cache = each.lock()) size += cache->memory_bytes();
  }
  return size;
}

}  // namespace structout::json
