"""Measures apply_bitmask beside xgrammar, llguidance and torch. Checks each result
before timing it.

    python bench/bench_apply_bitmask.py [--device cpu|cuda] [--quick]

Masks of density d allow each token with probability d, as in xgrammar's published
benchmark. Inside a JSON string 0.968 of a real vocabulary is allowed, in most other
states of JSON 0.001.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import harness
import torch
import xgrammar

import structout
from structout import reference
from structout.bitmask import bitmask_width

BATCHES = (1, 8, 64, 256, 512)
VOCABS = (128_256, 151_936)
DENSITIES = (0.0, 0.001, 0.5, 0.968, 0.999)
DTYPES = (torch.float32, torch.bfloat16)
Case = tuple[int, int, torch.dtype, float]


def peers(logits: torch.Tensor, bitmask: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return the calls to compare. All write -inf to the same places, so they may run
    in any order."""
    import llguidance.torch

    disallowed = ~structout.unpack_bitmask(bitmask, logits.shape[-1])
    calls: dict[str, Callable[[], object]] = {
        "structout": lambda: torch.ops.structout.apply_bitmask(logits, bitmask),
        "llguidance": lambda: llguidance.torch.apply_token_bitmask_inplace(logits, bitmask),
        "masked_fill_": lambda: logits.masked_fill_(disallowed, float("-inf")),
    }
    if logits.device.type == "cpu":
        return calls | {"xgrammar": lambda: xgrammar.apply_token_bitmask_inplace(logits, bitmask)}
    from structout.triton_kernels.apply_bitmask import apply_bitmask as structout_triton

    return calls | {
        "structout triton": lambda: structout_triton(logits, bitmask),
        "xgrammar": lambda: xgrammar.apply_token_bitmask_inplace(logits, bitmask, backend="triton"),
        "xgrammar cuda": lambda: xgrammar.apply_token_bitmask_inplace(logits, bitmask, backend="cuda"),
    }


def random_mask(num_rows: int, vocab_size: int, density: float, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    rows = [structout.pack_bitmask(torch.rand(vocab_size, generator=generator, device=device) < density)
            for _ in range(min(num_rows, 16))]  # fmt: skip
    return torch.stack(rows).repeat(-(-num_rows // len(rows)), 1)[:num_rows]


def run_case(case: Case, device: torch.device, seconds: float) -> dict[str, Any]:
    num_rows, vocab_size, dtype, density = case
    bitmask = random_mask(num_rows, vocab_size, density, device)
    original = torch.randn(num_rows, vocab_size, device=device).to(dtype)
    expected = original.clone()
    reference.apply_bitmask(expected, bitmask)
    logits = original.clone()
    calls = peers(logits, bitmask)
    usable = {}
    for name, call in calls.items():
        logits.copy_(original)
        try:
            call()
        except Exception as error:
            if name.startswith("structout"):
                raise
            print(f"  {name} is left out: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        if not torch.equal(logits, expected):
            raise AssertionError(f"{name} is wrong on {case}: nothing is timed on a wrong result")
        usable[name] = call
    usable["fill_"] = lambda: logits.fill_(float("-inf"))  # the memory bandwidth: every byte written once
    medians = harness.interleaved_medians(usable, device, seconds=seconds)
    disallowed = int((~structout.unpack_bitmask(bitmask, vocab_size)).sum())
    return {
        "batch": num_rows,
        "vocab": vocab_size,
        "dtype": str(dtype)[6:],
        "density": density,
        "bytes": disallowed * logits.element_size() + 4 * num_rows * bitmask_width(vocab_size),
        "us": {name: round(median * 1e6, 2) for name, median in medians.items()},
    }


def call_overhead(device: torch.device) -> dict[str, Any]:
    """Time one call of the op from Python, on the smallest input."""
    logits, bitmask = torch.zeros(1, 32, device=device), torch.zeros(1, 1, dtype=torch.int32, device=device)
    op, loops = torch.ops.structout.apply_bitmask, 2000

    def loop() -> None:
        for _ in range(loops):
            op(logits, bitmask)

    samples = []
    for _ in range(15):
        start = time.perf_counter()
        loop()
        samples.append((time.perf_counter() - start) / loops)
    return {"call_overhead_us": round(sorted(samples)[len(samples) // 2] * 1e6, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description="apply_bitmask beside its peers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="a few small cases; writes nothing")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    cases: list[Case] = list(itertools.product(BATCHES, VOCABS, DTYPES, DENSITIES))
    if arguments.quick:
        cases = list(itertools.product((1, 4), (4096,), DTYPES, (0.001, 0.999)))
    rows: list[dict[str, Any]] = []
    for case in cases:
        row = run_case(case, device, seconds=0.02 if arguments.quick else 0.3)
        rows.append(row)
        ours = row["us"]["structout"]
        beside = "  ".join(f"{name} {us:,.1f} ({us / ours:.1f}x)" for name, us in row["us"].items() if us != ours)
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']}]"
        print(f"{shape:<24}{row['density']:>6.1%} allowed  structout {ours:,.1f} us  {beside}", flush=True)
    rows.append(call_overhead(device))
    print(rows[-1])
    if not arguments.quick:
        print("wrote", harness.write_results("apply_bitmask", device, rows))


if __name__ == "__main__":
    main()
