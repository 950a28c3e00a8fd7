#include "grammar/token_masks/embedded_grammar.h"

#include <algorithm>
#include <utility>

#include "token_masks/unique_number.h"

namespace structout::context_free {

using engine::EmbeddedConfiguration;
using engine::EmbeddedView;

namespace {

struct GrammarConfiguration final : EmbeddedConfiguration {
  explicit GrammarConfiguration(Configuration config) : config(std::move(config)) {}
  const Configuration config;
};

const Configuration& config_of(const EmbeddedConfiguration& given) {
  return static_cast<const GrammarConfiguration&>(given).config;
}

}  // namespace

EmbeddedGrammarCache::EmbeddedGrammarCache(std::shared_ptr<CompiledGrammar> grammar,
                                           std::shared_ptr<GrammarCache> cache,
                                           std::shared_ptr<std::atomic<size_t>> continuation_bytes)
    : grammar_(std::move(grammar)),
      cache_(std::move(cache)),
      number_(engine::unique_number()),
      continuation_bytes_(std::move(continuation_bytes)) {}

void EmbeddedGrammarCache::lock() {
  auto lock = std::make_unique<GrammarCache::Lock>(*cache_);
  lock_ = std::move(lock);  // no other thread is here now
}

void EmbeddedGrammarCache::unlock() noexcept { std::unique_ptr<GrammarCache::Lock> lock = std::move(lock_); }

engine::ConfigurationPtr EmbeddedGrammarCache::start() {
  return std::make_shared<GrammarConfiguration>(cache_->reader_.start(cache_->budget()));
}

engine::ByteSet EmbeddedGrammarCache::first_bytes() {
  engine::ByteSet bytes;
  engine::ConfigurationPtr begin = start();
  for (size_t byte = 0; byte < 256; ++byte) {
    uint8_t text = uint8_t(byte);
    const uint8_t* at = &text;
    engine::ConfigurationPtr next = after(*begin, at, &text + 1);
    bytes[byte] = next != nullptr && has_end(*next);
  }
  return bytes;
}

engine::ConfigurationPtr EmbeddedGrammarCache::after(const EmbeddedConfiguration& given, const uint8_t*& at,
                                                     const uint8_t* end) {
  cache_->throw_if_full();
  Configuration config = config_of(given);
  while (at < end) {
    config = cache_->reader_.after(config, *at, cache_->budget());
    if (config.is_dead()) return nullptr;
    ++at;
    if (cache_->reader_.may_end(config, cache_->budget())) break;
  }
  config = cache_->with_completable_parses(config);
  return config.is_dead() ? nullptr : std::make_shared<GrammarConfiguration>(std::move(config));
}

bool EmbeddedGrammarCache::may_end(const EmbeddedConfiguration& given) {
  return cache_->reader_.may_end(config_of(given), cache_->budget());
}

bool EmbeddedGrammarCache::may_continue(const EmbeddedConfiguration& given) {
  const Configuration& config = config_of(given);
  if (config.others != nullptr) return can_continue(config);
  uint32_t known = may_continue_.find(config.node, config.lexer_state);
  if (known != PairTable::kMissing) return known == 1;
  bool continues = can_continue(config);
  may_continue_.add(config.node, config.lexer_state, continues);
  return continues;
}

bool EmbeddedGrammarCache::can_continue(const Configuration& config) {
  const std::vector<uint8_t>& bytes = cache_->reader_.bytes_with_tokens();
  return std::any_of(bytes.begin(), bytes.end(), [&](uint8_t byte) {
    Configuration next = cache_->reader_.with_ends(cache_->reader_.after(config, byte, cache_->budget()));
    return !next.is_dead() && cache_->has_end(next);
  });
}

bool EmbeddedGrammarCache::has_end(const EmbeddedConfiguration& given) {
  Configuration config = cache_->reader_.with_ends(config_of(given));
  return !config.is_dead() && cache_->has_end(config);
}

bool EmbeddedGrammarCache::are_equal(const EmbeddedConfiguration& given_a, const EmbeddedConfiguration& given_b) {
  const Configuration &a = config_of(given_a), &b = config_of(given_b);
  if (!(static_cast<const LexerConfiguration&>(a) == b)) return false;
  if (a.others == nullptr || b.others == nullptr) return a.others == b.others;
  auto are_equal_parses = [this](const EmbeddedParse& parse, const EmbeddedParse& other) {
    return parse.cache == other.cache && parse.below == other.below &&
           cache_->embedded_.locked(parse.cache).are_equal(*parse.config, *other.config);
  };
  return a.others->lexer_configs == b.others->lexer_configs &&
         std::equal(a.others->parses.begin(), a.others->parses.end(), b.others->parses.begin(), b.others->parses.end(),
                    are_equal_parses);
}

std::optional<uint32_t> EmbeddedGrammarCache::entry_number(const Configuration& config) {
  constexpr uint32_t kInside = 1u << 31;
  if (config.others == nullptr) return cache_->number_of(static_cast<const LexerConfiguration&>(config));
  if (cache_->embedded_masks_.find(config, cache_->budget()).mask == nullptr) return std::nullopt;
  return kInside + cache_->embedded_masks_.number_of(config, cache_->budget());
}

std::vector<uint32_t> EmbeddedGrammarCache::continuations_of(const Configuration& config,
                                                             const engine::ByteSet& followers) {
  const engine::VocabularyTrie& vocabulary = *cache_->parts_->vocabulary;
  std::vector<uint32_t> continuations;
  engine::ByteGroups groups = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (followers[byte]) groups |= engine::BytesBelow::group_of(uint8_t(byte));
  }
  auto is_followed = [&](uint32_t node) {
    bool is_followed = false;
    vocabulary.visit_below(node, [&](uint32_t, uint8_t byte, uint32_t) {
      is_followed = is_followed || followers[byte];
      return false;
    });
    return is_followed;
  };
  std::vector<Configuration> configs(vocabulary.max_depth() + 1);  // before each byte
  configs[0] = config;
  vocabulary.visit_below(engine::VocabularyTrie::kRoot, [&](uint32_t node, uint8_t byte, uint32_t depth) {
    if ((vocabulary.bytes_below().groups(node) & groups) == 0) return false;
    cache_->budget().spend(1);
    Configuration& next = configs[depth + 1] = cache_->reader_.after(configs[depth], byte, cache_->budget());
    if (next.is_dead()) return false;
    if (is_followed(node) && cache_->reader_.may_end(next, cache_->budget())) continuations.push_back(node);
    return true;
  });
  return continuations;
}

