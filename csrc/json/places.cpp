#include "json/places.h"

namespace structout::json {

namespace {

// These bound the memory: further places belong to one text each, and further moves are not
// noted.
constexpr size_t kMaxPlaces = 1 << 12, kMaxMoves = 1 << 16;
constexpr size_t kBytesPerPlace = 512;  // with its key and frames of its own, roughly
constexpr size_t kFirstMoves = 1 << 6;

}  // namespace

PlacePtr Places::of(Position position) {
  bool is_complete = position.is_complete();
  auto of_one_text = [&] { return std::make_shared<const Place>(std::move(position), is_complete, Place::kNoNumber); };
  std::optional<std::string> key = position.key();
  if (!key) return of_one_text();
  auto known = by_key_.find(*key);
  if (known != by_key_.end()) return shared(*known->second);
  if (places_.size() == kMaxPlaces) return of_one_text();
  bytes_ += kBytesPerPlace + key->size();
  const Place& place = places_.emplace_back(std::move(position), is_complete, uint32_t(places_.size()));
  by_key_.emplace(*std::move(key), &place);
  return shared(place);
}

void Places::add_move(const Place& from, uint32_t token, const Place& to) {
  if (!from.is_shared() || !to.is_shared() || num_moves_ == kMaxMoves) return;
  if (2 * (num_moves_ + 1) > moves_.size()) {
    std::vector<Move> old = std::exchange(moves_, std::vector<Move>(std::max(kFirstMoves, 2 * moves_.size())));
    bytes_ += (moves_.size() - old.size()) * sizeof(Move);
    for (const Move& move : old) {
      if (move.from != Place::kNoNumber) moves_[slot_of(move.from, move.token)] = move;
    }
  }
  Move& move = moves_[slot_of(from.number, token)];
  if (move.from == Place::kNoNumber) ++num_moves_;
  move = {from.number, token, &to};
}

}  // namespace structout::json
