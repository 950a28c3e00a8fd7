"""Random structural tags over a small alphabet, and vocabularies that cut their
markers."""

from __future__ import annotations

import json
import random
from typing import Any

from structout.grammar.native.automaton import DEFAULT_LIMITS
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.structural_tags import structural_tag_rules
from structout.grammar.vocabulary import Vocabulary
from support.random_schemas import RandomSchema

BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))


def no_schema(rules, schema):
    raise AssertionError("these tags have no schemas")


def rules_of(part):
    context = GrammarContext(BYTES)
    return structural_tag_rules({"type": "structural_tag", "format": part}, DEFAULT_LIMITS, no_schema, context)


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


def random_vocabulary(rng):
    """Tokens that cut markers anywhere, and tokens with halves of a character."""
    tokens = {random_word(rng, 6).encode() for _ in range(30)}
    tokens |= {bytes(rng.choices(b"ab<\xc3\xa9", k=rng.randint(1, 4))) for _ in range(30)}
    tokens |= {bytes([byte]) for byte in b"ab<\xc3\xa9"}
    return Vocabulary((*sorted(tokens), b""), stop_token_ids=(len(tokens),))


def random_tag_of_schemas(rng: random.Random) -> tuple[dict[str, Any], list[bytes]]:
    """A structural tag whose contents are random schemas, and texts near it."""
    inside, beside = RandomSchema(rng), RandomSchema(rng)
    begin = rng.choice(["<f>", "<f=a>", "{", "=", '"', "1"])
    end = rng.choice(["</f>", "}", "", "]", '"', "0", "\n"])
    contents = [{"type": "json_schema", "json_schema": json.loads(each.text)} for each in (inside, beside)]
    tagged = tag(begin, contents[0], end)
    part = rng.choice(
        [
            tagged,
            {"type": "triggered_tags", "triggers": [begin], "tags": [tagged]},
            {"type": "sequence", "elements": [tagged, {"type": "const_string", "value": "|"}, contents[1]]},
            {"type": "or", "elements": [tagged, contents[1]]},
        ]
    )
    texts = [f"{begin}{text}{end}" for text in inside.texts(8)]
    encoded = [text.encode(errors="replace") for text in [*texts, *inside.texts(8), *beside.texts(4)]]
    return {"type": "structural_tag", "format": part}, encoded
