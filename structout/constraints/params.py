"""The constraint of one request.

It is checked without a tokenizer, so that a frontend process can do it.
"""

import contextlib
import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from structout.constraints import exact_json
from structout.constraints.config import CHOICES, StructuredOutputsConfig
from structout.constraints.limits import Limits, check_limits, check_size
from structout.constraints.output_types import is_output_type, options_of, read_json, schema_of
from structout.constraints.partial_json import JsonStream, parse_partial_json
from structout.constraints.schema_walks import Nodes, subschemas
from structout.constraints.schemas_in_tags import TagSchema, errors_in_tags, tag_schemas, with_types_described
from structout.constraints.tools.call_formats import TOOL_FORMATS, ToolFormat
from structout.constraints.tools.call_stream import ToolCallStream, read_calls
from structout.constraints.tools.definitions import ToolCall, read_tools
from structout.errors import GrammarError, GrammarLimitError

_ABSOLUTE_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DEFAULT_CONFIG = StructuredOutputsConfig()
_MAX_REMEMBERED = 1 << 13  # characters of a constraint that is read once for many requests


class StructuredOutputOptions(enum.Enum):
    """The kinds of constraint, with vLLM's names."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


_NO_JSON: Any = {"json": None, "json_object": False}
_CONSTRAINTS = (*(kind.value for kind in StructuredOutputOptions), "tools")  # the params of which one is given

_KINDS_OF_JSON = (
    StructuredOutputOptions.JSON,
    StructuredOutputOptions.CHOICE,
    StructuredOutputOptions.STRUCTURAL_TAG,
)


@dataclass(frozen=True)
class Constraint:
    """One constraint as backends compile it. Caches use it as a key.

    Attributes:
        kind: what ``spec`` is.
        spec: JSON text for json, choice and structural_tag, else the user's own text.
        backend: "auto", which is the native one, or the name of a backend.
        whitespace_pattern: regular expression of the whitespace between two JSON
            tokens. None leaves it to the manager's config.
        lenient: whether a backend may ignore what it cannot enforce.
        schemas: URI and JSON text of each other schema that ``spec`` may refer to.
        key_order: of JSON objects. None leaves it to the manager's config.
        formats: what happens to a format that is not enforced. None leaves it to the
            manager's config.
        additional_properties: the keys of JSON objects. None leaves it to the manager's
            config.
        value: ``spec`` parsed, for the kinds whose spec is JSON. Not part of the key.
            By default it is parsed from ``spec``.
    """

    kind: StructuredOutputOptions
    spec: str
    backend: str = "auto"
    whitespace_pattern: str | None = None
    lenient: bool = False
    schemas: tuple[tuple[str, str], ...] = ()
    key_order: str | None = None
    formats: str | None = None
    additional_properties: str | None = None
    value: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, StructuredOutputOptions):
            raise GrammarError(f"the kind of a constraint must be a StructuredOutputOptions, got {self.kind!r}")
        if self.whitespace_pattern is not None and self.kind is not StructuredOutputOptions.JSON:
            raise GrammarError(f"whitespace_pattern applies to json only, got a {self.kind.value} constraint")
        if self.value is None and self.kind in _KINDS_OF_JSON:
            object.__setattr__(self, "value", exact_json.loads(self.spec))

    @cached_property
    def nodes(self) -> Nodes:
        """The schemas in ``value``, as :func:`.schema_walks.subschemas` yields them."""
        return list(subschemas(self.value))

    @cached_property
    def tag_schemas(self) -> list[TagSchema]:
        """The schemas of a structural tag."""
        return tag_schemas(self.value)

    def rewritten(self, value: Any, **parsed: Any) -> "Constraint":
        """The constraint with another value, and with the ``nodes`` or ``tag_schemas``
        that stand for those of the given one."""
        rewritten = replace(self, spec=exact_json.dumps(value, ensure_ascii=False), value=value)
        rewritten.__dict__.update(parsed)
        return rewritten


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The constraint of one request, and how it is compiled.

    Exactly one of the first six arguments or ``tools`` must be given; ``json`` and
    ``json_object`` may be given beside ``tools``.

    Args:
        json: a JSON Schema as a dict, a bool or JSON text; or a type: a Pydantic model
            class, a dataclass, ``list[int]``, ``Literal``, an Enum, ``int | None``. See
            :func:`structout.constraints.output_types.schema_of`. The numbers of a text
            are exact.
        regex: a regular expression that the whole output matches.
        choice: a list of strings, one of which is the output; or a ``Literal`` or an
            Enum of strings.
        grammar: an EBNF grammar whose root rule is ``root`` (GBNF), or a Lark grammar
            whose start rule is ``start``.
        json_object: any JSON object.
        structural_tag: tags that start constrained stretches of otherwise free text,
            as a dict or JSON text in xgrammar's format. Its schemas may be types, as
            ``json`` may.
        whitespace_pattern: regular expression of the whitespace allowed between two
            JSON tokens. Applies to json only.
        backend: "auto", "native", "xgrammar" or a registered backend. "auto" is the
            native one. A backend refuses what it cannot enforce; no other takes over.
        lenient: accept a constraint that no backend enforces in full, and enforce as
            much of it as one backend can. ``StructuredOutputManager.compiled`` lists
            what is not enforced. By default such a constraint is refused.
        schemas: other schemas by their absolute URIs, which a ``$ref`` of the JSON
            Schema or of one of them may name. The schemas of the drafts themselves need
            not be listed.
        key_order: the order of the keys of JSON objects, "declared" or "any", see
            :class:`structout.StructuredOutputsConfig`. Applies to json, to ``%json`` in
            grammars, tags and tools. Default: that of the manager's config.
        formats: what happens to a ``format`` that the engine of the request does not
            enforce, "annotate" or "strict", see the same. Applies to json, tags and
            tools. Default: that of the manager's config.
        additional_properties: the keys of JSON objects, "schema" or "closed", see the
            same. Applies to json, to ``%json`` in grammars, tags and tools. Default:
            that of the manager's config.
        fit: whether a limit on the tokens of the request is part of the constraint: its
            text then ends within it, and its values share what is left; see
            docs/texts_that_end.md. With "exact" only what cannot end in time is
            forbidden. With "off" the limit cuts the text off.
        tools: what the model may call, a list of Pydantic model classes, dataclasses,
            functions with annotated parameters, and OpenAI's tool objects. See
            docs/tool_calls.md.
        tool_choice: "auto", where text may stand before, between and after calls;
            "required", one call or more and no other text; "none", no call; the name of
            the one tool that is called; or OpenAI's objects, such as
            ``{"type": "allowed_tools", ...}``. With ``json`` or ``json_object`` beside
            the tools, "auto" is calls alone or JSON alone, "none" JSON.
        tool_format: how the model writes calls: a name of
            ``structout.constraints.tools.call_formats.TOOL_FORMATS``, or a
            ``ToolFormat`` of that module, such as ``ToolFormat.from_tokenizer``
            derives from a model's own description. That is what ``generate`` takes by
            default; the default anywhere else is "hermes".
        parallel_tool_calls: whether there may be more than one call.
        reasoning: whether a reasoning stands in front of the text of the constraint.
            "disabled": none; "enabled": one, between the marks of ``tool_format``;
            "auto": the model may write one, if the marks are known. ``generate`` takes
            the marks of the chat template, and its prompt tells whether the reasoning
            has begun or ended already. Or the marks of one that the model may write, as
            ``("<think>", "</think>")``; an empty begin stands in the prompt.
    """

    json: Any = None
    regex: str | None = None
    choice: Any = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    backend: str = "auto"
    lenient: bool = False
    schemas: Mapping[str, Any] | None = None
    key_order: str | None = None
    formats: str | None = None
    additional_properties: str | None = None
    fit: Literal["on", "exact", "off"] = "on"
    tools: Sequence[Any] | None = None
    tool_choice: str | Mapping[str, Any] = "auto"
    tool_format: str | ToolFormat | None = None
    parallel_tool_calls: bool = True
    reasoning: Literal["disabled", "auto", "enabled"] | tuple[str, str] = "disabled"

    def validate(self, config: StructuredOutputsConfig | None = None) -> None:
        """Check everything that can be checked without a tokenizer.

        Args:
            config: the manager's config, for its limits. Default: the default config.

        Raises:
            GrammarError: the constraint is malformed or too large.
        """
        self.constraint(config)

    def constraint(self, config: StructuredOutputsConfig | None = None) -> Constraint:
        """Check the params as ``validate`` does, and return the one constraint they
        hold."""
        if not isinstance(self.backend, str) or not self.backend.isidentifier():
            raise GrammarError(f"backend must be the name of a backend, such as native, got {self.backend!r}")
        given = [name for name in _CONSTRAINTS if self._is_given(name)]
        if len(given) != 1 and (len(given) != 2 or given[1] != "tools" or given[0] not in _NO_JSON):
            raise GrammarError(f"expected exactly one constraint, got {', '.join(given) or 'none'}")
        has_reasoning = self._has_reasoning
        if self.tools is not None or has_reasoning:
            cleared: dict[str, Any] = dict.fromkeys(_CONSTRAINTS) | {"json_object": False, "reasoning": "disabled"}
            if self.tools is not None:
                tag = self._structural_tag()
            else:
                tag = self._tag_of(given[0], config)
                cleared["whitespace_pattern"] = None  # the tag has it
            if has_reasoning:
                is_required = self.reasoning == "enabled"
                tag = tag | {"format": self.call_format.after_reasoning(tag["format"], is_required=is_required)}
            return replace(self, **cleared | {"structural_tag": tag}).constraint(config)
        kind = StructuredOutputOptions(given[0])
        for name, choices in CHOICES.items():
            chosen = getattr(self, name)
            if chosen not in (None, *choices):
                raise GrammarError(f'{name} must be "{choices[0]}" or "{choices[1]}", got {chosen!r}')
        if self.fit not in ("on", "exact", "off"):
            raise GrammarError(f'fit must be "on", "exact" or "off", got {self.fit!r}')
        has_schemas = kind in (StructuredOutputOptions.JSON, StructuredOutputOptions.STRUCTURAL_TAG)
        if self.formats is not None and not has_schemas:
            raise GrammarError(f"formats apply to json, tags and tools only, got a {kind.value} constraint")
        for name in ("key_order", "additional_properties"):
            if getattr(self, name) is not None and not has_schemas and kind is not StructuredOutputOptions.GRAMMAR:
                message = f"{name} applies to json, grammars, tags and tools only, got a {kind.value} constraint"
                raise GrammarError(message)
        limits = (config or _DEFAULT_CONFIG).limits
        value, text = _read(kind, getattr(self, kind.value), limits)
        if self.schemas and kind is not StructuredOutputOptions.JSON:
            raise GrammarError(f"schemas apply to json only, got a {kind.value} constraint")
        schemas = _read_schemas(self.schemas or {}, limits)
        return Constraint(
            kind,
            text,
            self.backend,
            self.whitespace_pattern,
            self.lenient,
            schemas,
            self.key_order,
            self.formats,
            self.additional_properties,
            value,
        )

    def for_tokenizer(self, tokenizer: Any) -> "StructuredOutputsParams":
        """The params with the format of a model: how it writes the calls of tools, and
        the marks of its reasoning. Params that name a format, or need none, stay.

        Raises:
            GrammarError: see :meth:`.ToolFormat.from_tokenizer`.
        """
        if self.tool_format is not None:
            return self
        if self.tools is not None:
            return replace(self, tool_format=ToolFormat.from_tokenizer(tokenizer))
        if self.reasoning in ("auto", "enabled"):
            return replace(self, tool_format=ToolFormat.of_reasoning(tokenizer))
        return self

    def for_prompt(self, prompt: str) -> "StructuredOutputsParams":
        """The params of an answer to a prompt, whose end tells whether a reasoning has
        begun, and whether it has ended.

        Args:
            prompt: the text that the model continues, or its end.
        """
        if self.reasoning == "disabled" or not self.reasoning[0]:
            return self
        marks = self.call_format.reasoning_after(prompt)
        if marks is not None and not marks[0]:
            return replace(self, reasoning=marks)
        return replace(self, reasoning="disabled") if marks is None and self.reasoning != "enabled" else self

    def parse(self, text: str, *, partial: bool = False) -> Any:
        """Read back a text of this constraint.

        Args:
            text: the text.
            partial: whether it may be incomplete. Calls and JSON then have what is
                there so far, as ``json.loads`` gives it; see :meth:`json_stream`.

        Returns:
            for a type its value, for other JSON what ``json.loads`` gives, for an Enum
            its member, for ``tools`` the calls as ``parse_tool_calls``, else the text
            itself.

        Raises:
            ValueError: the text is not of this constraint.
        """
        answer = self.read_reasoning(text)[1]
        if self.tools is not None and not (self._has_json and not answer.startswith(self.call_format.trigger)):
            return self.parse_tool_calls(text, partial=partial)
        text = answer
        if partial and self._has_json:
            return parse_partial_json(text)
        if self._has_json:
            return read_json(self.json, text) if is_output_type(self.json) else json.loads(text)
        return self.choice(text) if isinstance(self.choice, type) else text

    def read_reasoning(self, text: str) -> tuple[str, str]:
        """Split a text into the reasoning that ``reasoning`` allows, without its marks,
        and the rest. A reasoning that is not complete is all of the text."""
        return self.call_format.split(text) if self._has_reasoning else ("", text)

    def parse_tool_calls(self, text: str, *, partial: bool = False) -> list[ToolCall]:
        """Read the calls of a text of these ``tools``. The ``value`` of a call is an
        instance of the tool's class.

        Args:
            text: the text.
            partial: whether it may end in a call, which then has the arguments so far.

        Raises:
            ValueError: the text has a call that is not complete.
            GrammarError: the params have no tools, or they are malformed.
        """
        return read_calls(self.tool_call_stream(), text, partial=partial)

    def tool_call_stream(self, *, begins_in_reasoning: bool = False) -> ToolCallStream:
        """A reader of a text of these ``tools`` that comes in pieces.

        Args:
            begins_in_reasoning: whether the prompt has opened a reasoning. A
                ``reasoning`` whose begin is empty tells that, too.

        Raises:
            GrammarError: the params have no tools, or they are malformed.
        """
        if self.tools is None:
            raise GrammarError("there are no tools whose calls could be read")
        form = self.call_format
        has_begun = self._has_reasoning and form.reasoning is not None and not form.reasoning[0]
        return ToolCallStream(
            form,
            read_tools(self.tools),
            begins_in_reasoning=begins_in_reasoning or has_begun,
            is_calls_or_text=self._has_json,
        )

    def json_stream(self) -> JsonStream:
        """A reader of the JSON of this constraint, in a text that comes in pieces: its
        value so far, and each value as soon as it is complete.

        Raises:
            GrammarError: the constraint is not JSON alone.
        """
        if not self._has_json or self.tools is not None:
            raise GrammarError("json_stream reads json and json_object, and tool_call_stream texts with tools")
        return JsonStream(self.call_format.answer_in if self._has_reasoning else None)

    def _structural_tag(self) -> dict[str, Any]:
        """The structural tag that the tools are compiled as."""
        tools = read_tools(self.tools)
        form, instead = self.call_format, None
        if self._has_json:
            if form.trigger.lstrip().startswith(("{", "[{")) or form.trigger == "[":
                raise GrammarError(f"calls that begin with {form.trigger} cannot be told from JSON")
            schema = {"type": "object"} if self.json_object else exact_json.loads(_text_of_schema(self.json))
            instead = {"type": "json_schema", "json_schema": schema}
        excluded = form.reasoning[:1] if self._has_reasoning and form.reasoning is not None else ()
        return form.structural_tag(
            tools,
            self.tool_choice,
            is_parallel=self.parallel_tool_calls,
            instead=instead,
            excluded=[*filter(None, excluded)],
        )

    def _tag_of(self, name: str, config: StructuredOutputsConfig | None) -> dict[str, Any]:
        """The structural tag of a constraint of another kind."""
        constraint = replace(self, reasoning="disabled").constraint(config)
        part: dict[str, Any] = {"type": name}
        match constraint.kind:
            case StructuredOutputOptions.STRUCTURAL_TAG:
                return dict(constraint.value)
            case StructuredOutputOptions.JSON | StructuredOutputOptions.JSON_OBJECT:
                schema = {"type": "object"} if self.json_object else constraint.value
                part = {"type": "json_schema", "json_schema": schema}
                if self.whitespace_pattern is not None:
                    part["whitespace_pattern"] = self.whitespace_pattern
            case StructuredOutputOptions.CHOICE:
                part = {
                    "type": "or",
                    "elements": [{"type": "const_string", "value": each} for each in constraint.value],
                }
            case StructuredOutputOptions.REGEX:
                part["pattern"] = constraint.spec
            case StructuredOutputOptions.GRAMMAR:
                part["grammar"] = constraint.spec
        return {"type": "structural_tag", "format": self.call_format.content(part)}

    @property
    def _has_reasoning(self) -> bool:
        """Whether a reasoning may stand in front of the answer.

        Raises:
            GrammarError: ``reasoning`` is malformed, or its marks are not known.
        """
        if self.reasoning == "disabled":
            return False
        if self.reasoning not in ("auto", "enabled"):
            marks = self.reasoning
            is_pair = isinstance(marks, Sequence) and len(marks) == 2 and all(isinstance(mark, str) for mark in marks)
            if isinstance(marks, str) or not is_pair or not marks[1]:
                expected = '"disabled", "auto", "enabled", or the texts that begin and end a reasoning'
                raise GrammarError(f"reasoning must be {expected}, got {marks!r}")
            return True
        is_known = self.call_format.reasoning is not None
        if not is_known and self.reasoning == "enabled":
            message = "the marks of the reasoning are not known"
            raise GrammarError(
                f'{message}: name a tool_format that has them, or give reasoning=("<think>", "</think>")'
            )
        return is_known

    @property
    def _has_json(self) -> bool:
        return self.json_object or self.json is not None

    @property
    def call_format(self) -> ToolFormat:
        """The notation of calls that ``tool_format`` names.

        Raises:
            GrammarError: there is none of this name.
        """
        given = "hermes" if self.tool_format is None else self.tool_format
        found = given if isinstance(given, ToolFormat) else TOOL_FORMATS.get(given)
        if found is None:
            raise GrammarError(f"tool_format must be one of {', '.join(TOOL_FORMATS)}, got {given!r}")
        return found if isinstance(self.reasoning, str) else replace(found, reasoning=self.reasoning)

    def _is_given(self, name: str) -> bool:
        value = getattr(self, name)
        return value not in (None, False) or (name == "json" and value is False)


