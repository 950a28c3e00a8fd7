"""Families of large schemas that are expensive for engines of JSON Schema.

Schemas of one family with different marks have no name in common, so that no engine
finds a part of one in a cache.
"""

from __future__ import annotations

import itertools
from typing import Any

Schema = dict[str, Any]


def listed_objects(count: int, mark: str = "") -> Schema:
    return {"enum": [{"id": i, "name": f"item {mark}{i}", "tags": ["a", i % 7]} for i in range(count)]}


def objects_with_keys_of_their_own(count: int) -> Schema:
    return {"enum": [{f"k{i}": i} for i in range(count)]}


def nested_objects(count: int) -> Schema:
    return {"enum": [{"a": {"b": {"c": i}}, "d": [i]} for i in range(count)]}


def overlapping_branches(count: int, mark: str = "") -> Schema:
    """Each requires a key of its own and allows the others."""
    return {
        "oneOf": [
            {"type": "object", "properties": {f"p{mark}{i}": {"type": "string"}, "n": {"type": "integer"}}}
            | {"required": [f"p{mark}{i}"]}
            for i in range(count)
        ]
    }


def overlapping_ranges(num_keys: int) -> Schema:
    """Three branches with the same keys, of which each has other bounds."""
    names = [f"k{i}" for i in range(num_keys)]
    return {
        "oneOf": [
            {"type": "object", "properties": {name: {"type": "integer", "minimum": least} for name in names}}
            | {"required": names[:2]}
            for least in range(3)
        ]
    }


def chain_of_dependencies(count: int, mark: str = "") -> Schema:
    names = [f"k{mark}{i}" for i in range(count + 1)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "dependentRequired": {name: [needed] for name, needed in itertools.pairwise(names)},
    }


def clauses(count: int, mark: str = "", num_keys: int = 60) -> Schema:
    """Clauses of three keys, each of which must be there or must not."""
    all_of = []
    for i in range(count):
        keys = [f"k{mark}{(i * factor + factor // 2) % num_keys}" for factor in (7, 11, 13)]
        required = [{"required": [key]} for key in keys]
        all_of.append({"anyOf": [required[0], {"not": required[1]}, required[2]]})
    properties = {f"k{mark}{i}": {"type": "integer"} for i in range(num_keys)}
    return {"type": "object", "properties": properties, "allOf": all_of}


# -- many conditions, of which few can meet --------------------------------------------


def conditions_on_a_key(count: int, mark: str = "") -> Schema:
    """Each value of a key asks another value of the next one."""
    return {
        "type": "object",
        "properties": {f"kind{mark}": {"type": "string"}, "value": {"type": "integer"}},
        "required": [f"kind{mark}", "value"],
        "allOf": [
            {
                "if": {"properties": {f"kind{mark}": {"const": f"K{i}"}}},
                "then": {"properties": {"value": {"const": i, "description": f"of K{i}"}}},
            }
            for i in range(count)
        ],
    }


def branches_with_a_late_key(count: int, mark: str = "") -> Schema:
    """The key that tells the branches apart comes last, or not at all."""
    return {
        "oneOf": [
            {
                "properties": {
                    "data": {"type": "object", "properties": {f"a{mark}{i}": {"type": "integer"}}},
                    "kind": {"const": f"K{i}"},
                }
            }
            for i in range(count)
        ]
    }


def kinds_beside_free_keys(count: int, mark: str = "") -> Schema:
    """Kinds of objects that share keys, and objects of one key of any other name."""
    kinds = [
        {
            "type": "object",
            "properties": {
                "kind": {"const": f"K{i}"},
                f"a{mark}{i}": {"type": "string"},
                "default": {"type": "array"},
                "marker": {"type": "string"},
            },
            "required": ["kind"],
            "additionalProperties": False,
        }
        for i in range(count)
    ]
    labels = {"type": "array", "items": {"type": "string"}}
    one_key = {"type": "object", "additionalProperties": labels, "minProperties": 1, "maxProperties": 1}
    return {"oneOf": [{"anyOf": kinds}, one_key | {"not": {"required": [f"prefix{mark}"]}}]}


