// The table of opcodes. Each family of instructions has one entry, which gives its
// meaning as a function of one lane's values, its types, and the section of the PTX ISA
// (version 9.0) that defines it. memory.cpp has the instructions that access memory.
//
// Compiled with -fwrapv and -ffp-contract=off: integers wrap, and every float operation
// is rounded once.
#include "ptx_vm/opcodes.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "ptx_vm/races.h"

namespace structout::ptx_vm {
namespace {

using Table = std::unordered_map<std::string, Form>;

// A type by its name in PTX. Untyped bits are unsigned.
template <class T>
struct Type {
  using Value = T;
  std::string_view name;
};
constexpr Type<int8_t> s8{"s8"};
constexpr Type<int16_t> s16{"s16"};
constexpr Type<int32_t> s32{"s32"};
constexpr Type<int64_t> s64{"s64"};
constexpr Type<uint16_t> u16{"u16"}, b16{"b16"};
constexpr Type<uint32_t> u32{"u32"}, b32{"b32"};
constexpr Type<uint64_t> u64{"u64"}, b64{"b64"};
constexpr Type<float> f32{"f32"};

// "add.*" with s32 is "add.s32".
std::string with_type(std::string form, std::string_view type) { return form.replace(form.find('*'), 1, type); }

float float_of_half(uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof(value));
  return static_cast<float>(value);
}

float float_of_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// 9.7.3: an operation that gives NaN gives this one.
constexpr uint32_t kNaN = 0x7fffffffu, kHalfNaN = 0x7fffu;

template <class T>
T canonical(T value) {
  if constexpr (std::is_floating_point_v<T>) return value != value ? std::bit_cast<T>(kNaN) : value;
  return value;
}

// -- how an instruction goes over the lanes

// to[lane] = function(from[lane]...)
template <class Function, class To, class... From, size_t... kOperands>
void map_operands(Warp& warp, const Instruction& instruction, Mask lanes, std::index_sequence<kOperands...>) {
  Place<To>* to = destination<To>(warp, instruction.operands[0]);
  const auto compute = [&](auto*... from) {
    if (lanes == kAllLanes) {
#pragma GCC ivdep
      for (int lane = 0; lane < kLanes; ++lane) to[lane] = to_place<To>(Function{}(from_place<From>(from[lane])...));
    } else {
      Place<To> values[kLanes];
#pragma GCC ivdep
      for (int lane = 0; lane < kLanes; ++lane)
        values[lane] = to_place<To>(Function{}(from_place<From>(from[lane])...));
      for (int lane = 0; lane < kLanes; ++lane) to[lane] = lanes >> lane & 1u ? values[lane] : to[lane];
    }
  };
  compute(source<From>(warp, instruction.operands[kOperands + 1])...);
}

template <class Function, class To, class... From>
void map_lanes(Warp& warp, const Instruction& instruction, Mask lanes) {
  map_operands<Function, To, From...>(warp, instruction, lanes, std::index_sequence_for<From...>{});
}

template <class Function, class T>
void compare_lanes(Warp& warp, const Instruction& instruction, Mask lanes) {
  const Place<T>*a = source<T>(warp, instruction.operands[1]), *b = source<T>(warp, instruction.operands[2]);
  Mask result = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    result |= Mask{Function{}(from_place<T>(a[lane]), from_place<T>(b[lane]))} << lane;
  }
  set_predicate(warp, instruction.operands[0], result, lanes);
}

template <class T>
void select_lanes(Warp& warp, const Instruction& instruction, Mask lanes) {
  Place<T>* to = destination<T>(warp, instruction.operands[0]);
  const Place<T>*a = source<T>(warp, instruction.operands[1]), *b = source<T>(warp, instruction.operands[2]);
  const Mask chosen = predicate(warp, instruction.operands[3]);
#pragma GCC ivdep
  for (int lane = 0; lane < kLanes; ++lane) {
    const Place<T> value = chosen >> lane & 1u ? a[lane] : b[lane];
    to[lane] = lanes >> lane & 1u ? value : to[lane];
  }
}

