#include "grammar/token_masks/compiled_grammar.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace structout::context_free {

CompiledGrammar::CompiledGrammar(std::shared_ptr<const Network> network, const engine::Limits& limits,
                                 std::shared_ptr<const engine::VocabularyTrie> vocabulary, size_t max_growth)
    : parts_(std::make_shared<SharedParts>(std::move(network), limits, std::move(vocabulary))),
      max_growth_(max_growth),
      cache_(std::make_shared<GrammarCache>(parts_, false)) {
  for (const auto& language : parts_->network->embedded()) {
    if (&language->embedded_vocabulary() != parts_->vocabulary.get()) {
      throw std::invalid_argument("an embedded language is over another vocabulary than the grammar");
    }
  }
}

std::shared_ptr<GrammarCache> CompiledGrammar::cache() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_outgrown(*cache_)) {
    earlier_.erase(std::remove_if(earlier_.begin(), earlier_.end(), [](const auto& other) { return other.expired(); }),
                   earlier_.end());
    earlier_.push_back(cache_);
    cache_ = std::make_shared<GrammarCache>(parts_, false);
  }
  return cache_;
}

std::shared_ptr<GrammarCache> CompiledGrammar::moved(GrammarCache& from, std::vector<TextConfiguration>& configs) {
  std::shared_ptr<GrammarCache> to = this->cache();
  configs = to->copied(from, configs);
  return to;
}

size_t CompiledGrammar::memory_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = cache_->memory_bytes() + parts_->network->memory_bytes();
  {
    std::lock_guard<std::mutex> parts_lock(parts_->mutex);
    bytes += parts_->lexer.memory_bytes() + parts_->completability.memory_bytes() + parts_->masks.memory_bytes();
  }
  for (const auto& language : parts_->network->embedded()) bytes += language->memory_bytes();
  for (const std::weak_ptr<GrammarCache>& each : earlier_) {
    if (std::shared_ptr<GrammarCache> cache = each.lock()) bytes += cache->memory_bytes();
  }
  return bytes;
}

}  // namespace structout::context_free
