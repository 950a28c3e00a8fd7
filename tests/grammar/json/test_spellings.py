r"""Strings with the escapes that JSON allows and does not need, such as ``\/`` and
``\u00e9``."""

import json
import random

import pytest

from support.json_engine import BYTE_TOKENS, JsonEngine

ENGINE = JsonEngine()
SPELLINGS = [r"\u00e9", r"\u00E9", r"\/", r"\u0041", r"\ud83d\ude00", r"\u0022", r"\uD83D\ude00\/"]
NO_SPELLINGS = [r"\ud83d", r"\ude00\ud83d", r"\ud83dx", r"\u00g9", r"\U00e9", r"\v", r"\u 0e9"]
PIECES = [
    r"\u",
    r"\u00",
    r"\u00e",
    r"\u0041",
    "e9",
    r"\/",
    r"\/\/",
    r"\ud8",
    r"3d\ude",
    "00",
    r"\ud83d",
    r"\ude00",
    r"a\/b",
]
PIECES += [r"\ud83d\ude00", r"\n\/", r"\\", "\\"]


def accepts(schema, text):
    return ENGINE.compile(schema).matches(text.encode())


@pytest.mark.parametrize("spelling", SPELLINGS + NO_SPELLINGS)
def test_string_has_any_spelling_if_only_its_length_counts(spelling):
    is_json = spelling in SPELLINGS
    num_characters = len(json.loads(f'"{spelling}"')) if is_json else 1
    length = {"minLength": num_characters, "maxLength": num_characters}
    for schema in (True, {"type": "string"}, length, {"anyOf": [{"const": "x"}, {"type": "string"}]}):
        assert accepts(schema, f'"{spelling}"') == is_json, schema
    assert accepts({"properties": {"a": True}}, f'{{"a": ["{spelling}"]}}') == is_json
    assert not accepts({"type": "string", "maxLength": num_characters - 1}, f'"{spelling}"')
    assert not accepts({"type": "string", "minLength": num_characters + 1}, f'"{spelling}"')


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_string_is_spelled_canonically_if_its_value_counts(spelling):
    value = json.loads(f'"{spelling}"')
    plain = json.dumps(value, ensure_ascii=False)
    for schema in (
        {"pattern": "."},
        {"enum": [value, "x"]},
        {"not": {"const": "x"}},
        {"if": {"minLength": 7}, "then": {"maxLength": 9}, "else": {"pattern": "."}},
    ):
        assert not accepts({"type": "string", **schema}, f'"{spelling}"'), schema
        assert accepts({"type": "string", **schema}, plain), schema
    for before, after in ((r"[[", r"], 1]"), ("[1, ", "]")):
        assert not accepts({"uniqueItems": True}, f'{before}"{spelling}"{after}')
        assert accepts({"uniqueItems": True}, f"{before}{plain}{after}")
    assert not accepts({}, f'{{"{spelling}":1}}')
    assert accepts({}, f"{{{plain}:1}}")


@pytest.mark.parametrize(
    "schema",
    [True, {"maxLength": 3}, {"maxLength": 40}, {"pattern": "a"}, {"uniqueItems": True}, {"items": {"type": "string"}}],
)
def test_mask_allows_the_tokens_with_escapes_that_texts_accept(schema):
    tokens = BYTE_TOKENS[:-1] + [
        f"{piece}{end}".encode() for piece in PIECES for end in ("", '"', '",', '"]', '":', "x")
    ]
    engine = JsonEngine([*dict.fromkeys(tokens), b""])
    compiled = engine.compile(schema)
    rng = random.Random(5)
    num_with_escapes = 0
    for _ in range(40):
        walk = engine.walk(compiled)
        for token in (rng.choice(b'"[{'), ord('"')) if rng.random() < 0.8 else ():
            walk.matcher.accept([token])
        for _ in range(8):
            allowed = walk.allowed().tolist()
            assert allowed == [token for token in range(len(engine.token_bytes)) if walk.accepts(token)]
            with_escapes = [token for token in allowed if len(engine.token_bytes[token]) > 1]
            num_with_escapes += len(with_escapes)
            token = rng.choice(with_escapes if with_escapes and rng.random() < 0.8 else allowed)
            if token == engine.stop:
                break
            walk.matcher.accept([token])
    assert num_with_escapes > 100
