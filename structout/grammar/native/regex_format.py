r"""The format ``regex``: a regular expression of ECMA-262 with the flag ``u``, written
as a regular expression itself.

It is narrower than the standard. Groups nest to a fixed depth; there are no names of
groups and no references to groups; a range in a class is one of digits, one that begins
or ends an alphabet (``a-f``), or one with a far end; a quantifier such as ``{10,19}``
has other tens in its last number.
"""

_DEPTH = 3

_HEX = "[0-9A-Fa-f]"
_SYNTAX = r"\^$\\.*+?()\[\]{}|"
_PROPERTIES = "|".join(
    [
        "L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfson]",
        "ASCII|Any|Alphabetic|Lowercase|Uppercase|White_Space|Emoji|ID_Start|ID_Continue",
        "(?:Script|sc|Script_Extensions|scx)=(?:Latin|Greek|Cyrillic|Han|Hiragana|Katakana|Hangul|Arabic|Hebrew|Thai|Devanagari)",
    ]
)
_ESCAPED = (
    rf"[dDsSwWfnrtv/{_SYNTAX}]|c[A-Za-z]|x{_HEX}{{2}}|u{_HEX}{{4}}|u\{{0*(?:10|{_HEX})?{_HEX}{{1,4}}\}}"
    rf"|[pP]\{{(?:{_PROPERTIES})\}}"
)


def _ranges() -> str:
    """Some ranges of a class, whose first character is not after the last one."""
    digits = [rf"{first}-[{first}-9]" for first in range(10)]
    letters = ["a-[a-z]", "[a-z]-z", "A-[A-Z]", "[A-Z]-Z"]
    no_surrogate = f"(?:[0-9A-Ca-cE-Fe-f]{_HEX}|[Dd][0-7]){_HEX}{{2}}"
    codes = [rf"\\u0000-\\u{_HEX}{{4}}", rf"\\u{no_surrogate}-\\u[Ff]{{4}}"]
    return "|".join([*digits, *letters, r"[ -,.-\[\^-~]-[~\u{80}-\u{10ffff}]", *codes])


def _quantifier() -> str:
    """A quantifier whose first number is not larger than the last one."""
    same_length = [rf"{low},[{low}-9]" for low in range(10)]
    same_length += [rf"{tens}[0-9],[{tens + 1}-9][0-9]" for tens in range(1, 9)]
    numbers = "|".join([*same_length, "[0-9],[1-9][0-9]", "[0-9]{1,3},?"])
    return rf"(?:[*+?]|\{{(?:{numbers})\}})\??"


def _pattern(depth: int) -> str:
    member = rf"(?:{_ranges()}|[^\\\]\-]|\\(?:{_ESCAPED}|[b\-]))"
    character_class = rf"\[\^?-?{member}*-?\]"
    atom = rf"[^{_SYNTAX}]|\.|\\(?:{_ESCAPED})|{character_class}"
    term = rf"(?:{atom})(?:{_quantifier()})?"
    assertion = r"\^|\$|\\[bB]"
    if depth == 0:
        return rf"(?:{term}|{assertion}|\|)*"
    inner = _pattern(depth - 1)
    group = rf"\((?:\?:)?{inner}\)(?:{_quantifier()})?"
    return rf"(?:{term}|{assertion}|\||{group}|\(\?<?[=!]{inner}\))*"


REGEX = _pattern(_DEPTH)
