"""Structural tags as engines' clients send them, in xgrammar's format."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from structout.constraints import exact_json

# The markers that parsers of tool calls search for, as they occur in the texts of tags:
# "<tool_call>" in a longer begin, "<function=" in "<function=add>".
_MARKER = re.compile(r'<[^<>\n"{}=]+[>=]')

# Some parsers find arguments on one line only.
_ONE_LINE = " {0,2}"

_FREE_TEXTS = ("any_text", "triggered_tags", "dispatch")

# xgrammar's tags of MiMo have the style of Qwen. Its parser leaves line breaks in
# values.
_MIMO = "<tool_call><function="


def current_structural_tag(tag: Any) -> Any:
    """Return a structural tag in xgrammar's present format, as a dict.

    vLLM and SGLang also take an older one, with ``structures`` and ``triggers``, and
    tags without a schema, which take any JSON.

    Args:
        tag: JSON text, or a dict, which does not change. Anything that is no tag is
            returned unchanged, for StructuredOutputsParams to refuse.
    """
    try:
        value = exact_json.loads(tag if isinstance(tag, str) else exact_json.dumps(tag))
    except (TypeError, ValueError, RecursionError):
        return tag
    if not isinstance(value, dict):
        return tag
    structures = value.get("structures")
    if structures is None:
        for part in parts_of(value.get("format")):
            if part.get("type") in ("json_schema", "qwen_xml_parameter"):
                part["json_schema"] = _or_any(part.get("json_schema"))
        return value
    if not isinstance(structures, list) or not all(isinstance(structure, dict) for structure in structures):
        return tag
    tags = [
        {
            "type": "tag",
            "begin": structure.get("begin"),
            "content": {"type": "json_schema", "json_schema": _or_any(structure.get("schema"))},
            "end": structure.get("end"),
        }
        for structure in structures
    ]
    triggered = {"type": "triggered_tags", "triggers": value.get("triggers"), "tags": tags}
    if value.get("at_least_one"):
        triggered["at_least_one"] = True
    return {"type": "structural_tag", "format": triggered}


def _or_any(schema: Any) -> Any:
    return {} if schema is None else schema


def as_parsers_read(tag: Any, reasoning_marks: Sequence[str] = ()) -> Any:
    """Return a current structural tag whose texts a parser of tool calls reads as they
    are meant.

    Parsers look for the markers of tags anywhere, also in string values, and in free
    text for any part of what begins a tag. So markers are not generated there, and the
    arguments of a call stand on one line. Some parsers know a marker by its token only:
    where a tokenizer has one, the marker is not spelled out.

    Args:
        tag: as ``current_structural_tag`` returns it. It is changed in place.
        reasoning_marks: what begins and ends a reasoning for the parser that reads it.
            Such parsers look for them after the reasoning too.
    """
    calls = list(_calls(tag.get("format") if isinstance(tag, dict) else None))
    markers = dict.fromkeys(marker for call in calls for text in _texts_of(call) for marker in _MARKER.findall(text))
    if markers:
        meant = {text for part in parts_of(tag["format"]) for text in _texts_of(part)}
        markers |= dict.fromkeys(mark for mark in reasoning_marks if mark not in meant)
        tag.setdefault("markers", "added")
    # A call that begins with "{" has no marker: its parser looks for JSON anywhere in
    # the text.
    openings = markers | dict.fromkeys("{" for call in calls if str(call.get("begin")).startswith("{"))
    for part in (each for call in calls if str(call.get("begin")).startswith(_MIMO) for each in parts_of(call)):
        if part.get("style") == "qwen_xml":
            part["style"] = "mimo_xml"
    for part in parts_of(tag.get("format") if openings else None):
        kind = part.get("type")
        if kind == "json_schema":
            part.setdefault("whitespace_pattern", _ONE_LINE)
            _exclude(part, markers)
        elif kind in _FREE_TEXTS:
            if kind == "triggered_tags" and isinstance(part.get("triggers"), list):
                part["triggers"] = list(dict.fromkeys(_shortest(trigger, openings) for trigger in part["triggers"]))
            begun = part.get("triggers") or [
                rule[0] for rule in part.get("rules") or () if isinstance(rule, list) and rule
            ]
            _exclude(part, [opening for opening in openings if not any(opening in str(text) for text in begun)])
    return tag


def parts_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a format and those inside it."""
    pending = [part]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            pending += [part.get(name) for name in ("content", "elements", "tags", "rules")]


def _calls(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the tags whose content has a schema, and those around them."""
    for tag in parts_of(part):
        if tag.get("type", "tag") == "tag" and any(
            inside.get("type") in ("json_schema", "qwen_xml_parameter") for inside in parts_of(tag.get("content"))
        ):
            yield tag


def _texts_of(tag: dict[str, Any]) -> Iterator[str]:
    ends = tag.get("end")
    for text in (tag.get("begin"), *(ends if isinstance(ends, list) else [ends])):
        if isinstance(text, str):
            yield text


def _shortest(trigger: Any, markers: dict[str, None]) -> Any:
    """The marker that a trigger begins with, or the trigger."""
    begun = [marker for marker in markers if isinstance(trigger, str) and trigger.startswith(marker)]
    return min(begun, key=len, default=trigger)


def _exclude(part: dict[str, Any], markers: Any) -> None:
    given = part.get("excludes")
    part["excludes"] = list(dict.fromkeys([*(given if isinstance(given, list) else []), *markers]))
