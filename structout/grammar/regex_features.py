"""Features of regular expressions that engines drop, refuse or read in different
ways."""

import enum
import re
from collections.abc import Iterator
from functools import lru_cache


class Feature(enum.Enum):
    LOOKAROUND = "lookaround"
    BACKREFERENCE = "backreference"
    WORD_BOUNDARY = "word boundary"
    INNER_ANCHOR = "anchor inside"  # not at an end of the text, so that nothing matches
    POSSESSIVE = "possessive repetition"
    FLAGS = "inline flags or another special group"
    SET_OPERATION = "set operation"  # && -- ~~ or [ in a class: operators in Rust, else characters
    UNICODE_CLASS = "unicode class"
    UNKNOWN_ESCAPE = "unknown escape"
    INCOMPLETE_ESCAPE = "backslash at the end"
    HEX_BEFORE_HEX_DIGIT = "\\xHH or \\uHHHH before a hexadecimal digit"  # which some read as one number
    NESTED_REPETITION = "unbounded repetition inside another"  # takes some engines ever longer
    OPTIONAL_REPETITION = "unbounded repetition inside an optional group"
    ANY_CHARACTER = "dot"
    SPACE_CLASS = "space class"
    NEGATED_CLASS_BEYOND_ASCII = "negated class with characters other than ASCII"
    CARET_FIRST_IN_CLASS = "class that begins with an escaped caret"  # which some read as a negation
    BRACKET_FIRST_IN_CLASS = "class that begins with a closing bracket"  # which ends an empty class in ECMA-262
    MIXED_CLASS = "class of a short name and characters other than ASCII or escaped by number"
    NEEDS_JSON_ESCAPE = "character that JSON escapes"  # written as such
    MAY_NEED_JSON_ESCAPE = "class with characters that JSON escapes"


_PART = r"""
        (?P<look>\(\?<?[=!])
      | (?P<named>\(\?P?<\w+>|\(\?:)
      | (?P<special>\(\?)
      | (?P<code>\\(?:u\{{[0-9a-fA-F]+\}}|x\{{[0-9a-fA-F]+\}}|u[0-9a-fA-F]{{4}}|x[0-9a-fA-F]{{2}}))
      | (?P<escape>\\.)
      | (?P<cls>{cls})
      | (?P<repeat>(?:[*+?]|\{{\d+(?:,\d*)?\}})(?P<suffix>[*+?]?))
      | (?P<other>\w+|.)"""
_CLASS = r"\[\^?\]?[^\]\\]*(?:\\.[^\]\\]*)*\]"
_WITH_CLASSES, _WITHOUT_CLASSES = (
    re.compile(_PART.format(cls=cls), re.VERBOSE | re.DOTALL) for cls in (_CLASS, "(?!)")
)
_ESCAPE_OR_BRACKET = re.compile(r"\\.|\]", re.DOTALL)
_CACHED_PATTERNS = 1 << 8
_HEX_BEFORE_HEX_DIGIT = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})(?=[0-9a-fA-F])")
_KNOWN_LETTERS = frozenset("dDwWsSnrtfv")
_CONTROL_LETTERS = frozenset("nrtfv0")
_SET_OPERATION = re.compile(r"&&|--|~~|\|\||\[")  # || is not an operator in Rust, but reserved in Python
_CODE = re.compile(r"\\(?:u\{[0-9a-fA-F]+\}|x\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})")
_SHORT_NAME = re.compile(r"\\[dDsSwW]")
_NEGATED_SHORTHAND = re.compile(r"\\[DWSpP]")
_SAMPLES_THAT_JSON_ESCAPES = ('"', "\\", "\n", "\x01")
_ESCAPED_BY_JSON = frozenset('"\\') | frozenset(map(chr, range(0x20)))


