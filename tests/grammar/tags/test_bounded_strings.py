"""Strings between tags with many characters: counted, not copied for each length."""

import random
import time

import numpy as np
import pytest

from structout import StructuredOutputsParams
from structout.constraints.tools.styles import STYLES
from structout.errors import GrammarError
from structout.grammar.native import tag_schemas
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of
from support.seeds import for_each_seed

# Tokens that cut characters, that begin inside of a text what ends it, and that go beyond.
_PIECES = ["a", "ab", "\n", "\n\n", "é", "日本", "a日", "</", "</par", "</parameter", "</parameter>", "parameter>"]
_PIECES += [">\n", "a</parameter>\n", "\n</parameter>\n<", "</arg_value>", "a</arg_", "<|close|>", '<|"|>', 'a<|"|>,']
_PIECES += ["<", "</｜DSML", "｜DSML｜parameter>\n", "]<]minimax[>[", "a]<", "]<]minimax[>[</s", "</cofl:value>", '"', '",']
_CUT = [b"a\xc3", b"\xa9", b"\xa9a", b"\xe6\x97", b"\xa5", b"\xa5\xe6", b"\x9c\xac</", b"\xef\xbd", b"\xf0\x9f\x98", b"\x80b"]
_TOKENS = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in _PIECES), *_CUT, b""]
VOCABULARY = Vocabulary(tuple(dict.fromkeys(_TOKENS)), stop_token_ids=(len(dict.fromkeys(_TOKENS)) - 1,))

COUNTED = [style for style, each in STYLES.items() if not each.is_escaped]


def params_of(value, style, end="</f>"):
    schema = {"type": "object", "properties": {"s": value}, "required": ["s"], "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    tag = {"type": "tag", "begin": "<f>", "content": content, "end": end}
    return StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": tag})


def compiled(value, style, monkeypatch, most_copied):
    monkeypatch.setattr(tag_schemas, "_MOST_COPIED", most_copied)
    return NativeBackend(VOCABULARY).compile(params_of(value, style).constraint()).grammar


VALUES = [
    *({"type": "string", "maxLength": length} for length in range(13)),
    *({"type": "string", "minLength": length} for length in (1, 2, 7)),
    *({"type": "string", "minLength": least, "maxLength": most} for least, most in ((3, 3), (0, 1), (5, 12), (2, 6))),
    {"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 9},
    {"type": "string", "pattern": "^(aaa|aaaaa)+$", "minLength": 4, "maxLength": 11},
    {"type": "string", "pattern": "日$", "maxLength": 6},
    {"type": "string", "pattern": "^[^a]*a", "minLength": 4, "maxLength": 8},
    {"anyOf": [{"type": "string", "maxLength": 7}, {"type": "null"}]},
    {"type": ["string", "integer"], "minLength": 2, "maxLength": 6},
    {"allOf": [{"type": "string", "maxLength": 9}, {"minLength": 5}, {"maxLength": 7}]},
    {"type": "string", "not": {"maxLength": 4}, "maxLength": 8},
    {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "string", "pattern": "^é", "maxLength": 8}]},
    {"type": "string", "enum": ["ab", "日本日本日", "</par"], "maxLength": 5},
]


@pytest.mark.parametrize("style", COUNTED)
def test_masks_of_counted_strings_are_those_of_copies(monkeypatch, style):
    for number, value in enumerate(VALUES):
        counted, copied = (compiled(value, style, monkeypatch, most) for most in (0, 1 << 30))
        for walk in range(4):
            rng = random.Random(f"{style} {number} {walk}")
            compare_on_a_walk(counted.copy(), copied.copy(), rng, value)


def compare_on_a_walk(counted, copied, rng, value):
    num_steps = 0
    for _ in range(60):
        expected = mask_of(copied)
        np.testing.assert_array_equal(mask_of(counted), expected, err_msg=str(value))
        assert counted.forced_bytes() == copied.forced_bytes()
        tokens = allowed(expected)
        if tokens == [*VOCABULARY.stop_token_ids] or not tokens:
            break
        long = [token for token in tokens if len(VOCABULARY.token_bytes[token]) > 1]
        token = rng.choice(long if long and rng.random() < 0.6 else tokens)
        assert copied.accept_tokens("", [token])
        assert counted.accept_tokens("", [token]), value
        num_steps += 1
    back = rng.randint(0, num_steps)
    fork = counted.fork()
    counted.rollback(back)
    copied.rollback(back)
    np.testing.assert_array_equal(mask_of(counted), mask_of(copied))
    fork.rollback(num_steps)
    assert num_steps > 2
