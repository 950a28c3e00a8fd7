"""Times calls and stores results: interleaved peers, medians, and a description of the
machine."""

import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "triton", "xgrammar", "llguidance")


def interleaved_medians(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float = 0.4, max_rounds: int = 300
) -> dict[str, float]:
    """Return the median seconds of each call.

    One round makes each call once, so that a drift of the machine affects all of them.

    On CUDA each call is timed by events, after a write that is larger than the L2 cache
    has evicted everything from it.
    """
    timer = _time_on_cuda if device.type == "cuda" else _time_on_cpu
    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds * len(calls)
    order = list(calls)
    shuffle = random.Random(0).shuffle
    for round_ in range(max_rounds):
        shuffle(order)  # a call's predecessor determines what is in the caches
        for name in order:
            samples[name].append(timer(calls[name]))
        if round_ >= 4 and time.perf_counter() > deadline:
            break
    return {name: statistics.median(values) for name, values in samples.items()}


def _time_on_cpu(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


_L2_EVICTION_BYTES = 256 << 20


def _time_on_cuda(call: Callable[[], object]) -> float:
    torch.empty(_L2_EVICTION_BYTES, dtype=torch.int8, device="cuda").zero_()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the commit, the machine and the versions.

    ``commit`` ends in "+" if tracked files differ from it.
    """
    described: dict[str, Any] = {
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }
    if device.type == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        described["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
        described["cuda"] = torch.version.cuda
    return described


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{model}, {os.cpu_count()} cores, {torch.ops.structout._cpu_capability()}"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=RESULTS.parent).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "-uno") else "")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_results(bench: str, device: torch.device, rows: list[dict[str, Any]]) -> Path:
    """Write the environment and the rows to one file per bench and kind of device."""
    path = RESULTS / f"{bench}_{device.type}.json"
    body = ",\n  ".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"environment": {json.dumps(environment(device))},\n "rows": [\n  {body}\n]}}\n')
    return path


def read_results(bench: str, device_type: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return ``{"environment": ..., "rows": [...]}``."""
    results: dict[str, Any] = json.loads((folder / f"{bench}_{device_type}.json").read_text())
    return results