@lru_cache(_CACHED_PATTERNS)
def regex_features(pattern: str) -> frozenset[Feature]:
    """The features that ``pattern`` uses, whether or not it is well formed."""
    found: set[Feature] = set()
    anchors, repetitions = _Anchors(), _Repetitions()
    if _HEX_BEFORE_HEX_DIGIT.search(pattern.replace("\\\\", "")):
        found.add(Feature.HEX_BEFORE_HEX_DIGIT)
    for match in regex_parts(pattern):
        part, kind = match.group(), match.lastgroup or ""
        found |= _features_of(part, kind, match)
        if (kind in ("cls", "escape") or part == ".") and _matches_escaped_characters(part):
            found.add(Feature.MAY_NEED_JSON_ESCAPE)
        if not anchors.take(part, kind):
            found.add(Feature.INNER_ANCHOR)
        if feature := repetitions.take(part, kind):
            found.add(feature)
    return frozenset(found)


def escapes_by_number(pattern: str) -> bool:
    r"""Whether a character of the pattern is written as ``\xHH`` or ``\uHHHH``."""
    return _CODE.search(pattern) is not None


def regex_parts(pattern: str) -> Iterator[re.Match[str]]:
    """Split a pattern into its parts. ``lastgroup`` names the kind of each: "cls" for
    classes, "escape" for a backslash and a letter.

    No class can end after the last closing bracket. Searching for one there would read
    to the end of the text for each opening bracket.
    """
    brackets = (match for match in _ESCAPE_OR_BRACKET.finditer(pattern) if match.group() == "]")
    last = max((bracket.end() for bracket in brackets), default=0)
    yield from _WITH_CLASSES.finditer(pattern, 0, last)
    yield from _WITHOUT_CLASSES.finditer(pattern, last)


def _features_of(part: str, kind: str, found: re.Match[str]) -> set[Feature]:
    match kind:
        case "look":
            return {Feature.LOOKAROUND}
        case "special":
            return {Feature.FLAGS}
        case "code":
            return {Feature.NEEDS_JSON_ESCAPE} if _character(part) in _ESCAPED_BY_JSON else set()
        case "escape":
            return _features_of_escape(part[1])
        case "cls":
            return _features_of_class(part)
        case "repeat":
            return {Feature.POSSESSIVE} if found["suffix"] in ("+", "*") else set()
    if part == ".":
        return {Feature.ANY_CHARACTER}
    if part == "\\":
        return {Feature.INCOMPLETE_ESCAPE}
    return {Feature.NEEDS_JSON_ESCAPE} if part in _ESCAPED_BY_JSON else set()


def _features_of_escape(letter: str) -> set[Feature]:
    if letter in "123456789k":
        return {Feature.BACKREFERENCE}
    if letter in "bB":
        return {Feature.WORD_BOUNDARY}
    if letter in "pP":
        return {Feature.UNICODE_CLASS}
    found = set()
    if letter in _CONTROL_LETTERS or letter == "\\" or letter == '"':
        found.add(Feature.NEEDS_JSON_ESCAPE)
    if letter in "sS":
        found.add(Feature.SPACE_CLASS)
    if letter.isalnum() and letter not in _KNOWN_LETTERS:
        found.add(Feature.UNKNOWN_ESCAPE)
    return found


def _features_of_class(part: str) -> set[Feature]:
    found = set()
    if _has_set_operation(part):
        found.add(Feature.SET_OPERATION)
    if re.search(r"\\[pP]", part):
        found.add(Feature.UNICODE_CLASS)
    if re.search(r"\\[sS]", part):
        found.add(Feature.SPACE_CLASS)
    if part.startswith(("[]", "[^]")):
        found.add(Feature.BRACKET_FIRST_IN_CLASS)
    if part.startswith("[\\^"):
        found.add(Feature.CARET_FIRST_IN_CLASS)
    if _SHORT_NAME.search(part) and (not part.isascii() or _CODE.search(part)):
        found.add(Feature.MIXED_CLASS)
    if part.startswith("[^") and _goes_beyond_ascii(part):
        found.add(Feature.NEGATED_CLASS_BEYOND_ASCII)
    escapes = re.findall(r"\\(.)", part, re.DOTALL)
    if any(letter.isalnum() and letter not in _KNOWN_LETTERS | {"b", "x", "u", "p", "P"} for letter in escapes):
        found.add(Feature.UNKNOWN_ESCAPE)
    is_named = '"' in part or any(letter in _CONTROL_LETTERS | {"b", "\\"} for letter in escapes)
    if is_named and not part.startswith("[^"):
        found.add(Feature.NEEDS_JSON_ESCAPE)
    return found


