"""The machine that executes PTX: every form of every instruction on values that Python
computes by itself, and what it refuses."""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

from support.ptx_machine import Module, PtxError, forms

LANES = 32
WIDTH = {f"{kind}{width}": width for kind in "bsu" for width in (8, 16, 32, 64)}
WIDTH |= {"pred": 1, "f32": 32, "f16": 16, "bf16": 16, "u16x2": 32, "f16x2": 32, "bf16x2": 32, "f32x2": 64}
NAN = 0x7FFFFFFF


def kernel_text(body: str, parameters: int = 1, shared: str = "") -> str:
    """Write a kernel that has all registers which the tests use."""
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    registers = ".reg .pred %p<8>;\n.reg .b16 %h<16>;\n.reg .b32 %r<32>;\n.reg .b64 %d<32>;\n"
    header = ".version 9.0\n.target sm_90\n.address_size 64\n"
    return f"{header}.visible .entry test({listed})\n{{\n{registers}{shared}\n{body}\nret;\n}}\n"


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
    if kind in ("f16x2", "bf16x2", "f32x2"):
        return random_bits(rng, kind[:-2]) << WIDTH[kind] // 2 | random_bits(rng, kind[:-2])
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


def on_halves(function: Callable[[int, int], int], width: int = 16) -> Callable[[int, int], int]:
    """Apply ``function`` to the halves, of ``width`` bits each, of two integers."""
    low = (1 << width) - 1
    return lambda a, b: function(a >> width, b >> width) << width | function(a & low, b & low)


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

        def compare(a: int, b: int) -> int:
            x, y = (float_of(a), float_of(b)) if kind == "f32" else (value_of(a, kind), value_of(b, kind))
            is_unordered = x != x or y != y
            test = modifiers[0]
            if test in ("num", "nan"):
                return is_unordered == (test == "nan")
            if is_unordered:
                return test.endswith("u")
            return getattr(operator, test[:2])(x, y)

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
    v = functools.partial(value_of, kind=kind)
    width = WIDTH[kind]
    shift = {"shl": lambda a, n: a << n if n < 64 else 0, "shr": lambda a, n: v(a) >> min(n, 64)}
    if opcode in shift:
        return [kind, "u32"], kind, shift[opcode]
    if opcode == "selp":
        return [kind, kind, "pred"], kind, lambda a, b, p: a if p else b
    if opcode == "shf":
        return ["b32", "b32", "u32"], "b32", lambda a, b, c: (b << 32 | a) << (c & 31) >> 32
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
    if kind == "f32x2":
        of_one = meaning(form.removesuffix("x2"))
        assert of_one is not None
        return [kind, kind], kind, on_halves(of_one[2], 32)
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
    *(f"shfl.sync.{mode}.b32" for mode in ("idx", "up", "bfly")),
    *("vote.sync.any.pred", "vote.sync.all.pred", "vote.sync.ballot.b32"),
    *(f"redux.sync.{function}.{kind}" for function in ("add", "min", "max") for kind in ("s32", "u32")),
    *(f"redux.sync.{function}.f32" for function in ("min", "max", "max.NaN")),
    *("cvta.shared.u64", "mapa.u64", "mov.u64", "%globaltimer"),
    *("bar.sync", "barrier.cluster.arrive", "barrier.cluster.wait"),
    *(f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16" for count in (1, 2, 4)),
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


def run_kernel(
    body: str, values: Sequence[int] = (), *, results: int = LANES, shared: str = "", **options
) -> list[int]:
    """Run a kernel with a lane's 32-bit value in %r1, its lane in %r0 and a pointer to
    its 32-bit result in %d0."""
    begin = (
        "ld.param.u64 %d1, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 4; add.s64 %d0, %d1, %d2;\n"
        "ld.global.u32 %r1, [%d0];\n"
    )
    memory = (ctypes.c_uint32 * results)(*values)
    module = Module(kernel_text(begin + body, shared=shared))
    module.launch("test", [ctypes.c_uint64(ctypes.addressof(memory))], **options)
    return list(memory)


VALUES = [value * 2654435761 % (1 << 32) for value in range(1, LANES + 1)]


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The lane that a shuffle reads, by the pseudocode of the ISA."""
    segment, clamp = c >> 8 & 31, c & 31
    last, first = (lane & segment) | (clamp & ~segment), lane & segment
    source = {"up": lane - b, "bfly": lane ^ b, "idx": first | (b & ~segment & 31)}[mode]
    is_inside = source >= last if mode == "up" else source <= last
    return (source if is_inside else lane), is_inside


@pytest.mark.parametrize("mode", ["up", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 8])
def test_shuffle_reads_the_lane_of_the_isas_pseudocode(mode, width):
    for b in (0, 1, 5, 31):
        c = (32 - width) << 8 | (0 if mode == "up" else 31)
        body = f"""shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1; selp.b32 %r3, 1, 0, %p1;
xor.b32 %r2, %r2, %r3; st.global.u32 [%d0], %r2;"""
        expected = []
        for lane in range(LANES):
            source, is_inside = source_lane(mode, lane, b, c)
            expected.append(VALUES[source] ^ is_inside)
        assert run_kernel(body, VALUES, seed=b) == expected


@pytest.mark.parametrize("kind", ["s32", "u32"])
@pytest.mark.parametrize(("name", "function"), [("add", sum), ("min", min), ("max", max)])
def test_reduction_of_a_half_warp_equals_pythons(name, function, kind):
    body = f"""setp.lt.u32 %p1, %r0, 16; mov.u32 %r2, 7; @!%p1 bra END;
redux.sync.{name}.{kind} %r2, %r1, 65535;
END:
st.global.u32 [%d0], %r2;"""
    expected = function(value_of(value, kind) for value in VALUES[:16]) & 0xFFFFFFFF
    assert run_kernel(body, VALUES, seed=3) == [expected] * 16 + [7] * 16


@pytest.mark.parametrize("values", [VALUES, [*VALUES[:5], NAN, *VALUES[6:]], [NAN] * LANES], ids=["", "NaN", "all NaN"])
@pytest.mark.parametrize("function", ["min", "max", "max.NaN"])
def test_reduction_of_floats_is_the_function_of_two_from_lane_to_lane(function, values):
    _, _, compute = meaning(f"{function}.f32")
    body = f"redux.sync.{function}.f32 %r2, %r1, -1; st.global.u32 [%d0], %r2;"
    assert run_kernel(body, values) == [functools.reduce(compute, values)] * LANES


@pytest.mark.parametrize("function", ["min", "max", "max.NaN"])
def test_extreme_of_three_floats_is_that_of_the_first_two_and_the_third(function):
    _, _, compute = meaning(f"{function}.f32")
    rng = random.Random(function)
    for _ in range(8):
        values = [random_bits(rng, "f32") for _ in range(LANES)]
        second, third = random_bits(rng, "f32"), random_bits(rng, "f32")
        body = f"{function}.f32 %r2, %r1, {second}, {third}; st.global.u32 [%d0], %r2;"
        assert run_kernel(body, values) == [compute(compute(value, second), third) for value in values]


def test_operands_that_an_instruction_does_not_have_are_refused():
    for instruction in ("add.s32 %r2, %r1, %r1, %r1;", "neg.f32 %r2, %r1, %r1;", "mul.rn.f32 %r2, %r1;"):
        with pytest.raises(PtxError, match="no such number of operands"):
            run_kernel(instruction)


def test_votes_see_the_lanes_of_their_mask():
    body = """and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; vote.sync.ballot.b32 %r3, %p1, -1;
vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1; selp.b32 %r4, 1, 0, %p2; selp.b32 %r5, 2, 0, %p3;
xor.b32 %r3, %r3, %r4; xor.b32 %r3, %r3, %r5; st.global.u32 [%d0], %r3;"""
    ballot = sum((value & 1) << lane for lane, value in enumerate(VALUES))
    assert run_kernel(body, VALUES) == [ballot ^ 1] * LANES


def test_matrices_move_to_the_lanes_that_the_isa_names():
    """Two matrices; rows of 16 bytes follow one another in shared memory, so lane i
    gets the i-th word of each."""
    body = """shl.b32 %r4, %r0, 4; and.b32 %r4, %r4, 255; shl.b32 %r5, %r0, 3;
st.shared.v2.b32 [%r5], {%r1, %r0}; bar.sync 0; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2, %r3}, [%r4];
xor.b32 %r2, %r2, %r3; st.global.u32 [%d0], %r2;"""
    got = run_kernel(body, VALUES, shared=".shared .align 16 .b8 m[256];", undefined=1, races=1)
    words = [word for lane, value in enumerate(VALUES) for word in (value, lane)]
    assert got == [words[lane] ^ words[LANES + lane] for lane in range(LANES)]
    whole = "st.shared.v2.b32 [%r5], {%r1, %r0};"
    for at in (0, 2):  # of each word only two bytes are written
        halves = f"st.shared.b16 [%r5+{at}], 0; st.shared.b16 [%r5+{at + 4}], 0;"
        with pytest.raises(PtxError, match="undefined value stored"):
            run_kernel(body.replace(whole, halves), VALUES, shared=".shared .align 16 .b8 m[256];", undefined=1)


def test_cluster_reads_the_shared_memory_of_its_other_block():
    body = """st.shared.u32 [m], %r1; barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; mov.u32 %r4, m; cvt.u64.u32 %d3, %r4; cvta.shared.u64 %d3, %d3;
