"""Faults planted in PTX: an executed instruction is removed or changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Lines = list[str]


@dataclass(frozen=True)
class Fault:
    """One change of a kernel's text.

    Of all places of the kernel that the right program executes and that ``kind`` can
    change, the fault takes the one at ``place``, from 0 (the first) to 1 (the last). So
    the list of faults outlives changes of the compiler.
    """

    program: str
    kernel: str
    kind: str
    place: float


def _next(lines: Lines, at: int, pattern: str) -> int:
    return next(i for i in range(at, len(lines)) if re.search(pattern, lines[i]))


def _remove(lines: Lines, at: int) -> None:
    lines[at] = ""


def _remove_cluster_barrier(lines: Lines, at: int) -> None:
    _remove(lines, _next(lines, at, r"barrier\.cluster\.wait"))
    _remove(lines, at)


def _replace(old: str, new: str) -> Callable[[Lines, int], None]:
    def change(lines: Lines, at: int) -> None:
        lines[at] = re.sub(old, new, lines[at], count=1)

    return change


def _swap_with_next_barrier(lines: Lines, at: int) -> None:
    """Move a store after the barrier that follows it."""
    barrier = _next(lines, at, r"bar\.sync|barrier\.cluster\.arrive")
    lines[at], lines[barrier] = lines[barrier], lines[at]


def _add_to_address(num_bytes: int) -> Callable[[Lines, int], None]:
    def change(lines: Lines, at: int) -> None:
        lines[at] = re.sub(r"(\+(\d+))?\]", lambda match: f"+{int(match[2] or 0) + num_bytes}]", lines[at], count=1)

    return change


def _as_load_and_store(lines: Lines, at: int) -> None:
    """Replace an atomic addition by a load and a store."""
    match = re.search(r"atom(\.global|\.shared)?\S*\.add\.(\w+)\s+(%\w+), (\[.*?\]), ([^;]+);", lines[at])
    assert match, lines[at]
    space, kind, to, address, value = match[1] or "", match[2], match[3], match[4], match[5]
    lines[at] = (
        f"ld{space}.{kind} {to}, {address}; {{ .reg .b32 planted; add.u32 planted, {to}, {value}; "
        f"st{space}.{kind} {address}, planted; }}"
    )


# For each kind of fault: which instructions it changes, and how.
KINDS: dict[str, tuple[str, Callable[[Lines, int], None]]] = {
    "no barrier": (r"bar\.sync", _remove),
    "no cluster barrier": (r"barrier\.cluster\.arrive", _remove_cluster_barrier),
    "no arrival at a cluster barrier": (r"barrier\.cluster\.arrive", _remove),
    "no wait at a cluster barrier": (r"barrier\.cluster\.wait", _remove),
    "a store after the barrier": (r"^\s*st\.shared\S* .*\n?$", _swap_with_next_barrier),
    "no store to shared memory": (r"^\s*st\.shared", _remove),
    "a vote without the last lane": (r"vote\.sync", _replace(r"[^\s,]+;", "2147483647;")),
    "a shuffle without the last lane": (r"shfl\.sync", _replace(r"[^\s,]+;", "2147483647;")),
    "a reduction without the last lane": (r"redux\.sync", _replace(r"[^\s,]+;", "2147483647;")),
    "a shuffle by one lane more": (r"shfl\.sync\.(up|bfly).*, 1, ", _replace(r", 1, ", ", 2, ")),
    "a store one element too far": (r"^\s*(@\S+ )?st\.global\.(u|b|f)(16|32)", _add_to_address(4)),
    "a load one vector too far": (r"ld\.global(\.nc)?\.v4", _add_to_address(16)),
    "a misaligned load": (r"ld\.global(\.nc)?\.v4", _add_to_address(4)),
    "a load of shared memory one word too far": (r"ld\.shared\.(u32|f32|b32)", _add_to_address(4)),
    "a bound that is one too large": (r"setp\.ge\.(s|u)(32|64)", _replace(r"setp\.ge", "setp.gt")),
    "a bound that is one too small": (r"setp\.lt\.(s|u)(32|64)", _replace(r"setp\.lt", "setp.le")),
    "another block's address": (r"mapa\.u64", _replace(r", [^\s,]+;", ", 0;")),
    "an atomic that is none": (r"atom\S*\.add\.u32\s+%r\d+, \[", _as_load_and_store),
    "no fence": (r"membar\.", _remove),
    "a release that does not": (r"st\.release\.sys", _replace(r"st\.release\.sys", "st.relaxed.sys")),
    "an acquire that does not": (r"ld\.acquire\.sys", _replace(r"ld\.acquire\.sys", "ld.relaxed.sys")),
    "a release for its own device": (r"st\.release\.sys", _replace(r"st\.release\.sys", "st.release.gpu")),
    "an acquire for its own device": (r"ld\.acquire\.sys", _replace(r"ld\.acquire\.sys", "ld.acquire.gpu")),
    "a global access to shared memory": (r"ld\.shared\.u32", _replace(r"ld\.shared", "ld.global")),
}  # fmt: skip


def places(lines: Lines, executed: set[int], kind: str) -> list[int]:
    """Return the indices of the executed lines that a kind of fault can change."""
    pattern = KINDS[kind][0]
    return [line - 1 for line in sorted(executed) if re.search(pattern, lines[line - 1])]


def planted(text: str, executed: set[int], fault: Fault) -> str:
    """Return a text with the fault.

    Args:
        text: PTX.
        executed: The lines that the kernel executes, from 1 on.
    """
    lines = text.split("\n")
    found = places(lines, executed, fault.kind)
    assert found, f"{fault.kernel} executes nothing for {fault.kind}"
    KINDS[fault.kind][1](lines, found[round(fault.place * (len(found) - 1))])
    return "\n".join(lines)
