"""Writes what limits the kernels on this GPU: occupancy.json.

    python bench/gpu_occupancy.py [--out FOLDER]

Multiprocessors, shared memory, how many clusters run at a time (which decides how many
blocks share a row), and the bandwidths of writing, copying and reading memory.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import harness
import torch

import structout  # noqa: F401  (registers the ops)

BYTES = 4 << 30
FACTS = ("multiprocessors", "compute_capability", "shared_bytes_a_block", *(f"clusters_of_{n}" for n in (2, 4, 8)))


def bandwidths() -> dict[str, float]:
    """Return terabytes per second; a copy counts what it reads and what it writes."""
    source = torch.randint(-(2**31), 2**31 - 1, (BYTES // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    calls = {"write": lambda: target.fill_(7), "copy": lambda: target.copy_(source), "read": source.amax}
    times = harness.time_calls(calls, source.device, read_inputs=lambda: None, seconds=0.3)["us"]
    moved = {"write": BYTES, "copy": 2 * BYTES, "read": BYTES}
    return {f"{name}_tb_per_s": round(moved[name] / us / 1e6, 3) for name, us in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="what limits the kernels on this GPU")
    parser.add_argument("--out", type=Path, default=Path())
    out = parser.parse_args().out
    properties = torch.cuda.get_device_properties(0)
    described: dict[str, Any] = {"environment": harness.environment(torch.device("cuda"))}
    described |= dict(zip(FACTS, torch.ops.structout._cuda_device_facts(0), strict=True))
    described |= {"l2_bytes": properties.L2_cache_size, "memory_bytes": properties.total_memory} | bandwidths()
    (out / "occupancy.json").write_text(json.dumps(described, indent=1) + "\n")
    print(json.dumps(described, indent=1))


if __name__ == "__main__":
    main()
