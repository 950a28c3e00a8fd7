"""The arithmetic of masked_sample: torch and C++ give the same bits, and the bits are
accurate.

Comparing tokens would prove little: a fused multiply-add changes 0.2% of the noise
values and about one row in 700. So the values are compared: listed vectors one by one,
and more than 10^7 others by checksum.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import platform
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from structout.ops import sampling_math
from support import builds, make_sampling_vectors as vectors
from support.locations import NATIVE
from support.sampling_statistics import chi_square_survival

HEADER = builds.CSRC / "common" / "sampling_math.h"
LIBRARY_SOURCE = NATIVE / "sampling_math.cpp"
COMMITTED = json.loads(vectors.VECTORS.read_text())

# With these flags a compiler may fuse a multiply and an add. Other machines need no
# flag for it.
X86_WITH_FMA = ("-mavx2", "-mfma") if platform.machine() in ("x86_64", "AMD64") else ()
CPU_HAS_FMA = platform.machine() in ("aarch64", "arm64") or torch.backends.cpu.get_cpu_capability() != "DEFAULT"
NEEDS_FMA = pytest.mark.skipif(not CPU_HAS_FMA, reason="needs a CPU with fused multiply-add")
EXACT_BUILDS = [
    pytest.param(("-O2", "-ffp-contract=off", *X86_WITH_FMA), id="O2", marks=NEEDS_FMA),
    pytest.param(("-O3", "-ffp-contract=off", *X86_WITH_FMA), id="O3", marks=NEEDS_FMA),
    pytest.param(("-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"), id="O3-baseline"),
]

# philox4x32-10 from Random123's kat_vectors: counter, key, result.
PHILOX_KNOWN_ANSWERS = """
00000000 00000000 00000000 00000000 00000000 00000000   6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff   408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0   d16cfe09 94fdcceb 5001e420 24126ea1
"""


class CppMath:
    """csrc/common/sampling_math.h on tensors, with the names and dtypes of
    structout.ops.sampling_math."""

    def __init__(self, library: Path):
        self._library = ctypes.CDLL(str(library))

    def gumbel(self, bits: torch.Tensor) -> torch.Tensor:
        return self._map("gumbel_of", _as_words(bits), torch.float32)

    def mass(self, t: torch.Tensor) -> torch.Tensor:
        return self._map("mass_of", t, torch.int64)

    def log(self, y: torch.Tensor) -> torch.Tensor:
        return self._map("log_of", y, torch.float32)

    def log_of_mass(self, total: torch.Tensor) -> torch.Tensor:
        return self._map("log_of_mass_of", total, torch.float32)

    def noise_bits(self, seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
        result = torch.empty(len(token_ids), dtype=torch.int32)
        self._library.noise_bits_of(
            ctypes.c_int64(seed), ctypes.c_int64(position), _pointer(token_ids), _pointer(result), _count(result)
        )
        return result.to(torch.int64) & 0xFFFFFFFF

    def philox(self, key: int, counter: tuple[int, ...]) -> list[int]:
        words = (ctypes.c_uint32 * 4)(*counter)
        result = (ctypes.c_uint32 * 4)()
        self._library.philox_of(ctypes.c_uint64(key), words, result)
        return list(result)

    def count_increases_of_gumbel(self, first: int, last: int) -> int:
        count = self._library.count_increases_of_gumbel
        count.restype = ctypes.c_int64
        return count(ctypes.c_uint32(first), ctypes.c_uint32(last))

    def _map(self, name: str, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        values = values.contiguous()
        result = torch.empty(values.shape, dtype=dtype)
        getattr(self._library, name)(_pointer(values), _pointer(result), _count(values))
        return result


def _as_words(bits: torch.Tensor) -> torch.Tensor:
    """Convert int64 values in [0, 2^32) to int32 with the same bits."""
    return torch.where(bits < 2**31, bits, bits - 2**32).to(torch.int32)


def _pointer(values: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.data_ptr())


def _count(values: torch.Tensor) -> ctypes.c_int64:
    return ctypes.c_int64(values.numel())


@functools.cache
def build_cpp(*flags: str) -> CppMath:
    command = [*builds.cxx(), "-std=c++17", *flags, "-shared", "-fPIC"]
    return CppMath(builds.compiled("sampling_math", command, [LIBRARY_SOURCE], suffix=".so"))


@pytest.fixture
def cpp() -> CppMath:
    return build_cpp("-O3", "-ffp-contract=off")


@pytest.fixture(params=["torch", "cpp"])
def math_of(request: pytest.FixtureRequest, cpp: CppMath):
    """structout.ops.sampling_math, or the header with the same names."""
    return sampling_math if request.param == "torch" else cpp


# ---- bits


def test_committed_vectors_equal_the_output_of_the_script():
    """Takes the committed checksums, which other tests check."""
    written = vectors.as_text(vectors.listed_vectors(), COMMITTED["checksums"])
    assert written == vectors.VECTORS.read_text()


def test_noise_and_gumbel_match_listed_vectors(math_of):
    for vector in COMMITTED["noise"]:
        bits = math_of.noise_bits(vector["seed"], vector["position"], torch.tensor([vector["id"]]))
        assert vectors.hex32(int(bits)) == vector["bits"], vector
        assert vectors.float_bits(math_of.gumbel(bits)) == [vector["g"]], vector


@pytest.mark.parametrize(
    ("function", "argument", "result"),
    [("gumbel", "bits", "g"), ("mass", "t", "mass"), ("log", "y", "log"), ("log_of_mass", "total", "log")],
)
def test_functions_match_listed_vectors(math_of, function, argument, result):
    listed = COMMITTED[function]
    inputs = [int(v[argument], 16) if isinstance(v[argument], str) else v[argument] for v in listed]
    inputs = vectors.floats_of_bits(inputs) if function in ("mass", "log") else torch.tensor(inputs)
    results = getattr(math_of, function)(inputs)
    got = results.tolist() if function == "mass" else vectors.float_bits(results)
    assert got == [v[result] for v in listed]


@pytest.fixture(scope="module", params=list(vectors.INPUTS))
def many(request: pytest.FixtureRequest) -> tuple[str, torch.Tensor]:
    return request.param, vectors.INPUTS[request.param]()


def test_checksums_cover_at_least_ten_million_inputs():
    assert COMMITTED["checksums"]["gumbel"]["inputs"] >= 10**7
    assert COMMITTED["checksums"]["mass"]["inputs"] >= 10**7


def test_torch_functions_match_checksum(many):
    name, inputs = many
    assert vectors.checksum(getattr(sampling_math, name), inputs) == COMMITTED["checksums"][name]


@pytest.mark.parametrize("flags", EXACT_BUILDS)
def test_cpp_functions_match_checksum(many, flags):
    name, inputs = many
    assert vectors.checksum(getattr(build_cpp(*flags), name), inputs) == COMMITTED["checksums"][name]


@NEEDS_FMA
def test_cpp_functions_with_fused_multiply_add_differ_from_checksum(many):
    name, inputs = many
    fused = build_cpp("-O2", "-ffp-contract=fast", *X86_WITH_FMA)
    assert vectors.checksum(getattr(fused, name), inputs) != COMMITTED["checksums"][name]


def test_cpp_noise_bits_on_random_inputs_match_torch(cpp):
    """The checksums take noise bits as inputs, so they do not cover this."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        seed, position = torch.randint(-(2**63), 2**63 - 1, (2,), generator=generator).tolist()
        ids = torch.randint(2**23, (2000,), generator=generator)
        assert torch.equal(cpp.noise_bits(seed, position, ids), sampling_math.noise_bits(seed, position, ids))


