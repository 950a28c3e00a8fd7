"""Bytes, values and places of JSON, for people to read."""

import json
import re
from collections.abc import Iterator
from typing import Any

from structout.constraints.schema_walks import escaped

_NAMES = {0x09: "tab", 0x0A: "newline", 0x0D: "return", 0x20: "space"}
_MAX_VALUE = 60  # characters
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)


def described_bytes(values: bytes) -> str:
    """The characters that may come next: ranges such as ``a-z``, the rest one by
    one."""
    described = list(_runs([value for value in sorted(values) if 0x20 < value < 0x7F]))
    described += [name for value, name in _NAMES.items() if value in values]
    if any(value < 0x20 and value not in _NAMES for value in values):
        described.append("control characters")
    if any(value >= 0x80 for value in values):
        described.append("other characters" if described else "characters beyond ASCII")
    return " ".join(described)


def _runs(values: list[int]) -> Iterator[str]:
    i = 0
    while i < len(values):
        last = i
        while last + 1 < len(values) and values[last + 1] == values[last] + 1 and _alike(values[i], values[last + 1]):
            last += 1
        if last - i < 2:
            last = i
        yield chr(values[i]) if last == i else f"{chr(values[i])}-{chr(values[last])}"
        i = last + 1


def _alike(a: int, b: int) -> bool:
    """True if both are of one kind: digits, capitals, small letters or signs."""
    kinds = (str.isdigit, str.isupper, str.islower)
    return [kind(chr(a)) for kind in kinds] == [kind(chr(b)) for kind in kinds]


def shown(value: Any) -> str:
    """A JSON value on one line, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 4]} ..."


def place_in_json(text: str) -> str:
    """JSON pointer to the value where a text stands that begins a JSON value. Empty at
    the whole value."""
    places: list[list[Any]] = []  # for each open container: its bracket, and the key or index
    last_string = ""
    for part in _JSON_TOKEN.findall(text):
        match part:
            case "{" | "[":
                places.append([part, None if part == "{" else 0])
            case "}" | "]":
                del places[-1:]
            case "," if places:
                places[-1][1] = places[-1][1] + 1 if places[-1][0] == "[" else None
            case ":" if places and places[-1][0] == "{":
                places[-1][1] = _unquoted(last_string)
            case _ if part.startswith('"'):
                last_string = part
    return "".join(f"/{escaped(str(place))}" for _, place in places if place is not None)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')
