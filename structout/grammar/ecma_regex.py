r"""Regular expressions as ECMA-262 reads them, which is what JSON Schema asks for.

Engines disagree about the classes with a short name: whether ``\s`` takes U+00A0 and
U+FEFF, whether ``\w`` takes letters beyond ASCII, and which line ends the dot leaves
out. Spelled out as ranges, they mean the same everywhere.
"""

import re

from structout.grammar.regex_classes import SHORT_NAMES, members_of, written
from structout.grammar.regex_features import Feature, regex_features, regex_parts

_SHORT_NAME = re.compile(r"\\[dDsSwW]|\.")
_SHORT_NAME_IN_CLASS = re.compile(r"\\[dDsSwW]")


def with_explicit_classes(pattern: str) -> str:
    r"""Spell out the dot, ``\d``, ``\w`` and ``\s``, and their complements.

    A pattern with inline flags, which ECMA-262 does not have, keeps its dots.
    """
    if not _SHORT_NAME.search(pattern):
        return pattern
    has_flags = Feature.FLAGS in regex_features(pattern)
    return "".join(_explicit(match.group(), match.lastgroup, has_flags) for match in regex_parts(pattern))


def _explicit(part: str, kind: str | None, has_flags: bool) -> str:
    if kind == "cls":
        return _explicit_class(part) if _SHORT_NAME_IN_CLASS.search(part) else part
    if part in SHORT_NAMES and not (part == "." and has_flags):
        return f"[{written(SHORT_NAMES[part])}]"
    return part


def _explicit_class(part: str) -> str:
    opening = "[^" if part.startswith("[^") else "["
    return f"{opening}{''.join(map(written, members_of(part[len(opening) : -1])))}]"
