"""What `structout doctor`, the import and the command report about an installation with
a fault."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import structout
from structout import doctor, envs
from structout.ops import kernels
from support import fresh_process

PACKAGE = Path(structout.__file__).parent
NO_CUDA = pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
REINSTALL = "reinstall from structout's checkout: pip install --no-build-isolation --force-reinstall --no-deps ."
VARIABLES = ("STRUCTOUT_BACKEND", "STRUCTOUT_CPU_CAPABILITY")


def run_python(*arguments, path=None, **variables):
    environment = {key: value for key, value in os.environ.items() if key not in (*VARIABLES, "PYTHONPATH")}
    environment |= variables if path is None else {**variables, "PYTHONPATH": str(path)}
    return fresh_process.run("-W", "ignore:structout's ops:RuntimeWarning", *arguments, env=environment)


@pytest.fixture
def package_copy(tmp_path):
    """A folder with a copy of the package, without its libraries."""
    shutil.copytree(PACKAGE, tmp_path / "structout", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def assert_every_entrance_reports(cause, path=None, **variables):
    """The doctor, the command and the import name the cause; the import succeeds."""
    doctor = run_python("-P", "-m", "structout.doctor", path=path, **variables)
    assert (doctor.returncode, doctor.stderr) == (1, "")
    broken = doctor.stdout.split("\nbroken\n")[1]
    assert cause in broken
    assert f"structout {structout.__version__}" in doctor.stdout
    assert run_python("-P", "-m", "structout", "doctor", path=path, **variables).stdout == doctor.stdout

    generate = run_python("-P", "-m", "structout", "generate", "--choice", "a", path=path, **variables)
    assert (generate.returncode, generate.stdout) == (2, "")
    assert generate.stderr.splitlines()[-1].startswith("structout: error: ")
    assert "Traceback" not in generate.stderr
    assert cause in generate.stderr

    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import structout
print(*(warning.message for warning in caught))
structout.StructuredOutputsParams(regex="a").validate()
for ask in (lambda: structout.apply_bitmask, lambda: __import__("structout.ops.apply_bitmask")):
    try:
        ask()
    except ImportError as error:
        print(error)
"""
    messages = run_python("-P", "-c", script, path=path, **variables).stdout.splitlines()
    assert len(messages) == 3
    assert messages[0].startswith("structout's ops cannot be used: ")
    assert all(cause in message for message in messages)


def test_doctor_with_a_missing_library_advises_a_reinstall(package_copy):
    assert_every_entrance_reports(f"_C.so is missing); {REINSTALL}", path=package_copy)


def test_doctor_in_a_checkout_that_hides_an_installation_names_both_ways_out(package_copy, tmp_path_factory):
    (package_copy / "csrc").mkdir()
    in_place = "build it in place: pip install --no-build-isolation -e ."
    assert_every_entrance_reports(f"this is the checkout {package_copy}: {in_place}", path=package_copy)
    installed = tmp_path_factory.mktemp("site-packages")
    (installed / "structout").mkdir()
    (installed / "structout" / "_C.so").touch()
    cause = f"this is the checkout {package_copy}, which hides the structout that is installed in {installed}: "
    assert_every_entrance_reports(
        f"{cause}leave the checkout's folder, or {in_place}", path=f"{package_copy}{os.pathsep}{installed}"
    )


def test_doctor_with_a_file_that_is_no_library_gives_the_loaders_error(package_copy):
    library = package_copy / "structout" / "_C.so"
    library.write_bytes(b"not a library")
    assert_every_entrance_reports(
        f"structout's CPU ops were built but do not load ({library}: file too short)", path=package_copy
    )


@pytest.mark.parametrize(
    ("variable", "value", "choices"),
    [("STRUCTOUT_BACKEND", "foo", "cuda, triton"), ("STRUCTOUT_CPU_CAPABILITY", "avx1024", "default, avx2, avx512")],
)
def test_doctor_with_an_unknown_value_of_a_variable_lists_the_choices(variable, value, choices):
    assert_every_entrance_reports(f"{variable} must be one of {choices}, got {value!r}", **{variable: value})


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True), ("", True), (None, True)])
def test_vllm_variable_is_0_or_1(monkeypatch, value, expected):
    monkeypatch.delenv("STRUCTOUT_VLLM", raising=False)
    if value is not None:
        monkeypatch.setenv("STRUCTOUT_VLLM", value)
    assert envs.vllm() is expected


