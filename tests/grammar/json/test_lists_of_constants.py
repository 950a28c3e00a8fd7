"""Lists of objects and arrays on the engine: exact, in every order of keys, and beside
other keywords."""

import json
import random

import jsonschema
import pytest

from structout.grammar.native.extension import core
from support.json_engine import BYTE_TOKENS, JsonEngine
from support.json_engine_checks import STYLES, Walker

ENGINES = {"any": JsonEngine(), "declared": JsonEngine(declared=True)}
SCALARS = [0, 1, 10, 105, -1, 1.05, 1.005, 0.5, "", "a", "ab", "é", None, True, False]


def random_value(rng, depth=2):
    kind = rng.choice(["scalar", "scalar", "array", "object"]) if depth else "scalar"
    if kind == "scalar":
        return rng.choice(SCALARS)
    if kind == "array":
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: random_value(rng, depth - 1) for name in rng.sample("klmn", rng.randrange(4))}


def near(value, rng):
    """A value that differs from the given one in one place, or not at all."""
    if isinstance(value, dict):
        changed = dict(value)
        name = rng.choice("klmn")
        if rng.random() < 0.5:
            changed.pop(name, None)
        else:
            changed[name] = near(value[name], rng) if name in value else rng.choice(SCALARS)
        return changed
    if isinstance(value, list) and value:
        return [*value[:-1], near(value[-1], rng)]
    return rng.choice(SCALARS)


def random_list(rng):
    listed = [random_value(rng) for _ in range(rng.randrange(2, 9))]
    listed += [near(value, rng) for value in listed if rng.random() < 0.5]
    schema = {"enum": listed}
    beside = rng.random()
    if beside < 0.1:
        schema["required"] = ["k"]
    elif beside < 0.2:
        schema = {"anyOf": [schema, {"type": "object", "properties": {"k": {"const": 0}}, "maxProperties": 2}]}
    elif beside < 0.3:
        schema = {"oneOf": [schema, {"enum": rng.sample(listed, 2)}]}
    elif beside < 0.4:
        schema = {"allOf": [schema, {"not": {"enum": rng.sample(listed, 1)}}]}
    elif beside < 0.5:
        schema = {"type": "array", "items": schema, "uniqueItems": True, "maxItems": 3}
    return schema, listed


def shuffled(value, rng):
    if isinstance(value, dict):
        return {name: shuffled(value[name], rng) for name in rng.sample(list(value), len(value))}
    return [shuffled(each, rng) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("order", ENGINES)
def test_list_of_random_values_accepts_what_jsonschema_finds_valid(order, num_cases):
    rng = random.Random(f"lists {order}")
    engine = ENGINES[order]
    walker = Walker(engine, num_checked=len(BYTE_TOKENS))
    num_valid = num_invalid = num_walks = 0
    for _ in range(num_cases(120, long=4000)):
        schema, listed = random_list(rng)
        validator = jsonschema.Draft202012Validator(schema)
        try:
            index = engine.compile(schema)
        except (core().SchemaError, core().LimitError):
            continue
        for value in [*listed, *(near(each, rng) for each in listed), *([each] for each in listed)]:
            text = json.dumps(shuffled(value, rng) if order == "any" else value, ensure_ascii=False)
            is_accepted = index.matches(text.encode())
            is_valid = validator.is_valid(value)
            if "e-" in text:  # numbers are written without exponents
                continue
            assert is_valid or not is_accepted, (schema, text)
            assert is_accepted or not is_valid or order == "declared", (schema, text)
            num_valid += is_accepted
            num_invalid += not is_accepted
        text, problem = walker.draw(index, rng.choice(STYLES), rng, 80, [b'"k"', b'"l"', b'"m"'])
        assert problem in (None, "not ended"), (schema, text, problem)
        assert problem or validator.is_valid(json.loads(text)), (schema, text)
        num_walks += problem is None
    assert min(num_valid, num_invalid) > 300
    assert num_walks > 50


def test_list_has_the_numbers_as_the_schema_writes_them():
    values = ("1", "1.05", "1.005", "10", "0", "-2", "7.0")
    constants = ", ".join(f'{{"k": {value}}}' for value in values)
    index = ENGINES["any"].compile(f'{{"enum": [{constants}]}}')
    for text in ("1", "1.05", "1.005", "10", "0", "-0", "-2", "7", "7.0"):
        assert index.matches(f'{{"k":{text}}}'.encode()), text
    for text in ("1.", "1.0", "1.00", "1.050", "1.5", "1.0005", "1.0051", "100", "01", "2", "-1", "10.05", "-", "7.00"):
        assert not index.matches(f'{{"k":{text}}}'.encode()), text


def test_list_leaves_out_what_the_vocabulary_cannot_spell():
    tokens = [token for token in BYTE_TOKENS if token != b"x"]
    engine = JsonEngine(tokens)
    walk = engine.walk(engine.compile({"enum": [{"k": "x"}, {"k": "y"}, {"x": "y"}]}))
    assert walk.matcher.forced() == b"{"
    for byte in b'{"k":"':
        assert walk.matcher.accept([tokens.index(bytes([byte]))])
    assert walk.matcher.forced() == b'y"'


def test_list_has_numbers_that_are_written_with_exponents():
    index = ENGINES["any"].compile('{"enum": [{"k": 1e-7, "l": 1}, {"k": 2e-7, "l": 2}, {"k": 1e20, "l": 3}]}')
    for text in ('{"k":1e-07,"l":1}', '{"l":2,"k":2e-07}', '{"k":1e+20,"l":3}'):
        assert index.matches(text.encode()), text
    for text in ('{"k":3e-07,"l":1}', '{"k":1e-07,"l":2}', '{"k":1e+21,"l":3}'):
        assert not index.matches(text.encode()), text
