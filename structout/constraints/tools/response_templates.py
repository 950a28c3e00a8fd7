"""The notation of calls in a ``response_template``, which newer checkpoints carry.

transformers documents these templates (chat_response_parsing). They say how an answer
is read, by regular expressions that allow whitespace; what a model writes is one of the
texts that they match.
"""

import re
from collections.abc import Mapping
from typing import Any

NAME = "\ue000"  # stands for the name of a tool
_KEY, _VALUE = "\ue002", "\ue003"
_WHITESPACE = re.compile(r"\\s[*+]\??")
_GROUP = re.compile(r"\(\?P<(\w+)>(?:\[[^\]]*\]|[^()])*\)")


def described_notation(template: Any) -> dict[str, Any] | None:
    """What stands around calls, as the arguments ``begin``, ``end``, ``style`` and
    ``reasoning`` of a derived format.

    Returns:
        None if the template describes no calls, or those that it describes are not
        written by plain texts.
    """
    fields = template.get("fields", {}) if isinstance(template, Mapping) else {}
    calls = fields.get("tool_calls")
    if not isinstance(calls, Mapping):
        return None
    function = (calls.get("transform") or {}).get("function")
    begin, end = _plain(calls, "open", {"name": NAME}), _plain(calls, "close", {})
    if not begin or end is None or not isinstance(function, str | Mapping):
        return None
    arguments = calls.get("content_args") or {}
    style: Any = "json"
    if calls.get("content") == "xml-inline":
        tag = _plain(arguments, "tag", {"key": _KEY, "value": _VALUE}) or ""
        found = re.fullmatch(f"(.+){_KEY}(.+){_VALUE}(.+)", tag, re.DOTALL)
        if found is None:
            return None
        style = {"begin": found[1], "middle": found[2], "end": found[3]}
    elif calls.get("content") != "json" or arguments:
        return None  # a dialect of JSON
    if function == "{content}":  # an object with the name
        begin, end = f'{begin}{{"name": "{NAME}", "arguments": ', "}" + end
    elif not isinstance(function, Mapping) or function.get("arguments") != "{content}" or NAME not in begin:
        return None
    return {"begin": begin, "end": end, "style": style, "reasoning": _reasoning(fields)}


def _reasoning(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        begin, end = (_plain(fields.get(name) or {}, side, {}) for side in ("open", "close"))
        if begin and end:
            return begin.strip(), end.strip()
    return None


def _plain(field: Mapping[str, Any], side: str, groups: Mapping[str, str]) -> str | None:
    """The shortest text of an anchor, with ``groups`` in the places of its groups. None
    if it is missing or has no such text."""
    given = field.get(side)
    if given is not None:
        return given if isinstance(given, str) else next(iter(given), None)
    pattern = field.get(f"{side}_pattern")
    if not isinstance(pattern, str):
        return None
    text = _WHITESPACE.sub(lambda found: " " if "+" in found[0] else "", pattern)
    text = _GROUP.sub(lambda found: groups.get(found[1], found[0]), text)
    text = re.sub(r"\\(\W)", r"\1", text)
    tried = text.replace(NAME, "name").replace(_KEY, "key").replace(_VALUE, "value")
    try:
        return text if re.fullmatch(pattern, tried, re.DOTALL) else None
    except re.error:
        return None
