"""The sdist and the wheel: what they contain, where they install, and what the build
says when it cannot go on."""

import email
import email.message
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import structout
from support import builds, fresh_process
from support.locations import ROOT

SOURCE_FOLDERS = ("bench", "csrc", "docs", "examples", "tests", "triton_kernels")
SOURCE_FILES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints-vllm.txt",
    "constraints.txt",
    "structout_cli.py",
)
NO_BUILD_OUTPUTS = shutil.ignore_patterns("*.so", "__pycache__", "build")


def run(*command, cwd, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


def test_triton_kernels_is_importable_as_a_part_of_structout_only(tmp_path):
    """A top-level package of that name belongs to another project, and engines import
    it."""
    script = (
        "import importlib.util as u, structout; "
        "print(u.find_spec('triton_kernels'), u.find_spec('structout.triton_kernels') is not None)"
    )
    result = run_preloaded("-c", script, cwd=tmp_path, PYTHONSAFEPATH="1")
    assert result.stdout.split() == ["None", "True"], result.stderr


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory) -> Path:
    """A copy of the sources, with a library that an earlier build has left."""
    tree = tmp_path_factory.mktemp("tree") / "structout"
    for name in (*SOURCE_FOLDERS, "structout"):
        shutil.copytree(ROOT / name, tree / name, ignore=NO_BUILD_OUTPUTS)
    for name in (*SOURCE_FILES, "MANIFEST.in", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree)
    (tree / "structout" / "_C_cuda.so").touch()
    return tree


@pytest.fixture(scope="module")
def sdist(source_tree, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build("sdist", source_tree, folder)
    (path,) = folder.glob("*.tar.gz")
    return path


def build(kind: str, tree: Path, folder: Path, **variables: str) -> None:
    """Make an sdist or a wheel as a build frontend does, without nvcc."""
    script = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    result = run_preloaded("-c", script, cwd=tree, STRUCTOUT_BUILD_CUDA="0", **variables)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheel(request, tmp_path_factory) -> Path:
    """A wheel that is built from the sdist, without nvcc.

    The processes of pytest-xdist, whose temporary folders have one parent, share it.
    """
    if not request.config.getoption("--long"):
        pytest.skip("building a wheel takes minutes: make test-all, or make wheels")
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared_wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            build_wheel(request.getfixturevalue("sdist"), folder)
    (path,) = folder.glob("*.whl")
    return path


def build_wheel(sdist: Path, folder: Path) -> None:
    compiler = folder / "g++"  # optimizing takes most of a minute
    compiler.write_text(f'#!/bin/sh\nexec {shlex.join(builds.cxx())} "$@" -O0\n')
    compiler.chmod(0o755)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = (path for path in folder.iterdir() if path.is_dir())
    build("wheel", tree, folder, CXX=str(compiler))


def test_sdist_contains_every_source_file(sdist, source_tree):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    paths = [path for folder in SOURCE_FOLDERS for path in (source_tree / folder).rglob("*")]
    files = {str(path.relative_to(source_tree)) for path in paths if path.is_file()}
    assert len([name for name in files if name.endswith(".cu")]) > 3
    assert files | {*SOURCE_FILES, "pyproject.toml", "setup.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_wheel_without_nvcc_contains_every_module_and_the_cpu_library(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"structout/{path.relative_to(ROOT / 'structout')}" for path in (ROOT / "structout").rglob("*.py")}
    kernels = {f"structout/triton_kernels/{path.name}" for path in (ROOT / "triton_kernels").glob("*.py")}
    folder = "structout/constraints/metaschemas"
    metaschemas = {f"{folder}/{path.name}" for path in (ROOT / folder).glob("*.json")}
    assert len(metaschemas) == 6  # drafts
    assert modules | kernels | metaschemas <= names
    assert {"structout/_C.so", "structout/py.typed", "structout_cli.py"} <= names
    assert f"structout/_fsm{sysconfig.get_config_var('EXT_SUFFIX')}" in names
    assert "structout/_C_cuda.so" not in names
    assert not any(name.startswith("triton_kernels/") for name in names)


def test_wheel_is_tagged_for_this_python_on_one_platform(wheel):
    platform = re.sub(r"[.-]", "_", sysconfig.get_platform())
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name == f"structout-{structout.__version__}-{python}-{python}-{platform}.whl"


def test_wheel_holds_a_library_without_python_and_without_debug_information(wheel, tmp_path):
    library = zipfile.ZipFile(wheel).extract("structout/_C.so", tmp_path)
    assert Path(library).stat().st_size < 2_000_000
    content = Path(library).read_bytes()
    assert b".debug_info" not in content
    assert b".symtab" not in content
    assert b"libpython" not in content
    assert b"PyInit_" not in content


def test_wheel_metadata_is_complete(wheel):
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    metadata: email.message.Message = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    assert metadata["Author"] == "structout contributors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Keywords"]
    urls = {url.partition(",")[0] for url in metadata.get_all("Project-URL")}
    assert urls == {"Homepage", "Repository", "Documentation", "Changelog"}
    assert "Programming Language :: Python :: 3.10" in metadata.get_all("Classifier")
    requirements = metadata.get_all("Requires-Dist")
    assert sorted(line for line in requirements if "extra" not in line) == ["numpy", "torch>=2.10", "xxhash"]
    assert set(metadata.get_all("Provides-Extra")) == {"generate", "metrics", "xgrammar"}
    of_xgrammar = [line for line in requirements if 'extra == "xgrammar"' in line]
    assert of_xgrammar == ['xgrammar<0.3,>=0.2.7; extra == "xgrammar"']


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory):
    """A virtual environment that has nothing but what Python's venv puts into it."""
    folder = tmp_path_factory.mktemp("new") / "env"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def clean_environment(new_environment, tmp_path):
    """A copy of the new environment, which takes less time than installing pip."""
    shutil.copytree(new_environment, tmp_path / "env", symlinks=True)
    return tmp_path / "env"


