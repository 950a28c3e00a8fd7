"""The machine that executes PTX: every form of every instruction on values that Python
computes by itself, and what it refuses."""

from __future__ import annotations

import ctypes
import itertools
import math
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from ptx_machine import Module, PtxError, forms

LANES = 32
WIDTH = {"pred": 1, "b8": 8, "s8": 8, "u8": 8, "b16": 16, "u16": 16, "s16": 16, "b32": 32, "u32": 32, "s32": 32,
         "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f16": 16, "bf16": 16, "u16x2": 32, "f16x2": 32, "bf16x2": 32}  # fmt: skip
NAN = 0x7FFFFFFF


def kernel_text(body: str, parameters: int = 1, shared: str = "") -> str:
    """Write a kernel that has all registers which the tests use."""
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    registers = ".reg .pred %p<8>;\n.reg .b16 %h<16>;\n.reg .b32 %r<32>;\n.reg .b64 %d<32>;\n"
    return f".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry test({listed})\n{{\n{registers}{shared}\n{body}\nret;\n}}\n"


def register(width: int, number: int) -> str:
    return {1: "%p", 16: "%h", 8: "%r", 32: "%r", 64: "%d"}[width] + str(number)


def run_form(form: str, types: Sequence[str], result: str, inputs: Sequence[Sequence[int]]) -> list[int]:
    """Execute ``form`` on each lane's inputs, which are bits of the types, and return
    the lanes' results."""
    body = [
        "ld.param.u64 %d20, [p0];",
        "mov.u32 %r20, %tid.x;",
        "mul.wide.u32 %d21, %r20, 64;",
        "add.s64 %d22, %d20, %d21;",
    ]
    names = []
    for i, kind in enumerate(types):
        body.append(f"ld.global.u64 %d{i + 10}, [%d22+{8 * i}];")
        name = register(WIDTH[kind], i + 1)
        names.append(name)
        if kind == "pred":
            body.append(f"setp.ne.s64 {name}, %d{i + 10}, 0;")
        elif WIDTH[kind] < 64:
            body.append(f"cvt.u{max(16, WIDTH[kind]) if WIDTH[kind] != 8 else 32}.u64 {name}, %d{i + 10};")
        else:
            body.append(f"mov.u64 {name}, %d{i + 10};")
    to = register(WIDTH[result], 0)
    body.append(f"{form} {to}, {', '.join(names)};")
    if result == "pred":
        body.append(f"selp.b64 %d9, 1, 0, {to};")
    elif WIDTH[result] < 64:
        body.append(f"cvt.u64.u{max(16, WIDTH[result]) if WIDTH[result] != 8 else 32} %d9, {to};")
    else:
        body.append(f"mov.u64 %d9, {to};")
    body.append("st.global.u64 [%d22+56], %d9;")
    memory = (ctypes.c_uint64 * (8 * LANES))()
    for lane, values in enumerate(inputs):
        memory[8 * lane : 8 * lane + len(values)] = values
    Module(kernel_text("\n".join(body))).launch("test", [ctypes.c_uint64(ctypes.addressof(memory))], undefined=1)
    return [memory[8 * lane + 7] for lane in range(len(inputs))]


def signed(bits: int, width: int) -> int:
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> (width - 1) else bits


def value_of(bits: int, kind: str) -> int:
    return signed(bits, WIDTH[kind]) if kind[0] == "s" else bits & ((1 << WIDTH[kind]) - 1)


def float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def bits_of(x: float | Fraction) -> int:
    """Round to float32 once, from an exact value."""
    if isinstance(x, float):
        return NAN if x != x else struct.unpack("<I", struct.pack("<f", x))[0]
    if x == 0:
        return 0
    negative, x = x < 0, abs(x)
    exponent = max(-126, x.numerator.bit_length() - x.denominator.bit_length())
    exponent -= exponent > -126 and x < Fraction(2) ** exponent
    scaled = x / Fraction(2) ** (exponent - 23)
    whole = round(scaled)  # to the nearest, ties to even
    if whole == 1 << 24:
        exponent, whole = exponent + 1, whole >> 1
    if exponent > 127:
        return negative << 31 | 0x7F800000
    return negative << 31 | (whole if whole < 1 << 23 else (exponent + 127) << 23 | whole & 0x7FFFFF)