template <class Function>
void map_predicates(Warp& warp, const Instruction& instruction, Mask lanes) {
  const auto& operands = instruction.operands;
  const Mask a = predicate(warp, operands[1]), b = operands.size() > 2 ? predicate(warp, operands[2]) : 0;
  set_predicate(warp, operands[0], Function{}(a, b), lanes);
}

// Packs {a, b} into a register, unpacks a register, or copies it.
template <class T>
void move(Warp& warp, const Instruction& instruction, Mask lanes) {
  const Operand &to = instruction.operands[0], &from = instruction.operands[1];
  if (to.kind != Operand::Kind::kGroup && from.kind != Operand::Kind::kGroup) {
    return map_lanes<decltype([](T a) { return a; }), T, T>(warp, instruction, lanes);
  }
  const auto& parts = to.kind == Operand::Kind::kGroup ? to.parts : from.parts;
  const unsigned bits = 8 * sizeof(T) / parts.size();
  const uint64_t part_mask = ~uint64_t{0} >> (64 - bits);
  for_each_lane(lanes, [&](int lane) {
    if (to.kind == Operand::Kind::kGroup) {
      const uint64_t value = value_of(warp, from, lane);
      for (size_t i = 0; i < parts.size(); ++i) set_value(warp, parts[i], lane, value >> (bits * i) & part_mask);
    } else {
      uint64_t value = 0;
      for (size_t i = 0; i < parts.size(); ++i) value |= (value_of(warp, parts[i], lane) & part_mask) << (bits * i);
      set_value(warp, to, lane, value);
    }
  });
}

void read_clock(Warp& warp, const Instruction& instruction, Mask lanes) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  for_each_lane(lanes, [&](int lane) { set_value(warp, instruction.operands[0], lane, static_cast<uint64_t>(now)); });
}

void trap(Warp& warp, const Instruction&, Mask lanes) { fail(warp, std::countr_zero(lanes), "trap"); }
void do_nothing(Warp&, const Instruction&, Mask) {}

template <Scope kScope>
void fence(Warp& warp, const Instruction&, Mask) {
  if (warp.cluster->launch.options.finds_races) warp.cluster->launch.races.fence(warp, kScope);
}

// -- warp-wide instructions: all lanes of the mask are here

enum class Shuffle { kIndex, kUp, kButterfly };

// 9.7.9.6 shfl.sync: c holds the last lane of a segment, and which bits name the segment.
template <Shuffle kMode>
void shuffle(Warp& warp, const Instruction& instruction, Mask lanes) {
  const Operand& result = instruction.operands[0];
  const bool has_predicate = result.kind == Operand::Kind::kGroup;
  uint32_t values[kLanes];
  std::memcpy(values, source<uint32_t>(warp, instruction.operands[1]), sizeof(values));
  Mask in_range = 0;
  uint32_t* to = destination<uint32_t>(warp, has_predicate ? result.parts[0] : result);
  for_each_lane(lanes, [&](int lane) {
    const int b = static_cast<int>(value_of(warp, instruction.operands[2], lane) & 31);
    const int c = static_cast<int>(value_of(warp, instruction.operands[3], lane));
    const int segment = c >> 8 & 31, first = lane & segment, last = first | (c & 31 & ~segment);
    int from = kMode == Shuffle::kIndex ? first | (b & ~segment) : kMode == Shuffle::kUp ? lane - b : lane ^ b;
    const bool is_inside = kMode == Shuffle::kUp ? from >= last : from <= last;
    if (!is_inside) from = lane;
    if ((lanes >> from & 1u) == 0) fail(warp, lane, text_of("reads lane %d, which takes no part", from));
    to[lane] = values[from];
    in_range |= Mask{is_inside} << lane;
  });
  if (has_predicate) set_predicate(warp, result.parts[1], in_range, lanes);
}

