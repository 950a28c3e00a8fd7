"""JSON texts that are not complete: where they end, and their values so far."""

import json
import re
from typing import Any, NamedTuple

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'"|\\.', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)
_SPACES = re.compile(r"\s*")
_BETWEEN = re.compile(r"[\s,]*")
_SCALAR = re.compile(r"[-+.\w]+")
# A part of a string without what may be a part of an escape, or the first half of a
# surrogate pair, at its end.
_WHOLE = re.compile(
    r"(?:[^\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


class JsonScanner:
    """Finds the end of a JSON object in a text that grows."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._at = 0

    def end(self, text: str) -> int | None:
        """The end of the object that begins ``text``. None if it is not complete.

        Args:
            text: what the call before got, and what has come since.
        """
        while (found := (_INSIDE if self._in_string else _OUTSIDE).search(text, self._at)) is not None:
            self._at = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth == 0:
                    return self._at
        cut_escape = self._in_string and text.endswith("\\", self._at)
        self._at = len(text) - cut_escape
        return None


def parse_partial_json(text: str) -> Any:
    """The value of a JSON text so far. None if there is none yet.

    Strings, arrays and objects that are open are closed. A key without a value is left
    out, and so is a number or a literal that may go on: what is there does not change
    but by growing.

    Raises:
        ValueError: no JSON text begins like this.
    """
    try:
        return json.loads(text)
    except ValueError:
        value = _read(text, 0).value
        return None if value is _NOTHING else value


_NOTHING = object()


class _Read(NamedTuple):
    value: Any
    end: int
    is_complete: bool


def _read(text: str, start: int) -> _Read:
    at = _end_of(_SPACES, text, start)
    if at == len(text):
        return _Read(_NOTHING, at, False)
    if text[at] == '"':
        return _read_string(text, at)
    if text[at] in "{[":
        return _read_members(text, at)
    found = _SCALAR.match(text, at)
    if found is None:
        raise ValueError(f"no JSON value begins at character {at}")
    if found.end() == len(text):
        return _Read(_NOTHING, len(text), False)
    return _Read(json.loads(found[0]), found.end(), True)


def _read_string(text: str, at: int) -> _Read:
    try:
        return _Read(*_DECODER.raw_decode(text, at), is_complete=True)
    except json.JSONDecodeError:
        whole = _WHOLE.match(text, at + 1)
        assert whole is not None  # it may be empty
        return _Read(_DECODER.decode(f'"{whole[0]}"'), len(text), False)


def _read_members(text: str, at: int) -> _Read:
    is_object = text[at] == "{"
    members: list[tuple[Any, Any]] = []
    at, is_complete = at + 1, True
    while is_complete:
        at = _end_of(_BETWEEN, text, at)
        if at < len(text) and text[at] == ("}" if is_object else "]"):
            break
        if is_object and at < len(text) and text[at] != '"':
            raise ValueError(f"no key begins at character {at}")
        key = _read(text, at) if is_object else _Read(None, at, True)
        at = _end_of(_SPACES, text, key.end)
        if not key.is_complete or (is_object and at == len(text)):
            is_complete = False
            break
        value, at, is_complete = _read(text, at + is_object)
        if value is not _NOTHING:
            members.append((key.value, value))
    value = dict(members) if is_object else [item for _, item in members]
    return _Read(value, at + 1 if is_complete else len(text), is_complete)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The end of what a pattern matches. It matches nothing, too."""
    found = pattern.match(text, at)
    return at if found is None else found.end()
