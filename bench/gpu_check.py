"""`make gpu-check`: all checks and measurements that need a GPU, in steps.

    python bench/gpu_check.py [--only STEP ...] [--out FOLDER]

Each step has a time limit and runs in processes of its own. The output folder (default:
build/gpu-check) gets a log of every step, JUnit files of the tests, and the results of
the benches, which are complete after every row; and summary.json after every step. Copy
``*_cuda.json`` from there to bench/results, then run bench/report.py.

Needs neither a network nor git; without git, name the commit by STRUCTOUT_COMMIT.
Packages that this Python lacks are installed from .gpu-packages, which
bench/gather_gpu_packages.py fills. A peer that is still missing is named in the
results.
"""

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
CARRIED = ROOT / ".gpu-packages"
INSTALLED = ROOT / "build" / "gpu-packages"
NEEDED = ("torch", "triton", "ninja", "setuptools", "pytest", "xdist", "hypothesis", "xgrammar", "llguidance")

# -P: the folder triton_kernels must not be importable as a top-level package.
PYTEST = (sys.executable, "-P", "-m", "pytest", "--quiet", "-p", "no:cacheprovider")
WORKERS = ("--numprocesses", "6", "--dist", "worksteal")  # each holds a context and compiles kernels
GPU_TESTS = ("tests/ops", "tests/distributed", "tests/masks/test_pool.py", "tests/grammar/regular/test_device_fsm.py")
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


@dataclass(frozen=True)
class Step:
    """Commands that run one after the other, also after one has failed."""

    name: str
    limit_s: float
    commands: tuple[tuple[str, ...], ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def steps(out: Path) -> list[Step]:
    """What tells most comes first, in case time runs out."""
    # Nothing may be measured on Triton by mistake. Ranks that wait for each other on
    # one device need a hardware queue each.
    cuda = {"STRUCTOUT_BACKEND": "cuda", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    triton = cuda | {"STRUCTOUT_BACKEND": "triton"}
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index")
    doctor = (sys.executable, "-P", "-m", "structout", "doctor")
    build = {"STRUCTOUT_BUILD_CUDA": "1", "STRUCTOUT_CUDA_ARCHS": compute_capabilities()}
    return [
        Step("build", 420, ((*pip, "-e", "."), doctor, script("gpu_peers.py")), build),
        Step("smoke", 180, (script("gpu_smoke.py", "cuda"), script("gpu_smoke.py", "triton"))),
        Step("occupancy", 60, (script("gpu_occupancy.py", "--out", str(out)),), cuda),
        Step("bench-apply", 480, (script("bench_apply_bitmask.py", "--results", str(out)),), cuda),
        Step("bench-sample", 540, (script("bench_masked_sample.py", "--results", str(out)),), cuda),
        Step("bench-step-ops", 60, (script("bench_step_ops.py", "--results", str(out)),), cuda),
        Step("bench-device-fsm", 120, (script("bench_device_fsm.py", "--results", str(out)),), cuda),
        Step("tests-cuda", 540, (gpu_tests(out, "tests-cuda", "gpu and not triton", *WORKERS),), cuda),
        Step("tests-triton", 540, (gpu_tests(out, "tests-triton", "gpu", *WORKERS),), triton),
        Step("push", 180, (gpu_tests(out, "push", "gpu", "-k", "push"),), cuda),
        Step("sanitize", 540, tuple(sanitized_calls(tool) for tool in SANITIZERS),
             cuda | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    ]  # fmt: skip


def script(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "bench" / name), *arguments)


def gpu_tests(out: Path, name: str, markers: str, *options: str) -> tuple[str, ...]:
    return (*PYTEST, "-m", markers, f"--junitxml={out / name}.xml", *options, *GPU_TESTS)


def sanitized_calls(tool: str) -> tuple[str, ...]:
    # initcheck has to see the kernels of torch too, which initialise what ours read.
    kernels = () if tool == "initcheck" else ("--kernel-name", "kernel_substring=structout")
    check = ("compute-sanitizer", f"--tool={tool}", "--error-exitcode=9", *kernels)
    return (*check, *script("gpu_smoke.py", "cuda"))


def main() -> int:
    parser = argparse.ArgumentParser(description="checks and measures structout on a GPU")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps; default: all, in their order")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check", metavar="FOLDER")
    arguments = parser.parse_args()
    missing = missing_from_machine()
    environment = {} if missing else install_carried_packages()
    missing += [f"the Python package {name}" for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print("make gpu-check needs:", *missing, sep="\n  - ")
        return 2
    out = arguments.out.resolve()
    all_steps = {step.name: step for step in steps(out)}
    unknown = set(arguments.only or ()) - set(all_steps)
    if unknown:
        parser.error(f"unknown step {', '.join(sorted(unknown))}; choose from {', '.join(all_steps)}")
    return run_steps([all_steps[name] for name in arguments.only or all_steps], out, environment)


def run_steps(chosen: Iterable[Step], out: Path, environment: Mapping[str, str]) -> int:
    """Run steps and return an exit status. Write summary.json after each."""
    out.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, dict[str, object]] = {}
    for step in chosen:
        print(f"{step.name:<14}", end="", flush=True)
        started = time.monotonic()
        outcome = run_step(step, out / f"{step.name}.log", environment)
        seconds = round(time.monotonic() - started, 1)
        print(f"{outcome} in {seconds:.0f} s", flush=True)
        outcomes[step.name] = {"outcome": outcome, "seconds": seconds}
        (out / "summary.json").write_text(json.dumps(outcomes, indent=1) + "\n")
    failed = [name for name, outcome in outcomes.items() if outcome["outcome"] != "passed"]
    for name in failed:
        print(f"\n=== the end of {out / name}.log", *(out / f"{name}.log").read_text().splitlines()[-25:], sep="\n")
    return 1 if failed else 0


def run_step(step: Step, log: Path, environment: Mapping[str, str]) -> str:
    """Run a step's commands and return "passed", or what failed."""
    deadline = time.monotonic() + step.limit_s
    outcome = "passed"
    with log.open("wb") as file:
        for command in step.commands:
            file.write(f"$ {' '.join(command)}\n".encode())
            file.flush()
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
                env={**os.environ, **environment, **step.variables},
            )  # fmt: skip
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"ENDED at its limit of {step.limit_s:.0f} s"
            if status != 0:
                outcome = f"FAILED with status {status}"
    return outcome


def install_carried_packages() -> dict[str, str]:
    """Install .gpu-packages into build/ and return the variables that make them
    importable."""
    wheels = sorted(map(str, CARRIED.glob("*.whl")))
    if not wheels:
        return {}
    shutil.rmtree(INSTALLED, ignore_errors=True)
    options = ("-q", "--no-index", "--no-deps", "--no-compile", "--target", str(INSTALLED))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *wheels], check=True)
    sys.path.insert(0, str(INSTALLED))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(INSTALLED), os.environ.get("PYTHONPATH")]))}


def missing_from_machine() -> list[str]:
    missing = []
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.version.cuda is None:
            missing.append(f"a CUDA build of torch (this is {torch.__version__})")
        elif not torch.cuda.is_available():
            missing.append("an NVIDIA GPU and its driver")
    missing += [
        f"{tool} on PATH (CUDA toolkit)" for tool in ("nvcc", "compute-sanitizer") if shutil.which(tool) is None
    ]
    return missing


def compute_capabilities() -> str:
    import torch

    devices = range(torch.cuda.device_count())
    return " ".join(sorted({"{}.{}".format(*torch.cuda.get_device_capability(device)) for device in devices}))


if __name__ == "__main__":
    sys.exit(main())
