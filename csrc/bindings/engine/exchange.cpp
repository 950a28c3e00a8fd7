// The exchange of messages among the ranks of one host.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine/module.h"
#include "ranks/shared_exchange.h"

namespace structout::engine {

namespace {

using namespace std::chrono_literals;
using ranks::Clock;
using ranks::SharedExchange;
using Memory = std::pair<uintptr_t, size_t>;  // an address and a number of bytes
using Arrived = std::pair<std::optional<ranks::Header>, std::optional<py::array_t<uint8_t>>>;

// While it holds Python's global lock, an exchange waits no longer than it may take to get the
// lock back, and sends and takes no more than takes about as long.
constexpr auto kShortWait = 50us;
constexpr size_t kShortPayload = 64 << 10;
// How often signals and the life of the other ranks are looked at.
constexpr auto kBetweenChecks = 100ms;
constexpr double kLongestTimeout = 1e9;  // seconds

// A rank that has died or is late, and why it is given up.
struct LostRank : std::runtime_error {
  LostRank(size_t rank, const std::string& reason) : std::runtime_error(reason), rank(rank) {}
  size_t rank;
};

void complete(SharedExchange& exchange, bool is_short, Clock::time_point deadline) {
  if (is_short && exchange.advance(std::min(deadline, Clock::now() + kShortWait), kShortPayload)) return;
  for (;;) {
    bool is_complete;
    std::optional<size_t> ended;
    {
      py::gil_scoped_release released;
      is_complete = exchange.advance(std::min(deadline, Clock::now() + kBetweenChecks));
      if (!is_complete) ended = exchange.ended();
    }
    if (is_complete) return;
    if (ended) throw LostRank(*ended, "its process has ended");
    if (Clock::now() >= deadline) throw LostRank(exchange.awaited(), "timed out waiting for it");
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// The bytes of a payload, which stay as long as the array does.
py::array_t<uint8_t> array_of(const ranks::Received& received) {
  using Owner = decltype(received.owner);
  py::capsule owner(new Owner(received.owner), [](void* pointer) { delete static_cast<Owner*>(pointer); });
  return py::array_t<uint8_t>({received.header[ranks::kPayloadSize]}, {1}, received.payload, owner);
}

// For each rank its header and its payload. The latter is None where it is in the room that was
// given, both are None for this rank. The headers that are sent get the sizes of the payloads.
std::vector<Arrived> transfer(SharedExchange& exchange, ranks::Header header, const std::vector<Memory>& payloads,
                              const std::vector<Memory>& rooms, double timeout_s) {
  const size_t num_ranks = exchange.num_ranks();
  if (payloads.size() != num_ranks || (!rooms.empty() && rooms.size() != num_ranks)) {
    throw std::invalid_argument("an exchange needs a payload and a room for each rank");
  }
  std::vector<ranks::Outgoing> outgoing(num_ranks);
  std::vector<ranks::Room> given(num_ranks);
  size_t most_bytes = 0;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    header[ranks::kPayloadSize] = int64_t(payloads[rank].second);
    outgoing[rank] = {header, reinterpret_cast<const uint8_t*>(payloads[rank].first)};
    if (!rooms.empty()) given[rank] = {reinterpret_cast<uint8_t*>(rooms[rank].first), rooms[rank].second};
    most_bytes = std::max(most_bytes, payloads[rank].second);
  }
  exchange.begin(outgoing, given);
  const auto timeout =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout_s, kLongestTimeout)));
  complete(exchange, most_bytes <= kShortPayload, Clock::now() + timeout);
  std::vector<Arrived> result(num_ranks);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (rank == exchange.rank()) continue;
    const ranks::Received& received = exchange.received()[rank];
    result[rank].first = received.header;
    if (received.owner != nullptr) result[rank].second = array_of(received);
  }
  return result;
}

}  // namespace

void define_exchange(py::module_& module) {
  static py::handle lost_rank = PyErr_NewException("structout._fsm.LostRank", PyExc_RuntimeError, nullptr);
  module.attr("LostRank") = lost_rank;
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const LostRank& error) {
      PyErr_SetObject(lost_rank.ptr(), py::make_tuple(error.rank, error.what()).ptr());
    }
  });
  py::class_<SharedExchange>(module, "SharedExchange")
      .def(py::init([](size_t rank, const std::vector<std::pair<uintptr_t, int>>& segments, size_t capacity) {
             std::vector<ranks::Segment> owned;
             for (auto [address, descriptor] : segments) {
               owned.push_back({reinterpret_cast<uint8_t*>(address), descriptor});
             }
             return std::make_unique<SharedExchange>(rank, std::move(owned), capacity);
           }),
           py::arg("rank"), py::arg("segments"), py::arg("capacity"))
      .def("transfer", transfer, py::arg("header"), py::arg("payloads"), py::arg("rooms"), py::arg("timeout_s"))
      .def_static("segment_bytes", &SharedExchange::segment_bytes, py::arg("num_ranks"), py::arg("capacity"));
  module.attr("SharedExchange").attr("FREE_WORD") = ranks::kFreeWord;
  module.attr("SharedExchange").attr("BYTES_BESIDE_PAYLOAD") = size_t(SharedExchange::kBytesBesidePayload);
}

}  // namespace structout::engine