EmbeddedView EmbeddedGrammarCache::view_of(uint32_t number, const Entry& entry) {
  EmbeddedView view;
  view.mask = entry.mask;
  view.entry = number;
  view.continuations = entry.continuations;
  view.counting_continuations = 1;
  return view;
}

EmbeddedView EmbeddedGrammarCache::view(const EmbeddedConfiguration& given, const engine::ByteSet& followers) {
  const Configuration& config = config_of(given);
  std::optional<uint32_t> number = entry_number(config);
  std::unordered_map<uint32_t, Entry>& entries = entries_[followers];
  if (number) {
    auto known = entries.find(*number);
    if (known != entries.end()) return view_of(*number, known->second);
  }
  std::vector<uint32_t> continuations = continuations_of(config, followers);
  size_t bytes = continuations.size() * sizeof(uint32_t) + sizeof(Entry);
  const engine::Mask* mask = nullptr;
  if (number && own_continuation_bytes_ + bytes <= kMaxContinuationBytes) {
    std::vector<uint32_t> row(cache_->parts_->vocabulary->row_words());
    if (config.others == nullptr) {
      mask = cache_->mask_of_locked(*number);
    } else {
      cache_->embedded_masks_.fill(config, row.data(), cache_->budget());
      mask = cache_->parts_->masks.store().add(row.data());
    }
  }
  if (mask == nullptr) {
    EmbeddedView view;
    view.own_continuations = std::move(continuations);
    return view;
  }
  own_continuation_bytes_ += bytes;
  *continuation_bytes_ += bytes;
  Entry entry = {mask, std::make_shared<const Nodes>(Nodes{std::move(continuations)})};
  return view_of(*number, entries.emplace(*number, std::move(entry)).first->second);
}