// 9.7.13.7 vote.sync
void ballot(Warp& warp, const Instruction& instruction, Mask lanes) {
  const Mask votes = predicate(warp, instruction.operands[1]) & lanes;
  for_each_lane(lanes, [&](int lane) { set_value(warp, instruction.operands[0], lane, votes); });
}

template <bool kAll>
void vote(Warp& warp, const Instruction& instruction, Mask lanes) {
  const Mask votes = predicate(warp, instruction.operands[1]) & lanes;
  set_predicate(warp, instruction.operands[0], (kAll ? votes == lanes : votes != 0) ? kAllLanes : 0, lanes);
}

// 9.7.13.9 redux.sync
template <class Function, class T>
void reduce(Warp& warp, const Instruction& instruction, Mask lanes) {
  const uint32_t* from = source<T>(warp, instruction.operands[1]);
  T result = from_place<T>(from[std::countr_zero(lanes)]);
  for_each_lane(lanes & (lanes - 1), [&](int lane) { result = Function{}(result, from_place<T>(from[lane])); });
  for_each_lane(lanes, [&](int lane) { destination<T>(warp, instruction.operands[0])[lane] = to_place<T>(result); });
}

// -- meanings of more than one line

constexpr auto divide = [](auto a, auto b) -> decltype(a) {
  if constexpr (std::is_floating_point_v<decltype(a)>) {
    return canonical(a / b);
  } else {
    if (b == 0) return static_cast<decltype(a)>(-1);  // unspecified
    return std::is_signed_v<decltype(a)> && b == static_cast<decltype(a)>(-1) ? -a : a / b;
  }
};

constexpr auto remainder = [](auto a, auto b) -> decltype(a) {
  if (b == 0) return a;  // unspecified
  return std::is_signed_v<decltype(a)> && b == static_cast<decltype(a)>(-1) ? 0 : a % b;
};

// 9.7.3.11-12: the number if only one is NaN, and -0 is less than 0.
constexpr auto smaller = [](auto a, auto b) -> decltype(a) {
  if constexpr (std::is_floating_point_v<decltype(a)>) {
    const bool takes_a = b != b || (a == b ? std::signbit(a) : a < b);
    return canonical(takes_a ? a : b);
  } else {
    return std::min(a, b);
  }
};
constexpr auto larger = [](auto a, auto b) -> decltype(a) {
  if constexpr (std::is_floating_point_v<decltype(a)>) {
    const bool takes_a = b != b || (a == b ? std::signbit(b) : a > b);
    return canonical(takes_a ? a : b);
  } else {
    return std::max(a, b);
  }
};
constexpr auto larger_or_nan = [](float a, float b) {
  return a != a || b != b ? std::bit_cast<float>(kNaN) : larger(a, b);
};

// Applies a function to the low and the high halves of two words.
template <auto kFunction>
constexpr auto on_halves =
    [](uint32_t a, uint32_t b) { return kFunction(a >> 16, b >> 16) << 16 | kFunction(a & 0xffffu, b & 0xffffu); };

constexpr auto sum = [](float a, float b) { return canonical(a + b); };
constexpr auto difference = [](float a, float b) { return canonical(a - b); };
constexpr auto product = [](float a, float b) { return canonical(a * b); };

// Applies a function to the low and the high floats of two double words.
template <auto kFunction>
constexpr auto on_floats = [](uint64_t a, uint64_t b) {
  const auto at = [&](int bit) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(a >> bit));
    const float y = std::bit_cast<float>(static_cast<uint32_t>(b >> bit));
    return uint64_t{std::bit_cast<uint32_t>(kFunction(x, y))} << bit;
  };
  return at(32) | at(0);
};

template <float (*kWiden)(uint16_t)>
constexpr auto larger_half_or_nan = [](uint32_t a, uint32_t b) {
  const float x = kWiden(static_cast<uint16_t>(a)), y = kWiden(static_cast<uint16_t>(b));
  if (x != x || y != y) return kHalfNaN;
  return (x == y ? std::signbit(y) : x > y) ? a : b;
};

