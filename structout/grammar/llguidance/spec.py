"""Constraints in llguidance's own format: Lark grammars and JSON schemas with
options."""

import json
import re
from typing import Any

from llguidance import regex_to_lark

from structout import exact_json
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.ecma_regex import with_explicit_classes
from structout.grammar.engine_versions import (
    LLGUIDANCE_ESCAPES_IN_NAMES,
    LLGUIDANCE_WHITESPACE_PATTERN,
    is_at_least,
)
from structout.grammar.text_patterns import pattern_of_other_texts
from structout.json_schema import Nodes, copied, patterns_of, schemas, without_no_ops
from structout.params import Constraint, StructuredOutputOptions

# The drafts that llguidance checks schemas against. It fails for any other $schema.
_DRAFTS = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)

# The values of `format` that it enforces.
FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())

# One spelling for each character of a string. llguidance's default also takes \u00XX in
# the names of additional properties, so that "\u0061" passes for another property than
# "a".
_JSON_ESCAPES = 'nrbtf\\"'
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_JSON_WHITESPACE = r"[ \t\n\r]"
_COMPACT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_OBJECT = {"type": "object"}

# Without this, a mask shows only the first of the tokens that llguidance would force,
# which is narrower than what it accepts. Filling it also calls the tokenizer.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'

# Parts of a Lark grammar: text in which nothing else begins (strings, regular
# expressions, comments), references to tokens, and attributes of rules. Unclosed text
# ends at the end of its line, so that the time stays linear.
_LARK_PART = re.compile(
    r"""(?P<text>"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|//[^\n]*|/[^/\\\n]*(?:\\.[^/\\\n]*)*/?|\#[^\n]*)"""
    r"""|(?P<token><[^<>\s]+>)|\b(?P<attribute>max_tokens|stop|temperature)\s*="""
)


def llguidance_spec(constraint: Constraint, *, any_whitespace: bool, max_whitespace: int | None) -> str:
    """Return the constraint in llguidance's format.

    Args:
        constraint: what to express.
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: as in :class:`structout.StructuredOutputsConfig`.

    Raises:
        GrammarError: llguidance cannot express it, or it refers to tokens.
    """
    kind, spec = constraint.kind, constraint.spec
    if constraint.whitespace_pattern is not None and kind is not StructuredOutputOptions.JSON:
        raise GrammarError(f"whitespace_pattern applies to json only, got a {kind.value} constraint")
    options = _whitespace_options(constraint.whitespace_pattern, any_whitespace, max_whitespace)
    match kind:
        case StructuredOutputOptions.JSON:
            return _json_spec(constraint.value, constraint.nodes, options | {"lenient": constraint.lenient})
        case StructuredOutputOptions.JSON_OBJECT:
            return _json_spec(_ANY_OBJECT, [], options)
        case StructuredOutputOptions.REGEX:
            return lark_spec(f"start: /{regex_to_lark(with_explicit_classes(spec), '')}/")
        case StructuredOutputOptions.CHOICE:
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in constraint.value)
            return lark_spec(f"start: CHOICE\nCHOICE: {choices}")
        case StructuredOutputOptions.GRAMMAR:
            check_lark(spec)
            return lark_spec(spec)
        case StructuredOutputOptions.STRUCTURAL_TAG:
            raise GrammarError(
                "llguidance has no structural tags in xgrammar's format", kind=GrammarErrorKind.UNSUPPORTED
            )


def lark_spec(text: str) -> str:
    """A Lark grammar in llguidance's format."""
    return json.dumps({"grammars": [{"lark_grammar": _NO_FORCING + text}]}, ensure_ascii=False)


def json_whitespace_pattern(pattern: str) -> str:
    r"""A whitespace pattern of the user, with ``\s`` read as JSON's four whitespace
    characters."""
    return _ESCAPE.sub(lambda escape: _JSON_WHITESPACE if escape[0] == r"\s" else escape[0], pattern)


def check_lark(text: str) -> None:
    """Raise ``GrammarError`` for a Lark grammar that uses tokens, or limits that masks
    cannot express."""
    for part in _LARK_PART.finditer(text):
        if part["token"]:
            message = f"a grammar may constrain text only, got a reference to the token {part['token']}"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        if part["attribute"]:
            message = f"{part['attribute']} of a Lark rule is not supported: it cannot be rolled back"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)


