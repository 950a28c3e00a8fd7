#include "ptx_vm/definedness.h"

#include <algorithm>

namespace structout::ptx_vm {
namespace {

constexpr uint32_t kUnit = kLanes * sizeof(uint32_t);  // bytes of the smallest register

Mask undefined_lanes(const Warp& warp, const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kRegister:
      return warp.undefined[operand.slot / kUnit];
    case Operand::Kind::kPredicate:
      return warp.undefined_predicates[operand.slot];
    case Operand::Kind::kGroup: {
      Mask found = 0;
      for (const Operand& part : operand.parts) found |= undefined_lanes(warp, part);
      return found;
    }
    default:
      return 0;
  }
}

void require_defined(const Warp& warp, Mask undefined, Mask lanes, const char* use) {
  if ((undefined & lanes) != 0) fail(warp, std::countr_zero(undefined & lanes), text_of("undefined %s", use));
}

void set_undefined(Warp& warp, const Operand& operand, Mask value, Mask lanes) {
  const auto set = [&](Mask& to) { to = (to & ~lanes) | (value & lanes); };
  if (operand.kind == Operand::Kind::kRegister) set(warp.undefined[operand.slot / kUnit]);
  if (operand.kind == Operand::Kind::kPredicate) set(warp.undefined_predicates[operand.slot]);
  for (const Operand& part : operand.parts) set_undefined(warp, part, value, lanes);
}

}  // namespace

void mark_undefined(Block& block, uint32_t shared_bytes) { block.is_undefined.assign(shared_bytes, 1); }

void mark_undefined(Warp& warp) {
  warp.undefined.assign(warp.kernel->register_bytes / kUnit + 1, kAllLanes);
  warp.undefined_predicates.assign(warp.kernel->num_predicates + 1, kAllLanes);
  for (const auto& [name, slot] : warp.kernel->special_registers) warp.undefined[slot / kUnit] = 0;
}

void check_guard(const Warp& warp, const Instruction& instruction, Mask lanes) {
  require_defined(warp, warp.undefined_predicates[instruction.guard], lanes, "guard");
}

void propagate(Warp& warp, const Instruction& instruction, Mask lanes) {
  const std::vector<Operand>& operands = instruction.operands;
  const auto is_undefined = [&](size_t i) { return i < operands.size() ? undefined_lanes(warp, operands[i]) : 0; };
  if (instruction.flow == Flow::kWarpWide)
    require_defined(warp, undefined_lanes(warp, operands.back()), lanes, "mask of lanes");
  switch (instruction.propagation) {
    case Propagation::kMerge: {
      Mask found = 0;
      for (size_t i = 1; i < operands.size(); ++i) found |= is_undefined(i);
      if (!operands.empty()) set_undefined(warp, operands[0], found, lanes);
      return;
    }
    case Propagation::kSelect: {
      const Mask chosen = predicate(warp, operands[3]);
      set_undefined(warp, operands[0], is_undefined(3) | (chosen & is_undefined(1)) | (~chosen & is_undefined(2)),
                    lanes);
      return;
    }
    case Propagation::kAnd:
    case Propagation::kOr: {  // a defined false, or true, decides
      const Mask decides = instruction.propagation == Propagation::kOr ? kAllLanes : 0;
      const Mask a = is_undefined(1), b = is_undefined(2);
      const Mask a_decides = ~a & ~(predicate(warp, operands[1]) ^ decides);
      const Mask b_decides = ~b & ~(predicate(warp, operands[2]) ^ decides);
      set_undefined(warp, operands[0], (a | b) & ~a_decides & ~b_decides, lanes);
      return;
    }
    case Propagation::kShuffle: {  // the lane that is read may be any of them
      require_defined(warp, is_undefined(2) | is_undefined(3), lanes, "lane of a shuffle");
      Mask found = 0;
      if ((is_undefined(1) & lanes) != 0) found = kAllLanes;
      set_undefined(warp, operands[0], found, lanes);
      return;
    }
    case Propagation::kVote:
      set_undefined(warp, operands[0], (is_undefined(1) & lanes) != 0 ? kAllLanes : 0, lanes);
      return;
    default:
      if (!operands.empty() && operands[0].kind == Operand::Kind::kRegister) set_undefined(warp, operands[0], 0, lanes);
  }
}

void propagate_access(Warp& warp, const Instruction& instruction, Mask lanes, const uint64_t* addresses) {
  const Access& access = instruction.access;
  const std::vector<Operand>& operands = instruction.operands;
  const bool is_load = instruction.propagation == Propagation::kLoad,
             is_atomic = instruction.propagation == Propagation::kAtomic;
  const Operand &address = operands[is_load || is_atomic ? 1 : 0], &data = operands[is_load ? 0 : is_atomic ? 2 : 1];
  require_defined(warp, undefined_lanes(warp, address), lanes, "address");
  if (is_atomic) require_defined(warp, undefined_lanes(warp, data), lanes, "operand of an atomic");
  for (int i = 0; i < access.count; ++i) {
    const Operand& element = data.kind == Operand::Kind::kGroup ? data.parts[i] : data;
    const Mask undefined = undefined_lanes(warp, element);
    Mask loaded = 0;
    for_each_lane(lanes, [&](int lane) {
      const uint64_t at = addresses[lane] + uint64_t{access.bytes} * i;
      Block* owner = warp.cluster->owner_of(at);
      if (owner == nullptr) {
        if (!is_load) require_defined(warp, undefined, Mask{1} << lane, "value stored to global memory");
        return;
      }
      uint8_t* bytes = owner->is_undefined.data() + (at - reinterpret_cast<uint64_t>(owner->shared));
      bool has_undefined = false;
      for (int byte = 0; byte < access.bytes; ++byte) {
        const bool is_used = access.used_bytes >> (i * access.bytes + byte) & 1u;
        has_undefined |= is_used && bytes[byte] != 0;
      }
      if (is_atomic && has_undefined) fail(warp, lane, "undefined memory of an atomic");
      loaded |= Mask{has_undefined} << lane;
      if (!is_load) std::fill(bytes, bytes + access.bytes, static_cast<uint8_t>(undefined >> lane & 1u));
    });
    if (is_load) set_undefined(warp, element, loaded, lanes);
  }
  if (is_atomic) set_undefined(warp, operands[0], 0, lanes);
}

}  // namespace structout::ptx_vm