@pytest.mark.parametrize("line", PHILOX_KNOWN_ANSWERS.strip().splitlines(), ids=["zeros", "ones", "pi"])
def test_philox_matches_known_answers(cpp, line):
    c0, c1, c2, c3, key_low, key_high, *expected = (int(word, 16) for word in line.split())
    key = key_low | key_high << 32
    assert cpp.philox(key, (c0, c1, c2, c3)) == expected
    words = sampling_math.philox(key, tuple(torch.tensor([word]) for word in (c0, c1, c2, c3)))
    assert [int(word) for word in words] == expected


def test_noise_bits_are_philox_of_seed_position_and_token_id():
    """The layout of the counter is part of the contract: saved seeds must keep their
    meaning."""
    seed, position = 0x0123456789ABCDEF, 0x1122334455667788

    def half(token: int, counter_bit: int) -> torch.Tensor:
        counter = tuple(torch.tensor([word]) for word in (0x55667788, 0x11223344, token >> 3 | counter_bit, 0))
        return sampling_math.philox(seed, counter)[token >> 1 & 3] >> 16 * (token & 1) & 0xFFFF

    for token in range(151_928, 151_936):
        expected = half(token, 0) << 16 | half(token, 1 << 31)
        assert torch.equal(sampling_math.noise_bits(seed, position, torch.tensor([token])), expected)


