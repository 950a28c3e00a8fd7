"""What a request asks for: one constraint, checked without a tokenizer, so that a frontend process can do it."""

import enum
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.limits import check_limits, parts, schemas

_BACKEND = re.compile(r"\w[\w.-]*(:no-fallback)?")


class StructuredOutputOptions(enum.Enum):
    """The kinds of constraint, by vLLM's names."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True)
class Constraint:
    """One constraint as backends compile it and caches key on it.

    Attributes:
        kind: what ``spec`` is.
        spec: JSON text for json, choice and structural_tag, else what the user gave.
        backend: "auto" or a backend's name, with ":no-fallback" where no other may serve.
        whitespace_pattern: the regex of whitespace between JSON tokens. None: as the manager's config says.
        lenient: whether a backend may weaken what it cannot enforce.
    """

    kind: StructuredOutputOptions
    spec: str
    backend: str = "auto"
    whitespace_pattern: str | None = None
    lenient: bool = False

    @property
    def backend_name(self) -> str:
        return self.backend.split(":")[0]

    @property
    def allows_fallback(self) -> bool:
        return not self.backend.endswith(":no-fallback")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Exactly one of the first six is set.

    Args:
        json: a JSON Schema as a dict, a bool, JSON text, or a pydantic model class.
        regex: the whole output matches this regular expression.
        choice: the output is one of these strings.
        grammar: an EBNF grammar whose root rule is ``root`` (GBNF), or a Lark grammar whose start rule is ``start``.
        json_object: any JSON object or array.
        structural_tag: tags that start constrained stretches of free text, as a dict or JSON text in xgrammar's
            format.
        whitespace_pattern: for json: a regular expression of the whitespace that may stand between two JSON tokens.
        backend: "auto", "xgrammar", "llguidance" or a registered one. A name is a wish: what that backend cannot
            enforce goes to one that can. ``name:no-fallback`` refuses it instead.
        lenient: accept a constraint that no backend enforces in full, as far as one can;
            ``StructuredOutputManager.weakened`` then says what was given up. By default such a constraint is refused.
    """

    json: dict[str, Any] | bool | str | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    backend: str = "auto"
    lenient: bool = False

    def validate(self, config: StructuredOutputsConfig | None = None) -> None:
        """Raise ``GrammarError`` for whatever can be seen to be wrong without a tokenizer.

        Args:
            config: the manager's, for its limits.
        """
        self.constraint(config)

    def constraint(self, config: StructuredOutputsConfig | None = None) -> Constraint:
        """The one constraint, checked against the limits of ``config``. Raises ``GrammarError``."""
        if not isinstance(self.backend, str) or not _BACKEND.fullmatch(self.backend):
            raise GrammarError(f"backend must be a name or name:no-fallback, got {self.backend!r}")
        given = [
            f.name
            for f in fields(self)[:6]
            if getattr(self, f.name) not in (None, False) or self._is_false_schema(f.name)
        ]
        if len(given) != 1:
            raise GrammarError(f"exactly one constraint is needed, got {', '.join(given) or 'none'}")
        kind = StructuredOutputOptions(given[0])
        if self.whitespace_pattern is not None and kind is not StructuredOutputOptions.JSON:
            raise GrammarError(f"whitespace_pattern goes with json; in a {kind.value} constraint the text says it all")
        value, text = _READ[kind](getattr(self, kind.value))
        _check_characters(kind, value, text)
        check_limits(kind.value, value, text, (config or StructuredOutputsConfig()).limits)
        return Constraint(kind, text, self.backend, self.whitespace_pattern, self.lenient)

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
    for part in schemas(schema):
        reference = part.get("$ref")
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


def _read_structural_tag(tag: object) -> tuple[object, str]:
    try:
        value = json.loads(tag, parse_constant=_refuse_constant) if isinstance(tag, str) else tag
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise GrammarError("the structural tag is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the structural tag is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise GrammarError(f"a structural tag is an object, got {type(value).__name__}")
    return value, text


# From what the user gave to (the value, and its text for a compiler).
_READ = {
    StructuredOutputOptions.JSON: _read_schema,
    StructuredOutputOptions.JSON_OBJECT: lambda _: (True, "{}"),
    StructuredOutputOptions.REGEX: _read_text,
    StructuredOutputOptions.CHOICE: _read_choice,
    StructuredOutputOptions.GRAMMAR: _read_text,
    StructuredOutputOptions.STRUCTURAL_TAG: _read_structural_tag,
}


def _check_characters(kind: StructuredOutputOptions, value: object, text: str) -> None:
    """Native grammar compilers take UTF-8 C strings; NUL and lone surrogates are neither."""
    if any(isinstance(part, str) and "\0" in part for part in parts(value)):
        raise GrammarError(f"the {kind.value} constraint contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the {kind.value} constraint contains a lone surrogate at {error.start}") from error
