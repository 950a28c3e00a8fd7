"""What installing structout puts where."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from locations import ROOT


def test_triton_kernels_is_importable_as_a_part_of_structout_only(tmp_path):
    """A top-level package of that name belongs to others, and engines import it."""
    script = (
        "import importlib.util as u, structout; "
        "print(u.find_spec('triton_kernels'), u.find_spec('structout.triton_kernels') is not None)"
    )
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout.split() == ["None", "True"], run.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """The files of a wheel built without nvcc, from a tree in which a library of an earlier build lies about."""
    tree, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "structout_cli.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("csrc", "structout", "triton_kernels"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tree / "structout" / "_C_cuda.so").touch()
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-build-isolation", "--no-deps", "-w", str(target), "."]
    environment = os.environ | {"STRUCTOUT_BUILD_CUDA": "0"}
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    (built,) = target.glob("structout-*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_a_wheel_without_cuda_is_whole(wheel):
    modules = {f"structout/{path.relative_to(ROOT / 'structout')}" for path in (ROOT / "structout").rglob("*.py")}
    kernels = {f"structout/triton_kernels/{path.name}" for path in (ROOT / "triton_kernels").glob("*.py")}
    assert modules | kernels | {"structout/_C.so", "structout/py.typed", "structout_cli.py"} <= wheel
    assert "structout/_C_cuda.so" not in wheel
    assert not any(name.startswith("triton_kernels/") for name in wheel)


@pytest.mark.parametrize(
    ("wish", "path", "message"),
    [("perhaps", None, "STRUCTOUT_BUILD_CUDA must be auto, 1 or 0, got 'perhaps'"),
     ("1", "/nowhere", "STRUCTOUT_BUILD_CUDA=1, but nvcc is not on PATH nor in $CUDA_HOME/bin")],
)  # fmt: skip
def test_a_build_that_cannot_be_as_wished_says_so(wish, path, message):
    environment = os.environ | {"STRUCTOUT_BUILD_CUDA": wish}
    if path is not None:
        environment |= {"PATH": path, "CUDA_HOME": path}
    command = [sys.executable, "setup.py", "--version"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert message in run.stderr
