"""Random grammars with recursion: structout's own engine, xgrammar and llguidance
against a judge that decides slowly and plainly."""

import random
import time
from dataclasses import replace

import pytest

from structout.constraints.params import StructuredOutputOptions
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.backend import FsmBackend
from structout.grammar.native.grammars import compile_grammar
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allocate_token_bitmask
from support.grammar_cases import Llguidance, Xgrammar, byte_vocabulary
from support.recursive_grammars import random_lexed_grammar, random_scannerless_grammar
from support.seeds import for_each_seed


def step_all(judge, state, data):
    for byte in data:
        state = judge.step(state, byte) if state is not None else None
    return state


def drawn_text(judge, alphabet, rng):
    """A text whose bytes are mostly allowed."""
    text, state = b"", judge.start
    for _ in range(rng.randint(0, 9)):
        steps = {byte: judge.step(state, byte) for byte in alphabet} if state is not None else {}
        allowed = [byte for byte, new in steps.items() if new is not None]
        byte = rng.choice(allowed) if allowed and rng.random() < 0.9 else rng.choice(alphabet)
        text, state = text + bytes([byte]), steps.get(byte)
    return text


def verdict(judge, text):
    state = step_all(judge, judge.start, text)
    if state is None:
        return "other"
    return "text" if judge.accepts(state) else "prefix"


def check_peer(peer, grammar, written, judge, rng):
    """Compare the judge with another engine."""
    texts = [drawn_text(judge, grammar.alphabet, rng) for _ in range(12)]
    parts = [[text.decode(errors="surrogateescape")] for text in texts]
    theirs = peer.verdicts({"grammar": written}, parts)
    assert dict(zip(texts, theirs, strict=True)) == {text: verdict(judge, text) for text in texts}, written


def with_another_character(grammar):
    """The same grammar where a negated class has a character, also one that begins with
    the same byte as another: other engines allow all bytes."""
    return replace(grammar, characters=grammar.characters + ("zè" if "é" in grammar.characters else "z"))


@pytest.fixture(scope="module")
def xgrammar():
    return Xgrammar()


@pytest.fixture(scope="module")
def llguidance():
    return Llguidance()


@for_each_seed(80, long=2_000)
def test_judge_reads_random_gbnf_as_xgrammar_does(seed, xgrammar):
    rng = random.Random(seed)
    grammar = with_another_character(random_scannerless_grammar(rng))
    judge = grammar.scannerless()
    if not judge.has_dead_rules:  # xgrammar has crashed on `r ::= (r){2}`
        check_peer(xgrammar, grammar, grammar.gbnf(), judge, rng)


@for_each_seed(120, long=3_000)
def test_judge_reads_random_lark_as_llguidance_does(seed, llguidance):
    rng = random.Random(seed)
    grammar = random_lexed_grammar(rng)
    judge = grammar.lexed(prunes=False)
    if judge.start is not None:
        check_peer(llguidance, grammar, grammar.lark(), judge, rng)


# -- the engine's masks ----------------------------------------------------------------

OVER_LIMIT: list[bool] = []  # for each question


def compiled(tokens, written):
    """The grammar over a vocabulary, or None if it has no text."""
    vocabulary = Vocabulary((*tokens, b""), stop_token_ids=(len(tokens),))
    try:
        return FsmBackend(vocabulary).compile_grammar(StructuredOutputOptions.GRAMMAR, written)
    except GrammarError as error:
        if error.kind is GrammarErrorKind.IMPOSSIBLE:
            return None
        raise


def is_over_limit(reason):
    """Whether the text is too ambiguous: in a few of a thousand of these grammars."""
    OVER_LIMIT.append("work_of_a_token is limited" in reason)
    return OVER_LIMIT[-1]


def check_masks(judge, tokens, written, rng, num_steps):
    """Compare the engine's masks with the judge along a drawn text. Return how many
    tokens the judge could not decide."""
    try:
        grammar = compiled(tokens, written)
    except GrammarError as error:
        if is_over_limit(str(error)):
            return 0
        raise
    if grammar is None:
        assert judge.start is None or judge.is_finishable(judge.start) is not True, written
        return 0
    assert judge.start is not None, written
    assert judge.is_finishable(judge.start) is not False, written
    mask = allocate_token_bitmask(1, len(tokens) + 1, pin_memory=False)
    state, text, num_undecided = judge.start, b"", 0
    for _ in range(num_steps):
        grammar.fill_bitmask(mask, 0)
        if is_over_limit(grammar.error_reason):
            break
        bits = [bool(mask[0, i >> 5] >> (i & 31) & 1) for i in range(len(tokens) + 1)]
        following = [step_all(judge, state, token) for token in tokens]
        may_follow = [new is not None and judge.is_finishable(new) for new in following]
        num_undecided += may_follow.count(None)
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
            assert is_over_limit(grammar.error_reason), (written, text, tokens[token])
            break
        state, text = following[token], text + tokens[token]
    return num_undecided


def has_empty_terminal(grammar):
    written = grammar.lark().partition("%ignore")[0].replace("start:", "other:")
    return any(
        compile_grammar(f"{written}\nstart: {name}", byte_vocabulary()).matches("") for name in grammar.terminals
    )


def run_for(seconds, check):
    """Call ``check`` with seeds from 0 on. A failure names its seed."""
    deadline, seed = time.monotonic() + seconds, 0
    while time.monotonic() < deadline or seed < 5:
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        seed += 1
    return seed


def test_masks_of_random_gbnf_are_those_of_the_judge(num_cases):
    def check(seed):
        rng = random.Random(seed)
        grammar = random_scannerless_grammar(rng)
        check_masks(grammar.scannerless(), grammar.tokens(rng), grammar.gbnf(), rng, num_steps=8)

    assert run_for(num_cases(2, long=60, full=1_800), check) >= 5
    assert sum(OVER_LIMIT) <= 0.01 * len(OVER_LIMIT)


def test_masks_of_random_lark_are_those_of_the_judge(num_cases):
    undecided = []

    def check(seed):
        rng = random.Random(seed)
        grammar = random_lexed_grammar(rng)
        if rng.random() < 0.5:  # otherwise there are characters that no token has
            grammar = with_another_character(grammar)
        if grammar.ignored is not None and has_empty_terminal(grammar):
            return  # what is ignored may follow an empty terminal at the beginning, in llguidance only
        undecided.append(check_masks(grammar.lexed(), grammar.tokens(rng), grammar.lark(), rng, num_steps=6))

    num_grammars = run_for(num_cases(3, long=60, full=2_700), check)
    assert sum(undecided) < 20 * num_grammars
    assert sum(OVER_LIMIT) <= 0.01 * len(OVER_LIMIT)
