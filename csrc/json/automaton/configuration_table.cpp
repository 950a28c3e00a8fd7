#include "json/automaton/configuration_table.h"

namespace structout::json {

namespace {

// These bound the memory: further configurations belong to one text each, and further moves
// are not noted.
constexpr size_t kMaxConfigs = 1 << 12, kMaxMoves = 1 << 16;
constexpr size_t kBytesPerConfig = 512;  // with its key and frames of its own, roughly
constexpr size_t kFirstMoves = 1 << 6;

}  // namespace

CachedConfigurationPtr ConfigurationTable::of(Configuration config) {
  bool is_complete = config.is_complete();
  auto of_one_text = [&] {
    return std::make_shared<const CachedConfiguration>(std::move(config), is_complete, CachedConfiguration::kNoNumber);
  };
  std::optional<std::string> key = config.key();
  if (!key) return of_one_text();
  auto known = by_key_.find(*key);
  if (known != by_key_.end()) return shared(*known->second);
  if (configs_.size() == kMaxConfigs) return of_one_text();
  bytes_ += kBytesPerConfig + key->size();
  const CachedConfiguration& cached = configs_.emplace_back(std::move(config), is_complete, uint32_t(configs_.size()));
  by_key_.emplace(*std::move(key), &cached);
  return shared(cached);
}

void ConfigurationTable::add_move(const CachedConfiguration& from, uint32_t token, const CachedConfiguration& to) {
  if (!from.is_shared() || !to.is_shared() || num_moves_ == kMaxMoves) return;
  if (2 * (num_moves_ + 1) > moves_.size()) {
    std::vector<Move> old = std::exchange(moves_, std::vector<Move>(std::max(kFirstMoves, 2 * moves_.size())));
    bytes_ += (moves_.size() - old.size()) * sizeof(Move);
    for (const Move& move : old) {
      if (move.from != CachedConfiguration::kNoNumber) moves_[bucket_of(move.from, move.token)] = move;
    }
  }
  Move& move = moves_[bucket_of(from.number, token)];
  if (move.from == CachedConfiguration::kNoNumber) ++num_moves_;
  move = {from.number, token, &to};
}

}  // namespace structout::json
