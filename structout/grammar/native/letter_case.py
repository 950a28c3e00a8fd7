"""Characters that are equal without regard to case."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

_NUM_CODES = 0x1E944  # up to the last letter with another case in Unicode 18
_BLOCK = 0x100  # most blocks have no letter with another case


def other_forms(first: str, last: str) -> Sequence[str]:
    """List the forms in another case of the characters from ``first`` to ``last``, as
    simple case folding (Unicode's CaseFolding.txt, C and S) unites them."""
    if first == last:
        return _forms().get(first, ())
    return [other for character, others in _forms().items() if first <= character <= last for other in others]


@cache
def _forms() -> dict[str, list[str]]:
    """The other forms of each character that has some."""
    by_folding = defaultdict(list)
    for first in range(0, _NUM_CODES, _BLOCK):
        block = "".join(chr(code) for code in range(first, first + _BLOCK) if not 0xD800 <= code <= 0xDFFF)
        if block.casefold() != block or block.upper() != block:
            for character in block:
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