def _read(kind: StructuredOutputOptions, given: object, limits: Limits) -> tuple[Any, str]:
    """Read and check a constraint of one kind. Return it as a Python value, which many
    share, and its text for a compiler."""
    text = _TEXTS[kind](given)
    parsed = _parsed_once if len(text) <= _MAX_REMEMBERED else _parsed
    return parsed(kind, text, limits, text is given)


def _parsed(kind: StructuredOutputOptions, text: str, limits: Limits, is_given: bool) -> tuple[Any, str]:
    """``is_given``: whether the text is the client's, and its JSON in any form."""
    value: Any = True if kind is StructuredOutputOptions.JSON_OBJECT else text
    if kind in _KINDS_OF_JSON:
        with _json_errors(kind):
            value = exact_json.loads(text)
            text = exact_json.dumps(value, ensure_ascii=False) if is_given else text
    if kind is StructuredOutputOptions.JSON and not isinstance(value, dict | bool):
        raise GrammarError(f"a JSON schema must be an object or a boolean, got {type(value).__name__}")
    if kind is StructuredOutputOptions.STRUCTURAL_TAG and not isinstance(value, dict):
        raise GrammarError(f"a structural tag must be an object, got {type(value).__name__}")
    _check_characters(kind, value, text)
    with errors_in_tags(value if kind is StructuredOutputOptions.STRUCTURAL_TAG else None):
        check_limits(kind.value, value, text, limits)
    return value, text


