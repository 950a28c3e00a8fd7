"""Calls every op once on the GPU, on one backend, and compares it with the reference.

    python bench/gpu_smoke.py cuda|triton

The first step of `make gpu-check` that runs a kernel: it names the op that fails. The
sanitizers run it, too, so there are calls for blocks and for clusters.
"""

import os
import sys
import time
from collections.abc import Callable

os.environ["STRUCTOUT_BACKEND"] = sys.argv[1]  # read when structout is imported

import torch
from smoke_calls import is_same, smoke_calls

from structout.ops import kernels

VOCAB = 151_936


def main() -> int:
    loaded = kernels.load()
    print(loaded)
    if loaded.cuda != sys.argv[1]:
        return 1
    checks = smoke_calls(torch.ops.structout, "cuda", VOCAB)
    bitmask = torch.randint(-(2**31), 2**31, (3, 100), dtype=torch.int32, device="cuda")
    of_one_rank = torch.ops.structout.all_gather_bitmask
    checks["all_gather_bitmask of one rank"] = (lambda: of_one_rank(bitmask, ""), bitmask)
    checks["masked_sample, a block per row"] = block_per_row()
    failed = 0
    for name, (call, wanted) in checks.items():
        started = time.perf_counter()
        try:
            got = call()
            torch.cuda.synchronize()
            is_right = is_same(got, wanted)
            outcome = "right" if is_right else f"WRONG: {got} instead of {wanted}"
        except Exception as error:
            is_right, outcome = False, f"{type(error).__name__}: {error}"
        failed += not is_right
        print(f"{name:<32}{time.perf_counter() - started:6.2f} s  {outcome}", flush=True)
    return 1 if failed else 0


def block_per_row() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """A call with more rows than the device has clusters, and what the CPU draws."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 20_000, generator=generator).bfloat16()
    seeds = torch.arange(300)
    parameters = (torch.full((300,), 0.7), None, torch.full((300,), 0.9), None, seeds, seeds)
    expected = torch.ops.structout.masked_sample(logits, None, None, *parameters)
    on_device = [None if value is None else value.cuda() for value in (logits, None, None, *parameters)]
    return lambda: torch.ops.structout.masked_sample(*on_device), expected.cuda()


if __name__ == "__main__":
    sys.exit(main())