def borrow_packages(environment: Path) -> None:
    """Let an environment use the packages of this one, except editable installs."""
    folders = {str(Path(module.__file__).parents[1]) for module in (torch, pytest)}
    site_packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    Path(site_packages, "borrowed.pth").write_text("\n".join(sorted(folders)))


def test_wheel_in_an_environment_with_torch_runs_the_ops_and_the_command(wheel, clean_environment, tmp_path):
    borrow_packages(clean_environment)
    binaries = clean_environment / "bin"
    install = ("-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--ignore-installed", str(wheel))
    result = run(str(binaries / "python"), *install, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    script = (
        "import torch, structout; logits = torch.zeros(1, 40);"
        "structout.apply_bitmask(logits, structout.pack_bitmask(torch.arange(40)[None] == 3));"
        "print(structout.__file__, logits.argmax().item(), logits.isfinite().sum().item())"
    )
    result = run(str(binaries / "python"), "-c", script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    file, *numbers = result.stdout.split()
    assert Path(file).is_relative_to(clean_environment)
    assert numbers == ["3", "1"]
    doctor = run(str(binaries / "structout"), "doctor", cwd=tmp_path)
    assert (doctor.returncode, doctor.stderr) == (0, "")
    assert "broken" not in doctor.stdout


def test_wheel_in_an_environment_without_torch_says_how_to_install_it(wheel, clean_environment, tmp_path):
    binaries = clean_environment / "bin"
    install = ("-m", "pip", "install", "-qq", "--no-deps", "--no-index", str(wheel))
    assert run(str(binaries / "python"), *install, cwd=tmp_path).returncode == 0
    doctor = run(str(binaries / "structout"), "doctor", cwd=tmp_path)
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert "torch is not installed: pip install 'torch>=2.10'" in doctor.stdout.split("\nbroken\n")[1]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="venv brings setuptools only before Python 3.12")
@pytest.mark.parametrize("requirement", [".", ".[generate]"])
def test_install_in_a_fresh_environment_fails_in_one_line(requirement, clean_environment, source_tree):
    python = str(clean_environment / "bin" / "python")
    result = run(python, "-m", "pip", "install", "--no-build-isolation", "--no-index", requirement, cwd=source_tree)
    assert result.returncode != 0
    (line,) = [line.strip() for line in result.stderr.splitlines() if "structout cannot be built" in line]
    assert "torch is not installed; setuptools is 65" in line
    assert line.endswith("First run: pip install 'torch>=2.10' 'setuptools>=77' 'ninja>=1' 'pybind11>=3'")
    assert "[1 lines of output]" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("extra", ["", "[generate]", "[metrics]", "[xgrammar]"])
def test_install_beside_the_pinned_packages_needs_no_other_package(extra, source_tree, wheel):
    """The sources are built for one of the cases only."""
    distribution = str(wheel) if extra else "."
    options = ("--dry-run", "--no-build-isolation", "--no-index")
    result = run(sys.executable, "-m", "pip", "install", *options, distribution + extra, cwd=source_tree)
    assert result.returncode == 0, result.stderr
    assert f"Would install structout-{structout.__version__}\n" in result.stdout


def run_preloaded(*arguments, cwd=ROOT, **variables):
    """Run Python, as a rule in the checkout. The build needs torch, which takes seconds
    to import."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    return fresh_process.run(*arguments, cwd=cwd, env=environment, timeout=600)


def run_setup(*arguments, **variables):
    return run_preloaded("setup.py", *(arguments or ("--version",)), **variables)


def test_setup_with_an_old_torch_names_the_version_it_needs(tmp_path):
    metadata = tmp_path / "torch-2.9.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    result = run_setup(PYTHONPATH=str(tmp_path))
    assert result.returncode != 0
    assert result.stderr == "structout cannot be built: torch is 2.9.1. First run: pip install 'torch>=2.10'\n"


@pytest.mark.parametrize(
    ("requested", "path", "message"),
    [("perhaps", None, "STRUCTOUT_BUILD_CUDA must be auto, 1 or 0, got 'perhaps'"),
     ("1", "/nowhere", "STRUCTOUT_BUILD_CUDA=1, but nvcc is not on PATH nor in $CUDA_HOME/bin")],
)  # fmt: skip
def test_setup_with_an_impossible_request_for_cuda_says_why(requested, path, message):
    variables = {} if path is None else {"PATH": path, "CUDA_HOME": path}
    result = run_setup(STRUCTOUT_BUILD_CUDA=requested, **variables)
    assert result.returncode != 0
    assert message in result.stderr


@pytest.fixture
def stand_in_for_nvcc(tmp_path):
    """The variables of an environment whose nvcc knows four architectures and compiles
    nothing."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nprintf 'compute_%s\\n' 75 80 90 100\n")
    nvcc.chmod(0o755)
    return {"PATH": f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}", "STRUCTOUT_BUILD_CUDA": "1"}


