"""Tools from Pydantic models, functions and OpenAI's tool objects."""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from structout.constraints.output_types import is_output_type, name_of, read_json, schema_of
from structout.constraints.tools.custom_inputs import INPUT, grammar_of, lark_of
from structout.constraints.tools.schema_kinds import kinds_of, resolved
from structout.errors import GrammarError


@dataclass(frozen=True)
class Tool:
    """A tool that a model may call.

    Attributes:
        name: what calls it.
        parameters: JSON Schema of its arguments, which are an object.
        description: for a prompt.
        definition: what it was made from.
        arguments_type: the class of its arguments. None if it has none.
        is_custom: whether its arguments are one text, its ``input``.
        lark_grammar: the grammar of this text. None if it is any text.
    """

    name: str
    parameters: Any
    description: str
    definition: Any
    arguments_type: Any = None
    is_custom: bool = False
    lark_grammar: str | None = None

    @cached_property
    def as_dict(self) -> dict[str, Any]:
        """OpenAI's form, for chat templates."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def read_tools(given: object) -> list[Tool]:
    """Read the tools of a request.

    Args:
        given: a list of Pydantic model classes, dataclasses, functions with annotated
            parameters, and OpenAI's tool objects: functions, whose ``parameters`` may
            be a class, and custom tools.

    Raises:
        GrammarError: one of them is none of these, or two have one name.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise GrammarError(f"tools must be a list that is not empty, got {given!r}")
    tools = [_read_tool(tool, f"tool {i}") for i, tool in enumerate(given, 1)]
    for i, tool in enumerate(tools):
        if any(other.name == tool.name for other in tools[:i]):
            raise GrammarError(f"two tools have the name {tool.name}")
    return tools


def _read_tool(given: Any, place: str) -> Tool:
    if isinstance(given, Mapping):
        return _read_object(given, place)
    try:
        if isinstance(given, type):
            return Tool(given.__name__, schema_of(given), inspect.getdoc(given) or "", given, given)
        if callable(given):
            return Tool(name_of_function(given), schema_of(arguments_of(given)), inspect.getdoc(given) or "", given)
    except GrammarError as error:
        raise GrammarError(f"{place}: {error}") from error
    raise GrammarError(f"{place}: expected a class, a function or an object with its name, got {given!r}")


