"""Checks texts against constraints."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions, StructuredOutputsParams
from structout.constraints.schemas_in_tags import tag_around, with_schemas
from structout.errors import GrammarError
from structout.grammar.checking.conflicts import smallest_conflict
from structout.grammar.checking.descriptions import described_bytes, place_in_json, shown
from structout.grammar.checking.requirements import RelaxedSchema, Requirement
from structout.grammar.checking.spelled_text import Piece, may_end, spelled
from structout.grammar.checking.text_check import Cause, Continuation, TextCheck
from structout.grammar.checking.ways_on import Way, WaysOn
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import BYTES, Vocabulary
from structout.masks.bitmask import allowed_tokens

_SECONDS_FOR_CAUSES = 3.0
_MAX_CAUSES = 12
_MAX_SHOWN_CHOICES = 6
_JSON_OBJECT = '{"type": "object"}'
_OPTIONS = ("key_order", "additional_properties", "whitespace")
_IGNORED = "%ignore"  # Lark's statement
_KIND = StructuredOutputOptions


def check(
    params: StructuredOutputsParams,
    text: str,
    tokenizer: Any = None,
    *,
    config: StructuredOutputsConfig | None = None,
) -> TextCheck:
    """Find where a text leaves its constraint, and why.

    A requirement of a schema is a cause if it belongs to a smallest set of them that
    forbids the text to go on so. Rules of grammars and formats of tags are causes if
    the text has begun them and they expect something else. The constraint is enforced
    by structout's own engine, whatever backend the params name.

    Args:
        params: the constraint of a request.
        text: what a model or a person has written. The names of special tokens count
            as these tokens where the constraint allows them.
        tokenizer: a Hugging Face tokenizer, to tell the tokens. Without it each byte of
            the text is a step, and special tokens have no ids.
        config: the manager's config. Default: the default config.

    Raises:
        GrammarError: the constraint is refused.
        ValueError: the tokenizer cannot be used, or the text has a lone surrogate.
    """
    return Checker(params, tokenizer, config).check(text)


class Checker:
    """Checks texts against one constraint.

    Args:
        params: as in :func:`check`, as the others are.

    Raises:
        GrammarError: the constraint is refused.
        ValueError: the tokenizer cannot be used.
    """

    def __init__(
        self, params: StructuredOutputsParams, tokenizer: Any = None, config: StructuredOutputsConfig | None = None
    ):
        self.config = config or StructuredOutputsConfig()
        self.constraint = params.constraint(self.config)
        self.has_tokenizer = tokenizer is not None
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer) if self.has_tokenizer else BYTES
        self._canonical = CanonicalTokenizer(tokenizer, self.vocabulary) if self.has_tokenizer else None
        self._backend = NativeBackend.from_config(self.vocabulary, self.config, None)
        self._grammar = self._backend.compile(self.constraint).grammar

    def grammar(self) -> StructuredOutputGrammar:
        """A grammar at the start of the constraint."""
        return self._grammar.copy()

    def pieces_of(self, text: str) -> list[Piece]:
        """The steps of a text: tokens, or bytes without a tokenizer."""
        _check_characters(text)
        return spelled(text, self._grammar, self.vocabulary, self._canonical)

    def ways_on(self) -> WaysOn:
        """A follower at the start of a text, which names the rules that it begins."""
        return WaysOn(self._backend.labelled_rules(self.constraint), self.vocabulary)

    def check(self, text: str) -> TextCheck:
        """Check a text: see :func:`check`."""
        return _Examination(self, text).result()

    @cached_property
    def _backends(self) -> dict[tuple[bool, bool], NativeBackend]:
        """A backend for each ``(is_of_bytes, is_loose)``: over single bytes or over the
        tokens, with any whitespace or as in the config."""
        loose = replace(self.config, any_whitespace=True, max_whitespace=None)
        return {
            (is_of_bytes, is_loose): NativeBackend.from_config(
                BYTES if is_of_bytes else self.vocabulary, loose if is_loose else self.config, None
            )
            for is_of_bytes in (False, True)
            for is_loose in (False, True)
        }

    def relaxed_grammar(self, value: Any, kept_options: Sequence[str], *, is_of_bytes: bool) -> StructuredOutputGrammar:
        """The grammar of another value of the constraint, with some of its options."""
        constraint = self.constraint
        if constraint.kind is _KIND.JSON_OBJECT:
            constraint = Constraint(_KIND.JSON, _JSON_OBJECT, key_order=constraint.key_order)
        constraint = constraint.rewritten(value)
        if "key_order" not in kept_options:
            constraint = replace(constraint, key_order="any")
        if "additional_properties" not in kept_options:
            constraint = replace(constraint, additional_properties="schema")
        is_loose = "whitespace" not in kept_options
        if is_loose:
            constraint = replace(constraint, whitespace_pattern=None)
        return self._backends[is_of_bytes, is_loose].compile(constraint).grammar


class _Examination:
    """Looks at one text."""

    def __init__(self, checker: Checker, text: str):
        self._checker = checker
        self._text = text
        self._pieces = checker.pieces_of(text)
        self._grammar = checker.grammar()
        index = 0
        needed = [self._grammar.num_needed]
        while index < len(self._pieces) and self._pieces[index].is_read_by(self._grammar):
            index += 1
            needed.append(self._grammar.num_needed)
        known = tuple(count for count in needed if count is not None)
        self._num_needed = known if checker.has_tokenizer and len(known) == len(needed) else None
        self._index = index
        self._num_allowed_tokens = self._count_allowed() if checker.has_tokenizer else None
        # _refused_piece adds the allowed bytes of the next token to these, one by one.
        self._allowed = list(self._pieces[:index])
        self._refused = self._refused_piece()

    def _refused_piece(self) -> Piece | None:
        if self._index == len(self._pieces):
            return None
        piece = self._pieces[self._index]
        data = piece.written
        if piece.token_id is not None and not self._checker.vocabulary.token_bytes[piece.token_id]:
            return piece
        for i in range(len(data)):
            part = Piece(None, data[i : i + 1])
            if not part.is_read_by(self._grammar):
                return part
            self._allowed.append(part)
        return piece  # its bytes are allowed, but the token is not

    def _count_allowed(self) -> int:
        return int(allowed_tokens(self._grammar.mask(), self._checker.vocabulary.size).sum())

    def result(self) -> TextCheck:
        ends = may_end(self._grammar, self._checker.vocabulary)
        status = "forbidden" if self._refused is not None else "complete" if ends else "incomplete"
        ways_on = self._checker.ways_on()
        try:
            ways_on.read(self._allowed)
            ways = list(ways_on.ways())
            end = b"" if ends else ways_on.shortest_end()
        except GrammarError:  # it takes too much work
            ways, end = [], None
        at = len(ways_on.text)
        open_rules = _open_rules(ways, at) if ways or end is None else [s.name for s in ways_on.spans(end)[::-1]]
        is_named = self._checker.constraint.kind in (_KIND.GRAMMAR, _KIND.STRUCTURAL_TAG)
        schema_at = self._schema_at(open_rules, ways, at)
        causes = self._causes(ways, at, ends, schema_at) if status != "complete" else []
        return TextCheck(
            text=self._text,
            status=status,
            offset=sum(len(piece.written) for piece in self._allowed),
            causes=tuple(causes[:_MAX_CAUSES]),
            may_follow=tuple(_continuation(way, at, is_named) for way in ways),
            may_end=ends,
            completion=None if end is None else _shown_text(end),
            path=self._path(ways_on.text, ways, schema_at),
            open_rules=tuple(open_rules) if is_named else (),
            token_ids=self._token_ids(),
            token_index=self._index if self._refused is not None and self._checker.has_tokenizer else None,
            num_allowed_tokens=self._num_allowed_tokens,
            num_needed=self._num_needed,
        )

    def _token_ids(self) -> tuple[int, ...] | None:
        if not self._checker.has_tokenizer or any(piece.token_id is None for piece in self._pieces):
            return None
        return tuple(piece.token_id for piece in self._pieces if piece.token_id is not None)

    # -- where the text stands -------------------------------------------------------

    def _schema_at(self, open_rules: Sequence[str], ways: Sequence[Way], at: int) -> str | None:
        """JSON pointer to the schema that describes the place. ``#`` is a constraint
        that is a schema. None if there is none."""
        constraint = self._checker.constraint
        if constraint.kind in (_KIND.JSON, _KIND.JSON_OBJECT):
            return "#"
        if constraint.kind is not _KIND.STRUCTURAL_TAG:
            return None
        formats = [*open_rules[-1:], *(way.rules_at(at)[0].name for way in ways if way.rules_at(at))]
        schemas = {schema.pointer.rpartition("/")[0]: schema.pointer for schema in constraint.tag_schemas}
        return next((schemas[each] for each in formats if each in schemas), None)

    def _path(self, text: bytes, ways: Sequence[Way], schema_at: str | None) -> str | None:
        if schema_at is None:
            return None
        begin = 0
        if schema_at != "#":
            name = schema_at.rpartition("/")[0]
            begins = [span.begin for way in ways for span in way.rules_at(len(text)) if span.name == name]
            if not begins:
                return None
            begin = max(begins)
        return place_in_json(text[begin:].decode(errors="replace"))

    # -- what forbids the next byte, or the end --------------------------------------

    def _causes(self, ways: Sequence[Way], at: int, ends: bool, schema_at: str | None) -> list[Cause]:
        constraint = self._checker.constraint
        if ends and not ways:
            return [Cause("end", "", "the text is complete, and nothing may follow")]
        if schema_at is not None:
            found = self._schema_causes(schema_at)
            if found is not None:
                return found
        match constraint.kind:
            case _KIND.REGEX:
                goes_on = "goes on otherwise" if self._refused is not None else "asks for more"
                return [Cause("regex", constraint.spec, f"the regular expression {goes_on}")]
            case _KIND.CHOICE:
                return [self._choice_cause(constraint.value)]
            case _KIND.GRAMMAR | _KIND.STRUCTURAL_TAG:
                return self._rule_causes(ways, at)
        return []

    def _choice_cause(self, choices: Sequence[str]) -> Cause:
        read = b"".join(piece.written for piece in self._allowed)
        left = [choice for choice in choices if choice.encode().startswith(read)]
        more = ", ..." if len(left) > _MAX_SHOWN_CHOICES else ""
        return Cause("choice", "", f"the choices left are {', '.join(map(shown, left[:_MAX_SHOWN_CHOICES]))}{more}")

    def _rule_causes(self, ways: Sequence[Way], at: int) -> list[Cause]:
        """The innermost rules that the text has begun, and what each expects."""
        expected: dict[str, list[str]] = {}
        for way in ways:
            rules = way.rules_at(at)
            begun = next((rule for rule in rules if rule.begin < at), rules[-1] if rules else None)
            next_one = way.token or described_bytes(way.first)
            if begun is not None:
                inner = f" ({rules[0].name})" if rules[0].name != begun.name else ""
                expected.setdefault(begun.name, []).append(next_one + inner)
            elif way.spans:  # between two terminals
                expected.setdefault(_IGNORED, []).append(next_one)
        is_tag = self._checker.constraint.kind is _KIND.STRUCTURAL_TAG
        causes = []
        for name, characters in expected.items():
            tag = tag_around(self._checker.constraint.value, name) if is_tag else None
            message = f"expects {', '.join(characters)}" + ("" if tag is None else f", in the tag {shown(tag)}")
            causes.append(Cause("format" if is_tag else "rule", name, message))
        return causes

    def _schema_causes(self, schema_at: str) -> list[Cause] | None:
        """None if the schema does not forbid it, or it takes too long to tell."""
        deadline = time.monotonic() + _SECONDS_FOR_CAUSES
        schema, with_schema = self._schema_and_context(schema_at)
        options = [Requirement(name, "", None) for name in _OPTIONS]

        def forbids(kept: Sequence[Requirement]) -> bool:
            if time.monotonic() > deadline:
                raise TimeoutError
            places = {requirement.pointer for requirement in kept}
            value = with_schema(RelaxedSchema(schema, places).value)
            grammar = self._checker.relaxed_grammar(value, [*places], is_of_bytes=schema_at == "#")
            return not self._is_allowed_by(grammar)

        try:
            conflict = smallest_conflict([*RelaxedSchema(schema).requirements, *options], forbids)
        except (GrammarError, TimeoutError, RecursionError):
            return None
        if conflict is None:
            return None
        if not conflict and schema_at != "#":
            return None  # the tag expects something else
        if not conflict:
            return [Cause("json", "", self._problem_of_json())]
        return [self._cause_of(requirement, schema_at) for requirement in conflict]

    def _problem_of_json(self) -> str:
        """The problem of a text that no JSON schema allows, not even ``true``."""
        if self._refused is None:
            return "the JSON text is not complete"
        try:
            json.loads(self._text)
        except (ValueError, RecursionError):
            return "no JSON text goes on so"
        return "this is JSON, but not as structout writes it: a needless escape, a key twice, or too many digits"

    def _schema_and_context(self, schema_at: str) -> tuple[Any, Callable[[Any], Any]]:
        """A schema of the constraint, and a function that returns the value of the
        constraint with another schema in its place."""
        constraint = self._checker.constraint
        if constraint.kind is _KIND.JSON_OBJECT:
            return {"type": "object"}, lambda schema: schema
        if constraint.kind is _KIND.JSON:
            return constraint.value, lambda schema: schema
        schema = next(each.schema for each in constraint.tag_schemas if each.pointer == schema_at)
        return schema, lambda relaxed: with_schemas(constraint.value, {schema_at: relaxed})

    def _is_allowed_by(self, grammar: StructuredOutputGrammar) -> bool:
        if not all(piece.is_read_by(grammar) for piece in self._allowed_for(grammar)):
            return False
        if self._refused is None:
            return may_end(grammar, self._checker.vocabulary if grammar.vocab_size != BYTES.size else BYTES)
        return self._refused.is_read_by(grammar)

    def _allowed_for(self, grammar: StructuredOutputGrammar) -> Sequence[Piece]:
        if grammar.vocab_size == BYTES.size:
            return [Piece(None, b"".join(piece.written for piece in self._allowed))]
        return self._allowed

    def _cause_of(self, requirement: Requirement, schema_at: str) -> Cause:
        if requirement.pointer in _OPTIONS:
            return Cause("option", requirement.pointer, self._option_message(requirement.pointer))
        pointer = schema_at + requirement.pointer[1:]
        message = f"{requirement.keyword} is {shown(requirement.value)}"
        if requirement.value is False:
            message = f"{requirement.keyword or 'the schema'} allows nothing here"
        if schema_at != "#":
            tag = tag_around(self._checker.constraint.value, schema_at)
            message += "" if tag is None else f", in the tag {shown(tag)}"
        return Cause("keyword", pointer, message)

    def _option_message(self, option: str) -> str:
        config, pattern = self._checker.config, self._checker.constraint.whitespace_pattern
        if option == "key_order":
            return 'the keys come in the order in which the schema declares them; key_order="any" allows others'
        if option == "additional_properties":
            return 'additional_properties="closed" allows no keys that the schema does not name'
        if pattern is not None:
            return f"whitespace between two tokens of JSON matches whitespace_pattern={shown(pattern)}"
        if not config.any_whitespace:
            return 'any_whitespace=False allows one space after "," and ":", and no other whitespace'
        most = config.max_whitespace
        if most == "indent":
            return (
                'max_whitespace="indent" allows a space, or a line feed and an indentation, and no whitespace in front '
                "of a colon: a number allows that many characters anywhere, None any number"
            )
        return f"max_whitespace is {most} in the configuration: more allows more whitespace in a row, None any"


def _open_rules(ways: Sequence[Way], at: int) -> list[str]:
    """The rules that have begun, whichever way the text goes on, outermost first."""
    begun = [[rule for rule in reversed(way.rules_at(at)) if rule.begin < at] for way in ways]
    shared = set.intersection(*({(rule.name, rule.begin) for rule in rules} for rules in begun)) if begun else set()
    return [rule.name for rule in (begun[0] if begun else []) if (rule.name, rule.begin) in shared]


def _continuation(way: Way, at: int, is_named: bool) -> Continuation:
    rules = way.rules_at(at) if is_named else []
    example = None if way.example is None else _shown_text(way.example)
    return Continuation(way.token or described_bytes(way.first), example, rules[0].name if rules else "")


def _shown_text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has a lone surrogate at {error.start}, which no UTF-8 has") from error