// 9.7.8.7-8: a shift by more than the width is a shift by the width.
constexpr auto shift_left = [](auto a, uint32_t count) -> decltype(a) {
  return count >= 8 * sizeof(a) ? 0 : static_cast<decltype(a)>(a << count);
};
constexpr auto shift_right = [](auto a, uint32_t count) -> decltype(a) {
  constexpr uint32_t kBits = 8 * sizeof(a);
  if constexpr (std::is_signed_v<decltype(a)>) return static_cast<decltype(a)>(a >> std::min(count, kBits - 1));
  return count >= kBits ? 0 : static_cast<decltype(a)>(a >> count);
};

// 9.7.8.9 shf: a 64-bit value, {b, a}, shifted.
constexpr auto funnel_left = [](uint32_t a, uint32_t b, uint32_t c) {
  return static_cast<uint32_t>((uint64_t{b} << 32 | a) << (c & 31) >> 32);
};

// 9.7.1.18 bfe: `length` bits from `position` on; signed types extend the topmost.
constexpr auto extract_bits = [](auto a, uint32_t b, uint32_t c) -> decltype(a) {
  constexpr uint32_t kBits = 8 * sizeof(a);
  const uint32_t position = b & 255, length = c & 255;
  using Unsigned = std::make_unsigned_t<decltype(a)>;
  const uint32_t sign_at = std::min(position + length - 1, kBits - 1);
  const bool is_negative = std::is_signed_v<decltype(a)> && length > 0 && (static_cast<Unsigned>(a) >> sign_at & 1u);
  Unsigned result = is_negative ? static_cast<Unsigned>(-1) : 0;
  for (uint32_t i = 0; i < length && position + i < kBits && i < kBits; ++i) {
    const Unsigned bit = Unsigned{1} << i;
    result = (result & ~bit) | ((static_cast<Unsigned>(a) >> (position + i) & 1u) << i);
  }
  return static_cast<decltype(a)>(result);
};

// 9.7.1.19 bfi: the low `length` bits of a, put into b from `position` on.
constexpr auto insert_bits = [](auto a, auto b, uint32_t c, uint32_t d) -> decltype(a) {
  constexpr uint32_t kBits = 8 * sizeof(a);
  const uint32_t position = c & 255, length = std::min(d & 255, kBits);
  if (position >= kBits || length == 0) return b;
  const decltype(a) ones = length == kBits ? ~decltype(a){0} : (decltype(a){1} << length) - 1;
  return (b & ~(ones << position)) | ((a & ones) << position);
};

// 9.7.8.10 prmt: four bytes chosen from {b, a}, or copies of their signs.
constexpr auto permute = [](uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> (4 * i), byte = bytes >> (8 * (selector & 7)) & 255;
    result |= (selector & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
  }
  return result;
};

constexpr auto reverse_bits = [](uint32_t a) {
  a = (a & 0x55555555u) << 1 | (a >> 1 & 0x55555555u);
  a = (a & 0x33333333u) << 2 | (a >> 2 & 0x33333333u);
  a = (a & 0x0f0f0f0fu) << 4 | (a >> 4 & 0x0f0f0f0fu);
  return __builtin_bswap32(a);
};

// 9.7.9.22 cvt.rzi: towards zero, the nearest integer if out of range; NaN is 0 in 32
// bits and the smallest integer in 64.
template <class To>
constexpr auto truncate = [](float a) -> To {
  using Limits = std::numeric_limits<To>;
  if (a != a) return sizeof(To) == 8 ? static_cast<To>(uint64_t{1} << 63) : 0;
  if (a >= static_cast<float>(Limits::max())) return Limits::max();  // rounded up to 2^63 and the like
  return a <= static_cast<float>(Limits::min()) ? Limits::min() : static_cast<To>(a);
};

