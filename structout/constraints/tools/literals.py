"""Arguments written as literals one after the other, as Python and Gemma write them."""

import ast
import json
import re
from typing import Any

from structout.constraints.partial_json import parse_partial_json
from structout.constraints.tools.schema_kinds import kind_of
from structout.constraints.tools.styles import ArgumentStyle

_DECODER = json.JSONDecoder(strict=False)
_SCALAR = re.compile(r"[-+.\w]+")
_SINGLE_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_BETWEEN = re.compile(r"[\s,]*")


def read_literal_entry(style: ArgumentStyle, text: str, start: int) -> tuple[str, tuple[Any, int]] | None:
    """Read one argument: its key, its value and the end. None if none begins here.

    Strings may be in Python's single quotes, too, whatever the style writes.

    Raises:
        ValueError: the value is not complete, or is no literal.
    """
    entry = style.entry.match(text, start + len(style.separator) * text.startswith(style.separator, start))
    return None if entry is None else (entry["key"], _read(style, text, entry.end()))


def read_open_literal(style: ArgumentStyle, text: str, start: int) -> dict[str, Any]:
    """The argument that begins here and has no end yet, if it has a value."""
    entry = style.entry.match(text, start + len(style.separator) * text.startswith(style.separator, start))
    if entry is None:
        return {}
    key, written = entry["key"], text[entry.end() :]
    assert style.quotes is not None
    begin, end = style.quotes
    if written.startswith(begin) and not style.is_escaped:
        held = next((n for n in range(len(end) - 1, 0, -1) if written.endswith(end[:n])), 0)
        return {key: written[len(begin) : len(written) - held]}
    is_json = written.startswith((begin, "{", "[")) and not (style.is_recursive and written.startswith(("{", "[")))
    return {key: parse_partial_json(written)} if is_json else {}


def _read(style: ArgumentStyle, text: str, at: int) -> tuple[Any, int]:
    assert style.quotes is not None
    begin, end = style.quotes
    if text.startswith(begin, at):
        if style.is_escaped:
            return _DECODER.raw_decode(text, at)
        closed = text.find(end, at + len(begin))
        if closed < 0:
            raise ValueError(f"the string at character {at} is not closed by {end!r}")
        return text[at + len(begin) : closed], closed + len(end)
    if text.startswith(("{", "["), at):
        return _read_members(style, text, at)
    if (quoted := _SINGLE_QUOTED.match(text, at)) is not None:
        return ast.literal_eval(quoted[0]), quoted.end()
    scalar = _SCALAR.match(text, at)
    if scalar is None or scalar.end() == len(text):
        raise ValueError(f"the value at character {at} is not complete")
    names = {written: name for name, written in style.constants.items()}
    return json.loads(names.get(scalar[0], scalar[0])), scalar.end()


def _read_members(style: ArgumentStyle, text: str, at: int) -> tuple[Any, int]:
    closing, keys, values = ("}" if text[at] == "{" else "]"), [], []
    at = _after(text, at + 1)
    while not text.startswith(closing, at):
        if closing == "}" and (entry := style.entry.match(text, at)) is not None:
            key, at = entry["key"], entry.end()
        elif closing == "}":
            key, at = _read(style, text, at)
            at = _after(text, at)
            if not text.startswith(":", at):
                raise ValueError(f"expected a colon at character {at}")
            at = _after(text, at + 1)
        else:
            key = None
        value, at = _read(style, text, at)
        keys.append(key)
        values.append(value)
        at = _after(text, at)
    return (dict(zip(keys, values, strict=True)) if closing == "}" else values), at + 1


def _after(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def write_literals(style: ArgumentStyle, arguments: dict[str, Any]) -> str:
    """Write the arguments of a call, or the members of an object in them."""
    entries = ((style.opening(key, kind_of(value)), value) for key, value in arguments.items())
    return style.separator.join(f"{opening}{_write(style, value)}" for opening, value in entries)


def _write(style: ArgumentStyle, value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and style.quotes is not None:
        begin, end = style.quotes
        return f"{begin}{written[1:-1] if style.is_escaped else value}{end}"
    if style.is_recursive and isinstance(value, dict):
        return f"{{{write_literals(style, value)}}}"
    if style.is_recursive and isinstance(value, list):
        return f"[{style.separator.join(_write(style, item) for item in value)}]"
    return style.constants.get(written, written)
