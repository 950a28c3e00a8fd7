"""Cut and broken UTF-8 in tokens: the mask of the JSON engine against reading them."""

import random

import pytest

from support.json_engine import BYTE_TOKENS, JsonEngine

# Whole and cut characters, a surrogate, forms that are too long, what breaks them off.
_PIECES = [
    *[b"a", b"x", b"x1", b'"', b'"}', b'"]', b"\\", b"\\n", b"\\u00", b" ", b"\x1f", b"\x7f", b"\xff"],
    *["é".encode(), "€".encode(), "\u2028".encode(), "\u2029".encode(), "😀".encode(), "\ud7ff".encode()],
    *[b"\xc3", b"\xe2", b"\xe2\x80", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xed\x9f"],
    *[b"\x80", b"\xa9", b"\xa8", b"\x9f\x98", b"\x98\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"],
]
_NUM_TOKENS = 40  # few below each byte, so that what may follow it differs between vocabularies
_CONTENTS = [b"", b"x", b"a", "é".encode(), b"\xc3", b"\xe2", b"\xe2\x80", b"\xf0\x9f", b"\\", b"\\u00", b"\xed", b"xx"]

_PATTERNS = ["^[^a]*$", "^.*$", r"^\S+$", "^[\\u0000-\\uffff]*$", "^[^é]*$", "^(x|€)*$", "x", "^[a-z]*$"]
_STRINGS = [{"type": "string", "pattern": pattern} for pattern in _PATTERNS]
_STRINGS += [{"type": "string"}, {"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]
_STRINGS += [{"type": "string", "maxLength": 3, "pattern": "^[^a]*$"}]
_CASES = [(schema, b'"') for schema in _STRINGS]
_CASES += [
    ({"type": "object"}, b'{"'),
    ({"type": "object", "properties": {"x": {}, "é": {}}}, b'{"'),
    ({"type": "object", "propertyNames": {"pattern": "^[^a]*$"}}, b'{"'),
    ({"type": "object", "patternProperties": {"^x": {"type": "string"}}}, b'{"'),
    ({"type": "array", "items": {"pattern": "^[^a]*$"}, "uniqueItems": True}, b'["'),
]


def random_vocabulary(rng):
    tokens = {b"".join(rng.choices(_PIECES, k=rng.randint(2, 3))) for _ in range(_NUM_TOKENS)}
    return BYTE_TOKENS[:-1] + sorted(token for token in tokens if len(token) > 1) + [b""]


def difference(walk, tokens):
    """The tokens of which the mask and ``accept`` say different things."""
    allowed = set(walk.allowed().tolist())
    return [token for number, token in enumerate(tokens) if (number in allowed) != walk.accepts(number)]


@pytest.mark.parametrize("pattern", ["^[^a]*$", r"^\S+$", "^[\\u0000-\\uffff]*$"])
@pytest.mark.parametrize("token", [b"\xe2x", b"\xe2\x80x", b"\xf0\x9fx", b"x\xc3x"])
def test_mask_forbids_an_ascii_character_within_another_one(pattern, token):
    engine = JsonEngine([*BYTE_TOKENS[:-1], token, b""])
    walk = engine.walk(engine.compile({"type": "string", "pattern": pattern}))
    assert walk.matcher.accept(list(b'"x'))
    assert not walk.accepts(256)
    assert 256 not in walk.allowed()


@pytest.mark.parametrize(("schema", "start"), _CASES, ids=lambda value: str(value)[:60])
def test_mask_allows_exactly_the_tokens_that_are_accepted_among_broken_characters(schema, start, num_cases):
    rng = random.Random(25)
    num_states = 0
    for _ in range(num_cases(25, long=400, full=4000)):
        tokens = random_vocabulary(rng)
        engine = JsonEngine(tokens)
        index = engine.compile(schema)
        for content in [*_CONTENTS, None]:
            walk = engine.walk(index)
            # Without content: before the quote, which tokens may then contain.
            if not walk.matcher.accept(list(start[:-1] if content is None else start + content)):
                continue
            num_states += 1
            assert not difference(walk, tokens), (content, tokens[256:])
    assert num_states >= 100
