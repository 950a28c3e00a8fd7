"""`make gpu-check`: all checks that need a GPU, in less than ten minutes.

Builds the ops in the environment of the Python that runs this script, runs the whole
suite on CUDA and the tests of the ops on Triton, a subset under compute-sanitizer, and
then the benches, which write bench/results/*_cuda.json. Needs no network.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "torch",
    "triton",
    "ninja",
    "setuptools",
    "xgrammar",
    "llguidance",
    "xxhash",
    "transformers",
    "jsonschema",
    "pydantic",
    "prometheus_client",
    "hypothesis",
    "pytest",
)
OP_TESTS = (
    *("tests/ops/test_apply_bitmask.py", "tests/ops/test_apply_bitmask_cuda.py", "tests/ops/test_masked_sample.py"),
    *("tests/distributed/test_push.py", "tests/distributed/test_sharded_masked_sample.py"),
)
SANITIZED_TESTS = "cuda and not cuda_on_cpu and (residue or row_map or expanded_mask or narrower or minus_one)"
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def main() -> int:
    missing = missing_requirements()
    if missing:
        print("make gpu-check needs:", *missing, sep="\n  - ")
        return 2
    started = time.monotonic()
    # -P: the folder triton_kernels must not be importable as a top-level package.
    pytest = [sys.executable, "-P", "-m", "pytest", "--quiet", "-p", "no:cacheprovider"]
    in_parallel = ["-n", "8"] if importlib.util.find_spec("xdist") is not None else []
    steps: list[tuple[str, list[str], dict[str, str]]] = [
        ("build", [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "-e", "."],
         {"STRUCTOUT_BUILD_CUDA": "1"}),
        ("doctor", [sys.executable, "-m", "structout.doctor"], {}),
        ("suite, CUDA", [*pytest, *in_parallel, "--long"], {}),
        ("suite of the ops, Triton", [*pytest, *in_parallel, "--long", *OP_TESTS], {"STRUCTOUT_BACKEND": "triton"}),
        *((f"compute-sanitizer {tool}",
           ["compute-sanitizer", f"--tool={tool}", "--error-exitcode=9", *pytest, *OP_TESTS,
            "-k", SANITIZED_TESTS], {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
          for tool in SANITIZERS),
        *((f"bench {op}", [sys.executable, f"bench/bench_{op}.py", "--device", "cuda"], {})
          for op in ("apply_bitmask", "masked_sample")),
    ]  # fmt: skip
    failed = [name for name, command, extra in steps if not run(name, command, extra)]
    print(
        f"\ngpu-check took {time.monotonic() - started:.0f} s;",
        f"failed: {', '.join(failed)}" if failed else "all passed",
    )
    return 1 if failed else 0


def missing_requirements() -> list[str]:
    missing = [f"the Python package {name}" for name in PACKAGES if importlib.util.find_spec(name) is None]
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


def run(name: str, command: list[str], extra: dict[str, str]) -> bool:
    print(f"\n=== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=os.environ | extra).returncode
    print(
        f"=== {name}: {'passed' if code == 0 else f'FAILED with status {code}'} in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