std::optional<EmbeddedView> EmbeddedGrammarCache::known_view(const EmbeddedConfiguration& given,
                                                             const engine::ByteSet& followers) {
  const Configuration& config = config_of(given);
  if (config.others != nullptr && !cache_->embedded_masks_.has_mask(config)) return std::nullopt;
  std::optional<uint32_t> number = entry_number(config);
  if (!number) return std::nullopt;
  const std::unordered_map<uint32_t, Entry>& entries = entries_[followers];
  auto known = entries.find(*number);
  if (known == entries.end()) return std::nullopt;
  return view_of(*number, known->second);
}

void EmbeddedGrammarCache::fill(const EmbeddedConfiguration& given, uint32_t* row) {
  const Configuration& config = config_of(given);
  if (config.others != nullptr) return cache_->embedded_masks_.fill(config, row, cache_->budget());
  const engine::Mask* mask = cache_->mask_of_locked(cache_->number_of(static_cast<const LexerConfiguration&>(config)));
  if (mask != nullptr) return cache_->parts_->masks.store().expand(*mask, row);
  cache_->fill_by_walk(config, row);
}

void EmbeddedGrammarCache::expand(const engine::Mask& mask, engine::MaskRow& row) {
  cache_->parts_->masks.store().expand(mask, row);
}

std::string EmbeddedGrammarCache::forced(const EmbeddedConfiguration& given) {
  return cache_->forced_locked(config_of(given));
}

std::optional<std::string> EmbeddedGrammarCache::short_end(const EmbeddedConfiguration& given, uint64_t& work) {
  uint64_t total_before = cache_->budget().total();
  std::optional<std::string> end = cache_->end_search_.shortest(cache_->reader_, config_of(given), cache_->budget());
  work += cache_->budget().total() - total_before;
  return end;
}

uint32_t EmbeddedGrammarCache::cost_to_end(const EmbeddedConfiguration& config) {
  return cache_->costs_.cost(config_of(config), cache_->budget());
}

uint32_t EmbeddedGrammarCache::most_cost(const EmbeddedConfiguration& config, uint32_t max) {
  return cache_->costs_.rough_bound(config_of(config), max, cache_->budget());
}

engine::CostTable EmbeddedGrammarCache::token_costs(const EmbeddedConfiguration& config) {
  return cache_->costs_.token_costs(config_of(config), cache_->budget());
}

EmbeddedGrammar::EmbeddedGrammar(std::shared_ptr<CompiledGrammar> grammar) : grammar_(std::move(grammar)) {
  const Network& network = *grammar_->parts().network;
  if (network.has_tokens()) {
    throw engine::PatternError("tokens are not supported in a grammar with a lexer that is inside of another", false);
  }
  if (network.has_token_limits()) {
    throw engine::PatternError("max_tokens is not supported in a grammar with a lexer that is inside of another",
                               false);
  }
  embedded_ = embedded(grammar_->cache());
  embedded_->lock();
  first_bytes_ = embedded_->first_bytes();
  embedded_->unlock();
}

std::shared_ptr<engine::EmbeddedCache> EmbeddedGrammar::embedded_cache() {
  std::shared_ptr<GrammarCache> cache = grammar_->cache();
  std::lock_guard<std::mutex> lock(mutex_);
  if (embedded_->cache() != cache) embedded_ = embedded(std::move(cache));
  return embedded_;
}

}  // namespace structout::context_free
