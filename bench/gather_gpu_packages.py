"""Gathers the packages that a GPU machine without a network may lack, in .gpu-packages.

    python bench/gather_gpu_packages.py [--python 3.12]

Needs a network. The wheels are those of constraints.txt, for Linux on x86-64. Of
FlashInfer only the sampler is kept: its wheel alone would be larger than all others.
"""

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".gpu-packages"
MAX_BYTES = 60 << 20
PINNED = (
    *("setuptools", "xgrammar", "apache-tvm-ffi", "llguidance", "xxhash"),
    *("jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "attrs"),
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
    *("pytest", "pytest-xdist", "execnet", "iniconfig", "pluggy", "packaging", "Pygments"),
    *("hypothesis", "sortedcontainers", "PyYAML", "prometheus_client"),
)
FLASHINFER = "flashinfer-python==0.7.2.post1"
CURAND = "nvidia-curand==10.4.0.35"  # whose headers the sampler includes; that of CUDA 13.0
# These packages' __init__ import everything; the sampler needs none of it.
EMPTIED = {"flashinfer", "flashinfer.jit", "flashinfer.trace", "flashinfer.trace.templates"}
SAMPLER_MODULES = ("flashinfer.sampling", "flashinfer.topk")  # the first imports the second in a function
SAMPLER_SOURCES = (
    *("sampling.cu", "renorm.cu", "flashinfer_sampling_binding.cu"),
    *("topk.cu", "cub_topk.cu", "flashinfer_topk_binding.cu", "flashinfer_fast_topk_clusters_binding.cu"),
)
SAMPLER_HEADERS = ("flashinfer/data/include/", "flashinfer/data/cccl/", "flashinfer/data/spdlog/")


def main() -> int:
    parser = argparse.ArgumentParser(description="gathers packages for a GPU machine without a network")
    parser.add_argument("--python", default="3.12", help="the version of Python there")
    python = parser.parse_args().python
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    download([pinned(name) for name in PINNED], FOLDER, python)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        download([FLASHINFER, CURAND], folder, python)
        (wheel,), (curand,) = folder.glob("flashinfer*.whl"), folder.glob("nvidia_curand*.whl")
        cut_to_the_sampler(wheel, curand, FOLDER / wheel.name)
    sizes = {path.name: path.stat().st_size for path in sorted(FOLDER.iterdir())}
    for name, size in sizes.items():
        print(f"{size / 2**20:6.1f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / 2**20:6.1f} MiB  in all, {MAX_BYTES / 2**20:.0f} allowed")
    return 0 if total <= MAX_BYTES else 1


def pinned(name: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (requirement,) = [line for line in lines if line.partition("==")[0] == name]
    return requirement


def download(requirements: list[str], folder: Path, python: str) -> None:
    """Download wheels without what they require."""
    glibcs = ("manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 40)))
    platforms = [option for glibc in glibcs for option in ("--platform", f"{glibc}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", *platforms, "-d", str(folder)]
    subprocess.run([*command, *requirements], check=True)


def cut_to_the_sampler(wheel: Path, curand: Path, cut: Path) -> None:
    """Write a wheel with the modules of the sampler and what they import, and the
    sources and headers that they compile."""
    with (
        zipfile.ZipFile(wheel) as whole,
        zipfile.ZipFile(curand) as with_headers,
        zipfile.ZipFile(cut, "w", zipfile.ZIP_DEFLATED) as kept,
    ):
        names = set(whole.namelist())
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        metadata = {str(PurePosixPath(record).with_name(name)) for name in ("METADATA", "WHEEL")}
        chosen = {name for name in names if _is_compiled(name)} | metadata
        contents = {name: whole.read(name) for name in chosen}
        for module, name in _imported_modules(whole, names, *SAMPLER_MODULES):
            contents[name] = b"" if module in EMPTIED else whole.read(name)
        for name in with_headers.namelist():
            if name.endswith(".h"):
                contents[f"flashinfer/data/include/{PurePosixPath(name).name}"] = with_headers.read(name)
        contents[record] = "".join(f"{name},,\n" for name in [*contents, record]).encode()
        for name, content in sorted(contents.items()):
            kept.writestr(name, content)


def _is_compiled(name: str) -> bool:
    path = PurePosixPath(name)
    is_in_csrc = str(path.parent) == "flashinfer/data/csrc"
    return name.startswith(SAMPLER_HEADERS) or (is_in_csrc and (path.suffix == ".h" or path.name in SAMPLER_SOURCES))


def _imported_modules(wheel: zipfile.ZipFile, names: set[str], *starts: str) -> Iterator[tuple[str, str]]:
    """Yield the modules that ``starts`` import when they are loaded, and themselves,
    with their files."""
    waiting, seen = [*starts], set()
    while waiting:
        module = waiting.pop()
        path = module.replace(".", "/")
        name = next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in names), None)
        if module in seen or name is None:
            continue
        seen.add(module)
        yield module, name
        if "." in module:
            waiting.append(module.rpartition(".")[0])
        if module not in EMPTIED:
            package = module if name.endswith("__init__.py") else module.rpartition(".")[0]
            waiting += _imports(ast.parse(wheel.read(name)).body, package)


def _imports(statements: list[ast.stmt], package: str) -> Iterator[str]:
    """Yield what may be modules among the names that statements import."""
    for statement in statements:
        match statement:
            case ast.Import():
                yield from (alias.name for alias in statement.names)
            case ast.ImportFrom():
                base = ".".join(package.split(".")[: len(package.split(".")) + 1 - statement.level])
                source = ".".join(filter(None, [base if statement.level else "", statement.module]))
                yield source
                yield from (f"{source}.{alias.name}" for alias in statement.names)
            case ast.If():
                yield from _imports(statement.body + statement.orelse, package)
            case ast.Try():
                handlers = [line for handler in statement.handlers for line in handler.body]
                yield from _imports(statement.body + handlers, package)


if __name__ == "__main__":
    sys.exit(main())
