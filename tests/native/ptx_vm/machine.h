// The state of the machine that executes PTX: kernels as parsed, and the warps, blocks
// and clusters of a launch.
//
// A warp has 32 lanes, each with a program counter of its own. A register is an array of
// 32 values, so an instruction is a loop over lanes that the C++ compiler vectorizes. A
// predicate is a mask of lanes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ptx_vm/api.h"

namespace structout::ptx_vm {

constexpr int kLanes = 32;
using Mask = uint32_t;  // one bit per lane
constexpr Mask kAllLanes = ~0u;

// A program does what it may not do, or something that this machine does not know.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

__attribute__((format(printf, 1, 2))) std::string text_of(const char* format, ...);

template <class Visit>
inline void for_each_lane(Mask lanes, Visit visit) {
  for (; lanes != 0; lanes &= lanes - 1) visit(std::countr_zero(lanes));
}

// -- code

struct Constant {  // in every lane, as 32-bit and as 64-bit operand
  std::array<uint32_t, kLanes> narrow;
  std::array<uint64_t, kLanes> wide;
};

struct Operand {
  enum class Kind : uint8_t { kNone, kRegister, kPredicate, kConstant, kGroup };
  Kind kind = Kind::kNone;
  bool is_wide = false;     // a register of 64 bits
  bool is_negated = false;  // a predicate
  uint32_t slot = 0;        // the byte in the register file, or the number of a predicate
  int64_t value = 0;        // a constant, or what an address adds
  const Constant* constant = nullptr;
  std::vector<Operand> parts;  // of {a, b} and of d|p
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParam };
enum class Scope : uint8_t { kBlock, kDevice, kSystem };

// An access of an instruction to memory.
struct Access {
  Space space = Space::kGeneric;
  uint8_t bytes = 0, count = 1;  // of an element, and how many
  bool is_signed = false;
  bool is_strong = false;  // volatile, relaxed, acquire, release or atomic
  bool acquires = false, releases = false;
  bool reads = false, writes = false;
  Scope scope = Scope::kDevice;
  uint32_t used_bytes = ~0u;  // of all elements, one bit each; the others are loaded and dropped
  uint32_t total() const { return uint32_t{bytes} * count; }
};

enum class Flow : uint8_t {
  kNext,
  kBranch,
  kExit,
  kWarpWide,  // waits for the lanes that its mask names
  kBlockBarrier,
  kClusterArrive,
  kClusterWait,
  kSleep,
};

// The way in which an instruction passes on that a value is undefined (see definedness.cpp).
enum class Propagation : uint8_t { kMerge, kNone, kSelect, kAnd, kOr, kLoad, kStore, kAtomic, kShuffle, kVote };

struct Warp;
struct Instruction;

// An opcode with all its modifiers, and its effect.
struct Form {
  void (*execute)(Warp&, const Instruction&, Mask) = nullptr;
  Flow flow = Flow::kNext;
  Propagation propagation = Propagation::kMerge;
  Access access;
  uint8_t fewest_operands = 0, most_operands = 255;
};
using Execute = decltype(Form::execute);

struct Instruction : Form {
  bool guard_is_negated = false;
  int32_t guard = -1;   // a predicate
  uint32_t target = 0;  // of a branch
  std::vector<Operand> operands;
  std::string text;
  int line = 0;
  mutable uint64_t executions = 0;  // by warps
};

struct Counters {
  uint64_t launches = 0, divergences = 0, barriers = 0, cluster_barriers = 0;
  uint64_t global_loads = 0, global_stores = 0, load_sectors = 0, store_sectors = 0;
  uint64_t shared_accesses = 0, shared_wavefronts = 0;
  double seconds = 0;
};

struct Parameter {
  std::string name;
  uint32_t offset, size;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0, register_bytes = 0, num_predicates = 0;
  uint32_t static_shared_bytes = 0, max_threads = 1024;
  std::vector<Instruction> code;
  std::map<std::string, uint32_t> special_registers;  // slots of %tid.x ...
  std::deque<Constant> constants;
  mutable Counters counters;
};

// -- a launch

using Clock = std::vector<uint32_t>;  // of every warp, by its number (see races.h)

struct MemoryEvent {            // a warp's access to a 4-byte word
  uint32_t warp = 0, time = 0;  // time 0: none
  uint16_t device = 0;
  uint8_t bytes = 0;  // one bit each
  Scope scope = Scope::kBlock;
  bool is_strong = false;
};

struct MemoryWord {
  MemoryEvent write;
  std::vector<MemoryEvent> reads;  // since that write, the latest of each warp
};

enum class LaneState : uint8_t { kRuns, kWaitsForLanes, kWaitsForBlock, kWaitsForCluster, kExited };

struct Block;
struct Cluster;
struct RaceDetector;

struct Warp {
  Block* block;
  Cluster* cluster;
  const Kernel* kernel;
  uint32_t id;  // within the block
  Mask lanes;   // that exist
  uint32_t pc[kLanes];
  std::array<Mask, 5> in_state;  // by LaneState
  Mask has_arrived = 0;          // at the cluster's barrier, and has not yet waited
  char* registers;
  std::vector<Mask> predicates;
  const Instruction* current = nullptr;
  uint32_t number = 0;  // see RaceDetector
  uint16_t device = 0;
  Clock clock, at_fence, pending;  // what it knows, knew at its last fence, has read but not acquired
  Scope fence_scope = Scope::kBlock;
  std::vector<Mask> undefined, undefined_predicates;  // see definedness.cpp