def nested_nodes(count: int, mark: str = "") -> Schema:
    """Each node has children of all kinds."""
    node = {"$ref": "#/$defs/node"}
    kinds = [
        {"type": "object", "properties": {"kind": {"const": f"K{mark}{i}", "default": f"K{mark}{i}"}, "child": node}}
        for i in range(count)
    ]
    return node | {"$defs": {"node": {"oneOf": kinds}}}


def unanchored_patterns(count: int, mark: str = "") -> Schema:
    """A key may match many of the patterns, some of which exclude each other."""
    patterns = {f"k{mark}{i}": {"type": ["integer", "string"][i % 2]} for i in range(count)}
    return {"type": "object", "patternProperties": patterns, "additionalProperties": False, "minProperties": 1}


def schemas_of_keys(count: int, mark: str = "") -> Schema:
    return {
        "type": "object",
        "dependentSchemas": {f"a{mark}{i}": {"properties": {"z": {"minimum": i}}} for i in range(count)},
    }


def items_to_contain(count: int, mark: str = "") -> Schema:
    return {"type": "array", "allOf": [{"contains": {"const": f"i{mark}{i}"}} for i in range(count)]}


def evaluated_in_branches(count: int, mark: str = "") -> Schema:
    branches = [{"properties": {f"a{mark}{i}": {"type": "integer"}}} for i in range(count)]
    return {"type": "object", "anyOf": branches, "unevaluatedProperties": False}


def negated_pairs(count: int, mark: str = "") -> Schema:
    pairs = [(f"a{mark}{i}", f"b{mark}{i}") for i in range(count)]
    return {
        "type": "object",
        "allOf": [
            {"not": {"properties": {name: {"type": "integer"} for name in pair}, "required": list(pair)}}
            for pair in pairs
        ],
    }


CONDITIONS = (
    conditions_on_a_key,
    branches_with_a_late_key,
    kinds_beside_free_keys,
    nested_nodes,
    unanchored_patterns,
    schemas_of_keys,
    items_to_contain,
    evaluated_in_branches,
    negated_pairs,
)


# -- conditions of which too many combinations can meet --------------------------------


def multiples_to_contain(count: int) -> Schema:
    """Any subset of the steps may have a multiple in one of three items."""
    primes = [n for n in range(2, 400) if all(n % i for i in range(2, n))][:count]
    return {"type": "array", "maxItems": 3, "allOf": [{"contains": {"multipleOf": prime}} for prime in primes]}


def patterns_in_branches(count: int) -> Schema:
    """A key may match any subset of the patterns, of which each asks something else."""
    keys = ((f"k{i}", f"j{i}") for i in range(count))
    branches = (
        [{"patternProperties": {key: {"type": type_}}} for key, type_ in zip(pair, ("integer", "string"), strict=True)]
        for pair in keys
    )
    return {"type": "object", "allOf": [{"anyOf": pair} for pair in branches]}


def counted_keys_of_patterns(count: int) -> Schema:
    """How many keys can come depends on which patterns one key may match."""
    return unanchored_patterns(count) | {"additionalProperties": True, "minProperties": 2}


COMBINATIONS = (multiples_to_contain, patterns_in_branches, counted_keys_of_patterns)


def tool_calls(count: int) -> Schema:
    """An array of calls of tools, each with arguments of its own."""

    def call(i: int) -> Schema:
        names = [f"a{i}_{j}" for j in range(5)]
        arguments: Schema = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": names[:1],
        }
        properties = {"name": {"const": f"tool_{i}"}, "arguments": arguments}
        return {"type": "object", "properties": properties, "required": ["name", "arguments"]}

    return {"type": "array", "items": {"anyOf": [call(i) for i in range(count)]}}


EXPENSIVE = {  # the first key of the inner object asks for those of all values
    "type": "object",
    "properties": {"a": objects_with_keys_of_their_own(20_000)},
    "required": ["a"],
    "additionalProperties": False,
}
