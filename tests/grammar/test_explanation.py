"""The explanation of a constraint and its parts: drawn texts, keywords."""

import json
import re

import jsonschema
import pytest

from structout import StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.schema_walks import subschemas
from structout.grammar.explanation import explain
from structout.grammar.keyword_use import keyword_use, memory_places, property_names, recursive_references
from support.locations import ROOT
from support.tokenizers_on_the_spot import byte_level

ORDER = json.loads((ROOT / "examples" / "order.schema.json").read_text())
LINKED = {"properties": {"next": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
DECLARED = StructuredOutputsConfig(any_whitespace=False, key_order="declared")


def explained(schema=None, config=None, **params):
    if schema is not None:
        params["json"] = schema
    return explain(StructuredOutputsParams(**params), byte_level(), config=config)


def nodes_of(schema):
    return list(subschemas(schema))


# -- explain ----------------------------------------------------------------------


def test_explain_with_a_schema_names_its_engine_keywords_and_costs():
    found = explained(ORDER)
    assert (found.error, found.backend_name) == (None, "native")
    assert found.num_needed > 20
    assert found.keywords.constraints["pattern"] == 7
    assert found.keywords.annotations == {"title": 1}
    assert 0 < found.ready_seconds < 60
    assert found.visited.states > found.visited.masks > 10
    assert found.visited.bytes == found.memory_bytes > 1000
    jsonschema.validate(json.loads(found.example), ORDER)


@pytest.mark.parametrize(
    ("params", "advice"),
    [
        ({"regex": r"\bfoo"}, r"(^|\W)word"),
        ({"json": {"type": "string", "pattern": r"a\Bb"}}, r"(^|\W)word"),
        ({"regex": r"(a)\1"}, "backreference"),
        ({"regex": "(?i)a"}, "[Aa]"),
        ({"regex": "a++"}, "a+ matches what a++ does"),
        ({"regex": "a(?=b)c"}, "assertions"),
        ({"regex": "(" * 400 + ")" * 400}, "nest less deeply"),
        ({"grammar": 'root ::= "a" root'}, "an alternative without the reference"),
        ({"json": {"type": "string", "minLength": 10**9, "pattern": "a{99999}"}}, "lower the bounds"),
    ],
)
def test_explain_gives_advice_on_what_the_constraint_has(params, advice):
    found = explained(**params)
    assert found.error is not None
    assert advice in found.advice
    assert ("lookbehind" in found.advice) == ("lookbehind" in str(found.error))


def test_refused_parts_of_tags_name_the_tag():
    def tag(begin, content):
        return {"type": "tag", "begin": begin, "content": content, "end": "</f>"}

    bad = {"type": "json_schema", "json_schema": {"type": "string", "pattern": "(?<=a)b"}}
    tags = [tag("<f=one>", {"type": "regex", "pattern": "a"}), tag("<f=two>", bad)]
    found = explained(structural_tag={"type": "structural_tag", "format": {"type": "or", "elements": tags}})
    assert str(found.error).endswith("lookbehind is not supported (at character 3) (in the tag '<f=two>')")
    assert found.error.pointer == "#/format/elements/1/content/json_schema/pattern"


def test_explain_with_a_schema_that_closes_counts_all_states_and_masks():
    found = explained({"enum": ["red", "green"]}, DECLARED)
    assert found.index.num_states == found.closed.states
    assert found.closed.masks <= found.closed.states
    assert all(found.index.mask_slot(state) < found.closed.masks for state in range(found.closed.states))
    assert (found.memory_places, found.recursive_references) == ((), ())


def test_explain_with_a_schema_that_does_not_close_names_the_causes():
    found = explained(LINKED)
    assert found.closed is None
    assert found.index is None
    assert found.memory_places == ("#",)
    assert set(found.recursive_references) == {"#/properties/next/$ref", "#/$defs/n/anyOf/0/$ref"}


def test_explain_with_a_regex_counts_the_states_of_its_automaton():
    found = explained(regex="[A-Z]{3}-[0-9]{4}")
    assert (found.backend_name, found.closed.states, found.keywords) == ("native", 9, None)
    assert re.fullmatch("[A-Z]{3}-[0-9]{4}", found.example)


def test_explain_with_a_format_that_constrains_nothing_lists_it():
    schema = {"properties": {"a": {"type": "string", "format": "password"}, "b": {"type": "string", "format": "date"}}}
    found = explained(schema)
    assert found.annotations == ("#/properties/a/format",)
    assert found.keywords.constraints["format"] == 1  # the date


def test_explain_with_a_recursive_grammar_has_states_and_masks_but_no_automaton():
    found = explained(grammar='root ::= "(" root ")" | "a"')
    assert found.backend_name == "native"
    assert found.visited.states > found.visited.masks > 2
    assert found.index is None


def test_explain_with_another_engine_has_an_example_and_no_states():
    found = explained(ORDER, backend="xgrammar")
    assert found.backend_name == "xgrammar"
    assert found.visited is None
    assert found.memory_bytes > 0
    assert json.loads(found.example)


def test_explain_with_a_schema_that_is_refused_says_why():
    found = explained({"properties": {"a": {"type": "string", "pattern": "(?<=a)b"}}})
    assert (found.error.kind.value, found.error.pointer) == ("unsupported", "#/properties/a/pattern")
    assert "lookbehind" in found.advice
    assert found.keywords.constraints == {"properties": 1, "type": 1, "pattern": 1}


@pytest.mark.parametrize(
    ("schema", "kind", "advice"),
    [
        ({"type": "strin"}, "malformed", ""),
        ({"minimum": 5, "maximum": 4, "type": "integer"}, "impossible", "contradict"),
        ({"$ref": "https://example.com/s.json"}, "unsupported", "into $defs"),
    ],
)
def test_explain_with_a_bad_schema_never_raises(schema, kind, advice):
    found = explained(schema)
    assert found.error.kind.value == kind
    assert advice in found.advice
    assert bool(found.advice) == bool(advice)


def test_explain_with_a_lenient_constraint_names_what_is_not_enforced():
    schema = {"type": "string", "minLength": 1, "pattern": "(?<=a)b"}
    found = explained(schema, lenient=True)
    assert (found.backend_name, found.weakened) == ("native", ("#/pattern",))
    assert found.keywords.constraints == {"type": 1, "minLength": 1}


def test_explain_with_the_same_seed_draws_the_same_example():
    params = StructuredOutputsParams(json=ORDER)
    examples = [explain(params, byte_level(), seed=seed).example for seed in (1, 1, 2)]
    assert examples[0] == examples[1] != examples[2]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 3, "uniqueItems": True, "items": {"type": "integer"}},
        {"type": "object", "required": ["né", "b"], "properties": {"b": {"type": "string", "minLength": 30}}},
        {"type": "string", "pattern": "^(é|è){8}$"},
        LINKED,
        True,
    ],
)
def test_explain_draws_valid_examples(schema):
    found = explained(schema)
    assert len(found.texts) == 16
    assert found.example is not None
    jsonschema.validate(json.loads(found.example), schema)


