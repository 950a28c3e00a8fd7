"""Masks of grammars compared with a judge that decides slowly and plainly."""

from __future__ import annotations

from dataclasses import dataclass, replace

from structout.constraints.params import StructuredOutputOptions
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.grammars import compile_grammar
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.grammar_cases import byte_vocabulary

_OVER_LIMIT = "work_of_a_token is limited"


@dataclass
class Checked:
    """What a comparison has seen.

    Attributes:
        states: masks that were compared with the judge's.
        tokens: verdicts on tokens that were compared.
        undecided: verdicts on tokens that the judge could not give.
        is_over_limit: the text was too ambiguous for the engine, as in a few of a
            thousand of these grammars.
    """

    states: int = 0
    tokens: int = 0
    undecided: int = 0
    is_over_limit: bool = False


def compiled(tokens, written):
    """The grammar over a vocabulary, or None if it has no text."""
    vocabulary = Vocabulary((*tokens, b""), stop_token_ids=(len(tokens),))
    try:
        return NativeBackend(vocabulary).compile_grammar(StructuredOutputOptions.GRAMMAR, written)
    except GrammarError as error:
        if error.kind is GrammarErrorKind.IMPOSSIBLE:
            return None
        raise


def check_masks(judge, tokens, written, rng, num_steps) -> Checked:
    """Compare the engine's masks with the judge along a drawn text."""
    checked = Checked()
    try:
        grammar = compiled(tokens, written)
    except GrammarError as error:
        checked.is_over_limit = _OVER_LIMIT in str(error)
        if checked.is_over_limit:
            return checked
        raise
    if grammar is None:
        assert judge.start is None or judge.is_finishable(judge.start) is not True, written
        return checked
    assert judge.start is not None, written
    assert judge.is_finishable(judge.start) is not False, written
    mask = allocate_token_bitmask(1, len(tokens) + 1, pin_memory=False)
    state, text = judge.start, b""
    for _ in range(num_steps):
        grammar.fill_bitmask(mask, 0)
        checked.is_over_limit = _OVER_LIMIT in grammar.error_reason
        if checked.is_over_limit:
            break
        bits = [bool(mask[0, i >> 5] >> (i & 31) & 1) for i in range(len(tokens) + 1)]
        following = [step_all(judge, state, token) for token in tokens]
        may_follow = [new is not None and judge.is_finishable(new) for new in following]
        checked.states += 1
        checked.undecided += may_follow.count(None)
        checked.tokens += len(tokens) - may_follow.count(None)
        decided = zip(tokens, bits[:-1], may_follow, strict=True)
        wrong = [token for token, own, other in decided if other is not None and own != other]
        assert not wrong, (written, text, wrong)
        assert bits[-1] == judge.accepts(state), (written, text, "stop")
        allowed = [i for i, is_allowed in enumerate(bits[:-1]) if is_allowed]
        if not allowed:
            assert bits[-1], (written, text, "nothing is allowed")
            break
        token = rng.choice(allowed)
        if not grammar.accept_tokens("", [token]):
            checked.is_over_limit = _OVER_LIMIT in grammar.error_reason
            assert checked.is_over_limit, (written, text, tokens[token])
            break
        state, text = following[token], text + tokens[token]
    return checked


def step_all(judge, state, data):
    for byte in data:
        state = judge.step(state, byte) if state is not None else None
    return state


def with_another_character(grammar):
    """The same grammar where a negated class has a character, also one that begins with
    the same byte as another: other engines allow all bytes."""
    return replace(grammar, characters=grammar.characters + ("zè" if "é" in grammar.characters else "z"))


def has_empty_terminal(grammar) -> bool:
    """Whether a terminal of a grammar in Lark matches the empty text."""
    written = grammar.lark().partition("%ignore")[0].replace("start:", "other:")
    return any(
        compile_grammar(f"{written}\nstart: {name}", byte_vocabulary()).matches("") for name in grammar.terminals
    )
