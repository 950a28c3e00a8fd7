"""Texts that go where others have gone: they read nothing again, and get the same
masks."""

import json
import random

from support.json_engine import JsonEngine

ENGINE = JsonEngine()
NAMES = "abcdefghijklmnop"
OPTIONAL = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in NAMES},
    "additionalProperties": False,
}


def masks_along(walk, text):
    masks = []
    for byte in text:
        masks.append(sorted(walk.allowed()))
        assert walk.matcher.accept([byte])
    return [*masks, sorted(walk.allowed())]


def test_second_text_takes_no_work():
    schema = {"properties": {"name": {"type": "string"}, "sizes": {"items": {"type": "number"}}}, "required": ["name"]}
    index = ENGINE.compile(schema | {"type": "object", "additionalProperties": False}, 60)
    text = b'{"name": "Ada", "sizes": [1, 2.5]}'
    first = masks_along(ENGINE.walk(index), text)
    work = index.work
    assert masks_along(ENGINE.walk(index), text) == first
    assert index.work == work


def test_text_that_must_differ_from_itself_is_still_read():
    """Items that must not come twice are remembered text by text."""
    index = ENGINE.compile({"type": "array", "items": {"enum": [1, 12]}, "uniqueItems": True}, 60)
    masks_along(ENGINE.walk(index), b"[12,1]")
    walk = ENGINE.walk(index)
    masks_along(walk, b"[1,12")
    other = ENGINE.walk(index)
    masks_along(other, b"[12")
    assert ord(",") not in walk.allowed()
    assert ord(",") in other.allowed()


def test_texts_beyond_the_places_that_are_kept_have_the_same_masks(num_cases):
    """Each set of past keys is a place, and there are more sets than places."""
    index, rng = ENGINE.compile(OPTIONAL, 60, max_growth=1 << 30), random.Random(0)
    for _ in range(num_cases(150, long=900)):
        keys = rng.sample(NAMES, 12)
        text = json.dumps(dict.fromkeys(keys, 1)).encode()
        walk, alone = ENGINE.walk(index), ENGINE.walk(ENGINE.compile(OPTIONAL, 60))
        for at, byte in enumerate(text):
            if at > len(text) - 8:
                assert sorted(walk.allowed()) == sorted(alone.allowed())
            assert walk.matcher.accept([byte])
            assert alone.matcher.accept([byte])