EDGES = {
    "f32": [0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 1, 0x80000001,
            0x00800000, 0x7F7FFFFF, 0x40490FDB, 0x33800000, 0x4F000000, 0xCF000000, 0x5F000000, 0xDF000000],
    "f16": [0, 0x8000, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 1, 0x8001, 0x7BFF, 0x0400],
    "bf16": [0, 0x8000, 0x3F80, 0x7F80, 0xFF80, 0x7FC0, 1, 0x7F7F],
}  # fmt: skip


def random_bits(rng: random.Random, kind: str) -> int:
    if kind in ("f16x2", "bf16x2"):
        return random_bits(rng, kind[:-2]) << 16 | random_bits(rng, kind[:-2])
    if kind in EDGES and rng.random() < 0.4:
        return rng.choice(EDGES[kind])
    width = WIDTH[kind]
    ends = [0, 1, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1, rng.randrange(1 << min(6, width))]
    return rng.choice([rng.getrandbits(width), rng.getrandbits(width), rng.choice(ends)]) & ((1 << width) - 1)


def float_operation(operation: Callable[[Fraction, Fraction], Fraction], special: Callable[[float, float], float]):
    def compute(a: int, b: int) -> int:
        x, y = float_of(a), float_of(b)
        ordinary = math.isfinite(x) and math.isfinite(y) and not (x == 0 or y == 0)
        if ordinary and (exact := operation(Fraction(x), Fraction(y))) != 0:
            return bits_of(exact)
        return bits_of(special(x, y))

    return compute


def ieee_quotient(x: float, y: float) -> float:
    if y != 0 or x != x:
        return x / y if not (math.isinf(x) and math.isinf(y)) and y != 0 else math.nan
    return math.nan if x == 0 else math.copysign(math.inf, x) * math.copysign(1, y)


def extreme(kind: str, takes_larger: bool, is_nan_wanted: bool) -> Callable[[int, int], int]:
    def compute(a: int, b: int) -> int:
        if kind != "f32":
            pick = max if takes_larger else min
            return pick(value_of(a, kind), value_of(b, kind))
        x, y = float_of(a), float_of(b)
        if x != x or y != y:
            return NAN if is_nan_wanted or (x != x and y != y) else (b if x != x else a)
        key_a, key_b = (x, -(a >> 31)), (y, -(b >> 31))  # -0 < 0
        return a if (key_a > key_b) == takes_larger else b

    return compute


def on_halves(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda a, b: function(a >> 16, b >> 16) << 16 | function(a & 0xFFFF, b & 0xFFFF)


def half_value(bits: int, kind: str) -> float:
    return float_of(bits << 16) if kind == "bf16" else struct.unpack("<e", struct.pack("<H", bits))[0]


def larger_half(kind: str) -> Callable[[int, int], int]:
    def compute(a: int, b: int) -> int:
        x, y = half_value(a, kind), half_value(b, kind)
        if x != x or y != y:
            return 0x7FFF
        return a if (x, -(a >> 15)) > (y, -(b >> 15)) else b

    return compute


def truncated(kind: str) -> Callable[[int], int]:
    width = WIDTH[kind]
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)

    def compute(a: int) -> int:
        x = float_of(a)
        if x != x:
            return 1 << 63 if width == 64 else 0
        return high if x >= high else low if x <= low else math.trunc(x)

    return compute


