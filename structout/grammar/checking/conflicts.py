"""Finds the few requirements that forbid something together."""

from collections.abc import Callable, Sequence
from typing import TypeVar

_Each = TypeVar("_Each")


def smallest_conflict(requirements: Sequence[_Each], forbids: Callable[[Sequence[_Each]], bool]) -> list[_Each] | None:
    """Find requirements that forbid something together, none of which could be left
    out. It prefers earlier requirements. Another such set may have fewer.

    This is QuickXplain (Junker, "QuickXplain: Preferred Explanations and Relaxations
    for Over-Constrained Problems", AAAI 2004): a conflict of k requirements out of n
    takes about 2 k log2(n / k) questions.

    Args:
        requirements: all of them.
        forbids: whether some of them forbid it. More of them forbid more.

    Returns:
        the conflict, in the order of the requirements. Empty if it is forbidden without
        any. None if all together do not forbid it.
    """
    if not forbids(requirements):
        return None
    if forbids([]):
        return []

    def conflict_of(known: list[_Each], has_new: bool, others: list[_Each]) -> list[_Each]:
        """An irreducible part of ``others`` that forbids it together with ``known``.
        ``has_new`` tells that ``known`` has grown, so it may forbid it alone."""
        if has_new and forbids(known):
            return []
        if len(others) == 1:
            return others
        first, second = others[: len(others) // 2], others[len(others) // 2 :]
        of_second = conflict_of(known + first, True, second)
        of_first = conflict_of(known + of_second, bool(of_second), first)
        return of_first + of_second

    return conflict_of([], False, list(requirements))