def _read_object(given: Mapping[str, Any], place: str) -> Tool:
    if given.get("type") == "custom":
        return _read_custom(given, place)
    function, kind = given.get("function", given), given.get("type", "function")
    if kind != "function" or not isinstance(function, Mapping):
        hint = "; give a builtin tool as a function, with the name and the parameters that the model knows"
        raise GrammarError(f'{place}: expected the type "function" or "custom", got {kind!r}{hint}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise GrammarError(f"{place}: a tool needs a name, got {name!r}")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    arguments_type = parameters if is_output_type(parameters) else None
    if arguments_type is not None:
        parameters = schema_of(arguments_type)
    if not isinstance(parameters, Mapping):
        raise GrammarError(f"{place} ({name}): parameters must be a JSON schema, got {parameters!r}")
    parameters = {} if function.get("strict") is False else parameters
    kinds = kinds_of(resolved(parameters, "")[1])
    if "object" not in kinds:
        raise GrammarError(f"{place} ({name}): parameters must be the schema of an object, got one of {sorted(kinds)}")
    if kinds != {"object"}:
        parameters = _of_objects(parameters)
    return Tool(name, dict(parameters), str(function.get("description") or ""), given, arguments_type)


def _read_custom(given: Mapping[str, Any], place: str) -> Tool:
    custom = given.get("custom", given)
    name = custom.get("name") if isinstance(custom, Mapping) else None
    if not isinstance(name, str) or not name:
        raise GrammarError(f"{place}: a tool needs a name, got {name!r}")
    try:
        grammar = grammar_of(custom.get("format"))
    except GrammarError as error:
        raise GrammarError(f"{place} ({name}): {error}") from error
    described = {} if grammar is None else {"description": f"It matches this {grammar[0]} grammar:\n{grammar[1]}"}
    properties = {INPUT: {"type": "string", **described}}
    parameters = {"type": "object", "properties": properties, "required": [INPUT], "additionalProperties": False}
    lark_grammar = None if grammar is None else lark_of(*grammar)
    return Tool(name, parameters, str(custom.get("description") or ""), given, None, True, lark_grammar)


def read_choice(choice: Any, tools: Sequence[Tool]) -> tuple[str, list[Tool]]:
    """Read which tools have to be called.

    Args:
        choice: "auto", "required", "none" or the name of a tool; or OpenAI's objects:
            of the type "function" or "custom" with a name, or "allowed_tools" with a
            mode and tools.
        tools: all.

    Returns:
        "auto", "required", "none" or "named", and the tools that may be called.

    Raises:
        GrammarError: it is malformed, or names a tool that there is none of.
    """
    if choice in ("auto", "required", "none"):
        return choice, list(tools)
    names: Any = [choice]
    mode = "named"
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        inner = choice.get(kind, choice) if isinstance(kind, str) else choice
        if kind == "allowed_tools" and isinstance(inner, Mapping):
            mode, names = inner.get("mode", "auto"), inner.get("tools")
            names = [_chosen_name(each) for each in names] if isinstance(names, Sequence) else []
        else:
            names = [_chosen_name(choice)]
    by_name = {tool.name: tool for tool in tools}
    if mode not in ("auto", "required", "named") or not names or not all(name in by_name for name in names):
        expected = '"auto", "required", "none", the name of a tool, or one of OpenAI\'s objects'
        raise GrammarError(f"tool_choice must be {expected}, got {choice!r}")
    return mode, [tool for tool in tools if tool.name in names]


def _chosen_name(choice: Any) -> str | None:
    """The name in an object that names a tool. None if it has none."""
    if not isinstance(choice, Mapping) or choice.get("type", "function") not in ("function", "custom"):
        return None
    inner = choice.get(choice.get("type", "function"), choice)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def _of_objects(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without its values that are no objects."""
    others = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
    if "$ref" in schema:  # until draft 7 nothing counts beside it
        others["allOf"] = [{"$ref": schema["$ref"]}, *schema.get("allOf", ())]
    return {**others, "type": "object"}


def name_of_function(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def arguments_of(function: Callable[..., Any]) -> Any:
    """The type of a function's arguments: a model with a field for each parameter.

    Raises:
        GrammarError: a parameter has no annotation or cannot be given by name, or
            Pydantic is not installed.
    """
    try:
        from pydantic import ConfigDict, create_model
    except ImportError as error:
        raise GrammarError("functions as tools need pydantic: pip install pydantic, or give a JSON schema") from error
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise GrammarError(f"the parameter {name} of {name_of_function(function)} cannot be given by its name")
        if name not in hints:
            raise GrammarError(f"the parameter {name} of {name_of_function(function)} needs a type")
        fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    return create_model(name_of_function(function), __config__=ConfigDict(extra="forbid"), **fields)


@dataclass(frozen=True)
class ToolCall:
    """A call that a model has written.

    Attributes:
        name: the tool's name.
        arguments: its arguments, as ``json.loads`` gives them.
        tool: the tool.
        text: the JSON text of ``arguments``.
        is_complete: False if the text ended in the call, and the arguments are those so
            far.
    """

    name: str
    arguments: dict[str, Any]
    tool: Tool
    text: str
    is_complete: bool = True

    @property
    def value(self) -> Any:
        """The arguments as an instance of the tool's class, the input of a custom tool,
        or else ``arguments``."""
        if self.tool.is_custom:
            return self.arguments[INPUT]
        arguments_type = self.tool.arguments_type
        return self.arguments if arguments_type is None else read_json(arguments_type, self.text)

    def run(self) -> Any:
        """Call the tool's function with the arguments, converted to the types of its
        parameters.

        Raises:
            TypeError: the tool is no function.
        """
        function = self.tool.definition
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"the tool {self.name} is no function, but {name_of(type(function))}: call it yourself")
        given = read_json(arguments_of(function), self.text)
        return function(**{name: getattr(given, name) for name in given.model_fields_set})
