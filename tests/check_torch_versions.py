"""`make test-torch`: one wheel in the oldest and in the newest CUDA build of torch.

No GPU is needed: CUDA builds of torch install and import without one. In each version
both op libraries load, the CPU tests of the ops pass, and every Triton kernel compiles
for sm_80, sm_90 and sm_100 with the triton that torch brings. Triton's interpreter is
not used: triton 3.6's needs numpy < 2.4 and has no bfloat16.

The environments take 16 GB in .venv-torch and are kept. Needs nvcc and a package index.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".venv-torch"
TORCH = {"oldest": "torch==2.10.0", "newest": "torch"}
PACKAGES = ("numpy", "xgrammar", "pytest", "hypothesis", "setuptools>=77", "ninja", "pybind11>=3")
CPU_TESTS = (
    *("tests/ops/test_apply_bitmask.py", "tests/ops/test_apply_token_bitmask_inplace.py"),
    *("tests/ops/test_masked_sample.py", "tests/ops/test_masked_sample_oracle.py", "tests/masks/test_bitmask.py"),
)
TRITON_TESTS = (
    *("tests/ops/test_masked_sample_triton.py", "tests/repo/test_gpu_builds.py"),
    *("tests/distributed/test_push_triton.py", "tests/distributed/test_shards_triton.py"),
)
PROBE = """
import torch, structout, triton
from structout.ops import kernels
loaded = kernels.load()
print(f"torch {torch.__version__}, triton {triton.__version__}: {loaded}")
assert torch.version.cuda is not None
assert loaded == kernels.Backends("cuda", ())
assert kernels.has_cuda_kernels()
"""


def main() -> int:
    started = time.monotonic()
    for name, torch in TORCH.items():
        install(name, torch, *PACKAGES)
    wheel = build_wheel("oldest")
    for name in TORCH:
        check(name, wheel)
    print(f"\nmake test-torch passed in {time.monotonic() - started:.0f} s")
    return 0


def install(name: str, *packages: str) -> None:
    if not python(name).exists():
        run(sys.executable, "-m", "venv", str(ENVIRONMENTS / name))
    pip(name, "install", "--upgrade", *packages)


def build_wheel(name: str) -> Path:
    """Build an sdist and from it a wheel, with the headers of one version of torch."""
    shutil.rmtree(ENVIRONMENTS / "dist", ignore_errors=True)
    folder = str(ENVIRONMENTS / "dist")
    run(str(python(name)), "setup.py", "--quiet", "sdist", "--dist-dir", folder, STRUCTOUT_BUILD_CUDA="0")
    (sdist,) = Path(folder).glob("*.tar.gz")
    # One architecture is enough: nothing runs on a GPU here.
    pip(name, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, str(sdist),
        STRUCTOUT_BUILD_CUDA="1", STRUCTOUT_CUDA_ARCHS="90")  # fmt: skip
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def check(name: str, wheel: Path) -> None:
    pip(name, "install", "--force-reinstall", "--no-deps", str(wheel))
    # -P: neither the checkout's structout nor its triton_kernels may be imported.
    run(str(python(name)), "-P", "-W", "error::RuntimeWarning", "-c", PROBE)
    pytest = (str(python(name)), "-P", "-m", "pytest", "--quiet", "-p", "no:cacheprovider")
    # PYTHONSAFEPATH: the same for the processes that tests start.
    run(*pytest, *CPU_TESTS, "-k", "not triton and not cuda", PYTHONSAFEPATH="1")
    run(*pytest, *TRITON_TESTS, "-k", "compiles", PYTHONSAFEPATH="1")


def python(name: str) -> Path:
    return ENVIRONMENTS / name / "bin" / "python"


def pip(name: str, *arguments: str, **variables: str) -> None:
    run(str(python(name)), "-m", "pip", "--disable-pip-version-check", "-qq", *arguments, **variables)


def run(*command: str, **variables: str) -> None:
    shown = [argument if "\n" not in argument else "..." for argument in command]
    print("\n===", *(f"{key}={value}" for key, value in variables.items()), *shown, flush=True)
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=os.environ | variables).returncode
    if code != 0:
        sys.exit(f"=== failed with status {code}")
    print(f"=== {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
