"""Unions of many object schemas on the engine: exact, and ready in time."""

import itertools
import json
import random
import time

import jsonschema
import pytest

from structout.grammar.native.extension import core
from support.json_engine import BYTE_TOKENS, JsonEngine
from support.json_engine_checks import STYLES, Walker

ENGINE = JsonEngine()
VALUES = [0, 1, 1.5, "a", "b", None, False]


def random_branch(rng):
    """An object schema that other branches exclude by a listed value, by a
    required key, or not at all."""
    branch = {"type": "object", "properties": {}}
    for name in rng.sample("kln", rng.randrange(1, 4)):
        values = rng.sample(VALUES, rng.randrange(1, 3))
        branch["properties"][name] = rng.choice(
            [{"const": values[0]}, {"enum": values}, {"$ref": "#/$defs/a"}, {"type": "string"}, True]
        )
    if rng.random() < 0.6:
        branch["required"] = rng.sample("kln", rng.randrange(1, 3))
    if rng.random() < 0.4:
        branch["additionalProperties"] = False
    if rng.random() < 0.2:
        branch[rng.choice(["minProperties", "maxProperties"])] = rng.randrange(1, 4)
    return rng.choice([branch, branch, branch, {"enum": rng.sample(VALUES, 2)}])


def random_union(rng):
    union = {rng.choice(["oneOf", "oneOf", "anyOf"]): [random_branch(rng) for _ in range(rng.randrange(2, 6))]}
    union["$defs"] = {"a": {"const": rng.choice(VALUES)}}
    if rng.random() < 0.3:
        union["required"] = ["k"]
    if rng.random() < 0.3:
        union["maxProperties"] = rng.randrange(1, 4)
    return rng.choice([union, {"$defs": union["$defs"], "not": union}])


def objects():
    for num_names in range(4):
        for names in itertools.combinations("kln", num_names):
            for values in itertools.product(VALUES[1:6], repeat=num_names):
                yield dict(zip(names, values, strict=True))


def test_union_accepts_what_jsonschema_finds_valid(num_cases):
    rng = random.Random("unions")
    walker = Walker(ENGINE, num_checked=len(BYTE_TOKENS))
    instances = [*objects(), *VALUES]
    num_valid = num_invalid = 0
    for _ in range(num_cases(60, long=2000)):
        schema = random_union(rng)
        validator = jsonschema.Draft202012Validator(schema)
        drawn = rng.sample(instances, 40)
        try:
            index = ENGINE.compile(schema)
        except core().SchemaError:
            assert not any(map(validator.is_valid, instances)), schema
            continue
        for instance in drawn:
            is_valid = validator.is_valid(instance)
            assert index.matches(json.dumps(instance).encode()) == is_valid, (schema, instance)
            num_valid += is_valid
            num_invalid += not is_valid
        text, problem = walker.draw(index, rng.choice(STYLES), rng, 30, [b'"k"', b'"l"', b'"n"'])
        assert problem in (None, "not ended"), (schema, text, problem)
        assert problem or validator.is_valid(json.loads(text)), (schema, text)
    assert min(num_valid, num_invalid) > 500