  Mask lanes_in(LaneState state) const { return in_state[static_cast<size_t>(state)]; }
  void set_state(Mask some, LaneState state) {
    for (Mask& others : in_state) others &= ~some;
    in_state[static_cast<size_t>(state)] |= some;
  }
  Mask live() const { return lanes & ~lanes_in(LaneState::kExited); }
};

struct Block {
  Cluster* cluster;
  uint32_t rank;
  PtxSize index;
  char* shared;
  uint32_t live, arrived = 0;  // threads
  std::vector<Warp> warps;
  std::vector<uint8_t> is_undefined;  // bytes of shared memory
  Clock remote_accesses;              // by warps of other blocks
  std::vector<MemoryWord> words;      // of shared memory
};

struct Launch {
  const PtxLaunch& asked;
  const PtxOptions& options;
  const Kernel& kernel;
  RaceDetector& races;
  const char* parameters;
  std::mt19937_64 random;
  uint64_t num_instructions = 0;

  uint32_t shared_bytes() const { return kernel.static_shared_bytes + asked.dynamic_shared_bytes; }
};

struct Cluster {
  explicit Cluster(Launch& launch) : launch(launch) {}

  Launch& launch;
  std::vector<Block> blocks;
  std::vector<char> shared_memory;
  uint32_t shared_stride = 0, live = 0, arrived = 0;
  char* shared_begin = nullptr;
  Clock at_barrier;

  // The block whose shared memory has this address, or null.
  Block* owner_of(uint64_t address) {
    const uint64_t offset = address - reinterpret_cast<uint64_t>(shared_begin);
    return offset < uint64_t{shared_stride} * blocks.size() ? &blocks[offset / shared_stride] : nullptr;
  }
};

// Throws a Fault that says where a lane is.
[[noreturn]] void fail(const Warp& warp, int lane, const std::string& problem);

// -- values of operands

inline Mask predicate(const Warp& warp, const Operand& operand) {
  if (operand.kind == Operand::Kind::kConstant) return operand.value != 0 ? kAllLanes : 0;
  return operand.is_negated ? ~warp.predicates[operand.slot] : warp.predicates[operand.slot];
}

inline void set_predicate(Warp& warp, const Operand& operand, Mask value, Mask lanes) {
  if (operand.kind != Operand::Kind::kPredicate) return;  // _
  Mask& to = warp.predicates[operand.slot];
  to = (to & ~lanes) | (value & lanes);
}

// A register holds values of up to 32 bits in 32-bit places.
template <class T>
using Place = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
inline T from_place(Place<T> place) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<T>(place);
  } else {
    return static_cast<T>(place);
  }
}

template <class T>
inline Place<T> to_place(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::bit_cast<Place<T>>(value);
  } else {
    return static_cast<std::make_unsigned_t<T>>(value);
  }
}

template <class T>
inline const Place<T>* source(const Warp& warp, const Operand& operand) {
  if (operand.constant == nullptr) return reinterpret_cast<const Place<T>*>(warp.registers + operand.slot);
  if constexpr (sizeof(T) == 8) {
    return operand.constant->wide.data();
  } else {
    return operand.constant->narrow.data();
  }
}

template <class T>
inline Place<T>* destination(Warp& warp, const Operand& operand) {
  return reinterpret_cast<Place<T>*>(warp.registers + operand.slot);
}

// One lane's value of an operand of any width.
inline uint64_t value_of(const Warp& warp, const Operand& operand, int lane) {
  if (operand.kind != Operand::Kind::kRegister) return static_cast<uint64_t>(operand.value);
  const char* lanes = warp.registers + operand.slot;
  return operand.is_wide ? reinterpret_cast<const uint64_t*>(lanes)[lane]
                         : reinterpret_cast<const uint32_t*>(lanes)[lane];
}

inline void set_value(Warp& warp, const Operand& operand, int lane, uint64_t value) {
  if (operand.kind != Operand::Kind::kRegister) return;  // _
  char* lanes = warp.registers + operand.slot;
  if (operand.is_wide) {
    reinterpret_cast<uint64_t*>(lanes)[lane] = value;
  } else {
    reinterpret_cast<uint32_t*>(lanes)[lane] = static_cast<uint32_t>(value);
  }
}

}  // namespace structout::ptx_vm