mapa.u64 %d4, %d3, %r3; ld.u32 %r5, [%d4]; add.s32 %r5, %r5, %r2;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %r6, %ctaid.x; mul.wide.u32 %d5, %r6, 4; add.s64 %d5, %d1, %d5; st.global.u32 [%d5], %r5;"""
    options = {"grid": (2, 1, 1), "block": (1, 1, 1), "cluster_blocks": 2, "shared": ".shared .align 4 .u32 m;"}
    assert run_kernel(body, [5], results=2, races=1, undefined=1, **options)[:2] == [5, 6]
    without_wait = body.replace("barrier.cluster.arrive; barrier.cluster.wait;", "")
    with pytest.raises(PtxError, match=r"data race|undefined"):
        run_kernel(without_wait, [5], results=2, races=1, undefined=1, **options)
    with pytest.raises(PtxError, match="mapa to block 3 of a cluster of 2"):
        run_kernel(body.replace("xor.b32 %r3, %r2, 1", "mov.u32 %r3, 3"), [5], results=2, **options)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_diverged_lanes_meet_again_and_each_runs_its_own_loop(seed):
    body = """and.b32 %r2, %r0, 7; mov.u32 %r3, 0;
LOOP:
setp.ge.u32 %p1, %r3, %r2; @%p1 bra.uni DONE;
add.s32 %r1, %r1, %r0; add.s32 %r3, %r3, 1; bra LOOP;
DONE:
bar.sync 0; st.global.u32 [%d0], %r1; exit;"""
    expected = [value + lane * (lane & 7) & 0xFFFFFFFF for lane, value in enumerate(VALUES)]
    assert run_kernel(body, VALUES, seed=seed) == expected


# Each is refused with what is wrong, the line and the instruction.
FAULTS = {
    "fadd.s32 %r1, %r1, %r1;": "no such instruction: fadd.s32",
    "add.sat.s32 %r1, %r1, %r1;": "no such instruction: add.sat.s32",
    "ld.global.weird.u32 %r1, [%d0];": "no such instruction: ld.global.weird.u32",
    "ld.acquire.global.u32 %r1, [%d0];": "no such instruction: ld.acquire.global.u32",
    "mov.u32 %r1, %smid;": "no such register: %smid",
    "bar.sync 1;": "only barrier 0",
    "add.s32 %r1, %r1, %r99;": "no such register: %r99",
    "bra NOWHERE;": "no label NOWHERE",
    "ld.global.u64 %d3, [%d0+4];": "misaligned access",
    "ld.shared.u32 %r1, [64];": "access past shared memory, at 64",
    "mov.u64 %d3, 8; ld.global.u32 %r1, [%d3];": "outside of global memory",
    "vote.sync.ballot.b32 %r2, 1, 255;": "is not in its mask 0x000000ff",
    "shfl.sync.idx.b32 %r2, %r1, 40, 8223, 65535;": "is not in its mask",
    "setp.eq.u32 %p1, %r0, 3; @%p1 bra A; bar.sync 0; bra B;\nA:\nbar.sync 0;\nB:\n": "different barriers",
    "barrier.cluster.arrive; barrier.cluster.arrive;": "arrives twice",
    "barrier.cluster.wait;": "deadlock",
    "trap;": "trap",
    "L:\nbra L;": "too many instructions",
    "st.shared.u32 [m], %r1; ld.shared.u32 %r2, [m+4]; st.global.u32 [%d0], %r2;": "undefined value stored",
    "ld.shared.u32 %r2, [m]; setp.eq.u32 %p1, %r2, 0; @%p1 bra A;\nA:\n": "undefined guard",
    "st.global.u32 [%d0], %r9;": "undefined value stored",
}


@pytest.mark.parametrize("body", FAULTS)
def test_machine_refuses_what_is_wrong_and_says_why(body):
    shared = ".shared .align 8 .b8 m[8];"
    with pytest.raises(PtxError) as refusal:
        run_kernel(body, VALUES, shared=shared, undefined=1, max_instructions=100_000)
    assert FAULTS[body] in str(refusal.value)
    assert "line " in str(refusal.value) or "label" in str(refusal.value) or "deadlock" in str(refusal.value)


@pytest.mark.parametrize(
    ("body", "is_race"),
    [
        ("st.shared.u32 [m], %r1; bar.sync 0; ld.shared.u32 %r2, [m];", True),  # of the stores
        ("setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [m], %r1; bar.sync 0; ld.shared.u32 %r2, [m];", False),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [m], %r1; ld.shared.u32 %r2, [m];", True),
        ("setp.eq.u32 %p1, %r0, 0; ld.shared.u32 %r2, [m]; @%p1 st.shared.u32 [m], %r1;", True),
        ("atom.shared.add.u32 %r2, [m], 1;", False),
        ("atom.shared.add.u32 %r2, [m], 1; ld.shared.u32 %r3, [m];", True),
        ("atom.shared.add.u32 %r2, [m], 1; ld.volatile.shared.u32 %r3, [m];", False),
    ],
)
@pytest.mark.parametrize("seed", [0, 5])
def test_races_between_warps_are_found_in_any_order(body, is_race, seed):
    def run() -> None:
        run_kernel(
            body, [1] * 64, results=64, block=(64, 1, 1), shared=".shared .align 8 .b8 m[8];", races=1, seed=seed
        )

    if is_race:
        with pytest.raises(PtxError, match="data race"):
            run()
    else:
        run()


def test_a_fence_and_a_flag_order_memory_between_blocks():
    """Block 0 stores and raises a flag; block 1 waits for it and reads."""
    body = """mov.u32 %r2, %ctaid.x; setp.ne.u32 %p1, %r2, 0; @%p1 bra WAIT;
