"""OpenAI's custom tools: their input is one text, which may be that of a grammar.

Models call such a tool as a function with one string, ``input``, as in vLLM.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from structout.constraints.grammar_texts import is_gbnf
from structout.constraints.tools.styles import STRING, ArgumentStyle
from structout.errors import GrammarError

INPUT = "input"


def grammar_of(tool_format: Any) -> tuple[str, str] | None:
    """The syntax and the definition in the format of a custom tool. None if its input
    is any text.

    Args:
        tool_format: ``{"type": "grammar", "syntax": "lark", "definition": ...}`` of the
            Responses API, ``{"type": "grammar", "grammar": {...}}`` of the chat API, or
            ``{"type": "text"}``.

    Raises:
        GrammarError: it is malformed.
    """
    if not isinstance(tool_format, Mapping) or tool_format.get("type") != "grammar":
        return None
    given = tool_format.get("grammar", tool_format)
    syntax, definition = (given.get("syntax"), given.get("definition")) if isinstance(given, Mapping) else (None, None)
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise GrammarError('a grammar needs a definition and the syntax "lark" or "regex"')
    if syntax == "lark" and is_gbnf(definition):
        raise GrammarError("the syntax is lark, and ::= is of GBNF")
    return syntax, definition


def lark_of(syntax: str, definition: str) -> str:
    """The Lark grammar of the input."""
    if syntax == "lark":
        return definition
    escaped, is_escaped = "", False
    for character in definition:
        needs_escape = character == "/" and not is_escaped
        escaped += {"\n": "\\n"}.get(character, "\\/" if needs_escape else character)
        is_escaped = character == "\\" and not is_escaped
    return f"start: /{escaped}/"


def input_format(lark_grammar: str, style: ArgumentStyle | None, excluded: Sequence[str]) -> dict[str, Any]:
    """The arguments of a call whose input is the text of a Lark grammar, as a part of a
    structural tag.

    Args:
        lark_grammar: the grammar.
        style: the notation of arguments. None for JSON.
        excluded: texts that the input must not contain.
    """
    if style is None:
        begin, end = json.dumps({INPUT: "|"}).split("|")
    else:
        before, after = style.quotes or (("\n", "\n") if style.is_wrapped else ("", ""))
        begin, end = style.opening(INPUT, STRING) + before, after + style.closing(INPUT)
        excluded = [*excluded, *style.markers]
    text = {
        "type": "grammar",
        "grammar": lark_grammar,
        "excludes": list(excluded),
        "in_json_string": style is None or style.is_escaped,
    }
    constants = [{"type": "const_string", "value": value} for value in (begin, end)]
    return {"type": "sequence", "elements": [constants[0], text, constants[1]]}