def _smallest_p_value_of_pairs(a: torch.Tensor, b: torch.Tensor) -> float:
    """The smallest chi-square p-value, over each pair of 4-bit digits of a and b, for
    the hypothesis that the two digits are uniform and independent."""
    p_values = []
    for shift_a in range(0, 32, 4):
        for shift_b in range(0, 32, 4):
            cells = (a >> shift_a & 15) << 4 | b >> shift_b & 15
            counts = torch.bincount(cells, minlength=256).double()
            expected = len(a) / 256
            p_values.append(chi_square_survival(float(((counts - expected) ** 2 / expected).sum()), 255))
    return min(p_values)


# Offsets of seed, position and token id between the two values of a pair.
NEIGHBOURS = [(0, 0, 1), (0, 0, 2), (0, 0, 7), (0, 0, 8), (0, 1, 0), (1, 0, 0), (1, -1, 0), (0, 1, -8), (2**32, 0, 0)]


@pytest.mark.parametrize("offset", NEIGHBOURS, ids=str)
def test_noise_bits_of_neighbours_are_independent(offset):
    """The ids begin at every token of a Philox call, so pairs lie within one and
    across two."""
    ids = torch.arange(8, 151_936)
    pairs = []
    for seed, position in [(7, 11), (-3, 2**31 - 1), (2**62, 5)]:
        a = sampling_math.noise_bits(seed, position, ids)
        b = sampling_math.noise_bits(seed + offset[0], position + offset[1], ids + offset[2])
        pairs.append(torch.stack([a, b]))
    a, b = torch.cat(pairs, 1)
    assert _smallest_p_value_of_pairs(a, b) > 1e-7


def test_coarse_and_fine_bits_of_a_token_are_independent():
    bits = sampling_math.noise_bits(1, 2, torch.arange(400_000))
    counts = torch.bincount((bits >> 28) << 4 | bits >> 12 & 15, minlength=256).double()
    expected = len(bits) / 256
    assert chi_square_survival(float(((counts - expected) ** 2 / expected).sum()), 255) > 1e-7


def test_chi_square_of_pairs_finds_shared_bits():
    ids = torch.arange(8, 151_936)
    bits = sampling_math.noise_bits(7, 11, ids)
    shared = bits.clone()
    shared[::4] = sampling_math.noise_bits(7, 11, ids + 1)[::4]
    assert _smallest_p_value_of_pairs(shared, sampling_math.noise_bits(7, 11, ids + 1)) < 1e-7


# ---- constants


def test_header_constants_equal_python_constants():
    log, exp2 = _numbers_in("log_of_split"), _numbers_in("exp2_of_fraction")
    m = sampling_math
    assert log == [m.LN2_HIGH, m.LN2_LOW, *m.LOG_COEFFICIENTS, 0.5]
    assert exp2 == list(m.EXP2_COEFFICIENTS)
    header = HEADER.read_text()
    assert _literal(re.search(r"kExpFloor = (\S+);", header).group(1)) == m.EXP_FLOOR
    assert _literal(re.search(r"kLog2E = (\S+);", header).group(1)) == m.LOG2_E
    assert _literal(re.search(r"kRoundToInteger = (\S+);", header).group(1)) == m.ROUND_TO_INTEGER
    assert _literal(re.search(r"kMassScale = (\S+);", header).group(1)) == m.MASS_SCALE
    assert _literal(re.search(r"kSmallestMinP = (\S+);", header).group(1)) == m.SMALLEST_MIN_P
    assert int(re.search(r"kSqrtHalfBits = (\S+);", header).group(1), 16) == m.SQRT_HALF_BITS


def test_constants_are_float32_values():
    """C++ would round any other constant and Python would not."""
    m = sampling_math
    for value in (m.LN2_HIGH, m.LN2_LOW, m.LOG2_E, *m.LOG_COEFFICIENTS, *m.EXP2_COEFFICIENTS):
        assert float(np.float32(value)) == value


