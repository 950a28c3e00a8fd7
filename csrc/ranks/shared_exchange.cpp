#include "ranks/shared_exchange.h"

#include <sched.h>
#include <sys/file.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace structout::ranks {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;

size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

std::atomic<int64_t>& epoch_of(const Segment& segment) {
  static_assert(sizeof(std::atomic<int64_t>) == sizeof(int64_t) && std::atomic<int64_t>::is_always_lock_free);
  return *reinterpret_cast<std::atomic<int64_t>*>(segment.memory);
}

// Returns whether the word has reached the value by then. A rank comes within microseconds as
// a rule, so the thread yields at first and sleeps only later.
bool reaches(const std::atomic<int64_t>& word, int64_t value, Clock::time_point until) {
  constexpr auto kYieldTime = std::chrono::milliseconds(2);
  constexpr auto kSleepTime = std::chrono::microseconds(50);
  if (word.load(std::memory_order_acquire) >= value) return true;
  const Clock::time_point begin = Clock::now();
  for (Clock::time_point now = begin; now < until; now = Clock::now()) {
    if (now - begin < kYieldTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleepTime);
    }
    if (word.load(std::memory_order_acquire) >= value) return true;
  }
  return false;
}

// The bytes of a payload that travel in a round: where they begin, and how many there are.
std::pair<size_t, size_t> part_of(const Header& header, int64_t round_bytes, int64_t round) {
  size_t size = size_t(header[kPayloadSize]), begin = std::min(size, size_t(round) * size_t(round_bytes));
  return {begin, std::min(size - begin, size_t(round_bytes))};
}

}  // namespace

size_t SharedExchange::spec_bytes(size_t num_ranks) { return rounded_up(num_ranks * sizeof(Spec), kPage); }

size_t SharedExchange::segment_bytes(size_t num_ranks, size_t capacity) {
  return kPage + 2 * (spec_bytes(num_ranks) + capacity);
}

SharedExchange::SharedExchange(size_t rank, std::vector<Segment> segments, size_t capacity)
    : rank_(rank),
      segments_(std::move(segments)),
      capacity_(capacity),
      sent_(segments_.size()),
      taken_(segments_.size()),
      payloads_(segments_.size()),
      rooms_(segments_.size()),
      received_(segments_.size()),
      own_rooms_(segments_.size()) {
  if (rank >= segments_.size() || capacity / segments_.size() < kLine) {
    throw std::invalid_argument("an exchange needs a rank below the number of ranks, and 64 bytes for each of them");
  }
  for (size_t i = 1; i < num_ranks(); ++i) peers_.push_back((rank + i) % num_ranks());
}

uint8_t* SharedExchange::half(size_t rank) const {
  return segments_[rank].memory + kPage + size_t(epoch_ % 2) * (spec_bytes(num_ranks()) + capacity_);
}

SharedExchange::Spec& SharedExchange::spec(size_t rank, size_t reader) const {
  return reinterpret_cast<Spec*>(half(rank))[reader];
}

uint8_t* SharedExchange::data(size_t rank) const { return half(rank) + spec_bytes(num_ranks()); }

void SharedExchange::begin(const std::vector<Outgoing>& outgoing, const std::vector<Room>& rooms) {
  rooms_ = rooms;
  is_broadcast_ = true;
  for (size_t peer : peers_) {
    payloads_[peer] = outgoing[peer].payload;
    sent_[peer].header = outgoing[peer].header;
    is_broadcast_ &= payloads_[peer] == payloads_[peers_[0]] &&
                     sent_[peer].header[kPayloadSize] == sent_[peers_[0]].header[kPayloadSize];
  }
  const size_t round_bytes = is_broadcast_ ? capacity_ : capacity_ / num_ranks() / kLine * kLine;
  num_rounds_ = 1;
  for (size_t peer : peers_) {
    size_t size = size_t(sent_[peer].header[kPayloadSize]);
    num_rounds_ = std::max(num_rounds_, int64_t((size + round_bytes - 1) / round_bytes));
  }
  for (size_t peer : peers_) {
    sent_[peer].offset = int64_t(is_broadcast_ ? 0 : peer * round_bytes);
    sent_[peer].round_bytes = int64_t(round_bytes);
    sent_[peer].num_rounds = num_rounds_;
  }
  round_ = 0;
  num_arrived_ = 0;
  is_posted_ = false;
}

bool SharedExchange::advance(Clock::time_point until, size_t most_bytes) {
  size_t bytes_left = most_bytes;
  while (round_ < num_rounds_) {
    if (!is_posted_) post_round();
    for (; num_arrived_ < peers_.size(); ++num_arrived_) {
      size_t peer = peers_[num_arrived_];
      if (!reaches(epoch_of(segments_[peer]), epoch_, until)) return false;
      if (round_ == 0) read_spec(peer);
    }
    const size_t bytes = bytes_of_round();
    if (bytes > bytes_left) return false;
    bytes_left -= bytes;
    take_round();
    ++round_;
    num_arrived_ = 0;
    is_posted_ = false;
  }
  return true;
}

void SharedExchange::post_round() {
  ++epoch_;
  uint8_t* own = data(rank_);
  for (size_t peer : peers_) {
    if (round_ == 0) spec(rank_, peer) = sent_[peer];
    if (is_broadcast_ && peer != peers_[0]) continue;
    auto [begin, count] = part_of(sent_[peer].header, sent_[peer].round_bytes, round_);
    if (count > 0) std::memcpy(own + sent_[peer].offset, payloads_[peer] + begin, count);
  }
  epoch_of(segments_[rank_]).store(epoch_, std::memory_order_release);
  is_posted_ = true;
}

void SharedExchange::read_spec(size_t peer) {
  taken_[peer] = spec(peer, rank_);
  num_rounds_ = std::max(num_rounds_, taken_[peer].num_rounds);
}

void SharedExchange::make_room(size_t peer) {
  const size_t size = size_t(taken_[peer].header[kPayloadSize]);
  const Room& room = rooms_[peer];
  if (room.memory != nullptr && room.size == size) {
    received_[peer] = {taken_[peer].header, room.memory, nullptr};
  } else {
    std::shared_ptr<std::vector<uint8_t>>& own = own_rooms_[peer];
    if (own == nullptr || own->size() < size) {
      own = std::make_shared<std::vector<uint8_t>>(std::max(size, size_t(1)));  // an empty payload has an address, too
    }
    received_[peer] = {taken_[peer].header, own->data(), own};
  }
}

size_t SharedExchange::bytes_of_round() const {
  size_t bytes = 0;
  for (size_t peer : peers_) bytes += part_of(taken_[peer].header, taken_[peer].round_bytes, round_).second;
  return bytes;
}

void SharedExchange::take_round() {
  for (size_t peer : peers_) {
    if (round_ == 0) make_room(peer);
    auto [begin, count] = part_of(taken_[peer].header, taken_[peer].round_bytes, round_);
    if (count > 0) std::memcpy(received_[peer].payload + begin, data(peer) + taken_[peer].offset, count);
  }
}

size_t SharedExchange::awaited() const { return peers_[std::min(num_arrived_, peers_.size() - 1)]; }

std::optional<size_t> SharedExchange::ended() const {
  for (size_t peer : peers_) {
    if (flock(segments_[peer].descriptor, LOCK_SH | LOCK_NB) != 0) continue;  // its owner holds the lock
    if (epoch_of(segments_[peer]).load(std::memory_order_acquire) < epoch_) return peer;
  }
  return std::nullopt;
}

}  // namespace structout::ranks
