"""JSON texts of values, and what of a schema a text may have to contain."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any


def compact(value: Any, rng: random.Random) -> str:
    """A JSON text without spaces and exponents, with keys in random order."""
    if isinstance(value, dict):
        names = list(value)
        rng.shuffle(names)
        members = (f"{json.dumps(name, ensure_ascii=False)}:{compact(value[name], rng)}" for name in names)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(compact(item, rng) for item in value) + "]"
    if isinstance(value, Decimal):
        return f"{value:f}"
    return json.dumps(value, ensure_ascii=False)


def texts_named_in(part: Any, rng: random.Random) -> list[bytes]:
    """The required names of a schema, then its other names and constants, as they may
    be written."""
    required: list[Any] = []
    others: list[Any] = []
    pending = [part]
    while pending:
        part = pending.pop()
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        if not isinstance(part, dict):
            continue
        for keyword, values in (("required", required), ("properties", others), ("enum", others)):
            given = part.get(keyword)
            values += given if isinstance(given, list | dict) else []
        for keyword in ("dependentRequired", "dependencies"):
            given = part.get(keyword)
            for needed in given.values() if isinstance(given, dict) else ():
                required += needed if isinstance(needed, list) else []
        others += [part["const"]] if "const" in part else []
    return list(dict.fromkeys(compact(value, rng).encode() for value in required + others))
