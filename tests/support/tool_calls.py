"""Tools with many kinds of schemas, and calls of them read out of a text by the
structural tag that it was written under."""

from __future__ import annotations

import copy
import datetime
import json
import re
from typing import Any

import jsonschema

from structout.constraints.tools.call_formats import ToolFormat
from structout.constraints.tools.reading import read_arguments
from structout.constraints.tools.styles import STYLES

_DECODER = json.JSONDecoder()

# Parameters that all styles take, and that xgrammar reads as JSON Schema means them.
PLAIN = {
    "get_weather": {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "days": {"type": "integer", "minimum": 0, "maximum": 14},
            "unit": {"enum": ["C", "F"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["location"],
        "additionalProperties": False,
    },
    "find": {
        "type": "object",
        "properties": {
            "where": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["where", "tags"],
        "additionalProperties": False,
    },
    "noop": {"type": "object", "properties": {}, "additionalProperties": False},
}

# Keywords of values that xgrammar ignores, or that it does not enforce in all styles.
NASTY = {
    "book": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "host": {"type": "string", "format": "ipv4"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
            "name": {"type": "string", "minLength": 2, "maxLength": 5},
            "shade": {"enum": ["é\n", 'a"b', "<b>", "null", 7, None]},
            "not_x": {"type": "string", "not": {"pattern": "x"}},
        },
        "required": ["day", "code"],
        "additionalProperties": False,
        "dependentRequired": {"host": ["name"]},
    },
    "tree": {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "ids": {"$ref": "#/$defs/ids"}},
        "required": ["root"],
        "minProperties": 1,
        "additionalProperties": False,
        "$defs": {
            "ids": {"type": "array", "items": {"type": "integer", "multipleOf": 5}, "maxItems": 3},
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "number", "exclusiveMinimum": 0},
                    "next": {"$ref": "#/$defs/node"},
                },
                "required": ["v"],
                "additionalProperties": False,
            },
        },
    },
}

# Ten tools that all styles take, as vLLM's parsers read them: a value of an XML style
# has its type beside a reference, as they follow none.
_ANCHORED = {
    "root": {"$ref": "#/$defs/node", "type": "object"},
    "ids": {"$ref": "#/$defs/ids", "type": "array"},
}
TEN = (
    PLAIN
    | {"book": NASTY["book"], "tree": NASTY["tree"] | {"properties": _ANCHORED}}
    | {
        "measure": {
            "type": "object",
            "properties": {
                "steps": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 50},
                "ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                "limit": {"type": ["integer", "null"]},
            },
            "required": ["steps", "ratio"],
            "additionalProperties": False,
        },
        "sort": {
            "type": "object",
            "properties": {
                "items": {
                    "type": "array",
                    "items": {"enum": ["a", "b", "c"]},
                    "uniqueItems": True,
                    "contains": {"const": "a"},
                },
                "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
            },
            "required": ["items"],
            "additionalProperties": False,
        },
        "register": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "format": "uuid"},
                "mail": {"type": "string", "format": "email", "maxLength": 20},
                "nick": {"type": "string", "minLength": 3, "maxLength": 6},
                "plan": {"const": 'the "big" one'},
            },
            "required": ["id", "nick"],
            "additionalProperties": False,
        },
        "move": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 9} for name in ("x", "y", "z")},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 2,
            "dependentRequired": {"z": ["y"]},
        },
        "pay": {
            "type": "object",
            "properties": {
                "by": {
                    "type": "object",
                    "properties": {
                        "way": {"enum": ["card", "cash"]},
                        "card": {"type": "string", "pattern": "^\\d{4}$"},
                    },
                    "required": ["way"],
                    "if": {"properties": {"way": {"const": "card"}}},
                    "then": {"required": ["card"]},
                    "patternProperties": {"^x_": {"type": "integer"}},
                    "additionalProperties": False,
                },
            },
            "required": ["by"],
            "additionalProperties": False,
        },
    }
)

