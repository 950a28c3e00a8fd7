"""How a request begins: at which position, with which stop tokens, and who is told."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from structout.errors import CompileCrashError, GrammarError, GrammarErrorKind
from structout.grammar.interface import CompiledConstraint, StructuredOutputGrammar
from structout.grammar.reasoning import ReasoningGrammar
from structout.grammar.vocabulary import Vocabulary, token_id
from structout.scheduler.requests import GrammarStatus

OnSettled = Callable[[str, GrammarStatus], object]

_log = logging.getLogger("structout.scheduler")


@dataclass(frozen=True)
class RequestStart:
    """The start of a request; see ``StructuredOutputManager.add_request``.

    Attributes:
        vocab_size: number of token ids.
        output_token_ids: tokens that the grammar accepts first.
        stop_token_ids: the tokens that end the text; None for the tokenizer's.
        constrain_after: the tokens that end the reasoning; None without reasoning.
        on_settled: who is told.
    """

    vocab_size: int = 0
    output_token_ids: Sequence[int] = ()
    stop_token_ids: list[int] | None = None
    constrain_after: list[int] | None = None
    on_settled: OnSettled | None = None

    @classmethod
    def checked(
        cls,
        vocabulary: Vocabulary,
        output_token_ids: Sequence[int],
        stop_token_ids: Sequence[int] | None,
        constrain_after: Sequence[int] | None,
        on_settled: OnSettled | None,
    ) -> "RequestStart":
        """Check the tokens, and copy them.

        Raises:
            GrammarError: stop_token_ids or constrain_after are empty or out of range.
        """
        return cls(
            vocabulary.size,
            list(output_token_ids),
            _checked("stop_token_ids", stop_token_ids, vocabulary.size),
            _checked("constrain_after", constrain_after, vocabulary.size),
            on_settled,
        )

    def grammar(self, compiled: CompiledConstraint) -> StructuredOutputGrammar | GrammarError:
        """A grammar at the position of the request, or why there is none."""
        try:
            grammar = compiled.grammar.copy(self.stop_token_ids)
            if self.constrain_after is not None and not grammar.begin_after(self.constrain_after):
                grammar = ReasoningGrammar(grammar, self.constrain_after, self.vocab_size)
            is_replayed = grammar.accept_tokens("", list(self.output_token_ids))
        except Exception as error:  # whatever a native library raises: the request must not wait forever
            return CompileCrashError(f"the grammar could not be started: {error!r}")
        if not is_replayed:
            return GrammarError("output_token_ids do not satisfy the constraint", kind=GrammarErrorKind.REPLAY)
        return grammar

    def tell(self, request_id: str, status: GrammarStatus) -> None:
        """Call ``on_settled``. What it raises is logged."""
        if self.on_settled is None:
            return
        try:
            self.on_settled(request_id, status)
        except Exception:
            _log.exception("on_settled of request %r raised", request_id)


def _checked(name: str, tokens: Sequence[int] | None, vocab_size: int) -> list[int] | None:
    if tokens is None:
        return None
    checked = [token_id(token, vocab_size) for token in tokens]
    ids = [token for token in checked if token is not None]
    if not checked:
        raise GrammarError(f"{name} is empty: pass None for the default")
    if len(ids) < len(checked):
        raise GrammarError(f"{name} must be in [0, {vocab_size}), got {list(tokens)}")
    return ids
