"""Reads a constraint from the command line, and checks finished texts independently of
its masks."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Any

from structout.cli.user_errors import INSTALL_EXTRA, UserError, first_line
from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.checking.spelled_text import parts_of
from structout.grammar.explanation import misspelled_keywords
from structout.grammar.native.automaton import Automaton
from structout.grammar.vocabulary import Vocabulary
from structout.scheduler.manager import StructuredOutputManager

_PRECISION = 8_000  # digits; more than the numbers of a schema that is served may have
_INLINE_JSON = re.compile(r"^\s*[{\[]|^(true|false)$")
_INLINE_GRAMMAR = re.compile(r"::=|^[ \t]*[?!]?start\b[^\n]*:", re.MULTILINE)
Check = Callable[[str], str | None]  # returns what is wrong with a text, or None


def read_constraint(arguments: argparse.Namespace) -> StructuredOutputsParams:
    """The constraint of the arguments.

    Raises:
        UserError: it cannot be read, or is refused without looking at a tokenizer.
    """
    name, params = read_params(arguments)
    try:
        params.validate()
    except GrammarError as error:
        raise UserError(f"{name}: {error}") from error
    return params


def read_params(arguments: argparse.Namespace) -> tuple[str, StructuredOutputsParams]:
    """The name of the constraint's source, and the constraint, which may be invalid.

    Raises:
        UserError: it cannot be read.
    """
    name, json_schema, grammar, structural_tag = "constraint", None, None, None
    if arguments.json_schema is not None:
        name, json_schema = _read_source("--json-schema", arguments.json_schema)
    if arguments.grammar is not None:
        name, grammar = _read_source("--grammar", arguments.grammar)
    if arguments.structural_tag is not None:
        name, structural_tag = _read_source("--structural-tag", arguments.structural_tag)
    tools = None
    if arguments.tools is not None:
        name, text = _read_source("--tools", arguments.tools)
        tools = _read_tools(name, text)
    schemas = {}
    for given in arguments.schema_for:
        uri, separator, source = given.rpartition("=")  # a URI may have one of its own
        if not separator:
            raise UserError(f"--schema-for must be URI=FILE, got {given}")
        _, schemas[uri] = _read_source("--schema-for", source)
    params = StructuredOutputsParams(
        json=json_schema,
        regex=arguments.regex,
        choice=arguments.choice,
        grammar=grammar,
        structural_tag=structural_tag,
        backend=arguments.backend,
        lenient=arguments.lenient,
        schemas=schemas,
        tools=tools,
        tool_choice=arguments.tool_choice,
        tool_format=arguments.tool_format,
    )
    return name, params


def independent_check(params: StructuredOutputsParams) -> Check | None:
    """A check that uses no grammar engine, or None where only an engine can tell.

    Raises:
        UserError: the constraint is refused by what would check it.
    """
    if params.json is not None:
        return _json_check(params)
    if params.regex is not None:
        return _regex_check(params.regex)
    if params.choice is not None:
        choices = params.choice
        return lambda text: None if text in choices else "is none of the choices"
    return None


def replay_check(params: StructuredOutputsParams, manager: StructuredOutputManager) -> Check:
    """A check that spells a text with other tokens, and has a new copy of the grammar
    accept them."""

    def check(text: str) -> str | None:
        tokens = _spelled(text, manager.vocabulary)
        if tokens is None:
            return "cannot be spelled with the model's tokens"
        replayed = [*tokens, manager.vocabulary.stop_token_ids[0]]
        try:
            manager.add_request("replay", params, output_token_ids=replayed)
            manager.wait_ready("replay")
        except GrammarError:
            return "does not match the grammar"
        finally:
            manager.finish_request("replay")
        return None

    return check


def read_form(arguments: argparse.Namespace) -> StructuredOutputsConfig:
    """The settings of whitespace, keys and formats that the arguments choose."""
    return StructuredOutputsConfig(
        any_whitespace=not arguments.compact,
        key_order=arguments.key_order,
        formats=arguments.formats,
        additional_properties=arguments.additional_properties,
    )


def warnings_of(params: StructuredOutputsParams) -> Iterator[str]:
    """Yield a line for each word in a schema that is no keyword but almost one."""
    for place, keyword in misspelled_keywords(params.constraint()):
        yield f"{place} is not a keyword of JSON Schema, so that it constrains nothing: {keyword} is one"


def _spelled(text: str, vocabulary: Vocabulary) -> list[int] | None:
    """Tokens of a text, in which the names of special tokens stand for these."""
    tokens: list[int] = []
    for part, token in parts_of(text, vocabulary):
        is_special = token is not None and not vocabulary.token_bytes[token]
        spelling = [token] if is_special and token is not None else vocabulary.spell(part)
        if spelling is None:
            return None
        tokens += spelling
    return tokens


def _read_source(option: str, source: str) -> tuple[str, str]:
    """The name of a source for error messages, and its text."""
    is_json = option != "--grammar"
    if (_INLINE_JSON if is_json else _INLINE_GRAMMAR).search(source):
        return option, source
    try:
        if source == "-":
            return "standard input", sys.stdin.buffer.read().decode()
        return source, Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        name = "standard input" if source == "-" else source
        inline = "JSON on the command line starts with {" if is_json else "a grammar there has a rule root or start"
        hint = "" if Path(source).suffix else f" ({inline})"
        raise UserError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}{hint}") from error


def _read_tools(name: str, text: str) -> list[Any]:
    """The tools of a file: a list, or a request with a list of ``tools``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: the tools are not JSON: {error}") from error
    tools = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(tools, list):
        raise UserError(f"{name}: expected a list of tools, got {type(tools).__name__}")
    return tools


