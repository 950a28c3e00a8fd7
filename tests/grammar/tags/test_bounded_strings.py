"""Strings between tags with many characters: counted, not copied for each length."""

import random
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from structout import StructuredOutputsParams
from structout.constraints.tools.styles import STYLES
from structout.errors import GrammarError
from structout.grammar.native import tag_schemas
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of
from support.random_patterns import random_pattern
from support.seeds import for_each_seed

# Tokens that cut characters, and tokens that end a text inside of them.
_PIECES = [
    *("a", "ab", "\n", "\n\n", "é", "日本", "a日", "</", "</par", "</parameter", "</parameter>", "parameter>", ">\n"),
    *("a</parameter>\n", "\n</parameter>\n<", "</arg_value>", "a</arg_", "<|close|>", '<|"|>', 'a<|"|>,', "<", "a]<"),
    *("</｜DSML", "｜DSML｜parameter>\n", "]<]minimax[>[", "]<]minimax[>[</s", "</cofl:value>", '"', '",'),
]
_CUT = b"a\xc3 \xa9 \xa9a \xe6\x97 \xa5 \xa5\xe6 \x9c\xac</ \xef\xbd \xf0\x9f\x98 \x80b".split()
_TOKENS = [*dict.fromkeys((*(bytes([byte]) for byte in range(256)), *map(str.encode, _PIECES), *_CUT))]
VOCABULARY = Vocabulary((*_TOKENS, b""), stop_token_ids=(len(_TOKENS),))
# Without a token for some bytes, as many real ones: no text has these.
_LACKED = {b"\x04", b"z", b"\xc3", b"\xf0"}
LACKING = replace(VOCABULARY, token_bytes=tuple(b"" if each in _LACKED else each for each in VOCABULARY.token_bytes))

COUNTED = [style for style, each in STYLES.items() if not each.is_escaped]


