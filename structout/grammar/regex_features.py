"""What a regular expression uses that engines are known to drop, to refuse or to read in different ways."""

import enum
import re


class Feature(enum.Enum):
    LOOKAROUND = "lookaround"
    BACKREFERENCE = "backreference"
    WORD_BOUNDARY = "word boundary"
    INNER_ANCHOR = "anchor inside"  # one that is not at an end of the text, so that nothing matches
    POSSESSIVE = "possessive repetition"
    FLAGS = "inline flags or another special group"
    SET_OPERATION = "set operation"  # && -- ~~ or [ within a class: characters, or Rust's operators
    UNICODE_CLASS = "unicode class"
    UNKNOWN_ESCAPE = "unknown escape"
    INCOMPLETE_ESCAPE = "backslash at the end"
    ANY_CHARACTER = "dot"
    SPACE_CLASS = "space class"
    NEEDS_JSON_ESCAPE = "character that JSON escapes"  # asked for as such
    MAY_NEED_JSON_ESCAPE = "class with characters that JSON escapes"


_PART = re.compile(
    r"""(?P<look>\(\?<?[=!])
      | (?P<named>\(\?P?<\w+>|\(\?:)
      | (?P<special>\(\?)
      | (?P<code>\\(?:u\{[0-9a-fA-F]+\}|x\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}))
      | (?P<escape>\\.)
      | (?P<cls>\[\^?\]?(?:\\.|[^\]\\])*\])
      | (?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})(?P<suffix>[*+?]?))
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_KNOWN_LETTERS = frozenset("dDwWsSnrtfv")
_CONTROL_LETTERS = frozenset("nrtfv0")
_SET_OPERATION = re.compile(r"&&|--|~~|\|\||\[")  # || is none of Rust's, but one that Python may come to have
_SAMPLES_OF_WHAT_JSON_ESCAPES = ('"', "\\", "\n", "\x01")
_QUOTED_BY_JSON = frozenset('"\\') | frozenset(map(chr, range(0x20)))


def regex_features(pattern: str) -> set[Feature]:
    """What ``pattern`` uses, whether or not it is well formed."""
    found: set[Feature] = set()
    anchors = _Anchors()
    for match in _PART.finditer(pattern):
        part = match.group()
        found |= _features_of(match, part)
        if (match["cls"] or match["escape"] or part == ".") and _matches_what_json_escapes(part):
            found.add(Feature.MAY_NEED_JSON_ESCAPE)
        if not anchors.take(part, match.lastgroup or ""):
            found.add(Feature.INNER_ANCHOR)
    return found


def _features_of(match: re.Match[str], part: str) -> set[Feature]:
    if match["look"]:
        return {Feature.LOOKAROUND}
    if match["special"]:
        return {Feature.FLAGS}
    if match["code"]:
        return {Feature.NEEDS_JSON_ESCAPE} if _character(part) in _QUOTED_BY_JSON else set()
    if match["escape"]:
        return _features_of_escape(part[1])
    if match["cls"]:
        return _features_of_class(part)
    if match["repeat"]:
        return {Feature.POSSESSIVE} if match["suffix"] in ("+", "*") else set()
    if part == ".":
        return {Feature.ANY_CHARACTER}
    if part == "\\":
        return {Feature.INCOMPLETE_ESCAPE}
    return {Feature.NEEDS_JSON_ESCAPE} if part in _QUOTED_BY_JSON else set()


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
    escapes = re.findall(r"\\(.)", part, re.DOTALL)
    if any(letter.isalnum() and letter not in _KNOWN_LETTERS | {"b", "x", "u", "p", "P"} for letter in escapes):
        found.add(Feature.UNKNOWN_ESCAPE)
    if not part.startswith("[^") and any(letter in _CONTROL_LETTERS | {"b"} for letter in escapes):
        found.add(Feature.NEEDS_JSON_ESCAPE)
    return found


def _has_set_operation(part: str) -> bool:
    return bool(_SET_OPERATION.search(re.sub(r"\\.", "", part[1:], flags=re.DOTALL)))


def _matches_what_json_escapes(part: str) -> bool:
    if _has_set_operation(part):
        return True  # Python warns that it may come to read it as an operation
    try:
        expression = re.compile(part, re.DOTALL)
    except re.error:
        return True
    return any(map(expression.fullmatch, _SAMPLES_OF_WHAT_JSON_ESCAPES))


def _character(code: str) -> str:
    number = int(code[2:].strip("{}"), 16)
    return chr(number) if number <= 0x10FFFF else ""


class _Anchors:
    """Follows a pattern's groups and alternatives to tell anchors at the ends of the text from others."""

    def __init__(self) -> None:
        # Of each open group: whether it starts the text, whether the branch is still at its start, whether it has
        # ended in $, and whether one before has.
        self._groups = [[True, True, False, False]]

    def take(self, part: str, kind: str) -> bool:
        """Whether the part may stand here."""
        group = self._groups[-1]
        if kind == "other" and part == "|":
            group[1:] = [group[0], False, group[2] or group[3]]
            return True
        if kind == "other" and part == ")":
            if len(self._groups) > 1:
                self._groups.pop()
                self._groups[-1][1] = False
                self._groups[-1][2] = group[2] or group[3]
            return True
        if kind == "other" and part == "$":
            group[1], group[2] = False, True
            return True
        if kind == "other" and part == "^":
            return group[1]
        may_stand = not group[2]
        if part.startswith("(") and kind in ("look", "named", "special", "other"):
            self._groups.append([group[1], group[1], False, False])
        else:
            group[1] = False
        return may_stand