// -- the table

class Builder {
 public:
  explicit Builder(Table& table) : table_(table) {}

  // A form with one type for operands and result.
  template <class Function, class... Ts>
  void unary(std::string form, Function, Type<Ts>... types) {
    (mixed<Ts, Ts>(with_type(form, types.name), Function{}), ...);
  }
  template <class Function, class... Ts>
  void binary(std::string form, Function, Type<Ts>... types) {
    (mixed<Ts, Ts, Ts>(with_type(form, types.name), Function{}), ...);
  }
  // A function of two inputs or, folded from the left, of three.
  template <class Function, class... Ts>
  void fold(std::string form, Function function, Type<Ts>... types) {
    binary(form, function, types...);
    (take_third<Function, Ts>(table_[with_type(form, types.name)]), ...);
  }
  template <class Function, class... Ts>
  void ternary(std::string form, Function, Type<Ts>... types) {
    (mixed<Ts, Ts, Ts, Ts>(with_type(form, types.name), Function{}), ...);
  }
  template <class Function, class... Ts>
  void shift(std::string form, Function, Type<Ts>... types) {
    (mixed<Ts, Ts, uint32_t>(with_type(form, types.name), Function{}), ...);
  }
  // A form whose types differ: the result's, then the operands'.
  template <class To, class... From, class Function>
  void mixed(std::string form, Function) {
    add(form, map_lanes<Function, To, From...>);
    table_[form].fewest_operands = table_[form].most_operands = 1 + sizeof...(From);
  }
  template <class Function, class... Ts>
  void compare(std::string form, Function, Type<Ts>... types) {
    (add(with_type(form, types.name), compare_lanes<Function, Ts>), ...);
  }
  template <class To, class... From>
  void convert(std::string to, Type<To>, Type<From>... types) {
    (mixed<To, From>("cvt." + to + "." + std::string(types.name), [](From a) { return To(a); }), ...);
  }
  template <class Function, class... Ts>
  void reduction(std::string form, Function, Type<Ts>... types) {
    (warp_wide(with_type(form, types.name), reduce<Function, Ts>, Propagation::kVote), ...);
  }
  template <class Function>
  void predicates(std::string form, Function, Propagation propagation = Propagation::kMerge) {
    add(form, map_predicates<Function>, propagation);
  }
  void warp_wide(std::string form, Execute execute, Propagation propagation, Access access = {}) {
    table_[form] = {execute, Flow::kWarpWide, propagation, access};
  }
  void flow(std::string form, Flow flow, Execute execute = do_nothing) {
    table_[form] = {execute, flow, Propagation::kNone, {}};
  }
  void add(std::string form, Execute execute, Propagation propagation = Propagation::kMerge) {
    table_[form] = {execute, Flow::kNext, propagation, {}};
  }

 private:
  template <class Function, class T>
  static void take_third(Form& form) {
    constexpr auto of_three = [](T a, T b, T c) { return Function{}(Function{}(a, b), c); };
    form.execute = [](Warp& warp, const Instruction& instruction, Mask lanes) {
      const auto map =
          instruction.operands.size() == 4 ? map_lanes<decltype(of_three), T, T, T, T> : map_lanes<Function, T, T, T>;
      map(warp, instruction, lanes);
    };
    form.most_operands = 4;
  }

  Table& table_;
};

