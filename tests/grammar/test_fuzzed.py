"""What is accepted is valid: random schemas, and texts drawn from masks.

``--long`` runs 200,000 pairs of a schema and a text.
"""

import random
import re

import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.random_patterns import anchored, mutated, random_pattern
from support.soundness import IN_TAG, Findings, check_schemas, check_walks
from support.tokenizers_on_the_spot import byte_level

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)


@pytest.fixture(scope="module")
def backends():
    made = BackendSet(VOCABULARY, StructuredOutputsConfig())
    yield made
    made.destroy()


def over_seeds(check, backends, backend, num_seeds, **sizes):
    found = Findings()
    for seed in range(num_seeds):
        found.add(check(backends, VOCABULARY, backend, seed, **sizes))
    return found


@pytest.mark.parametrize(
    ("backend", "num_seeds", "long", "min_pairs"),
    [
        ("auto", 2, 210, 600),
        (IN_TAG, 1, 60, 250),
    ],
)
def test_text_that_is_accepted_is_an_instance_of_the_schema(backends, num_cases, backend, num_seeds, long, min_pairs):
    num_seeds = num_cases(num_seeds, long=long)
    found = over_seeds(check_schemas, backends, backend, num_seeds, num_schemas=60, num_texts=20)
    assert found.wrong == []
    counts = found.counts
    assert counts["valid accepted"] + counts["valid refused"] + counts["invalid refused"] >= min_pairs * num_seeds
    assert counts["invalid refused"] >= 0.3 * min_pairs * num_seeds
    assert counts["valid accepted"] >= 0.3 * min_pairs * num_seeds


@pytest.mark.parametrize("backend", ["auto", IN_TAG])
def test_text_drawn_from_the_masks_is_an_instance_and_ends(backends, num_cases, backend):
    num_seeds = num_cases(1, long=10)
    found = over_seeds(check_walks, backends, backend, num_seeds, num_schemas=40, num_texts=3)
    assert found.wrong == []
    assert found.counts.total() - found.counts["schemas"] - found.counts["schemas served"] >= 30 * num_seeds


def test_judge_of_patterns_agrees_with_python(num_cases):
    """Texts are short, because ``re`` may backtrack for ever."""
    draw = random.Random(0)
    for _ in range(num_cases(200, long=3000)):
        pattern = anchored(random_pattern(draw, depth=2), draw.random() < 0.3, draw.random() < 0.3)
        for text in (pattern.sample(draw), mutated(pattern.sample(draw), draw)):
            if len(text) < 15:
                assert pattern.matches(text) == bool(re.fullmatch(pattern.python, text)), (pattern.text, text)
                assert pattern.is_found_in(text) == bool(re.search(pattern.python, text)), (pattern.text, text)


@pytest.mark.planted
def test_check_of_schemas_finds_what_xgrammar_accepts_wrongly(backends):
    assert over_seeds(check_schemas, backends, "xgrammar", 20, num_schemas=60, num_texts=20).wrong
