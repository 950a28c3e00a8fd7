"""A text token by token: the state of the grammar, and the tokens that it forbids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from structout.constraints.schema_walks import unescaped
from structout.errors import GrammarError
from structout.grammar.checking.checker import Checker
from structout.grammar.checking.descriptions import place_in_json
from structout.grammar.checking.spelled_text import Piece
from structout.grammar.checking.ways_on import Span
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.grammars import ContextFreeGrammar
from structout.grammar.native.json_schema import JsonSchemaGrammar
from structout.grammar.native.token_index import FsmGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allowed_tokens

Probabilities = npt.NDArray[np.float32] | None

_NUM_SHOWN = 10  # tokens of each list
_MAX_STEPS = 4_000


@dataclass(frozen=True)
class RankedToken:
    """A token in a list of the likeliest.

    Attributes:
        token_id: its id.
        text: its text, or the name of a special token.
        probability: that the model gives it, without a mask. None without a model.
    """

    token_id: int
    text: str
    probability: float | None


@dataclass(frozen=True)
class Step:
    """One token of a text, and the constraint in front of it.

    Attributes:
        token_id: the token. None at the end of the text, and for bytes.
        text: its text.
        is_allowed: whether the constraint allows it. At the end: whether the text is
            complete.
        state: the state of the engine in front of it, by its number or numbers.
        stack: what has begun and not ended: rules of the grammar or formats of the tag,
            the outermost first, or the place in JSON.
        num_allowed: how many tokens are allowed in its place.
        allowed: the likeliest of them; the first ids without a model.
        forbidden: the likeliest tokens that are not allowed; the same.
        completion: a shortest text that completes what stands in front of it. None if
            none was found soon.
        kept: the probability of all allowed tokens, without a mask. None without a
            model.
        probability: of the token among those. None also at the end, and if it is not
            allowed.
    """

    token_id: int | None
    text: str
    is_allowed: bool
    state: str
    stack: tuple[str, ...]
    num_allowed: int
    allowed: tuple[RankedToken, ...]
    forbidden: tuple[RankedToken, ...]
    completion: str | None
    kept: float | None
    probability: float | None


def trace(checker: Checker, pieces: Sequence[Piece], probabilities: Probabilities = None) -> list[Step]:
    """Follow a text up to the first token that is not allowed.

    Args:
        checker: of the constraint.
        pieces: ``checker.pieces_of`` the text. At most 4,000 are followed.
        probabilities: ``[len(pieces) + 1, V]`` of a model; row i is for token i, the
            last one for what follows the text. None ranks tokens by their ids.

    Returns:
        a step for each token, and one for the end if the constraint allows all.
    """
    grammar, vocabulary = checker.grammar(), checker.vocabulary
    ways_on = checker.ways_on()
    names = {token: name for name, token in vocabulary.special_tokens}
    read, steps = b"", []
    ends: list[int] = []  # the offset in front of each step, as rules read the text
    pieces = pieces[:_MAX_STEPS]
    for i in range(len(pieces) + 1):
        row = None if probabilities is None else probabilities[i, : vocabulary.size]
        mask = allowed_tokens(grammar.mask(), vocabulary.size)
        try:
            completion = ways_on.shortest_end()
        except GrammarError:
            completion = None
        kept = None if row is None else float(row[mask].sum())
        piece = pieces[i] if i < len(pieces) else None
        state = state_of(grammar)
        is_allowed = piece.is_read_by(grammar) if piece is not None else bool(mask[vocabulary.stop_token_ids[0]])
        steps.append(
            Step(
                token_id=None if piece is None else piece.token_id,
                text="" if piece is None else _text(piece.written),
                is_allowed=is_allowed,
                state=state,
                stack=_place_in_json(grammar, read),
                num_allowed=int(mask.sum()),
                allowed=_likeliest(mask, row, vocabulary, names),
                forbidden=_likeliest(~mask, row, vocabulary, names),
                completion=None if completion is None else _text(completion),
                kept=kept,
                probability=_share(row, kept, piece.token_id) if piece is not None and is_allowed else None,
            )
        )
        ends.append(len(ways_on.text))
        if piece is None or not is_allowed:
            break
        ways_on.read([piece])
        read += piece.written
    return _with_rules(steps, ends, ways_on.spans(completion or b""))


def _share(probabilities: Probabilities, kept: float | None, token: int | None) -> float | None:
    if probabilities is None or not kept or token is None:
        return None
    return float(probabilities[token]) / kept


def _likeliest(
    mask: npt.NDArray[np.bool_],
    probabilities: Probabilities,
    vocabulary: Vocabulary,
    names: dict[int, str],
) -> tuple[RankedToken, ...]:
    ids = mask.nonzero()[0]
    if probabilities is not None:
        ids = ids[(-probabilities[ids]).argsort(kind="stable")[:_NUM_SHOWN]]
    shown: list[RankedToken] = []
    for token in ids.tolist():
        text = _text(vocabulary.token_bytes[token]) or names.get(token, "")
        if text and len(shown) < _NUM_SHOWN:
            shown.append(RankedToken(token, text, None if probabilities is None else float(probabilities[token])))
    return tuple(shown)


def state_of(grammar: StructuredOutputGrammar) -> str:
    """The engine's numbers, the top of a stack first."""
    if isinstance(grammar, JsonSchemaGrammar):
        return " ".join(map(str, grammar.state_id()))
    if isinstance(grammar, ContextFreeGrammar):
        return " ".join(f"{state}/{below}" for state, below in grammar.matcher.stack_tops) or "in a schema"
    assert isinstance(grammar, FsmGrammar)
    return str(grammar.state_id())


def _place_in_json(grammar: StructuredOutputGrammar, read: bytes) -> tuple[str, ...]:
    if not isinstance(grammar, JsonSchemaGrammar):
        return ()
    place = place_in_json(read.decode(errors="replace"))
    return tuple(map(unescaped, place.split("/")[1:]))


def _with_rules(steps: list[Step], ends: list[int], spans: Sequence[Span]) -> list[Step]:
    """The steps with the rules that are open in front of each."""
    outer_first = spans[::-1]
    length = spans[-1].end if spans else 0
    with_rules = []
    for step, end in zip(steps, ends, strict=True):
        names = tuple(span.name for span in outer_first if span.begin < end and (end < span.end or end == length))
        with_rules.append(replace(step, stack=step.stack or names))
    return with_rules


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
