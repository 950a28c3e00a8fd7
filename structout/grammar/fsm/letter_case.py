"""Characters that are equal without regard to case."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

_LAST_CASED = 0x1E943  # the last letter with another case in Unicode 15


def other_forms(first: str, last: str) -> Iterable[str]:
    """List the forms in another case of the characters from ``first`` to ``last``, as
    simple case folding (Unicode's CaseFolding.txt, C and S) unites them."""
    for character, others in _forms().items():
        if first <= character <= last:
            yield from others


@cache
def _forms() -> dict[str, list[str]]:
    """The other forms of each character that has some."""
    by_folding = defaultdict(list)
    for code in range(_LAST_CASED + 1):
        character = chr(code)
        if not 0xD800 <= code <= 0xDFFF:
            by_folding[_folded(character)].append(character)
    return {
        character: [other for other in forms if other != character]
        for forms in by_folding.values()
        if len(forms) > 1
        for character in forms
    }


def _folded(character: str) -> str:
    """Fold as ``str.casefold`` does, without foldings to several characters."""
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character
