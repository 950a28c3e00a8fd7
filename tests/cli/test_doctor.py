"""What can be wrong with an installation, and what `structout doctor`, the import and the command then say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import structout

PACKAGE = Path(structout.__file__).parent
NO_CUDA = pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
REINSTALL = "from structout's checkout: pip install --no-build-isolation --force-reinstall --no-deps ."


def python(*arguments, path=None, **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("STRUCTOUT_BACKEND", "PYTHONPATH")}
    kept |= environment if path is None else {**environment, "PYTHONPATH": str(path)}
    command = [sys.executable, "-W", "ignore:structout's ops:RuntimeWarning", *arguments]
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copy(tmp_path):
    """A folder with a copy of the package, without its libraries."""
    shutil.copytree(PACKAGE, tmp_path / "structout", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def check_that_it_is_said(reason, path=None, **environment):
    """By the doctor, by the command, and by the import, which works."""
    doctor = python("-P", "-m", "structout.doctor", path=path, **environment)
    assert (doctor.returncode, doctor.stderr) == (1, "")
    broken = doctor.stdout.split("\nbroken\n")[1]
    assert reason in broken
    assert f"structout {structout.__version__}" in doctor.stdout
    assert python("-P", "-m", "structout.cli.main", "doctor", path=path, **environment).stdout == doctor.stdout

    generate = python("-P", "-m", "structout.cli.main", "generate", "--choice", "a", path=path, **environment)
    assert (generate.returncode, generate.stdout) == (2, "")
    assert generate.stderr.startswith("structout: error: ")
    assert generate.stderr.count("\n") == 1
    assert reason in generate.stderr

    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import structout
print(*(warning.message for warning in caught))
structout.StructuredOutputsParams(regex="a").validate()
for ask in (lambda: structout.apply_bitmask, lambda: __import__("structout.ops")):
    try:
        ask()
    except ImportError as error:
        print(error)
"""
    said = python("-P", "-c", script, path=path, **environment).stdout.splitlines()
    assert len(said) == 3
    assert said[0].startswith("structout's ops cannot be used: ")
    assert all(reason in line for line in said)


def test_a_missing_library(copy):
    check_that_it_is_said(f"_C.so is missing); re{REINSTALL.replace('from', 'install from', 1)}", path=copy)


def test_a_broken_library(copy):
    (copy / "structout" / "_C.so").write_bytes(b"not a library")
    check_that_it_is_said("structout's CPU ops were built but do not load (", path=copy)


def test_an_unknown_backend():
    check_that_it_is_said("STRUCTOUT_BACKEND must be one of cuda, triton, got 'foo'", STRUCTOUT_BACKEND="foo")


@NO_CUDA
@pytest.mark.parametrize("wish", ["cuda", "triton"])
def test_a_backend_for_cuda_where_torch_has_none(wish):
    check_that_it_is_said(
        f"STRUCTOUT_BACKEND={wish}, but this torch ({torch.__version__}) has no", STRUCTOUT_BACKEND=wish
    )


def test_an_empty_wish_is_none():
    assert python("-m", "structout.doctor", STRUCTOUT_BACKEND="").returncode == 0


@pytest.mark.parametrize(
    ("wish", "problems", "cuda", "said"),
    [
        (None, {}, "cuda", None),
        (None, {"cuda": "no library"}, "triton", None),
        (
            None,
            {"cuda": "no library", "triton": "no triton"},
            None,
            "no kernels for CUDA tensors. no library; no triton",
        ),
        ("triton", {"cuda": "no library"}, "triton", None),
        ("cuda", {"cuda": "no library"}, None, "STRUCTOUT_BACKEND=cuda cannot be served: no library"),
    ],
)
def test_which_kernels_serve_cuda_tensors(monkeypatch, wish, problems, cuda, said):
    """Of a torch that has CUDA, with stand-ins for the two libraries."""
    from structout import _kernels

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_kernels, "_load_cuda_library", lambda: problems.get("cuda"))
    monkeypatch.setattr(_kernels, "_register_triton", lambda: problems.get("triton"))
    monkeypatch.setattr(_kernels, "_load_cpu_library", lambda: None)
    monkeypatch.setenv("STRUCTOUT_BACKEND", wish or "")
    load = _kernels.load.__wrapped__
    if said is None:
        assert load().cuda == cuda
    else:
        with pytest.warns(RuntimeWarning, match=said):
            assert load().cuda is None