def _whitespace_options(pattern: str | None, any_whitespace: bool, max_whitespace: int | None) -> dict[str, Any]:
    if pattern is not None:
        return {"whitespace_pattern": json_whitespace_pattern(pattern)}
    if not any_whitespace:
        return _COMPACT_JSON
    if max_whitespace is None:
        return {}
    bounded = f"{_JSON_WHITESPACE}{{0,{max_whitespace}}}"
    if is_at_least("llguidance", LLGUIDANCE_WHITESPACE_PATTERN):
        return {"whitespace_pattern": bounded}
    # Older versions match the pattern again and again. Whitespace beside a comma or a
    # colon can still be bounded; there is none beside brackets then.
    return {
        "whitespace_flexible": False,
        "item_separator": f"{bounded},{bounded}",
        "key_separator": f"{bounded}:{bounded}",
    }


def _json_spec(schema: Any, nodes: Nodes, options: dict[str, Any]) -> str:
    if schema is False:
        message = "the json constraint allows no text at all: the schema is false"
        raise GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE, pointer="#")
    schema = {} if schema is True else _with_explicit_patterns(without_no_ops(schema, nodes, FORMATS), nodes)
    if not is_at_least("llguidance", LLGUIDANCE_ESCAPES_IN_NAMES):
        schema = _with_names_of_other_properties(schema)
    # llguidance takes options in the schema under x-guidance. Those of the schema's
    # author do not count.
    known = {key: value for key, value in schema.items() if not _is_unknown_draft(key, value)}
    known["x-guidance"] = options | {"json_allowed_escapes": _JSON_ESCAPES}
    named = {"name": "json", "json_schema": known}
    grammars = [{"lark_grammar": _NO_FORCING + "start: @json"}, named]
    return exact_json.dumps({"grammars": grammars}, ensure_ascii=False)


def _with_explicit_patterns(schema: Any, nodes: Nodes) -> Any:
    """``schema`` with its regular expressions as ECMA-262 reads them. A copy if any
    changes."""
    if all(with_explicit_classes(pattern) == pattern for _, node in nodes for pattern in patterns_of(node)):
        return schema
    changed = copied(schema)
    for node in schemas(changed):
        if isinstance(node.get("pattern"), str):
            node["pattern"] = with_explicit_classes(node["pattern"])
        if isinstance(node.get("patternProperties"), dict):
            children = {with_explicit_classes(text): child for text, child in node["patternProperties"].items()}
            if len(children) < len(node["patternProperties"]):
                message = "llguidance takes no patternProperties that match the same names"
                raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
            node["patternProperties"] = children
    return changed


def _is_unknown_draft(key: str, value: object) -> bool:
    return key == "$schema" and not (isinstance(value, str) and _DRAFTS.fullmatch(value))


# -- for versions that take escapes in the names of additional properties ---------

_MAX_REWRITTEN_PROPERTIES = 256  # more take seconds to compile
_MAX_REWRITTEN_NAME = 100  # characters; llguidance refuses patterns nested 250 deep


def admits_escaped_names(node: Any) -> bool:
    """Whether an escaped name gets around the properties of a schema, in versions
    before LLGUIDANCE_ESCAPES_IN_NAMES.

    It does where additional properties are allowed, unless the names of all other
    properties can be written as one pattern. Patterns match names without escapes, so
    there is none if one of the properties is itself written with an escape.
    """
    if node.get("additionalProperties", True) is False:
        return False
    properties = node.get("properties", {})
    is_too_large = len(properties) > _MAX_REWRITTEN_PROPERTIES or any(len(n) > _MAX_REWRITTEN_NAME for n in properties)
    has_escapes = any(json.dumps(name, ensure_ascii=False) != f'"{name}"' for name in properties)
    return bool(node.get("patternProperties")) or is_too_large or has_escapes


def _with_names_of_other_properties(schema: Any) -> Any:
    """``schema`` with ``additionalProperties`` written as a pattern of all names except
    those of the properties."""
    changed = copied(schema)
    for node in schemas(changed):
        properties = node.get("properties")
        is_open = node.get("additionalProperties", True) is not False
        if isinstance(properties, dict) and properties and is_open and not admits_escaped_names(node):
            others = node.get("additionalProperties", True)
            node["patternProperties"] = {f"^{pattern_of_other_texts(list(properties))}$": others}
            node["additionalProperties"] = False
    return changed