_parsed_once = lru_cache(maxsize=256)(_parsed)  # a server is sent the same constraints again and again


def _read_schemas(given: object, limits: Limits) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, Mapping):
        raise GrammarError(f"schemas must be a dict from URIs to JSON schemas, got {type(given).__name__}")
    texts = {}
    for uri, schema in given.items():
        document, _, fragment = uri.partition("#") if isinstance(uri, str) else ("", "", "")
        if not _ABSOLUTE_URI.match(document) or fragment:
            raise GrammarError(f"the URI of a schema must be absolute and have no fragment, got {uri!r}")
        try:
            _, texts[document] = _read(StructuredOutputOptions.JSON, schema, limits)
        except GrammarLimitError:
            raise
        except GrammarError as error:
            raise GrammarError(
                f"the schema {document}: {error}", pointer=error.pointer, keyword=error.keyword
            ) from error
    check_size("".join(texts.values()), limits)
    return tuple(sorted(texts.items()))


@contextlib.contextmanager
def _json_errors(kind: StructuredOutputOptions) -> Iterator[None]:
    name = {StructuredOutputOptions.JSON: "JSON schema"}.get(kind, "structural tag")
    try:
        yield
    except RecursionError:
        raise GrammarError(f"the {name} is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the {name} is not JSON: {error}") from error


