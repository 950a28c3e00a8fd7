"""The arithmetic of ``masked_sample`` in plain torch, as docs/sampling_contract.md
defines it.

Every float operation is a separate torch op, so each result is rounded to float32 and
nothing is fused. Tests compare the constants with those in csrc/common/sampling_math.h
and triton_kernels/sampling_math.py.
"""

import torch

LN2_HIGH = 0.693359375
LN2_LOW = float.fromhex("-0x1.bd01060000000p-13")
LOG_COEFFICIENTS = tuple(
    map(
        float.fromhex,
        (
            "0x1.2043760000000p-4",
            "-0x1.d7a3700000000p-4",
            "0x1.de4a340000000p-4",
            "-0x1.fcba9e0000000p-4",
            "0x1.23d37e0000000p-3",
            "-0x1.555ca00000000p-3",
            "0x1.999d580000000p-3",
            "-0x1.fffff80000000p-3",
            "0x1.5555540000000p-2",
        ),
    )
)
LOG2_E = float.fromhex("0x1.7154760000000p+0")
EXP2_COEFFICIENTS = tuple(
    map(
        float.fromhex,
        (
            "0x1.41fbbc0000000p-13",
            "0x1.5f3e520000000p-10",
            "0x1.3b2d4c0000000p-7",
            "0x1.c6aee80000000p-5",
            "0x1.ebfbdc0000000p-3",
            "0x1.62e4300000000p-1",
            "0x1.0000000000000p+0",
        ),
    )
)
ROUND_TO_INTEGER = 12582912.0  # 1.5 * 2^23: adding and subtracting it rounds to an integer
EXP_FLOOR = -30.0
SQRT_HALF_BITS = 0x3F3504F3
MASS_SCALE = 2.0**40  # a mass of 1 is 2^40 units of a fixed-point integer
SMALLEST_MIN_P = 2.0**-126
FINE_COUNTER_BIT = 1 << 31

_LOW_32 = 0xFFFFFFFF
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def log(y: torch.Tensor) -> torch.Tensor:
    """The natural logarithm of positive, finite, normal float32.

    Source: Cephes ``logf``.
    """
    mantissa, exponent = _split(y)
    return _log_of_split(mantissa, exponent)


def exp(t: torch.Tensor) -> torch.Tensor:
    """The exponential of float32 ``t <= 0``; values below -30 count as -30.

    Source: Cephes ``exp2f`` for the fraction.
    """
    a = t.clamp(min=EXP_FLOOR) * LOG2_E
    n = (a + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
    f = a - n
    y = torch.full_like(f, EXP2_COEFFICIENTS[0])
    for coefficient in EXP2_COEFFICIENTS[1:]:
        y = y * f + coefficient
    return y * _float_of_bits((n.to(torch.int32) + 127) << 23)


def mass(t: torch.Tensor) -> torch.Tensor:
    """The unnormalized probability of a token, int64 with 40 fractional bits.

    Sums of integers do not depend on their order.
    """
    return (exp(t) * MASS_SCALE).to(torch.int64)


def log_of_mass(total: torch.Tensor) -> torch.Tensor:
    """The natural logarithm of a sum of masses, float32."""
    return log(total.to(torch.float32) * (1 / MASS_SCALE))


def noise_bits(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """The 32 random bits of each token, int64, a function of seed, position and id
    alone.

    The high 16 are half ``id & 1`` of word ``id >> 1 & 3`` of Philox4x32-10 with key
    ``seed`` and counter ``(position low, position high, id >> 3, 0)``. The low 16 are
    the same half with the highest bit of the third counter word set.
    """
    groups, group_of_token = torch.unique_consecutive(token_ids >> 3, return_inverse=True)
    counter_2 = torch.stack([groups, groups | FINE_COUNTER_BIT])
    zero = torch.zeros_like(counter_2)
    counter = (zero + (position & _LOW_32), zero + (position >> 32 & _LOW_32), counter_2, zero)
    words = torch.stack(philox(seed, counter), -1)[:, group_of_token, token_ids >> 1 & 3]
    high, low = words >> 16 * (token_ids & 1) & 0xFFFF
    return high << 16 | low


def philox(key: int, counter: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The counter-based generator Philox4x32-10.

    Args:
        key: 64 bits.
        counter: four words, int64 tensors in ``[0, 2^32)``.

    Returns:
        four random words, int64 in ``[0, 2^32)``.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    key_0, key_1 = key & _LOW_32, key >> 32 & _LOW_32
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high_0, low_0 = _multiply(_PHILOX_MULTIPLIERS[0], c0)
        high_1, low_1 = _multiply(_PHILOX_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high_1 ^ c1 ^ key_0, low_1, high_0 ^ c3 ^ key_1, low_0
        key_0, key_1 = (key_0 + _PHILOX_KEY_STEPS[0]) & _LOW_32, (key_1 + _PHILOX_KEY_STEPS[1]) & _LOW_32
    return c0, c1, c2, c3


def gumbel(bits: torch.Tensor) -> torch.Tensor:
    """Gumbel noise ``-log(-log1p(-v))`` with ``v = (bits + 0.5) / 2^32``, float32.

    It is accurate in both tails and never increases with ``bits``.
    """
    is_near_zero = bits < 2**30  # v is too small to compute 1 - v, so log1p takes -v itself
    distance = torch.where(is_near_zero, bits, _LOW_32 - bits)
    q = (distance.to(torch.float32) + 0.5) * 2.0**-32
    mantissa, exponent = _split(q)
    mantissa = torch.where(is_near_zero, -q, mantissa)
    exponent = torch.where(is_near_zero, 0.0, exponent)
    return -log(-_log_of_split(mantissa, exponent))


def _split(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split ``y = (1 + f) * 2^n`` with 1 + f in [sqrt(1/2), sqrt(2)): float32 f and
    n."""
    bits = y.contiguous().view(torch.int32)
    n = (bits - SQRT_HALF_BITS) >> 23
    return _float_of_bits(bits - (n << 23)) - 1.0, n.to(torch.float32)


def _log_of_split(f: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """The natural logarithm of ``(1 + f) * 2^n``."""
    y = torch.full_like(f, LOG_COEFFICIENTS[0])
    for coefficient in LOG_COEFFICIENTS[1:]:
        y = y * f + coefficient
    square = f * f
    y = y * f
    y = y * square
    y = y + n * LN2_LOW
    y = y - square * 0.5
    return (f + y) + n * LN2_HIGH


def _float_of_bits(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).view(torch.float32)


def _multiply(multiplier: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and low 32 bits of a 64-bit product. The multiplier is at least 2^31.

    int64 holds the product less ``word * 2^32``, but not the product.
    """
    reduced = (multiplier - 2**32) * word
    return (reduced >> 32) + word, reduced & _LOW_32
