"""What masks of grammars cost, counted: steps over the vocabulary's trie, partial masks
and masks along the texts of the grammars in tests/corpus. No clock is read."""

import json

import numpy as np
import pytest

from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.grammars import ContextFreeGrammar, compile_grammar
from support.grammar_cases import program_vocabulary
from support.locations import CORPUS

COSTS = json.loads((CORPUS / "grammar_costs.json").read_text())
TEXTS = json.loads((CORPUS / "grammars" / "texts.json").read_text())
TOLERANCE = 1.15


def costs_of(name, vocabulary):
    """Follow the texts of a grammar by the longest tokens that fit."""
    index = compile_grammar((CORPUS / "grammars" / name).read_text(), vocabulary)
    assert isinstance(index, CompiledGrammar)
    ids = {token: i for i, token in enumerate(vocabulary.token_bytes) if token}
    seen, walk_steps = set(), 0
    for written in TEXTS[name]["texts"]:
        grammar = ContextFreeGrammar(index, vocabulary.size, vocabulary.stop_token_ids, None)
        text = written.encode()
        while True:
            if (row := grammar.mask().tobytes()) not in seen:
                seen.add(row)
                before = index.native.work
                walked = np.array(grammar.matcher.walked_row(), dtype=np.uint32)
                walk_steps += index.native.work - before
                assert walked.any() or not text
            if not text:
                break
            token = next(text[:n] for n in range(min(len(text), 7), 0, -1) if text[:n] in ids)
            assert grammar.accept_tokens("r", [ids[token]])
            text = text[len(token) :]
    native = index.native
    counts = {
        "masks": native.num_masks,
        "partial_masks": native.num_partial_masks,
        "trie_steps": native.num_trie_steps,
    }
    return counts | {"walk_steps": walk_steps}


@pytest.mark.parametrize("name", COSTS)
def test_masks_cost_no_more_than_they_did(name):
    found = costs_of(name, program_vocabulary())
    for count in ("masks", "partial_masks", "trie_steps"):
        assert found[count] <= TOLERANCE * COSTS[name][count], count
    # A walk over whole stacks for each different mask. Large vocabularies save more.
    assert found["trie_steps"] <= 1.5 * found["walk_steps"]


def test_all_grammars_with_recursion_are_counted():
    files = {path.name for path in (CORPUS / "grammars").iterdir() if path.suffix in (".gbnf", ".lark")}
    assert set(COSTS) == files - {"calls.lark", "chess.gbnf"}  # a JSON schema inside, a regular language
    assert len(COSTS) >= 30
