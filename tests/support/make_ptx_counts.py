"""Counts what the compiled CUDA kernels execute for a table of calls: warp
instructions, divergences, sectors, wavefronts, barriers. Needs nvcc, and no GPU.

    PYTHONPATH=tests python -m support.make_ptx_counts [--write]

``--write`` replaces tests/corpus/ptx_counts.json, with which a test compares. The
machine of tests/native/ptx_vm executes nvcc's PTX for sm_90 in a fixed order, so the
counts are the same everywhere. They are counts, not times: an instruction of PTX is
none, one or several of a GPU, and nothing is known of stalls, caches and how warps
overlap.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from structout import pack_bitmask
from support import apply_bitmask_backends, masked_sample_builds, ptx
from support.locations import CORPUS

COUNTS = CORPUS / "ptx_counts.json"
VOCAB, ROWS = 151_936, 4
COUNTERS = ("instructions", "divergences", "global_loads", "load_sectors", "global_stores", "store_sectors",
            "shared_accesses", "shared_wavefronts", "barriers", "cluster_barriers")  # fmt: skip
BLOCKS, CLUSTERS = (80, 200), (90, 200)  # DeviceFacts: one block for each row, a cluster for each row


def masks(share: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return pack_bitmask(torch.rand(ROWS, VOCAB, generator=generator) < share)


def logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return (torch.rand(ROWS, VOCAB, generator=generator) * 16 - 8).bfloat16()


def sample(device: tuple[int, int], bitmask: torch.Tensor | None, *, filters: int = 0, logprobs: bool = False) -> None:
    """Sample with ``top_k=filters`` and ``top_p=0.9``, or without filters."""

    def kernel(params: masked_sample_builds.Params) -> None:
        masked_sample_builds.cuda_library().masked_sample_on_host(ctypes.byref(params), *device)

    top_k = torch.full((ROWS,), filters) if filters else None
    top_p = torch.full((ROWS,), 0.9) if filters else None
    seeds = torch.arange(ROWS)
    masked_sample_builds.run(
        kernel, logits(), bitmask, None, torch.ones(ROWS), top_k, top_p, None, seeds, seeds, logprobs=logprobs
    )


def apply(share: float) -> None:
    apply_bitmask_backends.get("cuda_on_cpu")(logits(), masks(share))


CALLS: dict[str, tuple[str, Callable[[], ctypes.CDLL], Callable[[], None]]] = {
    f"{op}: {name}": (program, library, call)
    for op, program, library, calls in (
        (
            "masked_sample",
            "masked_sample",
            masked_sample_builds.cuda_library,
            {
                "all allowed, blocks": lambda: sample(BLOCKS, None),
                "all allowed, clusters": lambda: sample(CLUSTERS, None),
                "half allowed, blocks, logprobs": lambda: sample(BLOCKS, masks(0.5), logprobs=True),
                "16 allowed, blocks": lambda: sample(BLOCKS, masks(16 / VOCAB)),
                "16 allowed, clusters, top_k 50, top_p 0.9": lambda: sample(CLUSTERS, masks(16 / VOCAB), filters=50),
                "all allowed, blocks, top_k 50, top_p 0.9": lambda: sample(BLOCKS, None, filters=50),
                "all allowed, clusters, top_k 50, top_p 0.9": lambda: sample(CLUSTERS, None, filters=50),
                "all allowed, blocks, top_k 2000, top_p 0.9": lambda: sample(BLOCKS, None, filters=2000),
                "all allowed, clusters, top_k 2000, top_p 0.9": lambda: sample(CLUSTERS, None, filters=2000),
            },
        ),
        (
            "apply_bitmask",
            "apply_bitmask",
            apply_bitmask_backends.library,
            {
                "nothing allowed": lambda: apply(0.0),
                "half allowed": lambda: apply(0.5),
                "99.9% allowed": lambda: apply(0.999),
            },
        ),
    )
    for name, call in calls.items()
}


def count(name: str) -> dict[str, int]:
    """Return the counters of a call, of all its kernels together."""
    program, library, call = CALLS[name]

    def totals() -> dict[str, int]:
        with tempfile.NamedTemporaryFile() as file:
            library().simt_write_report(file.name.encode())
            kernels = ptx.read_report(Path(file.name)).values()
        return {counter: sum(int(kernel.counters[counter]) for kernel in kernels) for counter in COUNTERS}

    with ptx.running(library(), ptx.configuration(program, 90, counts=1)):
        before = totals()
        call()
        after = totals()
    return {counter: after[counter] - before[counter] for counter in COUNTERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"replace {COUNTS.name}")
    arguments = parser.parse_args()
    counts = {name: count(name) for name in CALLS}
    for name, counters in counts.items():
        print(f"{name:<60}", *(f"{counter}={value}" for counter, value in counters.items()))
        print(f"{'':<60} {counters['instructions'] / ROWS / VOCAB * 256:.1f} instructions for 256 tokens of a row")
    if arguments.write:
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