def extracted(kind: str) -> Callable[[int, int, int], int]:
    def compute(a: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        topmost = kind[0] == "s" and length > 0 and a >> min(position + length - 1, 31) & 1
        bits = [a >> (position + i) & 1 if i < length and position + i < 32 else topmost for i in range(32)]
        return sum(bit << i for i, bit in enumerate(bits))

    return compute


def inserted(width: int) -> Callable[[int, int, int, int], int]:
    def compute(a: int, b: int, position: int, length: int) -> int:
        for i in range(length & 255):
            at = (position & 255) + i
            if at < width:
                b = b & ~(1 << at) | (a >> i & 1) << at
        return b

    return compute


def permuted(a: int, b: int, selectors: int) -> int:
    chosen = []
    for i in range(4):
        selector = selectors >> 4 * i & 15
        byte = (b << 32 | a) >> 8 * (selector & 7) & 255
        chosen.append((255 if byte & 128 else 0) if selector & 8 else byte)
    return int.from_bytes(bytes(chosen), "little")


def meaning(form: str) -> tuple[list[str], str, Callable[..., int]] | None:
    """Return the types of a form's operands, of its result, and its meaning on bits."""
    opcode, *modifiers = form.split(".")
    kind = modifiers[-1] if modifiers else ""
    if kind not in WIDTH:
        return None
    if opcode == "setp":
        names = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

        def compare(a: int, b: int) -> int:
            x, y = (float_of(a), float_of(b)) if kind == "f32" else (value_of(a, kind), value_of(b, kind))
            is_unordered = x != x or y != y
            test = modifiers[0]
            if test in ("num", "nan"):
                return is_unordered == (test == "nan")
            if is_unordered:
                return test.endswith("u")
            return eval(f"x {names[test[:2]]} y", {"x": x, "y": y})

        return [kind, kind], "pred", compare
    if opcode == "cvt":
        source, target = kind, modifiers[-2]
        if modifiers[0] == "rzi":
            return [source], target, truncated(target)
        if source in ("f16", "bf16"):
            return [source], target, lambda a: bits_of(half_value(a, source))
        if target == "f32":
            return [source], target, lambda a: bits_of(Fraction(value_of(a, source)))
        return [source], target, lambda a: value_of(a, source)
    if opcode in ("mul", "mad") and modifiers[0] == "wide":
        wide = f"{kind[0]}{2 * WIDTH[kind]}"
        if opcode == "mul":
            return [kind, kind], wide, lambda a, b: value_of(a, kind) * value_of(b, kind)
        return [kind, kind, wide], wide, lambda a, b, c: value_of(a, kind) * value_of(b, kind) + c
    v = lambda bits: value_of(bits, kind)  # noqa: E731
    width = WIDTH[kind]
    shift = {"shl": lambda a, n: a << n if n < 64 else 0, "shr": lambda a, n: v(a) >> min(n, 64)}
    if opcode in shift:
        return [kind, "u32"], kind, shift[opcode]
    if opcode == "selp":
        return [kind, kind, "pred"], kind, lambda a, b, p: a if p else b
    if opcode == "shf":

        def funnel(a: int, b: int, c: int) -> int:
            count = c & 31 if modifiers[1] == "wrap" else min(c, 32)
            both = b << 32 | a
            return both << count >> 32 if modifiers[0] == "l" else both >> count

        return ["b32", "b32", "u32"], "b32", funnel
    if opcode in ("bfe", "bfi"):
        counts = ["u32", "u32"]
        return (
            ([kind, *counts], kind, extracted(kind))
            if opcode == "bfe"
            else ([kind, kind, *counts], kind, inserted(width))
        )
    if kind == "f32":
        binary = {
            "add": float_operation(lambda x, y: x + y, lambda x, y: x + y),
            "sub": float_operation(lambda x, y: x - y, lambda x, y: x - y),
            "mul": float_operation(lambda x, y: x * y, lambda x, y: x * y),
            "div": float_operation(lambda x, y: x / y, ieee_quotient),
            "min": extreme(kind, False, False),
            "max": extreme(kind, True, "NaN" in modifiers),
        }
        if opcode in binary:
            return [kind, kind], kind, binary[opcode]
        unary = {"neg": lambda a: a ^ 1 << 31, "abs": lambda a: a & ~(1 << 31), "mov": lambda a: a,
                 "rcp": lambda a: binary["div"](0x3F800000, a)}  # fmt: skip
        return ([kind], kind, unary[opcode]) if opcode in unary else None
    if kind in ("f16x2", "bf16x2"):
        return [kind, kind], kind, on_halves(larger_half(kind[:-2]))
    if kind == "u16x2":
        return [kind, kind], kind, on_halves(min)
    one = {"neg": lambda a: -v(a), "not": lambda a: ~a, "mov": lambda a: a, "popc": lambda a: a.bit_count(),
           "brev": lambda a: int(f"{a:032b}"[::-1], 2), "cvta": lambda a: a,
           "bfind": lambda a: 0xFFFFFFFF if a == 0 else 32 - a.bit_length()}  # fmt: skip
    if opcode in one:
        return (
            (["pred"], "pred", lambda a: not a if opcode == "not" else a)
            if kind == "pred"
            else ([kind], kind, one[opcode])
        )
    two = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "min": lambda a, b: min(v(a), v(b)), "max": lambda a, b: max(v(a), v(b)),
        "mul": lambda a, b: v(a) * v(b) >> (width if modifiers[0] == "hi" else 0),
        "div": lambda a, b: abs(v(a)) // abs(v(b)) * (-1 if (v(a) < 0) != (v(b) < 0) else 1) if v(b) else -1,
        "rem": lambda a, b: abs(v(a)) % abs(v(b)) * (-1 if v(a) < 0 else 1) if v(b) else a,
    }  # fmt: skip
    if opcode in two:
        return [kind, kind], kind, two[opcode]
    if opcode == "mad":
        return [kind] * 3, kind, lambda a, b, c: v(a) * v(b) + v(c)
    return ([kind] * 3, kind, permuted) if opcode == "prmt" else None


