"""Builds CUDA sources for the CPU, over csrc/testing/host_simt.h in place of nvcc, and runs them under sanitizers."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from locations import ROOT as REPOSITORY

CSRC = REPOSITORY / "csrc"
BUILD = REPOSITORY / "build" / "host_cuda"

Sanitizer = Literal["address", "thread"]

# -ffp-contract=off: a kernel must give the bits that its reference gives, on machines with and without FMA.
# -Wno-unused-parameter: the launch macro has no use for a stream here.
FLAGS = (
    *("-std=c++17", "-O1", "-g", "-ffp-contract=off", "-pthread"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-parameter"),
)
SANITIZE: dict[Sanitizer | None, tuple[str, ...]] = {
    None: (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
# detect_stack_use_after_return: newer compilers turn it on, and then a block takes eight times as long.
ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
}
TIMEOUT_S = 300


def build(
    name: str,
    sources: Sequence[Path],
    *,
    sanitize: Sanitizer | None,
    shared: bool,
    defines: Sequence[str] = (),
    csrc: Path = CSRC,
) -> Path:
    """The executable, or with `shared` the library, of `sources`; compiled only if nothing equal was built before.

    `csrc` is where they find what they include, if not beside them: a changed copy shows what a change would do.
    """
    command = [
        *shlex.split(os.environ.get("CXX", "g++")),
        *FLAGS,
        *SANITIZE[sanitize],
        *(f"-D{define}" for define in defines),
        *(("-shared", "-fPIC") if shared else ()),
        *("-x", "c++"),
        *map(str, sources),
    ]
    output = BUILD / f"{name}-{_digest(command, sources, csrc)}{'.so' if shared else ''}"
    command.append(f"-I{csrc}")
    if output.exists():
        return output
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:  # another process may be building the same
        unfinished = Path(directory) / output.name
        result = subprocess.run([*command, "-o", str(unfinished)], capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(_explanation(command, sanitize, result.stderr))
        unfinished.replace(output)
    return output


def run(executable: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Sanitizers end the process at their first report, which is in `stderr`."""
    command = [str(executable), *map(str, args)]
    result = _run(command)
    if "ThreadSanitizer: unexpected memory mapping" in result.stderr:
        # GCC before 14 has no room for the 32 random bits that some kernels give to addresses.
        result = _run(["setarch", "--addr-no-randomize", *command])
    return result


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)


def _digest(command: Sequence[str], sources: Sequence[Path], csrc: Path) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    included = sorted(path for path in csrc.rglob("*") if path.suffix in (".h", ".cuh", ".cu", ".inc"))
    names = [*map(str, sources), *(str(path.relative_to(csrc)) for path in included)]
    for name, path in zip(names, [*sources, *included], strict=True):
        digest.update(b"\0" + name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _explanation(command: Sequence[str], sanitize: Sanitizer | None, stderr: str) -> str:
    message = f"{shlex.join(command)} failed:\n{stderr}"
    if re.search(r"cannot find \S*(asan|tsan|ubsan)", stderr):
        message = (
            f"{command[0]} has no runtime for sanitize={sanitize!r}; install it: Debian and Ubuntu ship it with g++, "
            f"Fedora as libasan, libubsan and libtsan.\n{message}"
        )
    return message