def _json_check(params: StructuredOutputsParams) -> Check:
    try:
        import jsonschema
    except ImportError as error:
        raise UserError(f"checking JSON needs jsonschema; {INSTALL_EXTRA}") from error
    constraint = params.constraint()
    # jsonschema takes decimals, and so the numbers as they are written.
    schema = json.loads(constraint.spec, parse_float=Decimal)
    try:
        validator = jsonschema.validators.validator_for(schema)
        validator.check_schema(schema)
        registry = _registry(validator, dict(constraint.schemas))
        checker = validator.TYPE_CHECKER.redefine("integer", _is_integer)
        validator = jsonschema.validators.extend(validator, type_checker=checker)
    except jsonschema.SchemaError as error:
        raise UserError(f"not a valid JSON Schema: {error.message} (at {error.json_path})") from error
    except RecursionError as error:
        raise UserError("the JSON schema is nested too deeply for jsonschema to check it") from error
    except Exception as error:
        raise UserError(f"jsonschema cannot check this schema: {first_line(error)}") from error

    def check(text: str) -> str | None:
        try:
            with localcontext(Context(prec=_PRECISION)):
                value = json.loads(text, parse_float=Decimal)
                error = jsonschema.exceptions.best_match(validator(schema, registry=registry).iter_errors(value))
        except json.JSONDecodeError as problem:
            return f"is not JSON ({problem})"
        except Exception as problem:  # a schema's patterns, references and numbers can make it raise anything
            raise UserError(f"jsonschema cannot check a text against this schema: {first_line(problem)}") from problem
        return None if error is None else f"does not satisfy the schema ({error.message} at {error.json_path})"

    return check


def _registry(validator: Any, schemas: Mapping[str, str]) -> Any:
    """The documents in which jsonschema resolves references: its own metaschemas and
    the given schemas. Nothing is downloaded."""
    from jsonschema_specifications import REGISTRY
    from referencing.jsonschema import specification_with

    dialect = specification_with(validator.META_SCHEMA["$schema"])
    contents = {uri: json.loads(text, parse_float=Decimal) for uri, text in schemas.items()}
    return REGISTRY.with_contents(contents.items(), default_specification=dialect)


def _is_integer(_: object, value: object) -> bool:
    is_whole = isinstance(value, Decimal) and value == value.to_integral_value()
    return (isinstance(value, int) and not isinstance(value, bool)) or is_whole


def _regex_check(regex: str) -> Check:
    """A check by the automaton of the whole expression, in the engine's own dialect."""
    try:
        automaton = Automaton.from_regex(regex)
    except GrammarError as error:
        raise UserError(f"constraint refused ({error.kind.value}): {first_line(error)}") from error
    return lambda text: None if automaton.matches(text) else "does not match the regular expression"
