"""Reads and writes arguments in one of the styles."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from structout.constraints.partial_json import parse_partial_json
from structout.constraints.tools.literals import read_literal_entry, read_open_literal, write_literals
from structout.constraints.tools.schema_kinds import (
    Node,
    below,
    branches_of,
    kind_of,
    kinds_of,
    property_pointer,
    resolved,
)
from structout.constraints.tools.styles import LOOKS_LIKE_JSON, STRING, ArgumentStyle

_LOOKS_LIKE_JSON = re.compile(LOOKS_LIKE_JSON)
_JSON_WORDS = ("null", "none", "true", "false", "nan", "inf")


class Read(NamedTuple):
    """A value that was read from a text, and the index at which it ends."""

    value: Any
    end: int


def read_arguments(style: ArgumentStyle, text: str, start: int, schema: Any) -> Read:
    """Read the arguments of a call.

    Args:
        style: how they are written.
        text: where they stand.
        start: where they begin.
        schema: what they were generated from. It tells strings from other values where
            the style does not.

    Raises:
        ValueError: a value is not closed, or is not JSON where it must be.
    """
    if not style.separator:
        return _Reader(style, text, schema).read_object(start, *resolved(schema, ""))
    values: dict[str, Any] = {}
    while (entry := read_literal_entry(style, text, start)) is not None:
        key, (values[key], start) = entry
    return Read(values, start)


def read_entry(style: ArgumentStyle, text: str, start: int, schema: Any) -> tuple[str, tuple[Any, int]] | None:
    """Read one argument: its key and its value. None if none begins here.

    Raises:
        ValueError: as for ``read_arguments``.
    """
    if style.separator:
        return read_literal_entry(style, text, start)
    reader = _Reader(style, text, schema)
    at, entry = reader.next_entry(start)
    if entry is None:
        return None
    place, node = resolved(schema, "")
    return entry["key"], reader.read_value(at, entry, property_pointer(place, node, entry["key"]))


def read_open_entry(style: ArgumentStyle, text: str, start: int, schema: Any) -> dict[str, Any]:
    """The argument that begins here and has no end yet, as a dict. It is empty if the
    argument has no value yet."""
    if style.separator:
        return read_open_literal(style, text, start)
    found = _open_value(style, text, start, schema)
    if found is None:
        return {}
    key, written, kinds = found
    if _Reader.is_string(written, kinds):
        return {key: written}
    return {key: parse_partial_json(written)} if written.strip()[:1] in ("{", "[") else {}


class GrowingArgument(NamedTuple):
    """An argument that has no end yet, as far as it can only go on.

    Attributes:
        key: its key.
        text: a string, or the JSON text of an object or of an array.
        is_string: which of these.
    """

    key: str
    text: str
    is_string: bool


def read_growing_argument(style: ArgumentStyle, text: str, start: int, schema: Any) -> GrowingArgument | None:
    """Read the argument that begins here and has no end yet. None while it is not known
    whether it is a string, and for values that are not streamed: numbers and constants,
    and objects and arrays in a notation of their own."""
    if style.separator:
        strings = read_open_literal(style, text, start).items()
        return next((GrowingArgument(key, value, True) for key, value in strings if isinstance(value, str)), None)
    found = _open_value(style, text, start, schema)
    if found is None:
        return None
    key, written, kinds = found
    word = written.strip().lower()
    is_decided = len(kinds) == 1 or not any(each.startswith(word) for each in _JSON_WORDS)
    if is_decided and _Reader.is_string(written, kinds):
        return GrowingArgument(key, written, True)
    is_json = STRING not in kinds and not style.is_recursive and word.startswith(("{", "["))
    return GrowingArgument(key, written.strip(), False) if is_json else None


def _open_value(style: ArgumentStyle, text: str, start: int, schema: Any) -> tuple[str, str, frozenset[str]] | None:
    """The key, the text so far and the possible JSON types of an argument that has no
    end yet. None if none begins here."""
    at, entry = _Reader(style, text, schema).next_entry(start)
    if entry is None:
        return None
    key, kind = entry["key"], style.kind_of(entry)
    place, node = resolved(schema, "")
    kinds = kinds_of(resolved(schema, property_pointer(place, node, key))[1])
    if kind:
        kinds = frozenset((STRING,)) if kind == STRING else kinds - {STRING}
    closing, written = style.closing(key), text[at:]
    written = written[: -len(held)] if (held := _begun(written, closing)) else written
    if style.is_wrapped:
        written = written.removeprefix("\n").removesuffix("\n")
    return key, written, kinds


def _begun(text: str, mark: str) -> str:
    """The longest end of a text that a mark begins with."""
    return next((mark[:n] for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), "")


def write_arguments(style: ArgumentStyle, arguments: Any, line_break: str = "\n") -> str:
    """Write the arguments of a call, or the items of a list in them.

    Args:
        style: how they are written.
        arguments: a dict or a list.
        line_break: what stands where a line break may be missing.
    """
    if style.separator:
        return write_literals(style, arguments)
    texts = []
    for key, value in arguments.items() if isinstance(arguments, dict) else [(None, item) for item in arguments]:
        kind = kind_of(value)
        if style.is_recursive and kind in ("object", "array"):
            text = write_arguments(style, value, "")
        else:
            text = value if kind == STRING else json.dumps(value, ensure_ascii=False)
        around = "\n" if style.is_wrapped else ""
        texts.append(f"{style.opening(key, kind)}{around}{text}{around}{style.closing(key)}")
    return line_break.join(texts)


class _Reader:
    def __init__(self, style: ArgumentStyle, text: str, schema: Any):
        self._style = style
        self._text = text
        self._schema = schema

    def read_object(self, at: int, pointer: str | None, node: Node) -> Read:
        values: dict[str, Any] = {}
        at, entry = self.next_entry(at)
        while entry is not None:
            key = entry["key"]
            values[key], end = self.read_value(at, entry, property_pointer(pointer, node, key))
            at, entry = self.next_entry(end)
        return Read(values, at)

    def _read_array(self, at: int, pointer: str | None, node: Node) -> Read:
        items = []
        at, entry = self.next_entry(at)
        while entry is not None:
            item, end = self.read_value(at, entry, below(pointer, node, "items"))
            items.append(item)
            at, entry = self.next_entry(end)
        return Read(items, at)

    def next_entry(self, at: int) -> tuple[int, re.Match[str] | None]:
        """The start of the next value and the match that opens it, or the end of the
        values and None."""
        entry = self._style.entry.match(self._text, at)
        if entry is not None:
            return entry.end(), entry
        return at + self._text.startswith("\n", at), None

    def read_value(self, at: int, entry: re.Match[str], pointer: str | None) -> Read:
        place, node = resolved(self._schema, pointer)
        kinds = kinds_of(node)
        closing = self._style.closing(entry.groupdict().get("key"))
        kind = self._style.kind_of(entry)
        if self._style.is_recursive:
            may_be = {kind} if kind else kinds
            readers: dict[str, Callable[..., Read]] = {"object": self.read_object, "array": self._read_array}
            is_entry = self._style.entry.match(self._text, at) is not None
            for container, read in readers.items():
                if container in may_be and (kind or is_entry or not kinds - {container}):
                    value, end = read(at, *self._branch(place, node, container))
                    if self._text.startswith(closing, end):
                        return Read(value, end + len(closing))
        end = self._text.find(closing, at)
        if end < 0:
            raise ValueError(f"the value at character {at} is not closed by {closing!r}")
        written = self._text[at:end]
        if self._style.is_wrapped:
            written = written.removeprefix("\n").removesuffix("\n")
        is_string = kind == STRING if kind else self.is_string(written, kinds)
        return Read(written if is_string else json.loads(written), end + len(closing))

    def _branch(self, pointer: str | None, node: Node, kind: str) -> tuple[str | None, Node]:
        """The first alternative of a part that has values of a kind, or the part."""
        branches = (resolved(self._schema, branch) for branch in branches_of(pointer, node))
        return next((branch for branch in branches if kind in kinds_of(branch[1])), (pointer, node))

    @staticmethod
    def is_string(written: str, kinds: frozenset[str]) -> bool:
        return STRING in kinds and (len(kinds) == 1 or not _LOOKS_LIKE_JSON.fullmatch(written))
