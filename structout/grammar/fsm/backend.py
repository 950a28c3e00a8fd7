"""Compiles regular expressions, choices and grammars with structout's own engine."""

from collections.abc import Sequence

import torch

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.fsm.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.fsm.grammars import grammar_automaton
from structout.grammar.fsm.matcher import FsmGrammar, mask_memory
from structout.grammar.fsm.native import core
from structout.grammar.fsm.token_index import TokenIndex, vocabulary_trie
from structout.grammar.interface import CompiledConstraint, StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.params import Constraint, StructuredOutputOptions

_CHECK_SECONDS = 0.05
_CHECK_LIMITS = AutomatonLimits(seconds=_CHECK_SECONDS)


class FsmBackend(StructuredOutputBackend):
    """Compiles regular expressions, choices and grammars without recursion into
    automata, for one vocabulary.

    Args:
        vocabulary: the token ids of the model.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars. By
            default that method raises.

    Raises:
        ImportError: the engine was not built for this version of Python.
    """

    can_save = True  # it compiles within its limits, so it needs no other process

    def __init__(self, vocabulary: Vocabulary, *, canonical_tokenizer: CanonicalTokenizer | None = None):
        super().__init__(vocabulary)
        self._canonical_tokenizer = canonical_tokenizer
        vocabulary_trie(vocabulary)  # the first constraint should not wait for it

    @classmethod
    def from_config(
        cls, vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
    ) -> "FsmBackend":
        return cls(vocabulary, canonical_tokenizer=canonical_tokenizer)

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> FsmGrammar:
        """Compile a constraint as the interface specifies.

        Raises:
            GrammarError: also for any other kind than regex, choice and grammar.
        """
        constraint = Constraint(request_type, grammar_spec)
        return self._grammar(constraint, self.compile_native(constraint), stop_token_ids)

    def compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None = None) -> CompiledConstraint:
        return CompiledConstraint(self._grammar(constraint, self.compile_native(constraint), stop_token_ids))

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        """Check a constraint as the interface specifies, without the vocabulary.

        A pattern that takes more than ``_CHECK_SECONDS`` passes.
        """
        try:
            self._refuse_empty(constraint, self._automaton(constraint, _CHECK_LIMITS))
        except GrammarLimitError as error:
            if error.limit != "pattern_milliseconds":
                raise
        return ()

    def compile_native(self, constraint: Constraint) -> Automaton:
        """The automaton over bytes of a constraint."""
        return self._automaton(constraint, DEFAULT_LIMITS)

    def _automaton(self, constraint: Constraint, limits: AutomatonLimits) -> Automaton:
        kind = constraint.kind
        if constraint.whitespace_pattern is not None:
            raise GrammarError(f"whitespace_pattern applies to json only, got a {kind.value} constraint")
        match kind:
            case StructuredOutputOptions.REGEX:
                return Automaton.from_regex(constraint.spec, limits)
            case StructuredOutputOptions.CHOICE:
                return Automaton.from_choices(constraint.value)
            case StructuredOutputOptions.GRAMMAR:
                return grammar_automaton(constraint.spec, limits)
        message = f"fsm takes regex, choice and grammar constraints only, got a {kind.value} constraint"
        raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)

    def serialize(self, native: Automaton, max_bytes: int) -> bytes | None:
        data = native.serialize()
        return data if len(data) <= max_bytes else None

    def load_grammar(
        self, constraint: Constraint, serialized: bytes, stop_token_ids: Sequence[int] | None = None
    ) -> CompiledConstraint:
        return CompiledConstraint(self._grammar(constraint, Automaton.deserialize(serialized), stop_token_ids))

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """Fill rows as the interface specifies, in one native call.

        It keeps Python's global lock unless a mask has to be computed.
        """
        address, row_bytes = mask_memory(bitmask, self.vocabulary.size, rows)
        core().fill_batch([_own_grammar(grammar).matcher for grammar in grammars], address, row_bytes, rows)

    def fill_bitmask_drafts_batch(
        self,
        grammars: Sequence[StructuredOutputGrammar],
        bitmask: torch.Tensor,
        first_rows: Sequence[int],
        draft_tokens: Sequence[Sequence[int]],
    ) -> list[int]:
        """Fill rows as the interface specifies, in one native call."""
        last_rows = [row + len(tokens) for row, tokens in zip(first_rows, draft_tokens, strict=True)]
        address, row_bytes = mask_memory(bitmask, self.vocabulary.size, [*first_rows, *last_rows])
        matchers = [_own_grammar(grammar).matcher for grammar in grammars]
        return core().fill_drafts_batch(matchers, address, row_bytes, first_rows, draft_tokens)

    def destroy(self) -> None:
        """Do nothing: the backend keeps nothing that no grammar holds, except the
        vocabulary, which other managers may share."""

    def _grammar(
        self, constraint: Constraint, automaton: Automaton, stop_token_ids: Sequence[int] | None
    ) -> FsmGrammar:
        self._refuse_empty(constraint, automaton)
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        index = TokenIndex(automaton, self.vocabulary)
        grammar = FsmGrammar(index, self.vocabulary.size, stops, self._canonical_tokenizer)
        self._refuse_empty_language(grammar, constraint.kind)
        return grammar

    def _refuse_empty(self, constraint: Constraint, automaton: Automaton) -> None:
        if automaton.num_states == 0:
            message = f"the {constraint.kind.value} constraint allows no text at all"
            raise GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE)


def _own_grammar(grammar: StructuredOutputGrammar) -> FsmGrammar:
    if not isinstance(grammar, FsmGrammar):
        raise TypeError(f"expected grammars that FsmBackend compiled, got a {type(grammar).__name__}")
    return grammar
