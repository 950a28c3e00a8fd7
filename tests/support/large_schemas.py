"""Families of large schemas that are dear for engines of JSON Schema."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def listed_objects(count: int) -> Schema:
    return {"enum": [{"id": i, "name": f"item {i}", "tags": ["a", i % 7]} for i in range(count)]}


def objects_with_keys_of_their_own(count: int) -> Schema:
    return {"enum": [{f"key{i}": i} for i in range(count)]}


def nested_objects(count: int) -> Schema:
    return {"enum": [{"a": {"b": {"c": i}}, "d": [i]} for i in range(count)]}


def overlapping_branches(count: int) -> Schema:
    """Each requires a key of its own and allows the others."""
    return {
        "oneOf": [
            {"type": "object", "properties": {f"p{i}": {"type": "string"}, "n": {"type": "integer"}}}
            | {"required": [f"p{i}"]}
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


def chain_of_dependencies(count: int) -> Schema:
    return {
        "type": "object",
        "properties": {f"k{i}": {"type": "integer"} for i in range(count + 1)},
        "dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(count)},
    }


def clauses(count: int, num_keys: int = 60) -> Schema:
    """Clauses of three keys, each of which must be there or must not."""
    all_of = []
    for i in range(count):
        keys = [f"k{(i * factor + factor // 2) % num_keys}" for factor in (7, 11, 13)]
        required = [{"required": [key]} for key in keys]
        all_of.append({"anyOf": [required[0], {"not": required[1]}, required[2]]})
    return {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(num_keys)}, "allOf": all_of}


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


DEAR = {  # the first key of the inner object asks for all the others
    "properties": {
        "a": {
            "type": "object",
            "properties": {f"k{i}": {"type": "integer"} for i in range(401)},
            "dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(400)},
            "required": ["k0"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
}
