"""`make test-headers`: the bindings compile against the headers of the oldest supported
and of the newest torch.

The headers come from torch's wheels for macOS, which are a tenth of the size of those
for Linux and hold the same headers. The CUDA bindings are left out without nvcc.
"""

import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("torch==2.10.0", "torch")
FLAGS = ("-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000ULL", "-DUSE_CUDA", "-Icsrc")
CPU_SOURCES = ("*.cpp", "bindings/*.cpp", "bindings/cpu/*.cpp")


def main() -> int:
    nvcc = shutil.which("nvcc")
    patterns = CPU_SOURCES if nvcc is None else (*CPU_SOURCES, "bindings/cuda/*.cpp")
    sources = sorted(path for pattern in patterns for path in (ROOT / "csrc").glob(pattern))
    if nvcc is None:
        print("NO nvcc: the CUDA bindings are not compiled")
    # nvcc hands C++ sources on to the C++ compiler, with the headers of its toolkit.
    cxx = shlex.split(os.environ.get("CXX", "g++"))
    compiler = [nvcc, "-Xcompiler=-fsyntax-only"] if nvcc else [*cxx, "-fsyntax-only"]
    failed = False
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            name, headers = torch_headers(version, Path(folder))
            includes = [f"-I{headers}", f"-I{headers}/torch/csrc/api/include"]
            compile_one: Callable[[Path], str] = functools.partial(messages_of, [*compiler, *FLAGS, *includes])
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                messages = [message for message in pool.map(compile_one, sources) if message]
        failed = failed or bool(messages)
        print(f"{name}: {len(sources)} sources, {len(messages)} do not compile", *messages, sep="\n")
    return int(failed)


def torch_headers(version: str, folder: Path) -> tuple[str, Path]:
    """Download a wheel and return its name and its headers."""
    platforms = [option for major in range(11, 17) for option in ("--platform", f"macosx_{major}_0_arm64")]
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", *platforms]
    subprocess.run([*command, "--python-version", "3.12", "-d", str(folder), version], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("torch/include/")])
    return wheel.name, folder / "torch" / "include"


def messages_of(compiler: list[str], source: Path) -> str:
    """Return what the compiler says if it refuses a source, or nothing."""
    command = [*compiler, "-c", str(source), "-o", os.devnull]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stderr


if __name__ == "__main__":
    sys.exit(main())