def tool(number):
    arguments = {f"a{number}": {"type": "string"}, f"b{number % 7}": {"type": "integer"}}
    return {
        "type": "object",
        "properties": {
            "name": {"const": f"tool_{number}"},
            "arguments": {
                "type": "object",
                "properties": arguments,
                "required": [f"a{number}"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def step(number):
    name = f"step{number}"
    return {"properties": {name: {"type": "string"}}, "required": [name], "additionalProperties": False}


def without_required(branch):
    return {key: value for key, value in branch.items() if key not in ("required", "additionalProperties")}


def condition(number):
    holds = {"properties": {"kind": {"const": f"kind {number}"}}}
    return {"if": holds, "then": {"properties": {"data": {"required": [f"c{number}"]}}}}


CALL, LATE_NAME = '{"name":"tool_3","arguments":{"a3":"x"}}', '{"arguments":{"a3":"x"},"name":"tool_3"}'
WRONG_CALL, WRONG_NAME = '{"name":"tool_3","arguments":{"a4":"x"}}', '{"arguments":{"a3":"x"},"name":"tool_4"}'
LARGE_UNIONS = {
    "100 tools, anyOf": ({"anyOf": [tool(i) for i in range(100)]}, [CALL, LATE_NAME], [WRONG_CALL, WRONG_NAME]),
    "100 tools, oneOf": ({"oneOf": [tool(i) for i in range(100)]}, [CALL, LATE_NAME], [WRONG_CALL, WRONG_NAME]),
    "33 tools whose name is required outside": (
        {"required": ["name"], "allOf": [{"oneOf": [without_required(tool(i)) for i in range(33)]}]},
        [CALL, LATE_NAME],
        [WRONG_CALL, WRONG_NAME, '{"arguments":{"a3":"x"}}'],
    ),
    "100 steps, each under its own key": (
        {"items": {"oneOf": [step(i) for i in range(100)]}, "type": "array"},
        ['[{"step7":"x"},{"step99":""}]'],
        ['[{"step7":1}]', '[{"step7":"x","step8":"x"}]'],
    ),
    "60 conditions": (
        {"allOf": [condition(i) for i in range(60)]},
        ['{"kind":"kind 7","data":{"c7":0}}', '{"data":{"c7":0},"kind":"kind 7"}', '{"data":{},"kind":"other"}'],
        ['{"kind":"kind 7","data":{"c8":0}}', '{"data":{"c7":0},"kind":"kind 8"}'],
    ),
    "400 labelled values": (
        {"oneOf": [{"const": f"value {i}", "title": f"label {i}"} for i in range(400)]},
        ['"value 7"'],
        ['"value 400"'],
    ),
}


@pytest.mark.parametrize("name", LARGE_UNIONS)
def test_large_union_is_ready_in_time(name):
    schema, valid, invalid = LARGE_UNIONS[name]
    start = time.thread_time()
    index = ENGINE.compile(schema)
    assert len(ENGINE.walk(index).allowed())
    for text in valid:
        assert index.matches(text.encode()), text
    for text in invalid:
        assert not index.matches(text.encode()), text
    assert time.thread_time() - start < 1


def test_condition_without_values_excludes_its_own_alone():
    """The conditions exclude one another, and what some of them ask, no value is."""
    impossible = {"properties": {"value": {"type": "integer", "minimum": 5, "maximum": 4}}}
    then = [{"properties": {"value": {"const": i}}} if i % 2 else impossible for i in range(6)]
    kinds = [f"K{i}" for i in range(6)]
    conditions = [{"if": {"properties": {"kind": {"const": kinds[i]}}}, "then": then[i]} for i in range(6)]
    schema = {"properties": {"kind": {"enum": kinds}}, "required": ["kind", "value"], "allOf": conditions}
    for engine in (ENGINE, JsonEngine(declared=True)):
        walk = engine.walk(engine.compile(schema))
        assert walk.matcher.accept([*b'{"kind":"K'])
        assert bytes(walk.allowed().tolist()) == b"135"


def names(*keys, **others):
    return {"type": "object", "properties": {key: {"type": "integer"} for key in keys}} | others


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"anyOf": [names("a"), names("r", "a", required=["r"])]}, ["ra", "a"], ["ar"]),
        ({"oneOf": [names("a", additionalProperties=False), {"$ref": "#/$defs/r"}],
          "$defs": {"r": names("r", "a", required=["r"])}}, ["ra", "a", "r"], ["ar"]),
        ({"properties": {"x": {}, "y": {}}, "anyOf": [names("z", "x"), names("w")]}, ["zxy", "xyw"], ["xz", "yx"]),
        ({"if": names("a", required=["a"]), "then": names("b", "a"), "else": names("c")}, ["ba", "c"], ["ab"]),
        ({"enum": [{"a": 1, "b": 1}, {"c": 1, "a": 1}]}, ["ab", "ca"], ["ba", "ac"]),
        # Where branches contradict one another, each has its own order of all names.
        ({"anyOf": [names("a", "b", "c"), names("c", "b", "d")]}, ["abc", "cbd", "cba"], ["db", "acb"]),
        ({"anyOf": [names("d"), names("p", "q", "d"), names("q", "p")]}, ["pqd", "qpd"], ["dp", "dq"]),
    ],
)  # fmt: skip
def test_branches_keep_their_own_order_of_keys(schema, accepted, refused):
    index = JsonEngine(declared=True).compile(schema)
    for keys in accepted + refused:
        assert index.matches(json.dumps(dict.fromkeys(keys, 1)).encode()) is (keys in accepted), keys