PRINT_ARCHITECTURES = """
import runpy, sys
sys.argv = ["setup.py", "--version"]
setup = runpy.run_path("setup.py")
architectures = setup["cuda_architectures"](setup["find_nvcc"]())
print(*architectures, *setup["gencode_flags"](architectures)[-1:])
"""


@pytest.mark.parametrize(
    ("structout_archs", "torch_archs", "expected"),
    [
        ("", "", ["80", "90", "100"]),
        ("90", "8.0", ["90"]),
        ("10.0 80", "", ["80", "100"]),
        ("", "7.5;8.0 9.0a+PTX", ["75", "80", "90"]),
    ],
)
def test_setup_compiles_for_the_requested_architectures(structout_archs, torch_archs, expected, stand_in_for_nvcc):
    variables = {"STRUCTOUT_CUDA_ARCHS": structout_archs, "TORCH_CUDA_ARCH_LIST": torch_archs}
    result = run_preloaded("-c", PRINT_ARCHITECTURES, **variables, **stand_in_for_nvcc)
    assert result.returncode == 0, result.stderr
    newest = expected[-1]
    assert result.stdout.splitlines()[-1].split() == [
        *expected,
        f"-gencode=arch=compute_{newest},code=compute_{newest}",
    ]


@pytest.mark.parametrize("variable", ["STRUCTOUT_CUDA_ARCHS", "TORCH_CUDA_ARCH_LIST"])
def test_setup_with_an_architecture_that_nvcc_does_not_know_refuses(variable, stand_in_for_nvcc):
    variables = {"STRUCTOUT_CUDA_ARCHS": "", "TORCH_CUDA_ARCH_LIST": "", variable: "8.0 42 Hopper"}
    result = run_setup(**variables, **stand_in_for_nvcc)
    assert result.returncode != 0
    assert re.search(
        rf"{variable}='8.0 42 Hopper': \S+nvcc does not know 42 Hopper; choose from 75 80 90 100", result.stderr
    )


def test_setup_without_the_cuda_sources_refuses(source_tree, stand_in_for_nvcc, tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(source_tree, tree)
    shutil.rmtree(tree / "csrc" / "cuda")
    result = run_preloaded("setup.py", "--version", cwd=tree, **stand_in_for_nvcc)
    assert result.returncode != 0
    assert "csrc/cuda is missing" in result.stderr
