"""Writes sampling_math_vectors.json: results of structout/ops/sampling_math.py, which
every backend must match.

    PYTHONPATH=tests python -m support.make_sampling_vectors

Floats are written as bits, so that a difference in the last bit shows. The checksums
are SHA-256 of little-endian results on more inputs than can be listed;
``gumbel_inputs`` and the functions after it make those inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

import torch

from structout.ops import sampling_math
from support.locations import CORPUS

VECTORS = CORPUS / "sampling_math_vectors.json"
CHUNK = 1 << 18  # the intermediate results of a chunk stay in the cache
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SQRT_HALF_BITS = sampling_math.SQRT_HALF_BITS


# ---- the listed vectors


def noise_vectors() -> list[dict[str, object]]:
    """Cover every word of a Philox block, both halves of seed and position, and the
    largest vocabulary."""
    places = [(0, 0), (0, 1), (1, 0), (7, 3), (-1, -1), (2**32, 0), (0, 2**32), (2**32 - 1, 2**31), (123456789, 4242)]
    places += [(INT64_MIN, INT64_MAX), (INT64_MAX, INT64_MIN), (0x0123456789ABCDEF, 0x0FEDCBA987654321)]
    ids = torch.tensor([0, 1, 2, 3, 4, 5, 31, 32, 1000, 128255, 151935, 2**23 - 1])
    vectors = []
    for seed, position in places:
        bits = sampling_math.noise_bits(seed, position, ids)
        for token, word, g in zip(ids.tolist(), bits.tolist(), float_bits(sampling_math.gumbel(bits)), strict=True):
            vectors.append({"seed": seed, "position": position, "id": token, "bits": hex32(word), "g": g})
    return vectors


def gumbel_vectors() -> list[dict[str, object]]:
    bits = torch.tensor(sorted(gumbel_edges(reach=1)))
    g = sampling_math.gumbel(bits)
    listed = zip(bits.tolist(), float_bits(g), g.tolist(), strict=True)
    return [{"bits": hex32(word), "g": result, "about": round(value, 6)} for word, result, value in listed]


def mass_vectors() -> list[dict[str, object]]:
    t = floats_of_bits(sorted(mass_edges()))
    listed = zip(float_bits(t), sampling_math.mass(t).tolist(), t.tolist(), strict=True)
    return [{"t": bits, "mass": result, "about": rounded(value)} for bits, result, value in listed]


def log_vectors() -> list[dict[str, object]]:
    y = floats_of_bits(sorted(log_edges()))
    listed = zip(float_bits(y), float_bits(sampling_math.log(y)), y.tolist(), strict=True)
    return [{"y": bits, "log": result, "about": rounded(value)} for bits, result, value in listed]


def log_of_mass_vectors() -> list[dict[str, object]]:
    """Cover totals around those that float32 holds exactly, where the conversion rounds
    to even."""
    totals = {1, 2**40, 2**63 - 1, 2**62} | {2**k + d for k in (24, 25, 40, 48, 62) for d in (-1, 1, 2, 3)}
    totals |= {2**40 + 2**16, 2**40 + 2**16 + 1, 2**40 + 3 * 2**16, 3 * 2**39 + 12345}
    total = torch.tensor(sorted(totals))
    results = float_bits(sampling_math.log_of_mass(total))
    return [{"total": n, "log": result} for n, result in zip(total.tolist(), results, strict=True)]


def gumbel_edges(reach: int) -> set[int]:
    """Return words around both ends, the change of formula at 2^30, and powers of two
    from either end."""
    centres = {0, 2**32 - 1, *(2**k for k in range(32)), *(2**32 - 2**k for k in range(32))}
    return {centre + d for centre in centres for d in range(-reach, reach + 1) if 0 <= centre + d < 2**32}


def mass_edges() -> set[int]:
    """Return bits of t: both zeros, subnormals, both sides of the clamp and of the last
    mass, plain values."""
    values = [-(2.0**k) for k in range(-26, 5)] + [-k / 8 for k in range(0, 249, 4)] + [-0.1, -1 / 3, -7.77, -25.3]
    values += [-1e-3, -1e-6, -1e-10, -1e-38]
    exact = float_bits(torch.tensor([*values, 0.0, -27.5, -27.725887, -27.8, -30.0, -31.0, -1e9, float("-inf")]))
    edges = {int(bits, 16) for bits in exact} | {0x80000001, 0x807FFFFF, 0x80800000}
    return edges | {int(float_bits(torch.tensor([v]))[0], 16) + d for v in (-1.0, -27.725887, -30.0) for d in (-1, 1)}


def log_edges() -> set[int]:
    """Return bits of y: powers of two and changes of the split's exponent, with their
    neighbours."""
    powers = [(exponent << 23) + d for exponent in range(1, 255, 6) for d in (-1, 0, 1)]
    splits = [(exponent << 23) + (SQRT_HALF_BITS & 0x7FFFFF) + d for exponent in range(0, 255, 6) for d in (-1, 0, 1)]
    plain = [int(bits, 16) for bits in float_bits(torch.tensor([1.0, 0.05, 0.1, 0.5, 0.9, 0.999, 2.0, 10.0, 151936.0]))]
    smallest, largest = 0x00800000, 0x7F7FFFFF  # LOG takes normal numbers only
    return {bits for bits in [*powers, *splits, *plain, smallest, largest] if smallest <= bits <= largest}


# ---- the inputs of the checksums


def gumbel_inputs() -> torch.Tensor:
    """Return int64 inputs: evenly spaced in [0, 2^32), and every word near the
    edges."""
    comb = torch.arange(0, 2**32, 431)
    edges = torch.tensor(sorted(gumbel_edges(reach=2000)))
    return torch.cat([comb, edges])


def mass_inputs() -> torch.Tensor:
    """Return float32 inputs: evenly spaced values and evenly spaced bit patterns in
    [-31, 0]."""
    grid = -torch.arange(31 * 2**18 + 1).to(torch.float32) * 2.0**-18
    comb = floats_of_bits(torch.arange(0x80000000, 0xC1F80000, 401))
    return torch.cat([grid, comb, floats_of_bits(sorted(mass_edges()))])


def log_inputs() -> torch.Tensor:
    """Return float32 inputs: evenly spaced bit patterns of normal numbers."""
    return torch.cat([floats_of_bits(torch.arange(0x00800000, 0x7F800000, 997)), floats_of_bits(sorted(log_edges()))])


INPUTS: dict[str, Callable[[], torch.Tensor]] = {"gumbel": gumbel_inputs, "mass": mass_inputs, "log": log_inputs}
FUNCTIONS = {"gumbel": sampling_math.gumbel, "mass": sampling_math.mass, "log": sampling_math.log}


def results_in_chunks(
    function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor
) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    for chunk in inputs.split(CHUNK):
        yield chunk, function(chunk)


def checksum(function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> dict[str, object]:
    digest = hashlib.sha256()
    for _, result in results_in_chunks(function, inputs):
        array = result.numpy()
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return {"inputs": len(inputs), "sha256": digest.hexdigest()}


# ---- floats as bits


def hex32(word: int) -> str:
    return f"0x{word:08x}"


def float_bits(values: torch.Tensor) -> list[str]:
    return [hex32(bits & 0xFFFFFFFF) for bits in values.to(torch.float32).view(torch.int32).tolist()]


def floats_of_bits(bits: torch.Tensor | list[int]) -> torch.Tensor:
    words = torch.as_tensor(bits, dtype=torch.int64)
    return torch.where(words < 2**31, words, words - 2**32).to(torch.int32).view(torch.float32)


def rounded(value: float) -> float | str:
    return float(f"{value:.6g}") if abs(value) != float("inf") else str(value)  # JSON has no infinity


def listed_vectors() -> dict[str, list[dict[str, object]]]:
    return {
        "noise": noise_vectors(),
        "gumbel": gumbel_vectors(),
        "mass": mass_vectors(),
        "log": log_vectors(),
        "log_of_mass": log_of_mass_vectors(),
    }


def as_text(listed: dict[str, list[dict[str, object]]], checksums: dict[str, dict[str, object]]) -> str:
    """Return JSON with one vector on a line."""
    parts = [
        f'  "{name}": [\n' + ",\n".join(f"    {json.dumps(entry)}" for entry in entries) + "\n  ]"
        for name, entries in listed.items()
    ]
    lines = [f'    "{name}": {json.dumps(entry)}' for name, entry in checksums.items()]
    parts.append('  "checksums": {\n' + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    checksums = {name: checksum(FUNCTIONS[name], inputs()) for name, inputs in INPUTS.items()}
    VECTORS.write_text(as_text(listed_vectors(), checksums))
