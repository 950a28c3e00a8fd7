#include "json/token_masks/embedded_schema_cache.h"

#include "json/satisfiability/value_search.h"

namespace structout::json {

using engine::EmbeddedConfiguration;

namespace {

const Configuration& json(const EmbeddedConfiguration& config) { return static_cast<const Configuration&>(config); }

}  // namespace

void EmbeddedSchemaCache::lock() {
  auto lock = std::make_unique<SchemaCache::Lock>(*cache_);
  lock_ = std::move(lock);  // no other thread is here now
  has_read_ = false;
}

void EmbeddedSchemaCache::unlock() noexcept { std::unique_ptr<SchemaCache::Lock> lock = std::move(lock_); }

engine::ConfigurationPtr EmbeddedSchemaCache::start() { return std::make_shared<Configuration>(*cache_->automaton_); }

std::bitset<256> EmbeddedSchemaCache::first_bytes() {
  std::bitset<256> bytes;
  for (size_t byte = 0; byte < 256; ++byte) {
    Configuration config(*cache_->automaton_);
    bytes[byte] = config.read(uint8_t(byte));
  }
  return bytes;
}

engine::ConfigurationPtr EmbeddedSchemaCache::after(const EmbeddedConfiguration& config, const uint8_t*& at,
                                                    const uint8_t* end) {
  if (!has_read_) cache_->automaton_->schema().budget().restart();
  has_read_ = true;
  Configuration next = json(config);
  while (at < end) {
    if (!next.read(*at)) return nullptr;
    ++at;
    if (next.is_complete()) break;
  }
  return std::make_shared<Configuration>(std::move(next));
}

bool EmbeddedSchemaCache::may_end(const EmbeddedConfiguration& config) { return json(config).is_complete(); }

bool EmbeddedSchemaCache::may_continue(const EmbeddedConfiguration& config) {
  return cache_->automaton_->reads_number(json(config).state());  // only numbers do
}

bool EmbeddedSchemaCache::has_end(const EmbeddedConfiguration& config) { return cache_->has_end(json(config)); }

bool EmbeddedSchemaCache::are_equal(const EmbeddedConfiguration& a, const EmbeddedConfiguration& b) {
  return json(a).equals(json(b));
}

bool EmbeddedSchemaCache::reaches_bottom(const Configuration& config, State top) const {
  size_t num_frames = 1, num_looked_at = cache_->num_frames_[top];
  for (const Frame* frame = config.below(); frame != nullptr && num_frames < num_looked_at;
       frame = frame->below.get()) {
    ++num_frames;
  }
  return num_frames < num_looked_at;
}

std::optional<engine::EmbeddedView> EmbeddedSchemaCache::known_view(const EmbeddedConfiguration& given,
                                                                    const engine::ByteSet&) {
  const Configuration& config = json(given);
  if (config.has_used()) return std::nullopt;
  State top = cache_->mask_state(config);
  const SchemaCache::Entry* entry = cache_->known_entry(config, top);
  bool is_known = entry != nullptr && (entry->continuations != nullptr || !reaches_bottom(config, top));
  return is_known ? std::optional(view_of(config, top, *entry)) : std::nullopt;
}

engine::EmbeddedView EmbeddedSchemaCache::view(const EmbeddedConfiguration& given, const engine::ByteSet&) {
  const Configuration& config = json(given);
  State top = cache_->mask_state(config);
  const SchemaCache::Entry* entry = &cache_->entry_of(config, top);
  bool needs_continuations = entry->continuations == nullptr && reaches_bottom(config, top);
  while (needs_continuations && !cache_->find_continuations(config, top, *entry))
    entry = &cache_->entry_of(config, top);
  return view_of(config, top, *entry);
}

engine::EmbeddedView EmbeddedSchemaCache::view_of(const Configuration& config, State top,
                                                  const SchemaCache::Entry& entry) {
  engine::EmbeddedView view;
  view.entry = entry.number;
  if (cache_->is_exact(config, entry)) view.mask = entry.mask;
  if (entry.continuations == nullptr || !reaches_bottom(config, top)) return view;
  const std::shared_ptr<const SchemaCache::Continuations>& continuations = entry.continuations;
  view.continuations = {continuations, &continuations->lists};
  std::vector<bool> holds;
  bool has_conditions = continuations->conditions.all.size() > 2;
  if (has_conditions) holds = cache_->truths(config, continuations->conditions);
  for (size_t i = 0; i < continuations->lists.size(); ++i) {
    if (has_conditions && !holds[continuations->of_lists[i]]) continue;
    if (i < 64) {
      view.counting_continuations |= uint64_t(1) << i;
    } else {
      view.own_continuations.insert(view.own_continuations.end(), continuations->lists[i].begin(),
                                    continuations->lists[i].end());
    }
  }
  for (uint32_t node : continuations->by_reading) {
    if (is_continuation(config, node)) view.own_continuations.push_back(node);
  }
  return view;
}

// Reads the bytes of a trie node. Returns true if the JSON text may end after them.
bool EmbeddedSchemaCache::is_continuation(const Configuration& config, uint32_t node) const {
  const engine::VocabularyTrie& vocabulary = *cache_->vocabulary_;
  const uint8_t* bytes = vocabulary.begin(vocabulary.tokens()[vocabulary.first_token(node)]);
  Configuration next = config;
  return next.read(bytes, bytes + vocabulary.nodes()[node].depth + 1) && next.is_complete();
}

void EmbeddedSchemaCache::fill(const EmbeddedConfiguration& config, uint32_t* row) {
  cache_->fill_row(json(config), row);
}

void EmbeddedSchemaCache::expand(const engine::Mask& mask, engine::MaskRow& row) { cache_->store_.expand(mask, row); }

std::string EmbeddedSchemaCache::forced(const EmbeddedConfiguration& config) {
  cache_->automaton_->schema().budget().restart();
  return json(config).forced();
}

std::optional<std::string> EmbeddedSchemaCache::short_end(const EmbeddedConfiguration& config, uint64_t& work) {
  engine::Budget& budget = cache_->automaton_->schema().budget();
  budget.restart();
  uint64_t total_before = budget.total();
  std::optional<std::string> end = short_completion(json(config));
  work += budget.total() - total_before;
  return end;
}

// No text carries an ending along here, so where one has to be searched it may get longer.
uint32_t EmbeddedSchemaCache::cost_to_end(const EmbeddedConfiguration& config) {
  cache_->automaton_->schema().budget().restart();
  std::string none;
  return cache_->costs_.cost(json(config), none);
}

uint32_t EmbeddedSchemaCache::most_cost(const EmbeddedConfiguration& config, uint32_t max) {
  uint32_t most = cache_->costs_.rougher_bound(json(config));
  if (most <= max) return most;
  cache_->entry_of(json(config), cache_->mask_state(json(config)));  // makes the states to which tokens lead
  std::string none;
  return cache_->costs_.rough_bound(json(config), none);
}

engine::CostTable EmbeddedSchemaCache::token_costs(const EmbeddedConfiguration& config) {
  std::string none;
  return {cache_->costs_.token_costs(json(config), none)};
}

}  // namespace structout::json
