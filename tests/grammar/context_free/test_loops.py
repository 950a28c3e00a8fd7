"""Masks where the bytes of many tokens lead back to one state, as inside of names,
strings and comments, with a vocabulary in which such tokens stand beside others."""

import random

import numpy as np
import pytest

from structout.grammar.native.grammars import compile_grammar
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import started, walk

WHOLE = [b"a", b"q", b"_", b"A", b"0", b" ", b"\n", b".", b"(", b")", b'"', b"\\", b"\x00", "é".encode(), "日".encode()]
CUT = ["日".encode()[:2], "😀".encode()[:3], b"\xa5", b"\xc3", b"\xff"]  # characters without their ends or begins

GRAMMARS = {
    "names that return to many rules": """
        root ::= either (" or " either)*
        either ::= both ("." both)*
        both ::= part (" " part)?
        part ::= call | "(" root ")" | name
        call ::= name "(" (root ("." root)*)? ")"
        name ::= [a-z_] [a-z_0-9]*
    """,
    "strings and comments": r"""
        root ::= space (value space)+
        value ::= "(" space (value space)* ")" | "\"" ([^"\\] | "\\" [^])* "\"" | [a-z]+
        space ::= ([ \n] | "." [^\n]* "\n")*
    """,
    "characters of two bytes alone": 'root ::= "(" root ")" | [a-z\u00e0-\u00ff]+ "."',
    "lexemes": r"""
        start: (call | STRING | NAME)+
        call: NAME "(" start? ")"
        NAME: /[a-z_][a-z_0-9é]*/
        STRING: /"([^"\\\x00]|\\.)*"/
        COMMENT: /\.[^\n]*/
        %ignore COMMENT
        %ignore /[ \n]+/
    """,
    "a lexeme that the next byte may not follow": """
        start: "(" start ")" | A "." | B
        A: /[a-z日]+/
        B: /[^.]+!/
    """,
}


@pytest.fixture(scope="module")
def vocabulary():
    rng = random.Random(0)
    tokens = {bytes([byte]) for byte in range(256)}
    while len(tokens) < 6_000:
        alphabet = rng.choice(([b"a", b"q"], WHOLE[:4], WHOLE, WHOLE, WHOLE + CUT))
        begin = rng.choice((b"", b"a", b" ", b'("', "日".encode()))  # so that much lies below some nodes
        tokens.add(begin + b"".join(rng.choices(alphabet, k=rng.randint(1, 5))))
    return Vocabulary((*sorted(tokens), b""), stop_token_ids=(len(tokens),))


@pytest.mark.parametrize("name", GRAMMARS)
def test_mask_is_that_of_a_walk(name, vocabulary, num_cases):
    index = compile_grammar(GRAMMARS[name], vocabulary)
    rng, stop = random.Random(name), vocabulary.stop_token_ids[0]
    sizes = []
    for _ in range(num_cases(8, long=200)):
        grammar = started(index, vocabulary)
        for mask in walk(grammar, vocabulary, rng, 15):
            walked = np.array(grammar.matcher.walked_row(), dtype=np.uint32)
            walked[stop >> 5] |= mask[stop >> 5] & np.uint32(1 << (stop & 31))
            assert np.array_equal(mask, walked)
            sizes.append(np.bitwise_count(mask).sum())
    assert max(sizes) > 100
    assert min(sizes) < max(sizes) / 4
