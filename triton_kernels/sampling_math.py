"""The arithmetic of masked_sample in Triton, with the constants of the torch reference.

docs/sampling_contract.md fixes every rounding. Launch kernels that use this module with
enable_fp_fusion=False: then every operation is rounded on its own and gives the bits of
the reference. Triton's exp, log and `/` are approximations, so they are not used.
"""

import triton
import triton.language as tl

from structout.ops import sampling_math as table

LN2_HIGH, LN2_LOW, LOG2_E = map(tl.constexpr, (table.LN2_HIGH, table.LN2_LOW, table.LOG2_E))
LOG_0, LOG_1, LOG_2, LOG_3, LOG_4, LOG_5, LOG_6, LOG_7, LOG_8 = map(tl.constexpr, table.LOG_COEFFICIENTS)
EXP2_0, EXP2_1, EXP2_2, EXP2_3, EXP2_4, EXP2_5, EXP2_6 = map(tl.constexpr, table.EXP2_COEFFICIENTS)
ROUND_TO_INTEGER = tl.constexpr(table.ROUND_TO_INTEGER)
EXP_FLOOR = tl.constexpr(table.EXP_FLOOR)
SQRT_HALF_BITS = tl.constexpr(table.SQRT_HALF_BITS)
MASS_SCALE = tl.constexpr(table.MASS_SCALE)
MASS_UNIT = tl.constexpr(1 / table.MASS_SCALE)
FINE_COUNTER_BIT = tl.constexpr(table.FINE_COUNTER_BIT - 2**32)  # as int32
UNIFORM_UNIT = tl.constexpr(2.0**-32)


@triton.jit
def _split(y):
    """(f, n), both float32, with y = (1 + f) * 2^n and 1 + f in [sqrt(1/2),
    sqrt(2))."""
    bits = y.to(tl.int32, bitcast=True)
    n = (bits - SQRT_HALF_BITS) >> 23
    return (bits - (n << 23)).to(tl.float32, bitcast=True) - 1.0, n.to(tl.float32)


@triton.jit
def _log_of_split(f, n):
    y = f * LOG_0 + LOG_1
    y = y * f + LOG_2
    y = y * f + LOG_3
    y = y * f + LOG_4
    y = y * f + LOG_5
    y = y * f + LOG_6
    y = y * f + LOG_7
    y = y * f + LOG_8
    square = f * f
    y = y * f
    y = y * square
    y = y + n * LN2_LOW
    y = y - square * 0.5
    return (f + y) + n * LN2_HIGH


@triton.jit
def log(y):
    """log(y) for positive, finite, normal float32 y, by the polynomial of Cephes'
    logf."""
    f, n = _split(y)
    return _log_of_split(f, n)


@triton.jit
def exp(t):
    """exp(t) for float32 t <= 0. Below -30 it is exp(-30).

    The fraction uses the polynomial of Cephes' exp2f.
    """
    a = tl.where(t < EXP_FLOOR, EXP_FLOOR, t) * LOG2_E
    n = (a + ROUND_TO_INTEGER) - ROUND_TO_INTEGER
    f = a - n
    y = f * EXP2_0 + EXP2_1
    y = y * f + EXP2_2
    y = y * f + EXP2_3
    y = y * f + EXP2_4
    y = y * f + EXP2_5
    y = y * f + EXP2_6
    return y * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def mass(t):
    """A token's weight exp(t) in 40-bit fixed point, int64; 0 for t = -inf."""
    return (exp(t) * MASS_SCALE).to(tl.int64)


@triton.jit
def log_of_mass(total):
    return log(total.to(tl.float32) * MASS_UNIT)


@triton.jit
def gumbel(bits):
    """Gumbel noise -ln(-ln(v)) from uint32 random bits, accurate in both tails.

    It never increases with the bits.
    """
    is_near_zero = bits < 0x40000000  # 1 - v would lose digits of v there: use log1p(-v)
    distance = tl.where(is_near_zero, bits, bits ^ tl.full((), 0xFFFFFFFF, tl.uint32))
    q = (distance.to(tl.float32) + 0.5) * UNIFORM_UNIT
    f, n = _split(q)
    # Times -1, because Triton's unary minus is 0 - x, which loses the sign of zero.
    f = tl.where(is_near_zero, q * -1.0, f)
    n = tl.where(is_near_zero, 0.0, n)
    return log(_log_of_split(f, n) * -1.0) * -1.0


@triton.jit
def order_key(x):
    """A uint32 that orders as the float does. -0 and +0 have the same key."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -0x80000000)).to(tl.uint32, bitcast=True)


@triton.jit
def philox(key, c0, c1, c2, c3):
    """Philox4x32-10 with an int64 key. Counter words are uint32 tensors of one
    shape."""
    key_0 = (key & 0xFFFFFFFF).to(tl.uint32)
    key_1 = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    multiplier_0 = tl.full(c0.shape, 0xD2511F53, tl.uint32)
    multiplier_1 = tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        high_0 = tl.umulhi(multiplier_0, c0)
        high_1 = tl.umulhi(multiplier_1, c2)
        low_0 = multiplier_0 * c0
        low_1 = multiplier_1 * c2
        c0 = high_1 ^ c1 ^ key_0
        c1 = low_1
        c2 = high_0 ^ c3 ^ key_1
        c3 = low_0
        key_0 += tl.full((), 0x9E3779B9, tl.uint32)
        key_1 += tl.full((), 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _noise_words(seed, position, group):
    """The 16-bit noise of tokens 8 * group to 8 * group + 7, two of them in each word.

    The last counter word is reserved for independent streams.
    """
    group = group.to(tl.uint32)
    low = tl.full(group.shape, 0, tl.uint32) + (position & 0xFFFFFFFF).to(tl.uint32)
    high = tl.full(group.shape, 0, tl.uint32) + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return philox(seed, low, high, group, tl.full(group.shape, 0, tl.uint32))


@triton.jit
def _halves_of_tokens(seed, position, token, COUNTER_BIT: tl.constexpr):
    w0, w1, w2, w3 = _noise_words(seed, position, (token >> 3) | COUNTER_BIT)
    low_word = tl.where((token & 2) != 0, w1, w0)
    high_word = tl.where((token & 2) != 0, w3, w2)
    word = tl.where((token & 4) != 0, high_word, low_word)
    return tl.where((token & 1) != 0, word >> 16, word & 0xFFFF)


@triton.jit
def _halves_of_groups(seed, position, group, COUNTER_BIT: tl.constexpr):
    w0, w1, w2, w3 = _noise_words(seed, position, group | COUNTER_BIT)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # [M, 2, 2]
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), [group.shape[0], 8])


@triton.jit
def coarse_noise(seed, position, token):
    """The high 16 random bits of any tokens, by one Philox call each."""
    return _halves_of_tokens(seed, position, token, 0)


@triton.jit
def fine_noise(seed, position, token):
    """The low 16 random bits of any tokens, by one Philox call each."""
    return _halves_of_tokens(seed, position, token, FINE_COUNTER_BIT)


@triton.jit
def coarse_noise_of_groups(seed, position, group):
    """The high 16 random bits [M, 8] of M groups of 8 tokens, by one Philox call
    each."""
    return _halves_of_groups(seed, position, group, 0)


@triton.jit
def fine_noise_of_groups(seed, position, group):
    """The low 16 random bits [M, 8] of M groups of 8 tokens, by one Philox call
    each."""
    return _halves_of_groups(seed, position, group, FINE_COUNTER_BIT)
