"""JSON schemas over the tokens of a vocabulary."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from structout.constraints import exact_json
from structout.constraints.metaschemas import metaschemas
from structout.constraints.schema_walks import STANDARD_FORMATS, keyword_at, subschemas
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.interface import DeviceTables, StructuredOutputGrammar
from structout.grammar.native.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.formats import FORMATS, native_formats
from structout.grammar.native.impossible import cause_of_impossibility
from structout.grammar.native.token_index import TokenIndex
from structout.grammar.vocabulary import Vocabulary


@dataclass(frozen=True)
class TextForm:
    """The whitespace and the keys in JSON texts.

    Attributes:
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: the same.
        key_order: the same.
        additional_properties: the same.
        whitespace_pattern: a regular expression of the whitespace that may stand
            between two tokens of JSON, in place of the first two. There may also be
            none.
    """

    any_whitespace: bool = True
    max_whitespace: int | str | None = "indent"
    key_order: str = "declared"
    additional_properties: str = "schema"
    whitespace_pattern: str | None = None

    def as_native(self, limits: AutomatonLimits) -> Any:
        """Raises ``GrammarError`` for a whitespace_pattern that is malformed or may
        match other characters."""
        form = core().TextForm()
        rules = core().WhitespaceRule
        if not self.any_whitespace:
            form.set_whitespace(rules.COMPACT, None)
        elif self.max_whitespace == "indent":
            form.set_whitespace(rules.INDENTED, None)
        else:
            form.set_whitespace(rules.ANY, self.max_whitespace)
        form.declared_key_order = self.key_order == "declared"
        if self.whitespace_pattern is not None:
            try:
                with grammar_errors("the whitespace_pattern"):
                    form.set_whitespace_pattern(self.whitespace_pattern, limits.native)
            except ValueError as error:
                if isinstance(error, GrammarError):
                    raise
                message = f"whitespace_pattern may match {error}, got {self.whitespace_pattern!r}"
                raise GrammarError(message) from None
        return form


DEFAULT_FORM = TextForm()
_NARROWER_FORMATS = {name for name, each in FORMATS.items() if each.is_narrower}
_TO_A_METASCHEMA = re.compile(r'"\$(?:r|dynamicR|recursiveR)ef"\s*:\s*"https?://json-schema\.org/')
_CLOSURE_LIMITS = AutomatonLimits(states=50_000, seconds=0.05)


class CompiledSchema:
    """A JSON schema whose steps are tokens. Threads may share it.

    Its states and masks are made when a text first reaches them. Once texts have made
    many, new texts begin with a new cache of them.

    Args:
        schema: JSON text.
        vocabulary: the token ids of the model.
        form: how the texts are written.
        limits: what compiling it may cost, and then each token and each mask.
        ignored_formats: formats that are annotations here if the engine cannot enforce
            them, of those that JSON Schema defines. The others are refused.
        schemas: JSON texts of other schemas that references may name, by their URIs.

    Raises:
        GrammarError: the schema is malformed, unsupported or allows no text.
        GrammarLimitError: compiling it would exceed one of ``limits``.
    """

    def __init__(
        self,
        schema: str,
        vocabulary: Vocabulary,
        form: TextForm = DEFAULT_FORM,
        limits: AutomatonLimits = DEFAULT_LIMITS,
        ignored_formats: Collection[str] = (),
        schemas: Mapping[str, str] = MappingProxyType({}),
    ):
        options = core().SchemaOptions()
        options.refused_formats = [
            name for name in sorted(STANDARD_FORMATS) if name not in FORMATS and name not in ignored_formats
        ]
        options.closes_objects = form.additional_properties == "closed"
        native_form = form.as_native(limits)
        refers = any(map(_TO_A_METASCHEMA.search, (schema, *schemas.values())))  # most schemas need no files
        options.documents = {**(metaschemas() if refers else {}), **schemas}
        self.form = form
        self._vocabulary = vocabulary
        choices = [{}, {"may_be_negated": True}]
        if _NARROWER_FORMATS & set(ignored_formats):
            choices.append({"may_be_negated": True, "are_narrower_left_out": True})
        for choice in choices:
            options.formats = native_formats(**choice)
            try:
                with grammar_errors():
                    self.native = core().CompiledSchema(
                        schema.encode(), options, native_form, limits.native, vocabulary.trie
                    )
                return
            except GrammarError as error:
                if error.keyword != "format" or error.kind is not GrammarErrorKind.UNSUPPORTED or choice is choices[-1]:
                    raise _with_cause(error, schema) from None

    @property
    def annotations(self) -> tuple[str, ...]:
        """JSON pointers to each ``format`` that constrains nothing."""
        return tuple(self.native.annotations)

    @property
    def num_states(self) -> int:
        """The number of states that a new text begins with: those of the compiled
        schema, and those that earlier texts have made."""
        return self.native.num_states

    @property
    def num_masks(self) -> int:
        """The number of different masks in them."""
        return self.native.num_masks

    @property
    def memory_bytes(self) -> int:
        """Memory of all states and masks in use, without the trie of the vocabulary. It
        grows while texts make new ones, up to 8 MB beyond the compiled schema for those
        of new texts."""
        return self.native.memory_bytes

    @cached_property
    def closed(self) -> TokenIndex | None:
        """An automaton of the same texts with at most 50,000 states, which a device can
        follow.

        None if there is none, or making it takes more than 50 ms. There is none where
        values lie inside each other without bound, or where keys without a name or
        ``uniqueItems`` need registers. With the key order ``declared`` an object has
        a state for each key; with ``any``, one for each set of keys.
        """
        automaton = self.native.closed(_CLOSURE_LIMITS.native)
        return None if automaton is None else TokenIndex(Automaton(automaton), self._vocabulary)

    def matches(self, text: str | bytes) -> bool:
        """True if a text can be generated: it is valid, and written in the given form.

        Raises:
            GrammarLimitError: that takes more than the limits.
        """
        with grammar_errors():
            return self.native.matches(text.encode() if isinstance(text, str) else text)


def _with_cause(error: GrammarError, schema: str) -> GrammarError:
    """The error with the part of a schema that makes it impossible, if it is one of the
    usual mistakes."""
    if error.kind not in (GrammarErrorKind.IMPOSSIBLE, GrammarErrorKind.UNSUPPORTED):
        return error
    value = exact_json.loads(schema)
    found = cause_of_impossibility(value, list(subschemas(value)))
    if found is None:
        return error
    cause, pointer = found
    message = f"the json constraint allows no text at all: {cause}"
    keyword = None if pointer is None else keyword_at(pointer)
    return GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE, pointer=pointer, keyword=keyword)


class JsonSchemaGrammar(StructuredOutputGrammar):
    """The position of one request in a JSON text, whose index is a
    :class:`CompiledSchema`."""

    _matcher_class = "SchemaMatcher"

    def state_id(self) -> tuple[int, ...]:
        """The states on top of the stack that the mask looks at, the top first.

        The mask is computed if needed. Texts with the same id have the same mask,
        unless one of them has used keys or items that must not be repeated: such rows
        are corrected for the text. The id of a text may get longer while others find
        masks that look deeper.
        """
        return self.matcher.control_state

    def device_tables(self) -> DeviceTables | None:
        index = self.index.closed
        if index is None or self.matcher.is_reasoning:
            return None
        state = 0
        for token in self.matcher.recent_tokens(self.num_tokens):
            state = index.next(state, token)
        return DeviceTables(index, self._stop_token_ids, None if self.is_terminated() else state)
