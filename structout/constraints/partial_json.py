"""JSON texts that come in pieces: their values so far, and where they end."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from structout.constraints.schema_walks import escaped

_INSIDE = re.compile(r'"|\\.', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)
_BEFORE_ITEM = re.compile(r"[\s,]*")
_BEFORE_VALUE = re.compile(r"[\s:]*")
_SCALAR = re.compile(r"[-+.\w]+")
# A part of a string without what may be a part of an escape, or the first half of a
# surrogate pair, at its end.
_WHOLE = re.compile(
    r"(?:[^\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


_NOTHING: Any = object()


class FinishedValue(NamedTuple):
    """A value in a JSON text that is complete.

    Attributes:
        pointer: the JSON pointer to it, such as "/items/0"; empty for the whole.
        value: as ``json.loads`` gives it.
    """

    pointer: str
    value: Any


class JsonStream:
    """Reads a JSON text that comes in pieces, however it is cut, in linear time.

    Args:
        answer_in: finds the JSON text in what has come so far; None if it has not
            begun. Default: it is all of the text.

    Attributes:
        end: the number of characters of the JSON text. None until it is complete.
    """

    def __init__(self, answer_in: Callable[[str], str | None] | None = None):
        self.end: int | None = None
        self._answer_in = answer_in
        self._num_dropped = 0  # characters in front of ``_text``
        self._text = ""  # from the value on that has no end yet
        self._at = 0
        self._scanned = 0  # of an open string: no quote ends it before
        self._open: list[Any] = []  # objects and arrays without an end
        self._keys: list[str | None] = []  # of each, the key of the value that comes
        self._root = _NOTHING
        self._has_open_string = False  # in ``value``

    def feed(self, text: str) -> list[FinishedValue]:
        """Read a piece. Returns the values that it completes, inner ones first.

        Raises:
            ValueError: no JSON text goes on like this.
        """
        self._text = self._text[self._at :] + text
        self._num_dropped += self._at
        self._scanned, self._at = max(self._scanned - self._at, 0), 0
        if self._answer_in is not None:
            answer = self._answer_in(self._text)
            if answer is None:
                return []
            self._text, self._answer_in = answer, None
        finished: list[FinishedValue] = []
        while self.end is None and self._read(finished):
            pass
        return finished

    @property
    def value(self) -> Any:
        """The value so far, which grows. None if there is none yet.

        Strings, arrays and objects that are open are closed. A key without a value is
        left out, and so is a number or a literal that may go on: what is there does not
        change but by growing.
        """
        if self.end is None and self._text.startswith('"', self._at) and not self._needs_key:
            whole = _WHOLE.match(self._text, self._at + 1)
            assert whole is not None  # it may be empty
            self._put(_DECODER.decode(f'"{whole[0]}"'))
            self._has_open_string = True
        return None if self._root is _NOTHING else self._root

    @property
    def _needs_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1], dict) and self._keys[-1] is None

    def _read(self, finished: list[FinishedValue]) -> bool:
        """Read the next value, key or bracket. False if it is not complete."""
        has_key = bool(self._keys) and self._keys[-1] is not None
        between = (_BEFORE_VALUE if has_key else _BEFORE_ITEM).match(self._text, self._at)
        assert between is not None  # it may be empty
        at = self._at = between.end()
        if at == len(self._text):
            return False
        byte, needs_key = self._text[at], self._needs_key
        if self._open and not has_key and byte == ("}" if isinstance(self._open[-1], dict) else "]"):
            self._at += 1
            self._keys.pop()
            self._finish(self._open.pop(), finished)
        elif needs_key and byte != '"':
            raise ValueError(f"no key begins with {byte!r}")
        elif byte in "{[":
            self._at += 1
            value: Any = {} if byte == "{" else []
            self._put(value)
            self._open.append(value)
            self._keys.append(None)
        else:
            end = self._end_of_string() if byte == '"' else self._end_of_scalar()
            if end is None:
                return False
            value, self._at = _DECODER.decode(self._text[at:end]), end
            if needs_key:
                self._keys[-1] = value
            else:
                self._put(value)
                self._finish(value, finished)
        return True

    def _put(self, value: Any) -> None:
        """Put a value where it belongs. It may replace the same string so far."""
        around = self._open[-1] if self._open else None
        if around is None:
            self._root = value
        elif isinstance(around, dict):
            around[self._keys[-1]] = value
        elif self._has_open_string:
            around[-1] = value
        else:
            around.append(value)
        self._has_open_string = False

    def _finish(self, value: Any, finished: list[FinishedValue]) -> None:
        pairs = zip(self._open, self._keys, strict=True)
        names = (str(len(around) - 1) if key is None else key for around, key in pairs)
        pointer = "".join(f"/{escaped(name)}" for name in names)
        finished.append(FinishedValue(pointer, value))
        if self._keys:
            self._keys[-1] = None
        else:
            self.end = self._num_dropped + self._at

    def _end_of_string(self) -> int | None:
        at = max(self._scanned, self._at + 1)
        while (found := _INSIDE.search(self._text, at)) is not None:
            at = found.end()
            if found[0] == '"':
                return at
        self._scanned = len(self._text) - self._text.endswith("\\", at)
        return None

    def _end_of_scalar(self) -> int | None:
        found = _SCALAR.match(self._text, self._at)
        if found is None:
            raise ValueError(f"no JSON value begins with {self._text[self._at]!r}")
        return None if found.end() == len(self._text) else found.end()


def parse_partial_json(text: str) -> Any:
    """The value of a JSON text so far, see :attr:`JsonStream.value`.

    Raises:
        ValueError: no JSON text begins like this.
    """
    try:
        return json.loads(text)
    except ValueError:
        stream = JsonStream()
        stream.feed(text)
        return stream.value
