"""What a request asks for: one constraint, checked without a tokenizer, so that a frontend process can do it."""

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError


class StructuredOutputOptions(enum.Enum):
    """The kinds of constraint, by vLLM's names."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Exactly one of the first five is set.

    Args:
        json: a JSON Schema as a dict, a bool, JSON text, or a pydantic model class.
        regex: the whole output matches this regular expression.
        choice: the output is one of these strings.
        grammar: an EBNF grammar whose root rule is ``root``.
        json_object: any JSON object or array.
        whitespace_pattern: refused by the backends there are today, rather than ignored.
        backend: "auto" or "xgrammar"; "xgrammar:no-fallback" forbids any other.
    """

    json: dict[str, Any] | bool | str | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    whitespace_pattern: str | None = None
    backend: str = "auto"

    @property
    def backend_name(self) -> str:
        return self.backend.split(":")[0]

    def validate(self, config: StructuredOutputsConfig | None = None) -> None:
        """Raise ``GrammarError`` for whatever can be seen to be wrong without a tokenizer.

        Args:
            config: the manager's. Nothing in it limits a constraint yet.
        """
        self.constraint()

    def constraint(self) -> tuple[StructuredOutputOptions, str]:
        """The one constraint as (kind, text): what backends compile and caches key on."""
        if self.backend not in ("auto", "xgrammar", "xgrammar:no-fallback"):
            raise GrammarError(f"backend must be auto, xgrammar or xgrammar:no-fallback, got {self.backend!r}")
        if self.whitespace_pattern is not None:
            raise GrammarError(
                "whitespace_pattern cannot be honoured by xgrammar; put the whitespace into a regex or grammar"
            )
        given = [
            f.name
            for f in fields(self)[:5]
            if getattr(self, f.name) not in (None, False) or self._is_false_schema(f.name)
        ]
        if len(given) != 1:
            raise GrammarError(f"exactly one constraint is needed, got {', '.join(given) or 'none'}")
        kind = StructuredOutputOptions(given[0])
        value, text = _READ[kind](getattr(self, kind.value))
        _check_characters(kind, value, text)
        return kind, text

    def _is_false_schema(self, name: str) -> bool:
        return name == "json" and self.json is False


def _read_schema(schema: object) -> tuple[object, str]:
    if isinstance(schema, type):
        schema = _schema_of_model(schema)
    try:
        if isinstance(schema, str):
            schema = json.loads(schema, parse_constant=_refuse_constant)
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"a JSON schema is an object or a boolean, got {type(schema).__name__}")
    for part in _parts(schema):
        reference = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            raise GrammarError(f"a $ref must be # or start with #/ (the schema itself), got {reference!r}")
    return schema, text


def _schema_of_model(model: type) -> object:
    describe = getattr(model, "model_json_schema", None)
    if describe is None:
        raise GrammarError(f"json must be a schema or a pydantic model class, got the class {model.__name__}")
    try:
        return describe()
    except Exception as error:  # pydantic's own errors, and whatever the model's own hooks raise
        reason = str(error).strip().split("\n")[0]
        raise GrammarError(f"the model {model.__name__} has no JSON schema: {reason}") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _read_text(text: object) -> tuple[object, str]:
    if not isinstance(text, str):
        raise GrammarError(f"the constraint must be a string, got {type(text).__name__}")
    if not text:
        raise GrammarError("the constraint is an empty string")
    return text, text


def _read_choice(choice: object) -> tuple[object, str]:
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not choice:
        raise GrammarError(f"choice must be a non-empty list of strings, got {choice!r}")
    if not all(isinstance(option, str) and option for option in choice):
        raise GrammarError("every choice must be a non-empty string")
    options = list(choice)
    return options, json.dumps(options, ensure_ascii=False)


# From what the user gave to (the value, and its text for a compiler).
_READ = {
    StructuredOutputOptions.JSON: _read_schema,
    StructuredOutputOptions.JSON_OBJECT: lambda _: (True, "{}"),
    StructuredOutputOptions.REGEX: _read_text,
    StructuredOutputOptions.CHOICE: _read_choice,
    StructuredOutputOptions.GRAMMAR: _read_text,
}


def _check_characters(kind: StructuredOutputOptions, value: object, text: str) -> None:
    """Native grammar compilers take UTF-8 C strings; NUL and lone surrogates are neither."""
    if any(isinstance(part, str) and "\0" in part for part in _parts(value)):
        raise GrammarError(f"the {kind.value} constraint contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the {kind.value} constraint contains a lone surrogate at {error.start}") from error


def _parts(value: object) -> Iterator[object]:
    """A JSON value, and all keys and values within it."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            pending += part