# Keywords of the arguments themselves, which only JSON takes.
JSON_ONLY = {
    "pay": {
        "type": "object",
        "properties": {
            "by": {"enum": ["card", "cash"]},
            "card": {"type": "string", "pattern": "^\\d{4}$"},
            "list": {
                "type": "array",
                "items": {"enum": ["a", "b", "c"]},
                "uniqueItems": True,
                "contains": {"const": "a"},
            },
        },
        "required": ["by"],
        "if": {"properties": {"by": {"const": "card"}}},
        "then": {"required": ["card"]},
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
    },
    "u": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"], "additionalProperties": False},
            {"type": "object", "properties": {"k": {"const": "1"}, "l": True}, "required": ["k", "l"]},
        ]
    },
}


def as_openai_tools(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in parameters.items()]


def marks_of(form: ToolFormat) -> set[str]:
    """The marks of a format, and the tags within them: strings with these may be lost
    by parsers. Brackets alone are none."""
    around = (form.trigger, form.end, *(form.section or ()), *form.excluded)
    return {mark.strip() for text in around for mark in (text, *re.findall("<[^<>]+>", text))} - {"", "]", "}"}


def tags_with_schemas(part: Any) -> list[dict[str, Any]]:
    """The tags of a format whose content ends with a schema."""
    found, pending = [], [part]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            if part.get("type") == "tag" and _schema_of(part) is not None:
                found.append(part)
            else:
                pending += [part.get(name) for name in ("content", "elements", "tags")]
    return found


def read_calls(part: Any, text: str) -> list[tuple[str, Any, Any]]:
    """Each call in a text: the beginning of its tag, its arguments and their schema.

    Raises:
        ValueError: a call cannot be read.
    """
    by_begin: dict[str, list[dict[str, Any]]] = {}
    for tag in tags_with_schemas(part):
        by_begin.setdefault(tag["begin"], []).append(tag)
    begins = re.compile("|".join(map(re.escape, sorted(by_begin, key=len, reverse=True))))
    calls, at = [], 0
    while by_begin and (found := begins.search(text, at)):
        tags = by_begin[found[0]]
        tag = next((tag for tag in tags if _has_constants(tag["content"], text, found.end())), None)
        if tag is None:
            raise ValueError(f"no tag has the text at character {at} of {text!r}")
        arguments, at = _read_content(tag["content"], text, found.end())
        end = tag["end"]
        if end.startswith("\n") and text.startswith(end, at - 1):  # the style took the line break
            at -= 1
        if not text.startswith(end, at):
            raise ValueError(f"{text!r} has no {end!r} at character {at}")
        at += len(end)
        calls.append((found[0], arguments, _schema_of(tag)["json_schema"]))
    return calls


def _has_constants(content: dict[str, Any], text: str, at: int) -> bool:
    """Whether what stands in front of the arguments is that of a tag."""
    for part in content["elements"][:-1] if content["type"] == "sequence" else []:
        if part["type"] == "const_string" and not text.startswith(part["value"], at):
            return False
        at = _read_content(part, text, at)[1]
    return True


def _schema_of(tag: dict[str, Any]) -> Any:
    content = tag["content"]
    parts = content["elements"] if content["type"] == "sequence" else [content]
    return parts[-1] if parts and parts[-1]["type"] == "json_schema" else None


def _read_content(content: dict[str, Any], text: str, at: int) -> tuple[Any, int]:
    if content["type"] == "sequence":
        value: Any = None
        for part in content["elements"]:
            value, at = _read_content(part, text, at)
        return value, at
    if content["type"] == "const_string":
        assert text.startswith(content["value"], at)
        return None, at + len(content["value"])
    if content["type"] == "regex":
        return None, re.compile(content["pattern"]).match(text, at).end()
    if content.get("style", "json") == "json":
        return _DECODER.raw_decode(text, at)
    return tuple(read_arguments(STYLES[content["style"]], text, at, content["json_schema"]))


_CHECKER = copy.deepcopy(jsonschema.Draft202012Validator.FORMAT_CHECKER)


@_CHECKER.checks("date", raises=ValueError)
def _is_date(value: Any) -> bool:
    """As RFC 3339 has it. Python knows no year 0, which is a leap year."""
    if not isinstance(value, str):
        return True
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return False
    datetime.date.fromisoformat(re.sub("^0000", "0004", value))
    return True


def check_call(arguments: Any, schema: Any) -> None:
    """Raise jsonschema's error if the arguments are not valid, formats included."""
    jsonschema.Draft202012Validator(schema, format_checker=_CHECKER).validate(arguments)