Table make_table() {
  Table table;
  Builder t(table);

  // 9.7.1 integer arithmetic
  t.binary("add.*", [](auto a, auto b) { return decltype(a)(a + b); }, s16, u16, s32, u32, s64, u64);
  t.binary("sub.*", [](auto a, auto b) { return decltype(a)(a - b); }, s16, u16, s32, u32, s64, u64);
  t.binary(
      "mul.lo.*", [](auto a, auto b) { return decltype(a)(uint64_t(a) * uint64_t(b)); }, s16, u16, s32, u32, s64, u64);
  t.binary("mul.hi.*", [](auto a, auto b) { return decltype(a)(uint64_t(int64_t(a) * int64_t(b)) >> 32); }, s32, u32);
  t.mixed<uint32_t, uint16_t, uint16_t>("mul.wide.u16", [](uint32_t a, uint32_t b) { return a * b; });
  t.mixed<int64_t, int32_t, int32_t>("mul.wide.s32", [](int64_t a, int64_t b) { return a * b; });
  t.mixed<uint64_t, uint32_t, uint32_t>("mul.wide.u32", [](uint64_t a, uint64_t b) { return a * b; });
  t.ternary("mad.lo.*", [](auto a, auto b, auto c) { return decltype(a)(a * b + c); }, s32, u32, s64, u64);
  t.mixed<int64_t, int32_t, int32_t, int64_t>("mad.wide.s32",
                                              [](int64_t a, int64_t b, int64_t c) { return a * b + c; });
  t.mixed<uint64_t, uint32_t, uint32_t, uint64_t>("mad.wide.u32",
                                                  [](uint64_t a, uint64_t b, uint64_t c) { return a * b + c; });
  t.binary("div.*", divide, s16, u16, s32, u32, s64, u64);
  t.binary("rem.*", remainder, s16, u16, s32, u32, s64, u64);
  t.unary("neg.*", [](auto a) { return decltype(a)(-a); }, s16, s32, s64);
  t.binary("min.*", smaller, s16, u16, s32, u32, s64, u64);
  t.binary("max.*", larger, s16, u16, s32, u32, s64, u64);
  t.binary("min.*", on_halves<smaller>, Type<uint32_t>{"u16x2"});
  t.unary("popc.*", [](uint32_t a) { return uint32_t(std::popcount(a)); }, b32);
  t.unary("brev.*", reverse_bits, b32);
  t.unary("bfind.shiftamt.*", [](uint32_t a) { return a == 0 ? ~0u : uint32_t(std::countl_zero(a)); }, u32);
  t.mixed<uint32_t, uint32_t, uint32_t, uint32_t>("bfe.u32", extract_bits);
  t.mixed<int32_t, int32_t, uint32_t, uint32_t>("bfe.s32", extract_bits);
  t.mixed<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>("bfi.b32", insert_bits);
  t.mixed<uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>("bfi.b64", insert_bits);

  // 9.7.3 float arithmetic
  t.binary("add.rn.*", sum, f32);
  t.binary("sub.rn.*", difference, f32);
  t.binary("mul.rn.*", product, f32);
  t.binary("add.rn.*", on_floats<sum>, Type<uint64_t>{"f32x2"});
  t.binary("sub.rn.*", on_floats<difference>, Type<uint64_t>{"f32x2"});
  t.binary("mul.rn.*", on_floats<product>, Type<uint64_t>{"f32x2"});
  t.binary("div.rn.*", divide, f32);
  t.unary("rcp.rn.*", [](float a) { return canonical(1.0f / a); }, f32);
  t.unary("neg.*", [](float a) { return -a; }, f32);
  t.unary("abs.*", [](float a) { return std::fabs(a); }, f32);
  t.fold("min.*", smaller, f32);
  t.fold("max.*", larger, f32);
  t.fold("max.NaN.*", larger_or_nan, f32);
  t.binary("max.NaN.*", on_halves<larger_half_or_nan<float_of_half>>, Type<uint32_t>{"f16x2"});
  t.binary("max.NaN.*", on_halves<larger_half_or_nan<float_of_bfloat16>>, Type<uint32_t>{"bf16x2"});

  // 9.7.6 comparison and selection; a comparison with NaN is false, or true if it ends in u
  t.compare("setp.eq.*", [](auto a, auto b) { return a == b; }, b16, b32, b64, s16, u16, s32, u32, s64, u64, f32);
  t.compare(
      "setp.ne.*", [](auto a, auto b) { return a < b || a > b; }, b16, b32, b64, s16, u16, s32, u32, s64, u64, f32);
  t.compare("setp.lt.*", [](auto a, auto b) { return a < b; }, s16, u16, s32, u32, s64, u64, f32);
  t.compare("setp.le.*", [](auto a, auto b) { return a <= b; }, s16, u16, s32, u32, s64, u64, f32);
  t.compare("setp.gt.*", [](auto a, auto b) { return a > b; }, s16, u16, s32, u32, s64, u64, f32);
  t.compare("setp.ge.*", [](auto a, auto b) { return a >= b; }, s16, u16, s32, u32, s64, u64, f32);
  t.compare("setp.equ.*", [](float a, float b) { return !(a < b || a > b); }, f32);
  t.compare("setp.neu.*", [](float a, float b) { return !(a == b); }, f32);
  t.compare("setp.ltu.*", [](float a, float b) { return !(a >= b); }, f32);
  t.compare("setp.leu.*", [](float a, float b) { return !(a > b); }, f32);
  t.compare("setp.gtu.*", [](float a, float b) { return !(a <= b); }, f32);
  t.compare("setp.geu.*", [](float a, float b) { return !(a < b); }, f32);
  t.compare("setp.num.*", [](float a, float b) { return a == a && b == b; }, f32);
  t.compare("setp.nan.*", [](float a, float b) { return a != a || b != b; }, f32);
  for (const char* type : {"b16", "u16", "s16", "b32", "u32", "s32", "f32"}) {
    t.add(with_type("selp.*", type), select_lanes<uint32_t>, Propagation::kSelect);
  }
  for (const char* type : {"b64", "u64", "s64"})
    t.add(with_type("selp.*", type), select_lanes<uint64_t>, Propagation::kSelect);

  // 9.7.8 logic and shifts
  t.binary("and.*", [](auto a, auto b) { return decltype(a)(a & b); }, b16, b32, b64);
  t.binary("or.*", [](auto a, auto b) { return decltype(a)(a | b); }, b16, b32, b64);
  t.binary("xor.*", [](auto a, auto b) { return decltype(a)(a ^ b); }, b16, b32, b64);
  t.unary("not.*", [](auto a) { return decltype(a)(~a); }, b16, b32, b64);
  t.predicates("and.pred", [](Mask a, Mask b) { return a & b; }, Propagation::kAnd);
  t.predicates("or.pred", [](Mask a, Mask b) { return a | b; }, Propagation::kOr);
  t.predicates("xor.pred", [](Mask a, Mask b) { return a ^ b; });
  t.predicates("not.pred", [](Mask a, Mask) { return ~a; });
  t.shift("shl.*", shift_left, b16, b32, b64);
  t.shift("shr.*", shift_right, u16, b16, s16, u32, b32, s32, u64, b64, s64);
  t.ternary("shf.l.wrap.*", funnel_left, b32);
  t.ternary("prmt.*", permute, b32);

  // 9.7.9 moves and conversions
  t.predicates("mov.pred", [](Mask a, Mask) { return a; });
  for (const char* type : {"b16", "u16", "s16"}) t.add(with_type("mov.*", type), move<uint16_t>);
  for (const char* type : {"b32", "u32", "s32", "f32"}) t.add(with_type("mov.*", type), move<uint32_t>);
  for (const char* type : {"b64", "u64", "s64"}) t.add(with_type("mov.*", type), move<uint64_t>);
  t.add("mov.u64 %globaltimer", read_clock, Propagation::kNone);
  t.convert("u16", u16, u32, u64, s32);
  t.convert("s16", s16, s8);
  t.convert("u32", u32, u16, u64, s64);
  t.convert("s32", s32, s8, s16, s64);
  t.convert("u64", u64, u16, u32);
  t.convert("s64", s64, s8, s16, s32);
  t.convert("rn.f32", f32, s32, u32, s64, u64);
  t.mixed<float, uint16_t>("cvt.f32.f16", [](uint16_t a) { return float_of_half(a); });
  t.mixed<float, uint16_t>("cvt.f32.bf16", [](uint16_t a) { return float_of_bfloat16(a); });
  t.mixed<int32_t, float>("cvt.rzi.s32.f32", truncate<int32_t>);
  t.mixed<uint32_t, float>("cvt.rzi.u32.f32", truncate<uint32_t>);
  t.mixed<int64_t, float>("cvt.rzi.s64.f32", truncate<int64_t>);
  t.unary("cvta.to.global.*", [](uint64_t a) { return a; }, u64);
  t.add("cvta.shared.u64", convert_shared_to_generic);
  t.add("mapa.u64", map_shared_rank);

  // 9.7.9.6 and 9.7.13 between the lanes of a warp
  t.warp_wide("shfl.sync.idx.b32", shuffle<Shuffle::kIndex>, Propagation::kShuffle);
  t.warp_wide("shfl.sync.up.b32", shuffle<Shuffle::kUp>, Propagation::kShuffle);
  t.warp_wide("shfl.sync.bfly.b32", shuffle<Shuffle::kButterfly>, Propagation::kShuffle);
  t.warp_wide("vote.sync.any.pred", vote<false>, Propagation::kVote);
  t.warp_wide("vote.sync.all.pred", vote<true>, Propagation::kVote);
  t.warp_wide("vote.sync.ballot.b32", ballot, Propagation::kVote);
  t.reduction("redux.sync.add.*", [](auto a, auto b) { return a + b; }, s32, u32);
  t.reduction("redux.sync.min.*", smaller, s32, u32, f32);
  t.reduction("redux.sync.max.*", larger, s32, u32, f32);
  t.reduction("redux.sync.max.NaN.*", larger_or_nan, f32);
  const Access row_of_matrix{.space = Space::kShared, .bytes = 2, .count = 8, .reads = true};
  for (const char* count : {"x1", "x2", "x4"}) {
    const std::string form = with_type("ldmatrix.sync.aligned.m8n8.*.shared.b16", count);
    t.warp_wide(form, load_matrix, Propagation::kLoad, row_of_matrix);
  }

  // 9.7.13 barriers and fences
  t.flow("bar.sync", Flow::kBlockBarrier);
  t.flow("barrier.cluster.arrive", Flow::kClusterArrive);
  t.flow("barrier.cluster.arrive.aligned", Flow::kClusterArrive);
  t.flow("barrier.cluster.wait", Flow::kClusterWait);
  t.flow("barrier.cluster.wait.aligned", Flow::kClusterWait);
  t.add("membar.cta", fence<Scope::kBlock>, Propagation::kNone);
  t.add("membar.gl", fence<Scope::kDevice>, Propagation::kNone);
  t.add("membar.sys", fence<Scope::kSystem>, Propagation::kNone);
  t.add("fence.proxy.alias", do_nothing, Propagation::kNone);

  // 9.7.12 control flow, 9.7.20 miscellaneous
  t.flow("bra", Flow::kBranch);
  t.flow("bra.uni", Flow::kBranch);
  t.flow("ret", Flow::kExit);
  t.flow("exit", Flow::kExit);
  t.flow("nanosleep.u32", Flow::kSleep);
  t.add("trap", trap, Propagation::kNone);
  return table;
}

const Table& table() {
  static const Table made = make_table();
  return made;
}

}  // namespace

Form form_of(const std::string& opcode) {
  if (const auto found = table().find(opcode); found != table().end()) return found->second;
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', begin), opcode.size());
    parts.push_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  const Form form = memory_form(parts[0], {parts.begin() + 1, parts.end()});
  if (form.execute == nullptr) throw Fault("no such instruction: " + opcode);
  return form;
}

std::vector<std::string> form_names() {
  std::vector<std::string> names;
  for (const auto& [name, form] : table()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace structout::ptx_vm
