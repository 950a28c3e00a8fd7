"""Numbers under random schemas of bounds, steps, constants and their combinations:
against fractions."""

import json
import random
from decimal import Decimal
from fractions import Fraction

import pytest

from structout.grammar.native.extension import core
from support.json_engine import JsonEngine, refusal_of

ENGINE = JsonEngine()
NUMBERS = ["0", "1", "-1", "5", "10", "2.5", "-0.5", "0.1", "99.99", "1e16", "-1e16", "1e-5", "1.5e300", "-2e-300"]
NUMBERS += ["9007199254740993.25", "123456789012345678", "0.00001234", "-12345678901234567890.5", "1e400", "3e-400"]
STEPS = ["1", "2", "0.5", "0.01", "3", "0.25", "1e-7", "1e20", "7e3"]


def random_schema(rng, depth=2):
    """A schema as JSON text."""
    kind = rng.choice(
        ["bounds", "integer", "const", "enum", "step", *(["not", "allOf", "anyOf", "oneOf", "if"] * depth)]
    )
    below = depth - 1
    if kind == "bounds":
        keywords = rng.sample(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], rng.randint(1, 2))
        return "{" + ", ".join(f'"{keyword}": {rng.choice(NUMBERS)}' for keyword in keywords) + "}"
    if kind == "integer":
        return '{"type": "integer"}'
    if kind == "const":
        return f'{{"const": {rng.choice(NUMBERS)}}}'
    if kind == "enum":
        return f'{{"enum": [{", ".join(rng.sample(NUMBERS, 3))}]}}'
    if kind == "step":
        return f'{{"multipleOf": {rng.choice(STEPS)}}}'
    if kind == "not":
        return f'{{"not": {random_schema(rng, below)}}}'
    if kind == "if":
        parts = (random_schema(rng, below) for _ in range(3))
        return '{{"if": {}, "then": {}, "else": {}}}'.format(*parts)
    return f'{{"{kind}": [{random_schema(rng, below)}, {random_schema(rng, below)}]}}'


def holds(schema, value):
    """Whether a number satisfies a schema whose numbers are fractions."""
    checks = {
        "type": lambda _: value.denominator == 1,
        "const": lambda other: value == other,
        "enum": lambda others: value in others,
        "minimum": lambda bound: value >= bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "exclusiveMaximum": lambda bound: value < bound,
        "multipleOf": lambda step: (value / step).denominator == 1,
        "not": lambda part: not holds(part, value),
        "allOf": lambda parts: all(holds(part, value) for part in parts),
        "anyOf": lambda parts: any(holds(part, value) for part in parts),
        "oneOf": lambda parts: sum(holds(part, value) for part in parts) == 1,
        "if": lambda part: holds(schema["then" if holds(part, value) else "else"], value),
    }
    return all(checks[keyword](given) for keyword, given in schema.items() if keyword in checks)


def compiled_or_refused(schema):
    try:
        return ENGINE.compile(schema), None
    except ValueError as error:
        return None, refusal_of(error)


def drawn_text(index, rng):
    """A number that the masks allow, as short as possible after some bytes."""
    walk = ENGINE.walk(index)
    text = b""
    num_free = rng.choice([0, 2, 5, 25])
    while True:
        allowed = walk.allowed()
        assert len(allowed), text
        may_end = ENGINE.stop in allowed
        if may_end and (len(text) >= num_free or len(allowed) == 1 or rng.random() < 0.1):
            return text.decode()
        assert len(text) < 1_000, text
        tokens = [token for token in allowed if token != ENGINE.stop]
        # A digit that is not 0 ends a fraction, and an exponent ends with its digits.
        token = rng.choice(tokens) if len(text) < num_free else max(tokens)
        assert walk.matcher.accept([int(token)])
        text += bytes([token])