def params_of(value, style):
    schema = {"type": "object", "properties": {"s": value}, "required": ["s"], "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    tag = {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}
    return StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": tag})


def compiled(value, style, monkeypatch, most_copied, vocabulary=VOCABULARY):
    monkeypatch.setattr(tag_schemas, "_MOST_COPIED", most_copied)
    return NativeBackend(vocabulary).compile(params_of(value, style).constraint()).grammar


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


@pytest.mark.parametrize("vocabulary", [VOCABULARY, LACKING], ids=["all bytes", "not all bytes"])
@pytest.mark.parametrize("style", COUNTED)
def test_masks_of_counted_strings_are_those_of_copies(monkeypatch, style, vocabulary):
    for number, value in enumerate(VALUES):
        counted, copied = (compiled(value, style, monkeypatch, most, vocabulary) for most in (0, 1 << 30))
        for walk in range(4):
            rng = random.Random(f"{style} {number} {walk}")
            assert compare_on_a_walk(counted.copy(), copied.copy(), rng, value) > 2


def compare_on_a_walk(counted, copied, rng, value):
    """Follow both to the end, or for 60 tokens. Returns the number of tokens."""
    num_steps, start = 0, mask_of(counted)
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
    np.testing.assert_array_equal(mask_of(fork), start)
    return num_steps


@for_each_seed(30, long=2_000)
def test_masks_of_random_patterns_with_lengths_are_those_of_copies(seed):
    rng = random.Random(f"counted {seed}")
    pattern = random_pattern(rng)
    least, most = sorted(rng.choices(range(14), k=2))
    value = {"type": "string", "pattern": f"^(?:{pattern.text})$", "minLength": least, "maxLength": most}
    style = rng.choice(COUNTED)
    grammars = []
    for most_copied in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patch, suppress(GrammarError):
            grammars.append(compiled(value, style, patch, most_copied))
    assert len(grammars) != 1, value
    for _ in range(4 if grammars else 0):
        counted, copied = (grammar.copy() for grammar in grammars)
        text = pattern.sample(rng)
        begin = f"<f>{STYLES[style].opening('s', 'string')}".encode()
        tokens = [*begin, *text.encode(errors="replace")]
        prefix = counted.validate_tokens(tokens)
        assert prefix == copied.validate_tokens(tokens)
        part = prefix[: rng.randint(0, len(prefix))]
        assert counted.accept_tokens("", part)
        assert copied.accept_tokens("", part)
        compare_on_a_walk(counted, copied, rng, value)


def accepted(grammar, text):
    """The number of bytes of a text that a grammar accepts, from its begin on."""
    return len(grammar.validate_tokens([*text]))


@pytest.mark.parametrize("style", STYLES)
def test_long_strings_have_as_many_characters_as_they_may(style):
    notation = STYLES[style]
    start = time.thread_time()
    for most in (2_000, 65_536, 2_000 if notation.is_escaped else 100_000):  # those with escapes are JSON
        value = {"type": "string", "minLength": 5, "maxLength": most, "pattern": "^[^b]*$"}
        grammar = NativeBackend(VOCABULARY).compile(params_of(value, style).constraint()).grammar
    assert time.thread_time() - start < 2  # a few milliseconds each
    quotes = notation.quotes or ("", "")
    begin = f"<f>{notation.opening('s', 'string')}{quotes[0]}".encode()
    end = f"{quotes[1]}{notation.closing('s')}".encode()
    assert accepted(grammar, begin + b"abc") == len(begin) + 1
    assert accepted(grammar, begin + b"aaaa" + end) < len(begin + b"aaaa" + end)
    assert accepted(grammar, begin + "é日aaa".encode() + end) == len(begin + "é日aaa".encode() + end)
    longest = begin + "日".encode() * most
    assert accepted(grammar, longest + b"a") == len(longest)
    assert accepted(grammar, longest + end) == len(longest + end)


def test_tools_with_many_lengths_share_masks():
    """A grammar has no mask of its own for a length, and no state."""
    lengths = [*range(1_000, 1_040)]
    tags = [params_of({"type": "string", "maxLength": length}, "qwen_xml") for length in lengths]
    formats = [params.structural_tag["format"] | {"begin": f"<{i}>"} for i, params in enumerate(tags)]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": formats}}
    grammar = NativeBackend(VOCABULARY).compile(StructuredOutputsParams(structural_tag=tag).constraint()).grammar
    counts = []
    for number in range(len(lengths)):
        fork = grammar.fork()
        for byte in f"<{number}><parameter=s>\nabc 日 < abc".encode():
            mask_of(fork)
            assert fork.accept_tokens("", [byte])
        counts.append(grammar.index.num_masks)
    assert counts[-1] - counts[9] <= 3 * (len(lengths) - 10)  # of the digits of the numbers


@pytest.mark.parametrize(
    ("value", "message"),
    [
        # The lengths of these strings repeat after 211 * 223 * 227 characters.
        (
            {"pattern": "^(?:a(?:[a-c]{211})*|b(?:[a-c]{223})*|c(?:[a-c]{227})*)$", "maxLength": 9_000},
            "pattern_lengths is limited",
        ),
        # Not all strings have the same bounds.
        ({"anyOf": [{"maxLength": 60_000}, {"pattern": "^a"}]}, "lower the bounds of lengths in alternatives"),
    ],
)
def test_lengths_that_cannot_be_counted_are_refused(value, message):
    with pytest.raises(GrammarError, match=message) as caught:
        NativeBackend(VOCABULARY).compile(params_of({"type": "string"} | value, "qwen_xml").constraint())
    assert caught.value.pointer.startswith("#/format/content/json_schema/properties/s")


def test_strings_without_a_length_that_is_allowed_are_no_values():
    value = {"type": ["string", "null"], "minLength": 9, "maxLength": 7}
    grammar = NativeBackend(VOCABULARY).compile(params_of(value, "qwen_xml").constraint()).grammar
    text = b"<f><parameter=s>\nnull\n</parameter></f>"
    assert accepted(grammar, text) == len(text)
    assert accepted(grammar, b"<f><parameter=s>\naaaaaaaa") == 17
