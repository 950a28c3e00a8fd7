"""Tools that vLLM's server cannot force by itself: OpenAI's custom tools whose input is
a text of a grammar, and choices of tools that a parser has no constraint for.

vLLM shows a custom tool to the model as a function with one string, ``input``. The
schema of that string carries the grammar to the engine: a regular expression as
``pattern``, a Lark grammar as ``x-lark-grammar``.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError

from structout.constraints.params import StructuredOutputsParams
from structout.constraints.tools.custom_inputs import INPUT, grammar_of, input_format
from structout.constraints.tools.styles import STYLES
from structout.errors import GrammarError
from structout.grammar.native.rust_regex import ecma_from_rust
from structout.grammar.registry import check_params
from structout.integrations.client_tags import parts_of

_LARK = "x-lark-grammar"


def check_custom_tool_format(cls: Any, data: Any) -> Any:
    """The code of vLLM's validator of this name, which pydantic holds: it runs with
    vLLM's globals."""
    from structout.integrations.vllm.custom_tools import check_formats

    check_formats(data)
    return data


def check_formats(request: Any) -> None:
    """Check the grammars of the custom tools in the body of a request.

    Raises:
        VLLMValidationError: one of them is malformed or not supported.
    """
    tools = request.get("tools") if isinstance(request, dict) else None
    for i, tool in enumerate(tools if isinstance(tools, list) else ()):
        given = tool.model_dump() if hasattr(tool, "model_dump") else tool
        if not isinstance(given, Mapping) or given.get("type") != "custom":
            continue
        try:
            keyword = _grammar_keyword(given.get("format"))
            if _LARK in keyword:
                check_params(StructuredOutputsParams(grammar=keyword[_LARK]))
            elif keyword:
                check_params(StructuredOutputsParams(json={"type": "string", **keyword}))
        except GrammarError as error:
            reason = str(error).removeprefix("#/pattern: ")
            raise VLLMValidationError(f"#/tools/{i}/format/definition: {reason}", parameter="tools") from None


def _grammar_keyword(tool_format: Any) -> dict[str, str]:
    """The keyword in the schema of the input for the format of a custom tool. Empty if
    the input is any text.

    Raises:
        GrammarError: the format is malformed.
    """
    if hasattr(tool_format, "model_dump"):
        tool_format = tool_format.model_dump()
    found = grammar_of(tool_format)
    if found is None:
        return {}
    syntax, definition = found
    return {_LARK: definition} if syntax == "lark" else {"pattern": f"^(?:{ecma_from_rust(definition)})$"}


def describing(describe: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Make the replacement of ``custom_tool_as_function_dict``."""

    def custom_tool_as_function_dict(tool: Any) -> dict[str, Any]:
        function = describe(tool)
        keyword = _grammar_keyword(tool.format)
        if keyword:
            function["parameters"]["properties"][INPUT] |= keyword
            function["strict"] = True
        return function

    return custom_tool_as_function_dict


def has_lark_input(tag: Any) -> bool:
    """True if a current structural tag has the input of a custom tool with a Lark
    grammar."""
    return isinstance(tag, Mapping) and any(_lark_of(part) is not None for part in parts_of(tag.get("format")))


def with_grammars(tag: Any) -> Any:
    """Put the Lark grammars of custom tools in the place of the schemas of their
    arguments, in a structural tag. It is changed in place."""
    for part in list(parts_of(tag["format"])):
        grammar, excluded, style = _lark_of(part), part.get("excludes", []), part.get("style", "json")
        if grammar is None or not isinstance(excluded, list) or style not in ("json", *STYLES):
            continue  # the engine refuses such excludes and styles
        part.clear()
        part.update(input_format(grammar, STYLES.get(style), excluded))
    return tag


def _lark_of(part: Mapping[str, Any]) -> str | None:
    """The Lark grammar of a part of a structural tag, if that is the arguments of a
    custom tool."""
    schema = part.get("json_schema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or [*properties] != [INPUT] or not isinstance(properties[INPUT], Mapping):
        return None
    grammar = properties[INPUT].get(_LARK)
    return grammar if isinstance(grammar, str) else None


def preprocessing(preprocess: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Make the replacement of ``OnlineRenderer.preprocess_chat``, in which the parser
    adds its constraint to a request."""

    async def preprocess_chat(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        before = _constraints_of(request)
        result = await preprocess(self, request, *args, **options)
        check_choice(request, before)
        return result

    return preprocess_chat


def preprocessing_harmony(adjust: Callable[..., None]) -> Callable[..., None]:
    """Make the replacement of ``OnlineRenderer.adjust_harmony_request``, which does the
    same for gpt-oss."""

    def adjust_harmony_request(self: Any, request: Any) -> None:
        before = _constraints_of(request)
        adjust(self, request)
        check_choice(request, before)

    return adjust_harmony_request


def check_choice(request: Any, constraints_before: list[Any]) -> None:
    """Check that the parser's constraint enforces the choice of tools and the grammars
    of custom tools.

    Args:
        request: the request, with the constraint.
        constraints_before: ``_constraints_of`` the request without it.

    Raises:
        VLLMValidationError: it does not.
    """
    tools, choice = getattr(request, "tools", None), getattr(request, "tool_choice", None)
    if not tools or choice == "none":
        return
    after = _constraints_of(request)
    is_constrained = any(a is not b for a, b in zip(after, constraints_before, strict=True))
    is_forced = choice not in (None, "auto") and getattr(choice, "mode", "required") == "required"
    if is_forced and not is_constrained and not getattr(request, "_grammar_from_parser", False):
        name = _name_of(choice)
        wanted = f"the tool {name}" if name else getattr(choice, "type", choice)
        message = f"tool_choice cannot be enforced: this server has no format of tool calls to force {wanted}"
        raise VLLMValidationError(f"{message}; use auto", parameter="tool_choice")
    constraint = request.extract_structured_outputs()
    tag = "" if constraint is None else constraint.structural_tag or ""
    schema = "" if constraint is None or constraint.json is None else constraint.json
    for i, tool in enumerate(tools):
        keyword = _grammar_keyword(getattr(tool, "format", None))
        if not keyword or _name_of(choice) not in (None, tool.name):
            continue
        # vLLM lets a schema without a tag be the arguments alone, or a list of calls.
        written = tag if _LARK in keyword else tag or (schema if isinstance(schema, str) else json.dumps(schema))
        if not all(json.dumps(value) in written for value in keyword.values()):
            message = "this server has no format of tool calls that can enforce the grammar of the custom tool"
            raise VLLMValidationError(f"#/tools/{i}/format: {message} {tool.name}", parameter="tools")


def _constraints_of(request: Any) -> list[Any]:
    """What constrains the text of a request."""
    names = ("structured_outputs", "response_format", "text", "_parser_structured_outputs")
    return [getattr(request, name, None) for name in names]


def _name_of(choice: Any) -> str | None:
    """The name of the tool that has to be called, if the choice has one."""
    return getattr(choice, "name", None) or getattr(getattr(choice, "function", None), "name", None)
