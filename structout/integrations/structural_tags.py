"""Structural tags as engines' clients send them, in xgrammar's format."""

from typing import Any

from structout import exact_json


def current_structural_tag(tag: Any) -> Any:
    """Return a structural tag in xgrammar's present format, as a dict.

    vLLM and SGLang also take an older one, with ``structures`` and ``triggers``, and
    tags without a schema, which take any JSON.

    Args:
        tag: JSON text, or a dict, which is left as it is. Anything that is no tag is
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
        _add_missing_schemas(value.get("format"))
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


def _add_missing_schemas(part: Any) -> None:
    """Give each part of a format that needs a schema one, in place."""
    pending = [part]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            if part.get("type") in ("json_schema", "qwen_xml_parameter"):
                part["json_schema"] = _or_any(part.get("json_schema"))
            pending += [part.get(name) for name in ("content", "elements", "tags")]


def _or_any(schema: Any) -> Any:
    return {} if schema is None else schema
