// Messages among the ranks of one host, through memory that all of them map.
//
// Each rank writes to a segment of its own, from which the others read. Rounds are counted in
// epochs, which use the two halves of a segment in turn (as in cuda/push.cuh). No rank asks
// whether the others are ready: a rank that has seen all others reach epoch e knows that they
// have finished e - 1 and read everything written in it. So in e + 1 it may overwrite the half
// of e - 1. A payload larger than its part of a half takes several epochs.
//
//   segment   a page whose first word is its owner's epoch (the owner may use the words from
//             kFreeWord on), then two halves
//   half      for each reading rank a Spec, padded to a page, then the capacity's bytes
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace structout::ranks {

using Clock = std::chrono::steady_clock;
using Header = std::array<int64_t, 8>;

constexpr size_t kPayloadSize = 5;  // the word of a header with the bytes of its payload
constexpr size_t kFreeWord = 8;     // on another cache line than the epoch

// What a rank sends to another: a payload of header[kPayloadSize] bytes.
struct Outgoing {
  Header header{};
  const uint8_t* payload = nullptr;
};

// Where the payload of a rank goes if it has this size, else to memory of the exchange.
struct Room {
  uint8_t* memory = nullptr;
  size_t size = 0;
};

// What came from a rank. `owner` has the payload where it did not fit the room that was given,
// and is empty where it did. The next exchange may write over it.
struct Received {
  Header header{};
  uint8_t* payload = nullptr;
  std::shared_ptr<std::vector<uint8_t>> owner;
};

// A rank's segment as this process sees it. The owner holds a lock on the file for as long as
// its process lives.
struct Segment {
  uint8_t* memory = nullptr;
  int descriptor = -1;
};

class SharedExchange {
  // What a rank tells a reader at the start of a message.
  struct Spec {
    Header header;
    int64_t offset, round_bytes, num_rounds;
  };

 public:
  static constexpr size_t kBytesBesidePayload = sizeof(Spec);  // of a message
  static size_t segment_bytes(size_t num_ranks, size_t capacity);

  // `capacity`: the bytes of payloads in each half, the same on all ranks. The segments are in
  // the order of ranks, and must stay.
  SharedExchange(size_t rank, std::vector<Segment> segments, size_t capacity);

  size_t rank() const { return rank_; }
  size_t num_ranks() const { return segments_.size(); }

  // Begins an exchange: sends to each other rank, and receives theirs. The entries of this rank
  // are not read. Payloads and rooms must stay until advance() returns true. After an exchange
  // that is not finished this object cannot be used.
  void begin(const std::vector<Outgoing>& outgoing, const std::vector<Room>& rooms);

  // Goes on until the exchange is complete, the time has come, or more than so many bytes would
  // have to be taken. Returns whether it is complete.
  bool advance(Clock::time_point until, size_t most_bytes = SIZE_MAX);

  // By rank, after a complete exchange; nothing for this rank.
  const std::vector<Received>& received() const { return received_; }

  // The rank that advance() waits for.
  size_t awaited() const;

  // A rank whose process has ended before it wrote everything of this epoch. The rank that
  // this one waits for may itself be waiting for it.
  std::optional<size_t> ended() const;

 private:
  static size_t spec_bytes(size_t num_ranks);
  uint8_t* half(size_t rank) const;
  Spec& spec(size_t rank, size_t reader) const;
  uint8_t* data(size_t rank) const;

  void post_round();
  void read_spec(size_t peer);
  void make_room(size_t peer);
  size_t bytes_of_round() const;
  void take_round();

  const size_t rank_;
  const std::vector<Segment> segments_;
  const size_t capacity_;
  int64_t epoch_ = 0;

  // The present exchange.
  std::vector<size_t> peers_;  // in the order in which this rank asks for them
  std::vector<Spec> sent_, taken_;
  std::vector<const uint8_t*> payloads_;
  bool is_broadcast_ = false;  // one payload for all, which is written once
  std::vector<Room> rooms_;
  std::vector<Received> received_;
  std::vector<std::shared_ptr<std::vector<uint8_t>>> own_rooms_;
  int64_t round_ = 0, num_rounds_ = 0;
  size_t num_arrived_ = 0;  // peers that have written this round
  bool is_posted_ = false;
};

}  // namespace structout::ranks
