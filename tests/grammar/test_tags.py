"""Structural tags on structout's own engine: what their texts are."""

import itertools
import random

import pytest
from tag_texts import is_text_of

from structout.grammar.fsm.automaton import DEFAULT_LIMITS
from structout.grammar.fsm.grammars import GrammarIndex
from structout.grammar.fsm.structural_tags import structural_tag_rules
from structout.grammar.vocabulary import Vocabulary

BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))


def no_schema(rules, schema):
    raise AssertionError("these tags have no schemas")


def rules_of(part):
    return structural_tag_rules({"type": "structural_tag", "format": part}, DEFAULT_LIMITS, no_schema)


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def random_word(rng, longest=3):
    return "".join(rng.choices("ab<", k=rng.randint(1, longest)))


def random_tag(rng, depth, begin=None):
    end = random_word(rng) if rng.random() < 0.8 else [random_word(rng), random_word(rng)]
    return tag(begin if begin is not None else random_word(rng), random_format(rng, depth - 1), end)


def random_format(rng, depth):
    leaves = ["const_string", "regex", "any_text"]
    inner = ["sequence", "or", "optional", "star", "plus", "repeat", "tag", "tags_with_separator"]
    kind = rng.choice(leaves if depth == 0 else [*leaves, *inner, *["triggered_tags", "dispatch"] * 4])
    part = {"type": kind}
    match kind:
        case "const_string":
            part["value"] = random_word(rng)
        case "regex":
            part["pattern"] = rng.choice(["a*", "(ab)+", "<?b", "[ab]{1,2}"])
        case "any_text":
            part["excludes"] = [random_word(rng) for _ in range(rng.randint(0, 2))]
        case "sequence" | "or":
            part["elements"] = [random_format(rng, depth - 1) for _ in range(rng.randint(1, 3))]
        case "optional" | "star" | "plus":
            part["content"] = random_format(rng, depth - 1)
        case "repeat":
            part |= {"content": random_format(rng, depth - 1), "min": rng.randint(0, 1), "max": rng.choice([-1, 2])}
        case "tag":
            return random_tag(rng, depth)
        case "tags_with_separator":
            part["tags"] = [random_tag(rng, depth) for _ in range(rng.randint(1, 2))]
            part["separator"] = rng.choice(["", "a", "<"])
        case "triggered_tags":
            part["triggers"] = [random_word(rng) for _ in range(rng.randint(1, 3))]
            begins = [rng.choice(part["triggers"]) + rng.choice(["", "a", "<b"]) for _ in range(rng.randint(1, 3))]
            part["tags"] = [random_tag(rng, depth, begin) for begin in begins]
            part["excludes"] = [random_word(rng) for _ in range(rng.randint(0, 1))]
        case "dispatch":
            words = {random_word(rng) for _ in range(rng.randint(1, 3))}
            part["rules"] = [[word, random_format(rng, depth - 1)] for word in sorted(words)]
            part["loop"] = rng.random() < 0.5
            part["excludes"] = [random_word(rng) for _ in range(rng.randint(0, 1))]
    if kind in ("triggered_tags", "tags_with_separator"):
        part["at_least_one"] = rng.random() < 0.3
        part["stop_after_first"] = rng.random() < 0.3
    return part


TEXTS = ["".join(letters) for length in range(7) for letters in itertools.product("ab<", repeat=length)]


@pytest.mark.parametrize("seed", range(40))
def test_texts_of_random_tags_are_those_of_the_definition(seed):
    rng = random.Random(seed)
    part = random_format(rng, 2)
    expected = [text for text in TEXTS if is_text_of({"format": part}, text)]
    rules = rules_of(part)
    index = GrammarIndex(rules, BYTES)
    assert [text for text in TEXTS if index.matches(text)] == expected, part
    automaton = rules.automaton()
    assert [text for text in TEXTS if automaton.matches(text)] == expected, part
