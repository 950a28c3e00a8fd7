// Loads, stores and atomics. A generic address is an address of this process; the window
// of shared memory is where the block's memory lies here.
//
// Every access is checked: alignment (PTX ISA 9.0, 5.1 and 9.7.9.8), the bounds of shared
// memory and of parameters, the state space it names, and, in a program that
// AddressSanitizer has instrumented, the bounds and the lifetime of the program's own
// allocations.
#include <algorithm>
#include <utility>

#include "ptx_vm/definedness.h"
#include "ptx_vm/opcodes.h"
#include "ptx_vm/races.h"

extern "C" __attribute__((weak)) void __asan_get_shadow_mapping(size_t* scale, size_t* offset);

namespace structout::ptx_vm {
namespace {

constexpr uint64_t kLowestAddress = 65536;

// True if AddressSanitizer forbids an aligned access. A byte of its shadow tells how
// many of eight bytes are valid, 0 for all and negative for none.
__attribute__((no_sanitize("address"))) bool is_poisoned(uint64_t address, uint32_t bytes) {
  static const size_t shadow = [] {
    size_t scale = 0, offset = 0;
    if (__asan_get_shadow_mapping != nullptr) __asan_get_shadow_mapping(&scale, &offset);
    return offset;
  }();
  if (shadow == 0) return false;
  const auto* valid = reinterpret_cast<const int8_t*>((address >> 3) + shadow);
  const auto last = static_cast<int8_t>((address & 7) + std::min(bytes, 8u) - 1);
  return (valid[0] != 0 && last >= valid[0]) || (bytes > 8 && valid[1] != 0 && 7 >= valid[1]);
}

std::string name_of(uint64_t address) { return text_of("address 0x%llx", static_cast<unsigned long long>(address)); }

// The lanes' addresses in this process.
struct Addresses {
  uint64_t at[kLanes];
};

void check_process_address(const Warp& warp, const Instruction& instruction, int lane, uint64_t address) {
  const Block* owner = warp.cluster->owner_of(address);
  const uint32_t bytes = instruction.access.total();
  if (owner != nullptr) {
    if (instruction.access.space == Space::kGlobal) fail(warp, lane, "a global access to shared memory");
    const uint64_t offset = address - reinterpret_cast<uint64_t>(owner->shared);
    if (offset + bytes > warp.cluster->launch.shared_bytes())
      fail(warp, lane, text_of("access past shared memory, at %llu", static_cast<unsigned long long>(offset)));
    if (owner->live == 0)
      fail(warp, lane, text_of("access to shared memory of block %u, which has ended", owner->rank));
  } else if (address < kLowestAddress || is_poisoned(address, bytes)) {
    fail(warp, lane, "access outside of global memory, at " + name_of(address));
  }
}

void find_addresses(const Warp& warp, const Instruction& instruction, const Operand& operand, Mask lanes,
                    Addresses& addresses) {
  const Access& access = instruction.access;
  const Launch& launch = warp.cluster->launch;
  const uint64_t base = operand.kind == Operand::Kind::kRegister ? static_cast<uint64_t>(operand.value) : 0;
  if (access.space == Space::kShared || access.space == Space::kParam) {
    const bool is_shared = access.space == Space::kShared;
    const uint64_t limit = is_shared ? launch.shared_bytes() : warp.kernel->parameter_bytes;
    const uint64_t begin = reinterpret_cast<uint64_t>(is_shared ? warp.block->shared : launch.parameters);
    for_each_lane(lanes, [&](int lane) {
      const auto offset = static_cast<uint32_t>(value_of(warp, operand, lane) + base);
      if (offset % access.total() != 0) fail(warp, lane, text_of("misaligned access, at %u", offset));
      if (uint64_t{offset} + access.total() > limit)
        fail(warp, lane, text_of("access past %s, at %u", is_shared ? "shared memory" : "the parameters", offset));
      addresses.at[lane] = begin + offset;
    });
    return;
  }
  for_each_lane(lanes, [&](int lane) {
    const uint64_t address = value_of(warp, operand, lane) + base;
    if (address % access.total() != 0) fail(warp, lane, "misaligned access, at " + name_of(address));
    check_process_address(warp, instruction, lane, address);
    addresses.at[lane] = address;
  });
}

// 32-byte sectors of global memory, and wavefronts of shared memory: as many as the
// busiest of 32 banks has different words, for every 128 bytes of the request.
void count_access(const Warp& warp, const Access& access, Mask lanes, const Addresses& addresses) {
  Counters& counters = warp.kernel->counters;
  const uint32_t bytes = access.total();
  const int first = std::countr_zero(lanes);
  std::vector<uint64_t> touched;
  const auto count_distinct = [&] {
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  };
  if (warp.cluster->owner_of(addresses.at[first]) == nullptr) {
    for_each_lane(lanes, [&](int lane) { touched.push_back(addresses.at[lane] / 32); });
    count_distinct();
    if (access.reads) ++counters.global_loads, counters.load_sectors += touched.size();
    if (access.writes) ++counters.global_stores, counters.store_sectors += touched.size();
    return;
  }
  ++counters.shared_accesses;
  const int lanes_at_a_time = bytes >= 16 ? 8 : bytes == 8 ? 16 : kLanes;
  for (int begin = 0; begin < kLanes; begin += lanes_at_a_time) {
    touched.clear();
    for_each_lane(lanes, [&](int lane) {
      if (lane < begin || lane >= begin + lanes_at_a_time) return;
      for (uint64_t word = addresses.at[lane] / 4; word <= (addresses.at[lane] + bytes - 1) / 4; ++word)
        touched.push_back(word);
    });
    count_distinct();
    int in_bank[32] = {};
    for (const uint64_t word : touched) ++in_bank[word % 32];
    counters.shared_wavefronts += static_cast<uint64_t>(*std::max_element(in_bank, in_bank + 32));
  }
}

// Prepares an access, before it moves data.
// `racing` are the lanes that may race with others.
void observe(Warp& warp, const Instruction& instruction, Mask lanes, const Addresses& addresses,
             Mask racing = kAllLanes) {
  const PtxOptions& options = warp.cluster->launch.options;
  const bool is_param = instruction.access.space == Space::kParam;
  if (options.counts_memory && !is_param) count_access(warp, instruction.access, lanes, addresses);
  if (options.finds_races && !is_param) {
    for_each_lane(lanes & racing, [&](int lane) {
      warp.cluster->launch.races.access(warp, lane, addresses.at[lane], instruction.access);
    });
  }
  if (options.finds_undefined) propagate_access(warp, instruction, lanes, addresses.at);
}

const Operand* elements(const Operand& operand) {
  return operand.kind == Operand::Kind::kGroup ? operand.parts.data() : &operand;
}

// 9.7.9.8 ld. A register may be wider than what is loaded.
template <class T>
void load(Warp& warp, const Instruction& instruction, Mask lanes) {
  Addresses addresses;
  find_addresses(warp, instruction, instruction.operands[1], lanes, addresses);
  observe(warp, instruction, lanes, addresses);
  const Operand* to = elements(instruction.operands[0]);
  for (int i = 0; i < instruction.access.count; ++i) {
    if (to[i].kind != Operand::Kind::kRegister) continue;
    const auto move = [&](auto* places) {
      for_each_lane(lanes, [&](int lane) {
        places[lane] =
            static_cast<std::remove_pointer_t<decltype(places)>>(reinterpret_cast<const T*>(addresses.at[lane])[i]);
      });
    };
    to[i].is_wide ? move(destination<uint64_t>(warp, to[i])) : move(destination<uint32_t>(warp, to[i]));
  }
}

// 9.7.9.11 st. Lanes that store to one address: the last of them wins, one of several
// orders that the ISA allows.
template <class T>
void store(Warp& warp, const Instruction& instruction, Mask lanes) {
  Addresses addresses;
  find_addresses(warp, instruction, instruction.operands[0], lanes, addresses);
  const Operand* from = elements(instruction.operands[1]);
  Mask racing = lanes;
  if (warp.cluster->launch.options.allows_equal_stores) {
    for_each_lane(lanes, [&](int lane) {
      bool is_equal = true;
      for (int i = 0; i < instruction.access.count; ++i) {
        const auto value = static_cast<T>(value_of(warp, from[i], lane));
        is_equal &= reinterpret_cast<const T*>(addresses.at[lane])[i] == value;
      }
      if (is_equal) racing &= ~(Mask{1} << lane);
    });
  }
  observe(warp, instruction, lanes, addresses, racing);
  for (int i = 0; i < instruction.access.count; ++i) {
    for_each_lane(lanes, [&](int lane) {
      reinterpret_cast<T*>(addresses.at[lane])[i] = static_cast<T>(value_of(warp, from[i], lane));
    });
  }
}

// 9.7.13.16 multimem.st
void store_to_all(Warp& warp, const Instruction& instruction, Mask lanes) {
  for_each_lane(lanes, [&](int lane) {
    const uint64_t address =
        value_of(warp, instruction.operands[0], lane) + static_cast<uint64_t>(instruction.operands[0].value);
    uint64_t targets[kPtxMaxTargets];
    const auto find = warp.cluster->launch.asked.find_targets;
    const int count = find == nullptr ? 0 : find(address, targets);
    if (count == 0) fail(warp, lane, name_of(address) + " is no multicast address");
    for (int target = 0; target < count; ++target) {
      Addresses addresses;
      addresses.at[lane] = targets[target];
      if (targets[target] % instruction.access.total() != 0)
        fail(warp, lane, "misaligned access, at " + name_of(address));
      check_process_address(warp, instruction, lane, targets[target]);
      observe(warp, instruction, Mask{1} << lane, addresses);
      for (int i = 0; i < instruction.access.count; ++i) {
        reinterpret_cast<uint32_t*>(targets[target])[i] =
            static_cast<uint32_t>(value_of(warp, instruction.operands[1].parts[i], lane));
      }
    }
  });
}

// 9.7.13.14 atom: the lanes one after another.
template <class T, class Update>
void update(Warp& warp, const Instruction& instruction, Mask lanes) {
  Addresses addresses;
  const auto& operands = instruction.operands;
  find_addresses(warp, instruction, operands[1], lanes, addresses);
  observe(warp, instruction, lanes, addresses);
  for_each_lane(lanes, [&](int lane) {
    T& memory = *reinterpret_cast<T*>(addresses.at[lane]);
    const T old = memory;
    const auto b = static_cast<T>(value_of(warp, operands[2], lane));
    memory = Update{}(old, b, operands.size() > 3 ? static_cast<T>(value_of(warp, operands[3], lane)) : T{});
    set_value(warp, operands[0], lane, static_cast<std::make_unsigned_t<T>>(old));
  });
}

template <class T>
Execute update_of(const std::string& operation) {
  if (operation == "add") return update<T, decltype([](T old, T b, T) { return T(old + b); })>;
  if (operation == "min") return update<T, decltype([](T old, T b, T) { return std::min(old, b); })>;
  if (operation == "max") return update<T, decltype([](T old, T b, T) { return std::max(old, b); })>;
  if (operation == "and") return update<T, decltype([](T old, T b, T) { return T(old & b); })>;
  if (operation == "or") return update<T, decltype([](T old, T b, T) { return T(old | b); })>;
  if (operation == "exch") return update<T, decltype([](T, T b, T) { return b; })>;
  if (operation == "cas") return update<T, decltype([](T old, T b, T c) { return old == b ? c : old; })>;
  return nullptr;
}

// Calls use(T{}) for the type of an element. Stores do not care about signs.
template <class Use>
Execute for_type(const std::string& type, Use use) {
  if (type == "s8") return use(int8_t{});
  if (type == "s16") return use(int16_t{});
  if (type == "s32") return use(int32_t{});
  if (type == "s64") return use(int64_t{});
  if (type == "u8" || type == "b8") return use(uint8_t{});
  if (type == "u16" || type == "b16") return use(uint16_t{});
  if (type == "u32" || type == "b32" || type == "f32") return use(uint32_t{});
  if (type == "u64" || type == "b64") return use(uint64_t{});
  return nullptr;
}

// A modifier, its meaning for an access, and the opcodes that may have it. Compilers
// write modifiers in more than one order.
struct Modifier {
  std::string_view name, opcodes;
  int scopes;  // 1: asks for a scope, -1: is one
  void (*apply)(Access&);
};

constexpr Modifier kModifiers[] = {
    {"st", "multimem", 0, [](Access&) {}},
    {"nc", "ld", 0, [](Access&) {}},  // the read-only cache, which changes no value
    {"global", "ld st atom multimem", 0, [](Access& access) { access.space = Space::kGlobal; }},
    {"shared", "ld st atom", 0, [](Access& access) { access.space = Space::kShared; }},
    {"shared::cta", "ld st atom", 0, [](Access& access) { access.space = Space::kShared; }},
    {"param", "ld", 0, [](Access& access) { access.space = Space::kParam; }},
    {"v2", "ld st multimem", 0, [](Access& access) { access.count = 2; }},
    {"v4", "ld st multimem", 0, [](Access& access) { access.count = 4; }},
    {"volatile", "ld st", 0, [](Access& access) { access.is_strong = true, access.scope = Scope::kSystem; }},
    {"relaxed", "ld st atom multimem", 1, [](Access& access) { access.is_strong = true; }},
    {"acquire", "ld atom", 1, [](Access& access) { access.is_strong = access.acquires = true; }},
    {"release", "st atom", 1, [](Access& access) { access.is_strong = access.releases = true; }},
    {"acq_rel", "atom", 1, [](Access& access) { access.is_strong = access.acquires = access.releases = true; }},
    {"cta", "ld st atom multimem", -1, [](Access& access) { access.scope = Scope::kBlock; }},
    {"gpu", "ld st atom multimem", -1, [](Access& access) { access.scope = Scope::kDevice; }},
    {"sys", "ld st atom multimem", -1, [](Access& access) { access.scope = Scope::kSystem; }},
};

}  // namespace

Form memory_form(const std::string& opcode, const std::vector<std::string>& modifiers) {
  const bool is_load = opcode == "ld", is_atomic = opcode == "atom", is_multicast = opcode == "multimem";
  const size_t num_last = is_atomic ? 2 : 1;  // the operation and the type
  if ((!is_load && !is_atomic && !is_multicast && opcode != "st") || modifiers.size() < num_last) return {};
  Form form;
  form.propagation = is_atomic ? Propagation::kAtomic : is_load ? Propagation::kLoad : Propagation::kStore;
  Access& access = form.access;
  access.reads = is_load || is_atomic;
  access.writes = !is_load;
  access.is_strong = is_atomic;
  int scopes = 0;
  for (size_t i = 0; i + num_last < modifiers.size(); ++i) {
    const auto found = std::find_if(std::begin(kModifiers), std::end(kModifiers), [&](const Modifier& known) {
      return known.name == modifiers[i] && known.opcodes.find(opcode) != known.opcodes.npos;
    });
    if (found == std::end(kModifiers)) return {};
    found->apply(access);
    scopes += found->scopes;
  }
  if (!is_atomic && scopes != 0) return {};
  form.execute = for_type(modifiers.back(), [&](auto value) -> Execute {
    using T = decltype(value);
    access.bytes = sizeof(T);
    if (is_multicast) return modifiers.back() == "f32" ? store_to_all : nullptr;
    if (is_load) return load<T>;
    if (!is_atomic) return store<T>;
    if constexpr (sizeof(T) < 4) {
      return nullptr;
    } else {
      return update_of<T>(modifiers[modifiers.size() - 2]);
    }
  });
  return form;
}

// 9.7.14.5.15 ldmatrix: 8 x 8 matrices of 16-bit elements. Lanes 8 i to 8 i + 7 hold the
// addresses of the rows of matrix i, of which each lane gets two elements side by side.
void load_matrix(Warp& warp, const Instruction& instruction, Mask lanes) {
  if (lanes != kAllLanes) fail(warp, std::countr_zero(lanes), "a matrix is moved by a part of a warp");
  const std::vector<Operand>& to = instruction.operands[0].parts;
  const Mask row_lanes = to.size() >= 4 ? kAllLanes : (Mask{1} << (8 * to.size())) - 1;
  Addresses rows, pairs;
  find_addresses(warp, instruction, instruction.operands[1], row_lanes, rows);
  Instruction load_pair = instruction;
  load_pair.access.bytes = 4;
  load_pair.access.count = 1;
  for (size_t matrix = 0; matrix < to.size(); ++matrix) {
    for (size_t lane = 0; lane < kLanes; ++lane) pairs.at[lane] = rows.at[8 * matrix + lane / 4] + lane % 4 * 4;
    load_pair.operands[0] = to[matrix];
    observe(warp, load_pair, lanes, pairs);
    for_each_lane(lanes, [&](int lane) {
      set_value(warp, to[matrix], lane, *reinterpret_cast<const uint32_t*>(pairs.at[lane]));
    });
  }
}

// 9.7.9.20 cvta
void convert_shared_to_generic(Warp& warp, const Instruction& instruction, Mask lanes) {
  for_each_lane(lanes, [&](int lane) {
    set_value(warp, instruction.operands[0], lane,
              reinterpret_cast<uint64_t>(warp.block->shared) + value_of(warp, instruction.operands[1], lane));
  });
}

// 9.7.9.23 mapa: the address in block b of the cluster that corresponds to address a.
// The ISA does not say what another b gives, so there must be none.
void map_shared_rank(Warp& warp, const Instruction& instruction, Mask lanes) {
  for_each_lane(lanes, [&](int lane) {
    const uint64_t address = value_of(warp, instruction.operands[1], lane),
                   rank = value_of(warp, instruction.operands[2], lane);
    const Block* owner = warp.cluster->owner_of(address);
    if (owner == nullptr) fail(warp, lane, "mapa of an address outside of shared memory, " + name_of(address));
    if (rank >= warp.cluster->blocks.size())
      fail(warp, lane,
           text_of("mapa to block %u of a cluster of %zu", static_cast<unsigned>(rank), warp.cluster->blocks.size()));
    set_value(warp, instruction.operands[0], lane, address + (rank - owner->rank) * warp.cluster->shared_stride);
  });
}

}  // namespace structout::ptx_vm
