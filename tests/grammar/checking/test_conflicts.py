"""Smallest conflicts, beside all subsets."""

import pytest

from structout.grammar.checking.conflicts import smallest_conflict
from structout.grammar.checking.requirements import RelaxedSchema


@pytest.mark.parametrize("conflicts", [[{3}], [{0, 7}], [{1, 2, 5}, {6}], [{4, 5}, {5, 6}], [set()], []])
def test_smallest_conflict_is_one_of_the_minimal_sets_that_forbid(conflicts):
    def forbids(kept):
        return any(conflict <= set(kept) for conflict in conflicts)

    found = smallest_conflict(range(8), forbids)
    if not conflicts:
        assert found is None
        return
    assert forbids(found)
    assert not any(forbids([each for each in found if each != left_out]) for left_out in found)
    assert found == sorted(found)


def test_smallest_conflict_among_many_asks_few_questions():
    questions = 0

    def forbids(kept):
        nonlocal questions
        questions += 1
        return 700 in kept

    assert smallest_conflict(range(1000), forbids) == [700]
    assert questions < 30


def test_relaxed_schema_without_requirements_keeps_only_names_and_conditions():
    schema = {
        "title": "t",
        "type": "object",
        "properties": {"a/b": {"type": "string"}, "c": False},
        "additionalProperties": False,
        "oneOf": [{"required": ["a"]}, True],
        "if": {"required": ["a"]},
        "then": {"minProperties": 2},
        "contains": {"const": 1},
        "minContains": 2,
        "not": {"const": {}},
        "$ref": "#/$defs/x",
        "$defs": {"x": {"maxProperties": 5}},
    }
    relaxed = RelaxedSchema(schema, ())
    assert relaxed.value == {
        "title": "t",
        "properties": {"a/b": {}, "c": True},
        "additionalProperties": True,
        "if": {"required": ["a"]},
        "then": {},
        "$ref": "#/$defs/x",
        "$defs": {"x": {}},
        "allOf": [{"anyOf": [{}, True]}],
    }
    pointers = [requirement.pointer for requirement in relaxed.requirements]
    assert pointers == [
        "#/type",
        "#/properties/a~1b/type",
        "#/properties/c",
        "#/additionalProperties",
        "#/oneOf/0/required",
        "#/oneOf",
        "#/then/minProperties",
        "#/contains",
        "#/not",
        "#/$defs/x/maxProperties",
    ]
    kept = RelaxedSchema(schema, pointers).value
    assert kept == schema | {"allOf": [{"anyOf": schema["oneOf"]}]}
