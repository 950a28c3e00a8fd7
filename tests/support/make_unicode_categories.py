"""Writes csrc/automata/unicode_categories.inc: the general category of every character,
from the tables of the package ``regex``.

    PYTHONPATH=tests python -m support.make_unicode_categories
"""

from __future__ import annotations

import regex

from support.locations import ROOT

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
LAST = 0x10FFFF
PER_LINE = 8


def category_ranges() -> list[tuple[int, str]]:
    """The first code point and the category of each range."""
    names = [""] * (LAST + 1)
    for category in CATEGORIES:
        text = "".join(map(chr, range(LAST + 1)))
        for match in regex.finditer(rf"\p{{{category}}}+", text):
            names[match.start() : match.end()] = [category] * (match.end() - match.start())
    return [(code, name) for code, name in enumerate(names) if code == 0 or names[code - 1] != name]


def main() -> None:
    entries = [f"{{0x{first:X}, k{name}}}" for first, name in category_ranges()]
    lines = [", ".join(entries[i : i + PER_LINE]) + ",\n" for i in range(0, len(entries), PER_LINE)]
    header = (
        "// Made by tests/support/make_unicode_categories.py. A range ends where the next begins.\n"
        "// clang-format off\n"
    )
    (ROOT / "csrc" / "automata" / "unicode_categories.inc").write_text(header + "".join(lines))


if __name__ == "__main__":
    main()