def _goes_beyond_ascii(part: str) -> bool:
    """Whether a class names a character above U+007F, or a shorthand that contains
    some."""
    codes = (match[0] for match in _CODE.finditer(part))
    return (
        not part.isascii() or bool(_NEGATED_SHORTHAND.search(part)) or any(_character(code) > "\x7f" for code in codes)
    )


def _has_set_operation(part: str) -> bool:
    return bool(_SET_OPERATION.search(re.sub(r"\\.", "", part[1:], flags=re.DOTALL)))


@lru_cache(_CACHED_PATTERNS)
def _matches_escaped_characters(part: str) -> bool:
    if _has_set_operation(part):
        return True  # Python warns that a later version may read it as an operation
    try:
        expression = re.compile(part, re.DOTALL)
    except re.error:
        return True
    return any(map(expression.fullmatch, _SAMPLES_THAT_JSON_ESCAPES))


def _character(code: str) -> str:
    number = int(code[2:].strip("{}"), 16)
    return chr(number) if number <= 0x10FFFF else ""


class _Repetitions:
    """Finds repetitions of groups that contain an unbounded one."""

    def __init__(self) -> None:
        self._contain_one = [False]  # of the open groups
        self._has_closed_one = False  # the group that the last part closed

    def take(self, part: str, kind: str) -> Feature | None:
        """Advance by one part. Return the kind of such a repetition."""
        closed, self._has_closed_one = self._has_closed_one, False
        if part.startswith("(") and kind in ("look", "named", "special", "other"):
            self._contain_one.append(False)
        elif part == ")" and kind == "other" and len(self._contain_one) > 1:
            self._has_closed_one = self._contain_one.pop()
            self._contain_one[-1] |= self._has_closed_one
        elif kind == "repeat":
            is_unbounded = part[0] in "*+" or part.rstrip("+*?").endswith(",}")
            self._contain_one[-1] |= is_unbounded
            if closed:
                return Feature.NESTED_REPETITION if is_unbounded else Feature.OPTIONAL_REPETITION
        return None


# Flags of an open group or alternative: it starts the text; it is still at its start;
# it has ended in $; an alternative before it has ended in $.
_STARTS, _AT_START, _ENDED, _ENDED_BEFORE = 1, 2, 4, 8


class _Anchors:
    """Tells anchors at an end of the text from others, by following groups and
    alternatives."""

    def __init__(self) -> None:
        self._groups = [_STARTS | _AT_START]

    def take(self, part: str, kind: str) -> bool:
        """Advance by one part. Return whether it may stand here."""
        groups = self._groups
        group = groups[-1]
        has_ended = group & (_ENDED | _ENDED_BEFORE)
        if kind == "other" and part == "|":
            groups[-1] = (_STARTS | _AT_START if group & _STARTS else 0) | (_ENDED_BEFORE if has_ended else 0)
            return True
        if kind == "other" and part == ")":
            if len(groups) > 1:
                groups.pop()
                groups[-1] = groups[-1] & ~(_AT_START | _ENDED) | (_ENDED if has_ended else 0)
            return True
        if kind == "other" and part == "$":
            groups[-1] = group & ~_AT_START | _ENDED
            return True
        if kind == "other" and part == "^":
            return bool(group & _AT_START)
        if part.startswith("(") and kind in ("look", "named", "special", "other"):
            groups.append(_STARTS | _AT_START if group & _AT_START else 0)
        else:
            groups[-1] = group & ~_AT_START
        return not group & _ENDED
