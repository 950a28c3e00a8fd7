// Unit tests of ranks/shared_exchange.h. Ranks are threads of this process, each with an exchange
// of its own over the same memory, so that ThreadSanitizer sees every word that they share.
#include "ranks/shared_exchange.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "expect.h"

using namespace structout::ranks;
using namespace std::chrono_literals;

namespace {

constexpr size_t kCapacity = 64 * 16;  // small, so that many payloads take several rounds
constexpr auto kLong = 60s;
constexpr auto kShort = 2ms;

// The memory of all ranks. Each rank's file is locked until the rank ends.
class Host {
 public:
  explicit Host(size_t num_ranks) : size_(SharedExchange::segment_bytes(num_ranks, kCapacity)) {
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      int owner = memfd_create("structout", 0);
      EXPECT(owner >= 0 && ftruncate(owner, off_t(size_)) == 0 && flock(owner, LOCK_EX) == 0);
      int reader = open(("/proc/self/fd/" + std::to_string(owner)).c_str(), O_RDWR);  // a lock of its own
      EXPECT(reader >= 0);
      void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, owner, 0);
      EXPECT(memory != MAP_FAILED);
      owners_.push_back(owner);
      segments_.push_back({static_cast<uint8_t*>(memory), reader});
    }
  }
  ~Host() {
    for (size_t rank = 0; rank < segments_.size(); ++rank) {
      munmap(segments_[rank].memory, size_);
      close(segments_[rank].descriptor);
      close(owners_[rank]);
    }
  }
  Host(const Host&) = delete;

  SharedExchange exchange_of(size_t rank) const { return SharedExchange(rank, segments_, kCapacity); }
  void end(size_t rank) const { EXPECT(flock(owners_[rank], LOCK_UN) == 0); }

 private:
  size_t size_;
  std::vector<int> owners_;
  std::vector<Segment> segments_;
};

void run_ranks(size_t num_ranks, const std::function<void(size_t)>& program) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back(program, rank);
  for (std::thread& thread : threads) thread.join();
}

// What a rank sends to another in an exchange. All ranks compute the same.
std::vector<uint8_t> payload(unsigned seed, size_t from, size_t to, bool is_broadcast) {
  static const size_t kSizes[] = {0, 1, 63, 64, 100, kCapacity / 3, kCapacity, kCapacity + 1, 5 * kCapacity};
  std::mt19937 random(seed * 100 + unsigned(from * 10 + (is_broadcast ? 0 : to)));
  std::vector<uint8_t> bytes(kSizes[random() % std::size(kSizes)]);
  for (uint8_t& byte : bytes) byte = uint8_t(random());
  return bytes;
}

// The messages of an exchange, kept while it goes on.
class Messages {
 public:
  Messages(const SharedExchange& exchange, unsigned seed) : seed_(seed), outgoing_(exchange.num_ranks()) {
    std::mt19937 random(seed);
    is_broadcast_ = random() % 2 == 0;
    sent_.resize(exchange.num_ranks());
    taken_.resize(exchange.num_ranks());
    rooms_.resize(exchange.num_ranks());
    for (size_t rank = 0; rank < sent_.size(); ++rank) {
      sent_[rank] = payload(seed, exchange.rank(), rank, is_broadcast_);
      const std::vector<uint8_t>& bytes = is_broadcast_ ? sent_[0] : sent_[rank];
      outgoing_[rank].payload = bytes.data();
      outgoing_[rank].header = {int64_t(seed), 0, 0, int64_t(exchange.rank()), int64_t(rank)};
      outgoing_[rank].header[kPayloadSize] = int64_t(bytes.size());
      taken_[rank].resize(payload(seed, rank, exchange.rank(), is_broadcast_).size() + (random() % 4 == 0));
      if (random() % 2 == 0) rooms_[rank] = {taken_[rank].data(), taken_[rank].size()};
    }
  }

  void begin(SharedExchange& exchange) const { exchange.begin(outgoing_, rooms_); }