@pytest.mark.parametrize("seed", range(3))
def test_number_is_generated_only_if_it_is_valid_and_every_text_ends(seed):
    rng = random.Random(seed)
    num_served = num_impossible = 0
    for _ in range(80):
        # The type keeps all other values away.
        schema = f'{{"allOf": [{{"type": "number"}}, {random_schema(rng)}]}}'
        parsed = json.loads(schema, parse_float=Fraction, parse_int=Fraction)["allOf"][1]
        candidates = [Fraction(number) + delta for number in NUMBERS for delta in (0, 1, -1, Fraction(1, 4))]
        index, refusal = compiled_or_refused(schema)
        if index is None:
            assert refusal == "impossible", schema
            assert not any(holds(parsed, candidate) for candidate in candidates), schema
            num_impossible += 1
            continue
        num_served += 1
        for _ in range(10):
            text = drawn_text(index, rng)
            assert holds(parsed, Fraction(text)), (schema, text)
            assert index.matches(text.encode())
        for number in NUMBERS:
            for text in (number, number + ".0", number.replace("e", "e+"), str(Fraction(number).__trunc__())):
                assert not index.matches(text.encode()) or holds(parsed, Fraction(text)), (schema, text)
    assert num_served > 45
    assert num_impossible > 1


@pytest.mark.parametrize(
    ("items", "unique", "equal"),
    [
        ('{"enum": [{"a": 1e-5}, {"a": 1}, {"a": 1e16}]}', ['{"a":1e-05},{"a":1},{"a":1e+16}'], ['{"a":1},{"a":1}']),
        ('{"prefixItems": [{"enum": [1e-7, 2e16]}], "minItems": 1, "items": false, "type": "array"}',
         ["[1e-7],[2e+16]", "[20000000000000000],[1e-07]"],
         ["[1e-7],[1e-07]", "[2e+16],[20000000000000000]"]),
        ('{"enum": [1e-7, 3]}', ["3"], ["3,3", "1e-7", "1e-07,3"]),
    ],
)  # fmt: skip
def test_numbers_with_exponents_in_unique_items_are_compared_by_value(items, unique, equal):
    index = ENGINE.compile(f'{{"type": "array", "items": {items}, "uniqueItems": true}}')
    for text in (*unique, *equal):
        data = f"[{text}]".encode()
        assert index.matches(data) is (text in unique), text
        walk = ENGINE.walk(index)
        is_allowed = all(byte in walk.allowed() and walk.matcher.accept([byte]) for byte in data)
        assert is_allowed is (text in unique), text


@pytest.mark.parametrize(
    ("step", "type_", "served", "others"),
    [
        ("0.123456789", "number", [0, 1, -1, 199, 5_000, 10**9, 123 * 10**9], [201, 12_345]),
        ("0.123456789", "integer", [0, 10**9, -123 * 10**9], [1, 199, 201 * 10**9]),
        ("987654321", "integer", [0, 1, -1, 199, 5_000, 199_000], [201, 10**6]),
    ],
)
def test_step_of_many_digits_has_some_of_its_multiples(step, type_, served, others):
    index = ENGINE.compile(f'{{"type": "{type_}", "multipleOf": {step}}}')

    def matches(factor):
        text = f"{Decimal(step) * factor:f}"
        return index.matches((text.rstrip("0").rstrip(".") if "." in text else text).encode())

    assert [factor for factor in served if not matches(factor)] == []
    assert [factor for factor in others if matches(factor)] == []
    for text in ("1", "0.1234567891", "0.123456788", "987654320"):
        assert not index.matches(text.encode())


@pytest.mark.parametrize(
    "schema", ['{"not": STEP}', '{"if": STEP, "then": false}', '{"maxContains": 1, "contains": STEP}']
)
def test_step_of_many_digits_is_refused_where_it_may_be_negated(schema):
    with pytest.raises(core().SchemaError) as error:
        ENGINE.compile(schema.replace("STEP", '{"multipleOf": 0.123456789}'))
    assert refusal_of(error.value) == "unsupported"
    assert error.value.args[-1].endswith("/multipleOf")


def test_step_without_a_known_multiple_in_its_bounds_is_not_called_impossible():
    with pytest.raises(core().SchemaError) as error:
        ENGINE.compile('{"type": "number", "multipleOf": 0.123456789, "minimum": 31, "maximum": 31.5}')
    assert refusal_of(error.value) == "unsupported"
