"""Compiles C++ and CUDA sources into build/tests, once for each content of their
inputs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.locations import NATIVE, ROOT

CSRC = ROOT / "csrc"
BUILD = ROOT / "build" / "tests"
SANITIZED = ("-std=c++17", "-g1", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ENGINE_ROOMS = ("base", "automata", "token_masks", "language", "grammar", "json")


def cxx() -> list[str]:
    """Return the command of the C++ compiler."""
    return shlex.split(os.environ.get("CXX", "g++"))


def compiled(
    name: str,
    command: Sequence[str],
    sources: Sequence[Path],
    *,
    suffix: str = "",
    csrc: Path = CSRC,
    follows_includes: bool = False,
    allow_messages: bool = True,
) -> Path:
    """Return the output of a compiler, and run it only if its inputs are new.

    Processes that need the same output wait for one of them to build it.

    Args:
        name: The beginning of the output's file name.
        command: The compiler with its options, without sources and output.
        sources: The files to compile.
        suffix: The end of the output's file name.
        csrc: The directory that ``#include`` is relative to, as it is to tests/native.
        follows_includes: Whether only the files that the sources include by name are
            inputs, not all of csrc: if no name is that of a macro.
        allow_messages: Whether the compiler may print something.

    Raises:
        RuntimeError: If the compiler fails, with what it printed.
    """
    inputs = _with_included(sources, csrc) if follows_includes else [*sources, *_all_included(sources, csrc)]
    output = BUILD / f"{name}-{_digest([*command, str(allow_messages)], inputs)}{suffix}"
    BUILD.mkdir(parents=True, exist_ok=True)
    with output.with_name(f"{output.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if output.exists():
            return output
        unfinished = output.with_name(f"{output.name}.unfinished")
        full_command = [*command, f"-I{csrc}", f"-I{NATIVE}", *map(str, sources), "-o", str(unfinished)]
        result = subprocess.run(full_command, capture_output=True, text=True)
        messages = result.stdout + result.stderr
        if result.returncode != 0 or (messages and not allow_messages):
            raise RuntimeError(f"{shlex.join(full_command)} failed:\n{messages}")
        unfinished.replace(output)
    return output


def compiled_engine(
    name: str, source: Path, flags: Sequence[str], *, csrc: Path = CSRC, compiler: Sequence[str] | None = None
) -> Path:
    """Return a program of ``source`` and the engine of csrc. The engine is compiled
    once for all programs with the same compiler and flags.

    Args:
        name: The beginning of the program's file name.
        source: The file with ``main``.
        flags: Options of the compiler.
        csrc: A copy of csrc, whose .cpp files replace those that it has changed.
        compiler: The command of the compiler. Default: that of :func:`cxx`.
    """
    command = [*(compiler or cxx()), *flags]
    sources = [path for room in ENGINE_ROOMS for path in sorted((CSRC / room).rglob("*.cpp"))]
    copies = [csrc / path.relative_to(CSRC) for path in sources]
    sources = [
        copy if copy.read_bytes() != path.read_bytes() else path for path, copy in zip(sources, copies, strict=True)
    ]

    def compiled_object(path: Path) -> Path:
        return compiled(path.stem, [*command, "-c"], [path], suffix=".o", follows_includes=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = pool.map(compiled_object, [*sources, source])
    return compiled(name, command, list(objects))


def changed_csrc(directory: Path, file: str, old: str, new: str) -> Path:
    """Copy csrc into ``directory`` and replace ``old``, which occurs once, in one
    file."""
    csrc = directory / "csrc"
    shutil.copytree(CSRC, csrc)
    text = (csrc / file).read_text()
    assert text.count(old) == 1, f"{file} must have one {old!r}, got {text.count(old)}"
    (csrc / file).write_text(text.replace(old, new))
    return csrc


def _with_included(sources: Sequence[Path], csrc: Path) -> list[Path]:
    """Return the sources and the files that they include, directly or not."""
    found: dict[Path, None] = {}
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        names = re.findall(rb'^#include "(.+)"', path.read_bytes(), re.MULTILINE)
        places = [base / name.decode() for name in names for base in (path.parent, csrc, NATIVE)]
        waiting += [place for place in places if place.is_file()]
    return sorted(found)


def _all_included(sources: Sequence[Path], csrc: Path) -> list[Path]:
    """Return every file that the sources might include."""
    suffixes = (".h", ".cuh", ".cu", ".inc", ".cpp")
    included = sorted(path for path in csrc.rglob("*") if path.suffix in suffixes)
    return [*included, *sorted({header for source in sources for header in source.parent.glob("*.h")})]


def _digest(command: Sequence[str], inputs: Sequence[Path]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for path in inputs:
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