st.global.u32 [%d1+4], %r1; FENCE_0 st.volatile.global.u32 [%d1+8], 1; ret;
WAIT:
nanosleep.u32 20; ld.volatile.global.u32 %r3, [%d1+8]; setp.eq.u32 %p2, %r3, 0; @%p2 bra WAIT;
FENCE_1 ld.global.u32 %r4, [%d1+4]; st.global.u32 [%d1+12], %r4;"""

    def run(first: str, second: str) -> list[int]:
        text = body.replace("FENCE_0", first).replace("FENCE_1", second)
        return run_kernel(text, [9], results=4, grid=(2, 1, 1), block=(1, 1, 1), races=1, seed=4)

    for fence in ("membar.gl;", "membar.sys;"):
        assert run(fence, fence)[3] == 9
    for fences in (("", "membar.gl;"), ("membar.gl;", "")):
        with pytest.raises(PtxError, match="data race"):
            run(*fences)


def test_report_counts_executions_sectors_and_wavefronts():
    body = """shl.b32 %r2, %r0, 7; st.shared.u32 [%r2], %r1; mul.wide.u32 %d3, %r0, 32; add.s64 %d3, %d1, %d3;
ld.global.u32 %r3, [%d3];"""
    memory = (ctypes.c_uint32 * 512)()
    begin = "ld.param.u64 %d1, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, 0; "
    text = kernel_text((begin + body).replace("; ", ";\n"), shared=".shared .align 8 .b8 m[4096];")
    module = Module(text)
    module.launch("test", [ctypes.c_uint64(ctypes.addressof(memory) + -ctypes.addressof(memory) % 32)], counts=1)
    report = module.report()["test"]
    assert report.counters["shared_wavefronts"] == 32  # all lanes in one bank
    assert report.counters["load_sectors"] == 32
    assert report.counters["instructions"] == 9 == sum(report.executions.values())