@pytest.mark.parametrize("value", ["maybe", "true", "2", "00"])
def test_vllm_variable_with_another_value_raises(monkeypatch, value):
    monkeypatch.setenv("STRUCTOUT_VLLM", value)
    with pytest.raises(ValueError, match=f"STRUCTOUT_VLLM must be one of 0, 1, got '{value}'"):
        envs.vllm()


def test_key_order_variable_is_declared_or_any(monkeypatch):
    monkeypatch.delenv("STRUCTOUT_KEY_ORDER", raising=False)
    assert envs.key_order() == "declared"
    monkeypatch.setenv("STRUCTOUT_KEY_ORDER", "any")
    assert envs.key_order() == "any"
    monkeypatch.setenv("STRUCTOUT_KEY_ORDER", "sorted")
    with pytest.raises(ValueError, match="STRUCTOUT_KEY_ORDER must be one of declared, any, got 'sorted'"):
        envs.key_order()


@NO_CUDA
@pytest.mark.parametrize("requested", ["cuda", "triton"])
def test_doctor_with_a_cuda_backend_and_a_cpu_torch_names_torch(requested):
    assert_every_entrance_reports(
        f"STRUCTOUT_BACKEND={requested}, but this torch ({torch.__version__}) has no", STRUCTOUT_BACKEND=requested
    )


def test_doctor_with_empty_variables_treats_them_as_unset():
    assert run_python("-m", "structout.doctor", STRUCTOUT_BACKEND="").returncode == 0


def test_doctor_lists_the_version_of_every_package():
    lines = run_python("-m", "structout.doctor").stdout.splitlines()
    listed = [line.split()[0] for line in lines[1 : lines.index("")]]
    assert listed == ["torch", "numpy", "triton", "transformers", "jsonschema", "xgrammar"]


def run_without(packages, script):
    hidden = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
    return run_python("-P", "-c", hidden + script)


@pytest.mark.parametrize(
    ("version", "switch", "line"),
    [
        ("not installed", None, None),
        ("0.32.0", None, "constraints  structout"),
        ("0.33.1+cu130", None, "states       kept by the workers under asynchronous scheduling, else the scheduler"),
        ("0.32.0", ("STRUCTOUT_VLLM_WORKER_STATES", "0"), "states       kept by the scheduler"),
        ("0.32.0", ("STRUCTOUT_VLLM_SAMPLER", "0"), "tokens       drawn by vLLM"),
        ("0.32.0", ("STRUCTOUT_VLLM", "0"), "STRUCTOUT_VLLM=0: structout replaces nothing"),
        ("0.34.0", None, "structout supports 0.32 and 0.33, and replaces nothing"),
    ],
)
def test_doctor_says_what_structout_does_in_vllm(monkeypatch, capsys, version, switch, line):
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == "vllm" else "not installed")
    if switch is not None:
        monkeypatch.setenv(*switch)
    assert doctor.main() == 0
    printed = capsys.readouterr().out
    assert (f"vLLM {version}" in printed) == (line is not None)
    assert line is None or f"  {line}\n" in printed


