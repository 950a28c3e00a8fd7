"""Compiles constraints of all kinds with structout's own engine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.constraints.schema_walks import STANDARD_FORMATS, unknown_formats
from structout.constraints.schemas_in_tags import errors_in_tags
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import CompiledConstraint, StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.native.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.extension import grammar_errors
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.grammars import ContextFreeGrammar, compile_grammar, parse_grammar
from structout.grammar.native.json_schema import DEFAULT_FORM, CompiledSchema, JsonSchemaGrammar, TextForm
from structout.grammar.native.lenient import without
from structout.grammar.native.rules import RuleSet
from structout.grammar.native.structural_tags import structural_tag_rules
from structout.grammar.native.tag_arguments import add_schema
from structout.grammar.native.tag_schemas import TagSchemas
from structout.grammar.native.token_index import FsmGrammar, TokenIndex
from structout.grammar.vocabulary import Vocabulary

_CHECK_SECONDS = 0.05
_CHECK_LIMITS = AutomatonLimits(seconds=_CHECK_SECONDS)
_MAX_LEFT_OUT = 64  # keywords of a lenient schema

_JSON_OBJECT = '{"type": "object"}'

_Language = Automaton | CompiledSchema | CompiledGrammar
_GRAMMARS: dict[type, type[StructuredOutputGrammar]] = {
    CompiledSchema: JsonSchemaGrammar,
    CompiledGrammar: ContextFreeGrammar,
    TokenIndex: FsmGrammar,
}


class _Compiled(NamedTuple):
    """What a constraint was compiled into, the parts of it that are not enforced, and
    the formats that constrain nothing."""

    language: _Language
    weakened: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


class NativeBackend(StructuredOutputBackend):
    """Compiles constraints of all kinds, for one vocabulary.

    Args:
        vocabulary: the token ids of the model.
        form: how JSON is written, unless a constraint has options of its own.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars. By
            default that method raises.
        limits: what one constraint may cost.

    Raises:
        ImportError: the engine was not built for this version of Python.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        form: TextForm = DEFAULT_FORM,
        canonical_tokenizer: CanonicalTokenizer | None = None,
        limits: AutomatonLimits = DEFAULT_LIMITS,
    ):
        super().__init__(vocabulary)
        self._form = form
        self._canonical_tokenizer = canonical_tokenizer
        self._limits = limits
        _ = vocabulary.trie  # made now: the first constraint should not wait for it

    @classmethod
    def from_config(
        cls, vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
    ) -> "NativeBackend":
        form = TextForm(config.any_whitespace, config.max_whitespace, config.key_order, config.additional_properties)
        return cls(vocabulary, form=form, canonical_tokenizer=canonical_tokenizer)

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> StructuredOutputGrammar:
        """Compile a constraint as the interface specifies."""
        constraint = Constraint(request_type, grammar_spec)
        return self._grammar(constraint, self.compile_native(constraint), stop_token_ids)

    def compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None = None) -> CompiledConstraint:
        """Compile a constraint with all its options.

        Args:
            constraint: with ``lenient``, formats that JSON Schema defines and the
                engine cannot enforce in this schema are not enforced.
            stop_token_ids: tokens that end the text. Default: those of the vocabulary.
        """
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        compiled = self._compiled_leniently(constraint, self._limits, stops)
        grammar = self._grammar(constraint, compiled.language, stop_token_ids)
        return CompiledConstraint(grammar, weakened=compiled.weakened, annotations=compiled.annotations)

    def check(self, constraint: Constraint) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Find out what ``compile`` would refuse, within milliseconds. A constraint
        passes if it takes more than ``_CHECK_SECONDS``.

        Returns:
            the parts of a lenient constraint that would not be enforced, and the
            formats that constrain nothing.
        """
        try:
            compiled = self._compiled_leniently(constraint, _CHECK_LIMITS)
        except GrammarLimitError as error:
            if error.limit != "cpu_milliseconds":
                raise
            return (), ()
        self._refuse_empty(constraint, compiled.language)
        return compiled.weakened, compiled.annotations

    def compile_native(self, constraint: Constraint) -> _Language:
        """A schema or a recursive grammar over tokens, or an automaton over bytes."""
        return self._compiled(constraint, self._limits).language

    def labelled_rules(self, constraint: Constraint) -> RuleSet:
        """The constraint as rules, whose ``labels`` name the rules of a grammar, its
        terminals, and JSON pointers to the formats of a tag.

        Raises:
            GrammarError: the constraint is malformed, unsupported or allows no text.
        """
        limits, stops = self._limits, self.vocabulary.stop_token_ids
        context = GrammarContext(self.vocabulary, self._form_of(constraint), is_labelled=True)
        if constraint.kind is StructuredOutputOptions.GRAMMAR:
            return parse_grammar(constraint.spec, limits, context)
        if constraint.kind is StructuredOutputOptions.STRUCTURAL_TAG:
            schemas = self._tag_schemas(constraint, limits)
            rules = structural_tag_rules(constraint.value, limits, partial(add_schema, schemas), context, stops)
        else:
            native = self.compile_native(constraint)
            rules = RuleSet("text", limits, is_labelled=True)
            if isinstance(native, CompiledSchema):
                part = rules.json(native)
            else:
                part = rules.add_automaton(cast(Automaton, native))
            rules.define(rules.start, [[part]])
        rules.unlabel(rules.start)  # which no author has written
        return rules

    def _compiled_leniently(
        self, constraint: Constraint, limits: AutomatonLimits, stop_token_ids: Sequence[int] = ()
    ) -> _Compiled:
        """Compile. Go without the keywords of a lenient schema that are not supported:
        each costs one more compilation."""
        left_out: list[str] = []
        relaxed = constraint
        while True:
            try:
                compiled = self._compiled(relaxed, limits, stop_token_ids)
                break
            except GrammarError as error:
                if not constraint.lenient or not _is_in_a_schema(relaxed, error) or len(left_out) >= _MAX_LEFT_OUT:
                    raise
                try:
                    value, places = without(relaxed.value, error.pointer or "")
                except LookupError:
                    raise error from None
                relaxed = relaxed.rewritten(value)
                left_out += places
        if not constraint.lenient:
            return compiled
        unknown = set(_unknown_formats(constraint)) if compiled.annotations else set()
        standard = [place for place in compiled.annotations if place not in unknown]
        annotations = tuple(place for place in compiled.annotations if place in unknown)
        return _Compiled(compiled.language, (*left_out, *compiled.weakened, *standard), annotations)

    def _tag_schemas(self, constraint: Constraint, limits: AutomatonLimits) -> TagSchemas:
        """A compiler of the schemas of a structural tag."""
        ignored = STANDARD_FORMATS if constraint.lenient else ()
        return TagSchemas(self.vocabulary, self._form_of(constraint), limits, ignored, constraint.lenient)

    def _context(self, constraint: Constraint, limits: AutomatonLimits) -> GrammarContext:
        """The schemas and tokens that grammars may refer to. A check may be without the
        model's tokens, so it accepts any name of a token."""
        return GrammarContext(self.vocabulary, self._form_of(constraint), knows_tokens=limits is not _CHECK_LIMITS)

    def _form_of(self, constraint: Constraint) -> TextForm:
        return replace(
            self._form,
            key_order=constraint.key_order or self._form.key_order,
            additional_properties=constraint.additional_properties or self._form.additional_properties,
            whitespace_pattern=constraint.whitespace_pattern,
        )

    def _compiled(
        self, constraint: Constraint, limits: AutomatonLimits, stop_token_ids: Sequence[int] = ()
    ) -> _Compiled:
        kind = constraint.kind
        match kind:
            case StructuredOutputOptions.JSON | StructuredOutputOptions.JSON_OBJECT:
                schema = constraint.spec if kind is StructuredOutputOptions.JSON else _JSON_OBJECT
                ignored = STANDARD_FORMATS if constraint.lenient else ()
                compiled = CompiledSchema(
                    schema, self.vocabulary, self._form_of(constraint), limits, ignored, dict(constraint.schemas)
                )
                return _Compiled(compiled, annotations=compiled.annotations)
            case StructuredOutputOptions.REGEX:
                return _Compiled(Automaton.from_regex(constraint.spec, limits))
            case StructuredOutputOptions.CHOICE:
                return _Compiled(Automaton.from_choices(constraint.value))
            case StructuredOutputOptions.GRAMMAR:
                context = self._context(constraint, limits)
                return _Compiled(compile_grammar(constraint.spec, self.vocabulary, limits, context))
            case StructuredOutputOptions.STRUCTURAL_TAG:
                schemas = self._tag_schemas(constraint, limits)
                add, context = partial(add_schema, schemas), self._context(constraint, limits)
                with errors_in_tags(constraint.value):
                    rules = structural_tag_rules(constraint.value, limits, add, context, stop_token_ids)
                automaton = None if constraint.tag_schemas else rules.automaton()
                language = CompiledGrammar(rules, self.vocabulary) if automaton is None else automaton
                return _Compiled(language, tuple(schemas.weakened), tuple(schemas.annotations))

    def destroy(self) -> None:
        """Do nothing: the backend keeps nothing that no grammar holds, except the
        vocabulary, which other managers may share."""

    def _grammar(
        self, constraint: Constraint, native: _Language, stop_token_ids: Sequence[int] | None
    ) -> StructuredOutputGrammar:
        self._refuse_empty(constraint, native)
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        index = TokenIndex(native, self.vocabulary) if isinstance(native, Automaton) else native
        grammar = _GRAMMARS[type(index)](index, self.vocabulary.size, stops, self._canonical_tokenizer)
        with grammar_errors():
            self._refuse_empty_language(grammar, constraint.kind)
        return grammar

    def _refuse_empty(self, constraint: Constraint, native: _Language) -> None:
        if not isinstance(native, CompiledSchema) and native.is_empty:  # CompiledSchema refuses by itself
            message = f"the {constraint.kind.value} constraint allows no text at all"
            raise GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE)


def _is_in_a_schema(constraint: Constraint, error: GrammarError) -> bool:
    """True if an error names a part of a JSON schema that is not supported, which a
    lenient constraint may go without."""
    if error.kind is not GrammarErrorKind.UNSUPPORTED or error.pointer is None:
        return False
    is_json = constraint.kind is StructuredOutputOptions.JSON
    return is_json or any(error.pointer.startswith(f"{schema.pointer}/") for schema in constraint.tag_schemas)


def _unknown_formats(constraint: Constraint) -> Iterator[str]:
    if constraint.kind is StructuredOutputOptions.STRUCTURAL_TAG:
        for schema in constraint.tag_schemas:
            yield from unknown_formats(schema.nodes, schema.pointer)
    else:
        yield from unknown_formats(constraint.nodes)
