"""The judge of random grammars with recursion against xgrammar and llguidance. The hunt
``grammars`` compares structout's own engine with it."""

import random

from support.judged_masks import step_all, with_another_character
from support.random_grammars import random_lexed_grammar, random_scannerless_grammar
from support.seeds import for_each_seed


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