LANE_FORMS = [form for form in forms() if "sync" not in form and "shared" not in form and meaning(form)]
OTHER_FORMS = {
    *(f"shfl.sync.{mode}.b32" for mode in ("idx", "up", "down", "bfly")),
    *("vote.sync.any.pred", "vote.sync.all.pred", "vote.sync.ballot.b32", "bar.warp.sync"),
    *(f"redux.sync.{function}.{kind}" for function in ("add", "min", "max") for kind in ("s32", "u32")),
    *("cvta.shared.u64", "cvta.to.shared.u64", "mapa.u64", "mov.u64", "%globaltimer"),
    *("bar.sync", "barrier.cluster.arrive", "barrier.cluster.wait"),
    *(f"{opcode}matrix.sync.aligned.m8n8.x{count}{order}.shared.b16" for opcode in ("ld", "st") for count in (1, 2, 4) for order in ("", ".trans")),
    *("barrier.cluster.arrive.aligned", "barrier.cluster.wait.aligned"),
    *("membar.cta", "membar.gl", "membar.sys", "fence.proxy.alias"),
    *("bra", "bra.uni", "ret", "exit", "nanosleep.u32", "trap"),
}


def test_every_form_of_the_table_has_a_test():
    assert set(forms()) == set(LANE_FORMS) | OTHER_FORMS


@pytest.mark.parametrize("form", LANE_FORMS)
def test_form_on_random_and_extreme_values_equals_its_meaning(form):
    types, result, compute = meaning(form)
    rng = random.Random(form)
    for _ in range(8):
        inputs = [[random_bits(rng, kind) for kind in types] for _ in range(LANES)]
        mask = (1 << WIDTH[result]) - 1
        for values, got in zip(inputs, run_form(form, types, result, inputs), strict=True):
            wanted = int(compute(*values)) & mask
            is_nan = result == "f32" and float_of(wanted) != float_of(wanted) and float_of(got) != float_of(got)
            assert is_nan or got & mask == wanted, (form, [hex(value) for value in values], hex(got), hex(wanted))