def _json_text(kind: StructuredOutputOptions, given: object) -> str:
    with _json_errors(kind):
        return given if isinstance(given, str) else exact_json.dumps(given, ensure_ascii=False)


def _text_of_schema(schema: object) -> str:
    is_type = not isinstance(schema, dict | str) and is_output_type(schema)
    return _json_text(StructuredOutputOptions.JSON, schema_of(schema) if is_type else schema)


def _text_of_tag(tag: object) -> str:
    return _json_text(StructuredOutputOptions.STRUCTURAL_TAG, with_types_described(tag))


def _text_itself(text: object) -> str:
    if not isinstance(text, str):
        raise GrammarError(f"the constraint must be a string, got {type(text).__name__}")
    if not text:
        raise GrammarError("the constraint is an empty string")
    return text


def _text_of_choice(choice: object) -> str:
    choice = options_of(choice) or choice
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not choice:
        raise GrammarError(f"choice must be a non-empty list of strings, got {choice!r}")
    if not all(isinstance(option, str) and option for option in choice):
        raise GrammarError("every choice must be a non-empty string")
    return json.dumps(list(choice), ensure_ascii=False)


_TEXTS: dict[StructuredOutputOptions, Callable[[Any], str]] = {
    StructuredOutputOptions.JSON: _text_of_schema,
    StructuredOutputOptions.JSON_OBJECT: lambda _: "{}",
    StructuredOutputOptions.REGEX: _text_itself,
    StructuredOutputOptions.CHOICE: _text_of_choice,
    StructuredOutputOptions.GRAMMAR: _text_itself,
    StructuredOutputOptions.STRUCTURAL_TAG: _text_of_tag,
}


def _check_characters(kind: StructuredOutputOptions, value: object, text: str) -> None:
    """Refuse lone surrogates, which have no UTF-8, and NUL in what is no JSON Schema:
    some native compilers take C strings."""
    if kind is not StructuredOutputOptions.JSON and has_nul(value, text):
        raise GrammarError(f"the {kind.value} constraint contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the {kind.value} constraint contains a lone surrogate at {error.start}") from error


def has_nul(value: object, text: str) -> bool:
    """True if a string of a JSON value contains NUL. A text without NUL costs two
    searches in it.

    Args:
        value: as Python values.
        text: as JSON text.
    """
    may_have_nul = "\0" in text or "\\u0000" in text
    return may_have_nul and any(isinstance(part, str) and "\0" in part for part in parts(value))


def parts(value: object) -> Iterator[object]:
    """Yield a JSON value, and all keys and values inside it."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            pending += part