# -- keywords ---------------------------------------------------------------------


def test_keyword_use_tells_constraints_annotations_and_unknown_words_apart():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "T",
        "requried": ["a"],
        "properties": {"a": {"type": "integer", "x-order": 1}, "b": {"prefixItems": []}},
    }
    use = keyword_use(nodes_of(schema), draft=7)
    assert use.constraints == {"properties": 1, "type": 1}
    assert use.annotations == {"title": 1}
    assert use.unknown == ("#/requried", "#/properties/a/x-order", "#/properties/b/prefixItems")
    assert keyword_use(nodes_of(schema), draft=2020).constraints["prefixItems"] == 1


@pytest.mark.parametrize(("draft", "beside"), [(7, ("#/minimum",)), (2019, ())])
def test_keyword_use_beside_ref_depends_on_the_draft(draft, beside):
    schema = {"$ref": "#/definitions/a", "minimum": 1, "definitions": {"a": {"type": "integer"}}}
    use = keyword_use(nodes_of(schema), draft)
    assert use.beside_ref == beside
    assert use.constraints.get("minimum", 0) == (not beside)


def test_memory_places_are_objects_with_free_keys_and_unique_items():
    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    items = {"uniqueItems": True, "items": {"type": "object", "patternProperties": {"^x": {}}}}
    assert memory_places(nodes_of(closed)) == []
    assert memory_places(nodes_of(items)) == ["#/uniqueItems", "#/items"]
    assert memory_places(nodes_of({"properties": {"a": {}}})) == ["#"]


def test_recursive_references_are_those_that_lead_back():
    assert set(recursive_references(nodes_of(LINKED))) == {"#/properties/next/$ref", "#/$defs/n/anyOf/0/$ref"}
    shared = {"properties": {"a": {"$ref": "#/$defs/d"}, "b": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"items": {}}}}
    assert recursive_references(nodes_of(shared)) == []


def test_property_names_are_of_properties_and_required():
    schema = {"required": ["z", "a"], "properties": {"a": {"properties": {"b": {}}}}}
    assert property_names(nodes_of(schema)) == ["a", "z", "b"]