def _numbers_in(function: str) -> list[float]:
    """Return the float literals of a function in the header, in order."""
    body = re.search(rf"(?:float|Floats) {function}\(.*?\n}}", HEADER.read_text(), re.DOTALL).group(0)
    code = re.sub(r"//.*", "", body)
    return [_literal(text) for text in re.findall(r"-?(?:0x[\d.a-f]+p[+-]?\d+|\d+\.\d+)f", code)]


def _literal(text: str) -> float:
    text = text.removesuffix("f")
    return float.fromhex(text) if "0x" in text else float(text)


# ---- accuracy


def test_gumbel_is_close_to_float64():
    largest_error = 0.0
    for bits, g in vectors.results_in_chunks(sampling_math.gumbel, vectors.gumbel_inputs()):
        largest_error = max(largest_error, float(np.abs(g.double().numpy() - exact_gumbel(bits.numpy())).max()))
    assert largest_error < 1.5e-6  # half an ulp at 22.9 is 0.95e-6


def exact_gumbel(bits: np.ndarray) -> np.ndarray:
    """Compute the noise in float64, from the end of the range where the distance is
    exact."""
    from_zero, from_one = (bits + 0.5) * 2.0**-32, (2**32 - bits - 0.5) * 2.0**-32
    return -np.log(np.where(bits < 2**31, -np.log1p(-from_zero), -np.log(from_one)))


def test_gumbel_spans_its_range(math_of):
    ends = math_of.gumbel(torch.tensor([0, 2**32 - 1])).tolist()
    assert ends == pytest.approx([22.8738575, -3.12999463], abs=1e-8, rel=1e-7)


def test_gumbel_never_increases_with_random_bits(cpp):
    """The draw skips logarithms because larger random bits never give a higher
    score."""
    bits = vectors.gumbel_inputs().sort().values
    g = cpp.gumbel(bits)
    assert bool((g[1:] <= g[:-1]).all())


def test_gumbel_never_increases_between_adjacent_words_near_step_changes(cpp):
    """Checks every word where the formula or an exponent changes."""
    step_changes = [0, 2**30, 2**32 - 1, int(2**32 * (1 - math.sqrt(0.5))), int(2**32 * (1 - math.exp(-1)))]
    step_changes += [int(2**32 * (1 - math.exp(-(2.0**k) * math.sqrt(0.5)))) for k in range(-20, 4)]
    for centre in step_changes:
        first, last = max(0, centre - 2**18), min(2**32 - 1, centre + 2**18)
        assert cpp.count_increases_of_gumbel(first, last) == 0, centre


def test_exp_is_close_to_float64():
    """Rounding t * log2(e) and its constant gives the exponent an error that grows with
    |t|."""
    for t, y in vectors.results_in_chunks(sampling_math.exp, vectors.mass_inputs()):
        exponent = np.maximum(t.double().numpy(), sampling_math.EXP_FLOOR)
        error = np.abs(y.double().numpy() / np.exp(exponent) - 1)
        assert bool((error <= 1.5e-7 + 7.4e-8 * np.abs(exponent)).all())


def test_mass_equals_exp_in_fixed_point():
    t = vectors.mass_inputs()[:: 2**5]
    mass = sampling_math.mass(t)
    assert bool((mass == (sampling_math.exp(t).double() * 2.0**40).floor().long()).all())
    assert int(sampling_math.mass(torch.tensor([0.0]))) == 2**40
    assert int(sampling_math.mass(torch.tensor([-float("inf")]))) == 0


def test_mass_never_decreases_with_t(cpp):
    """Filters compare logits in place of masses, so both must have the same order."""
    t = vectors.mass_inputs().sort().values
    mass = cpp.mass(t)
    assert bool((mass[1:] >= mass[:-1]).all())


def test_log_is_close_to_float64():
    worst = 0.0
    for y, result in vectors.results_in_chunks(sampling_math.log, vectors.log_inputs()):
        exact = np.log(y.double().numpy())
        error = np.abs(result.double().numpy() - exact) / np.maximum(np.abs(exact), 1.0)
        worst = max(worst, float(error.max()))
    assert worst < 1e-7


def test_log_near_one_has_small_relative_error():
    """A small logarithm becomes the argument of the next one, so its digits count."""
    y = 1 + torch.arange(-(2**20), 2**20).to(torch.float32) * 2.0**-24
    y = y[y != 1]
    exact = np.log(y.double().numpy())
    assert float(np.abs(sampling_math.log(y).double().numpy() / exact - 1).max()) < 1e-7
    assert float(sampling_math.log(torch.tensor(1.0))) == 0.0
