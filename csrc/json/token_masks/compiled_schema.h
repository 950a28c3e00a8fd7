// CompiledSchema: a schema over the tokens of a vocabulary, which any number of texts
// use.
#pragma once

#include <bitset>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "json/token_masks/embedded_schema_cache.h"
#include "json/token_masks/schema_cache.h"

namespace structout::json {

// Hands each new text the SchemaCache to use. Texts share one, so each state and mask
// is computed once. After it has grown by `max_growth` bytes, new texts get a fresh
// one, and the old one is freed with the last text that uses it. So memory does not
// grow with the number of texts that a schema has served.
//
// Threads may share it.
class CompiledSchema final : public engine::EmbeddedLanguage {
 public:
  static constexpr size_t kMaxGrowth = 8 << 20;

  // `max_growth`: bytes of states and masks beyond those of the compiled schema that
  // texts make before new texts use a new cache. Throws as Schema does, and SchemaError if no tokens
  // spell a text.
  CompiledSchema(std::string schema, SchemaOptions options, const TextForm& form, const engine::Limits& limits,
                 std::shared_ptr<const engine::VocabularyTrie> vocabulary, size_t max_growth = kMaxGrowth);

  const std::shared_ptr<const engine::VocabularyTrie>& shared_vocabulary() const { return vocabulary_; }
  const std::vector<std::string>& annotations() const { return annotations_; }

  // The cache for a new text.
  std::shared_ptr<SchemaCache> cache();

  // A cache that no other text has used.
  std::shared_ptr<SchemaCache> new_cache() const;

  // As a part of another language.
  const engine::VocabularyTrie& embedded_vocabulary() const override { return *vocabulary_; }
  const std::bitset<256>& first_bytes() const override { return first_bytes_; }
  std::shared_ptr<engine::EmbeddedCache> embedded_cache() override;
  std::shared_ptr<engine::EmbeddedCache> new_embedded_cache() override {
    return std::make_shared<EmbeddedSchemaCache>(new_cache());
  }

  // Bytes of the cache that a new text would use, and of the earlier ones that some
  // text still uses.
  size_t memory_bytes() override;

 private:
  const std::string schema_;
  const SchemaOptions options_;
  const TextForm form_;
  const engine::Limits limits_;
  const std::shared_ptr<const engine::VocabularyTrie> vocabulary_;
  const size_t max_growth_;
  std::vector<std::string> annotations_;
  std::bitset<256> first_bytes_;
  std::mutex mutex_;  // guards what follows
  std::shared_ptr<SchemaCache> cache_;
  size_t compiled_bytes_;  // of cache_ before the first text
  std::vector<std::weak_ptr<SchemaCache>> earlier_;
  std::shared_ptr<EmbeddedSchemaCache> embedded_;  // of the cache that another language used last
};

}  // namespace structout::json
