// Numbered positions of texts of a schema, and the tokens that lead from one to another.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json/position.h"
#include "masks/mask_store.h"

namespace structout::json {

// A position with its number, and with its mask once that is computed.
struct Place {
  static constexpr uint32_t kNoNumber = UINT32_MAX;

  Place(Position position, bool is_complete, uint32_t number)
      : position(std::move(position)), is_complete(is_complete), number(number) {}

  bool is_shared() const { return number != kNoNumber; }

  const Position position;
  const bool is_complete;
  const uint32_t number;                                   // kNoNumber: the place belongs to one text
  mutable std::atomic<const engine::Mask*> mask{nullptr};  // the exact one; null until it is computed
};

// Owns the place of one text. A shared place belongs to its Places, and lives as long.
using PlacePtr = std::shared_ptr<const Place>;

// The places that texts share, and the tokens that lead from one to another: an automaton
// that is determinized while it runs (Thompson, 1968; re2). A token without a move costs a
// read of its bytes and a lookup by the key of the new position, which is as long as the
// stack. A known move is one lookup in a hash table. Positions without a key are not
// shared, and beyond limits nothing is added.
class Places {
 public:
  // The place after a token, from one that is shared. Null if the token has not been read
  // there.
  PlacePtr after(const Place& from, uint32_t token) const {
    if (moves_.empty()) return nullptr;
    const Move& move = moves_[slot_of(from.number, token)];
    return move.from == Place::kNoNumber ? nullptr : shared(*move.to);
  }

  // The place of a position, the same for equal ones if they are shared.
  PlacePtr of(Position position);

  // Notes a token that leads from one place to another, if there is room.
  void add_move(const Place& from, uint32_t token, const Place& to);

  size_t memory_bytes() const { return bytes_; }

 private:
  struct Move {
    uint32_t from = Place::kNoNumber, token = 0;
    const Place* to = nullptr;
  };

  static PlacePtr shared(const Place& place) { return PlacePtr(PlacePtr(), &place); }

  // The slot of a move in the table, or the free one in which it belongs.
  size_t slot_of(uint32_t from, uint32_t token) const {
    size_t mask = moves_.size() - 1;
    size_t slot = size_t((uint64_t(from) << 32 | token) * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (moves_[slot].from != Place::kNoNumber && (moves_[slot].from != from || moves_[slot].token != token)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  std::deque<Place> places_;  // by number
  std::unordered_map<std::string, const Place*> by_key_;
  std::vector<Move> moves_;  // by open addressing, at most half full
  size_t num_moves_ = 0;
  size_t bytes_ = 0;
};

}  // namespace structout::json