  void check(const SharedExchange& exchange) const {
    for (size_t rank = 0; rank < sent_.size(); ++rank) {
      if (rank == exchange.rank()) continue;
      const Received& received = exchange.received()[rank];
      std::vector<uint8_t> expected = payload(seed_, rank, exchange.rank(), is_broadcast_);
      EXPECT(received.header[0] == int64_t(seed_) && received.header[3] == int64_t(rank));
      EXPECT(received.header[4] == int64_t(exchange.rank()));
      EXPECT(std::vector<uint8_t>(received.payload, received.payload + expected.size()) == expected);
      bool fits = rooms_[rank].memory != nullptr && rooms_[rank].size == expected.size();
      EXPECT((received.payload == rooms_[rank].memory) == (received.owner == nullptr));
      EXPECT(fits == (received.owner == nullptr));
    }
  }

 private:
  unsigned seed_;
  bool is_broadcast_;
  std::vector<std::vector<uint8_t>> sent_, taken_;
  std::vector<Outgoing> outgoing_;
  std::vector<Room> rooms_;
};

void test_messages_arrive_as_they_were_sent() {
  for (size_t num_ranks : {2, 3, 5}) {
    Host host(num_ranks);
    run_ranks(num_ranks, [&](size_t rank) {
      SharedExchange exchange = host.exchange_of(rank);
      std::mt19937 random{unsigned(rank)};
      for (unsigned seed = 0; seed < 150; ++seed) {
        Messages messages(exchange, seed);
        messages.begin(exchange);
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        bool is_complete = exchange.advance(Clock::now() + kShort, random() % (2 * kCapacity));
        while (!is_complete) is_complete = exchange.advance(Clock::now() + std::chrono::microseconds(random() % 300));
        messages.check(exchange);
      }
    });
  }
}

// The victim stops after so many calls of advance(), which may be anywhere in its rounds, and
// is dead or only late.
void lose_a_rank(size_t num_ranks, size_t victim, size_t num_calls, bool has_ended) {
  constexpr unsigned kExchanges = 3;
  Host host(num_ranks);
  std::vector<unsigned> num_done(num_ranks);
  run_ranks(num_ranks, [&](size_t rank) {
    SharedExchange exchange = host.exchange_of(rank);
    size_t calls_left = num_calls;
    for (unsigned seed = 0; seed < kExchanges; ++seed) {
      Messages messages(exchange, seed + unsigned(num_calls));
      messages.begin(exchange);
      if (rank == victim) {
        bool is_done = false;
        for (; !is_done && calls_left > 0; --calls_left) is_done = exchange.advance(Clock::now() + 20us);
        if (!is_done) {
          if (has_ended) host.end(rank);
          return;
        }
      } else {
        bool is_done = exchange.advance(Clock::now() + kShort);
        const Clock::time_point deadline = Clock::now() + (has_ended ? Clock::duration(kLong) : 15ms);
        while (!is_done && !exchange.ended() && Clock::now() < deadline) {
          is_done = exchange.advance(Clock::now() + kShort);
        }
        if (!is_done) {
          if (has_ended) EXPECT(exchange.ended() == victim);
          if (!has_ended) EXPECT(!exchange.ended());
          return;
        }
      }
      messages.check(exchange);
      ++num_done[rank];
    }
  });
  // Nobody is more than the victim's present exchange ahead of it.
  for (unsigned done : num_done) EXPECT(done <= num_done[victim] + 1);
}

void test_loss_of_a_rank_is_noticed_wherever_it_stops() {
  for (bool has_ended : {true, false}) {
    for (size_t num_ranks : {2, 3, 4}) {
      for (size_t num_calls = 0; num_calls < 40; num_calls += 1 + num_calls / 8) {
        lose_a_rank(num_ranks, num_calls % num_ranks, num_calls, has_ended);
      }
    }
  }
}

}  // namespace

int main() {
  test_messages_arrive_as_they_were_sent();
  test_loss_of_a_rank_is_noticed_wherever_it_stops();
  return 0;
}