def test_doctor_with_an_unknown_switch_of_vllm_lists_the_choices(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_version", lambda _: "0.32.0")
    monkeypatch.setenv("STRUCTOUT_VLLM", "yes")
    assert doctor.main() == 1
    assert "STRUCTOUT_VLLM must be one of 0, 1, got 'yes'" in capsys.readouterr().out.split("\nbroken\n")[1]


def test_doctor_without_torch_says_how_to_install_it():
    run = run_without(["torch"], "from structout_cli import main; sys.exit(main(['doctor']))")
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.split("\nbroken\n")[1].splitlines()[0] == "  torch is not installed: pip install 'torch>=2.10'"


def test_ops_without_torch_raise_import_error():
    run = run_without(["torch"], "import structout; print(structout.__version__); structout.apply_bitmask")
    assert run.stdout == f"{structout.__version__}\n"
    assert run.stderr.splitlines()[-1] == (
        "ImportError: structout.apply_bitmask needs torch, which is not installed: pip install 'torch>=2.10'"
    )


WORKER = """
import torch, structout
logits = torch.zeros(1, 40)
structout.apply_bitmask(logits, structout.pack_bitmask(torch.arange(40)[None] == 3))
sampler = structout.MaskedSampler, structout.MaskBatch, structout.SamplingParams
assert torch.ops.structout.masked_sample(logits, None, None, torch.zeros(1), None, None, None,
                                         torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)) == 3
structout.StructuredOutputsParams(regex="a").validate()
for name in sys.argv[1:]:
    try:
        getattr(structout, name)
    except ImportError as error:
        print(error)
"""


def test_ops_and_manager_work_without_another_engine():
    names = ("StructuredOutputManager", "BackendSet", "register_backend")
    run = run_without(["xgrammar", "tvm_ffi"], f"sys.argv[1:] = {names!r}\n{WORKER}")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def raise_not_built(cause):
    raise kernels._NotBuiltError(cause)


@pytest.mark.parametrize(
    ("requested", "problems", "cuda", "warning"),
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
        ("cuda", {"cuda": "no library"}, None, "STRUCTOUT_BACKEND=cuda cannot be used: no library"),
    ],
)
def test_load_with_a_cuda_torch_chooses_the_kernels(monkeypatch, requested, problems, cuda, warning):
    """Stand-ins take the place of the two libraries."""

    def stand_in(name):
        return lambda: raise_not_built(problems[name]) if name in problems else None

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(kernels, "_load_cuda_library", stand_in("cuda"))
    monkeypatch.setattr(kernels, "_register_triton", stand_in("triton"))
    monkeypatch.setattr(kernels, "_load_cpu_library", lambda: None)
    monkeypatch.setenv("STRUCTOUT_BACKEND", requested or "")
    load = kernels.load.__wrapped__
    if warning is None:
        assert load().cuda == cuda
        assert load().unused is None
    else:
        with pytest.warns(RuntimeWarning, match=warning):
            assert load().cuda is None


@pytest.fixture
def built_cuda_library(tmp_path, monkeypatch):
    """A CUDA torch, and a path at which the CUDA library is expected."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(kernels, "_PACKAGE", tmp_path)
    monkeypatch.setattr(kernels, "_register_triton", lambda: None)
    monkeypatch.setattr(kernels, "_load_cpu_library", lambda: None)
    monkeypatch.delenv("STRUCTOUT_BACKEND", raising=False)
    library = tmp_path / "_C_cuda.so"
    library.write_bytes(b"not a library")
    return library


def test_load_with_a_cuda_library_that_does_not_load_warns_with_the_loaders_error(built_cuda_library):
    cause = (
        f"the CUDA ops were built but do not load in torch {torch.__version__}: {built_cuda_library}: file too short"
    )
    with pytest.warns(RuntimeWarning) as warnings:
        loaded = kernels.load.__wrapped__()
    assert [str(warning.message) for warning in warnings] == [f"structout uses its Triton kernels: {cause}"]
    assert (loaded.cuda, loaded.unused) == ("triton", cause)
    assert "reinstall" not in cause


def test_load_with_a_cuda_library_without_kernels_warns(built_cuda_library, monkeypatch):
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(kernels, "has_cuda_kernels", lambda: False)
    with pytest.warns(RuntimeWarning, match="_C_cuda.so was loaded but registers no kernels"):
        assert kernels.load.__wrapped__().cuda == "triton"


def test_doctor_with_a_cuda_library_that_does_not_load_reports_it_as_broken(built_cuda_library, monkeypatch, capsys):
    from structout import doctor

    with pytest.warns(RuntimeWarning):
        loaded = kernels.load.__wrapped__()
    monkeypatch.setattr(kernels, "load", lambda: loaded)
    assert doctor.main() == 1
    report, broken = capsys.readouterr().out.split("\nbroken\n")
    assert broken.splitlines()[0].endswith("_C_cuda.so: file too short")
    assert "Triton, " in report


def test_load_without_a_cuda_library_uses_triton_without_a_warning(built_cuda_library, recwarn):
    built_cuda_library.unlink()
    assert kernels.load.__wrapped__().cuda == "triton"
    assert not recwarn.list


def test_has_cuda_kernels_tells_whether_kernels_are_registered():
    script = """
import structout, torch
from structout.ops import kernels
print(kernels.has_cuda_kernels())
library = torch.library.Library("structout", "IMPL")
library.impl("apply_bitmask", lambda *arguments: None, "CUDA")
print(kernels.has_cuda_kernels())
"""
    expected = ["True" if torch.version.cuda else "False", "True"]
    assert run_python("-P", "-c", script).stdout.split() == expected
