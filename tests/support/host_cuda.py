"""Builds CUDA sources for the CPU and runs them under sanitizers.

tests/native/simt/host_simt.h takes the place of nvcc.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from support import builds
from support.builds import CSRC

Sanitizer = Literal["address", "thread"]

# -ffp-contract=off: a kernel must give the bits of its reference, with and without FMA.
# -Wno-unused-parameter: the launch macro has no use for a stream here.
FLAGS = (
    *("-std=c++17", "-O1", "-g1", "-ffp-contract=off", "-pthread"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-parameter"),
)
SANITIZE: dict[Sanitizer | None, tuple[str, ...]] = {
    None: (),
    # -O0: these programs run for a second, and compile for half a minute with -O1.
    "address": ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O0", "-fsanitize=thread"),
}
# detect_stack_use_after_return: newer compilers turn it on, and then a block takes
# eight times as long.
ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
}
_RUN_MAIN = """
import ctypes, sys
arguments = [argument.encode() for argument in sys.argv[1:]]
sys.exit(ctypes.CDLL(sys.argv[1]).main(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)))
"""
TIMEOUT_S = 1800  # ends a hang; a busy machine may take many minutes


def build(
    name: str,
    sources: Sequence[Path],
    *,
    sanitize: Sanitizer | None,
    shared: bool,
    defines: Sequence[str] = (),
    csrc: Path = CSRC,
) -> Path:
    """Compile ``sources`` into an executable, or a library if ``shared``.

    Args:
        csrc: The directory that ``#include`` is relative to: a changed copy shows what
            a change would do.

    Raises:
        RuntimeError: If the compiler fails. The message names a missing sanitizer
            runtime.
    """
    command = [
        *builds.cxx(),
        *FLAGS,
        *SANITIZE[sanitize],
        *(f"-D{define}" for define in defines),
        *(("-shared", "-fPIC") if shared else ()),
        *("-x", "c++"),
    ]
    try:
        return builds.compiled(name, command, sources, suffix=".so" if shared else "", csrc=csrc, follows_includes=True)
    except RuntimeError as error:
        if not re.search(r"cannot find \S*(asan|tsan|ubsan)", str(error)):
            raise
        raise RuntimeError(
            f"{command[0]} has no runtime for sanitize={sanitize!r}; install it: Debian and Ubuntu ship it with g++, "
            f"Fedora as libasan, libubsan and libtsan.\n{error}"
        ) from None


def run(executable: Path, *args: object, ptx: str = "", report: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program, or ``main`` of a library. A sanitizer ends it at the first
    report, which is in ``stderr``.

    Args:
        ptx: A configuration of ``ptx.configuration``. Empty: kernels run on fibers.
        report: Where the program writes what its kernels did as PTX.
    """
    command = [str(executable), *map(str, args)]
    if executable.suffix == ".so":
        command = [sys.executable, "-c", _RUN_MAIN, *command]
    environment = {"STRUCTOUT_PTX": ptx} | ({} if report is None else {"STRUCTOUT_PTX_REPORT": str(report)})
    result = _run(command, environment)
    if "ThreadSanitizer: unexpected memory mapping" in result.stderr:
        # GCC before 14 has no room for the 32 random bits that some kernels give to
        # addresses.
        result = _run(["setarch", "--addr-no-randomize", *command], environment)
    return result


def _run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ENVIRONMENT, **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
