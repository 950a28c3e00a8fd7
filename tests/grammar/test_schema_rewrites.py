"""Rewritten schemas against the given ones, with ``jsonschema`` as the judge."""

import copy
import itertools
import json
import random

import jsonschema
import pytest
from tokenizers_on_the_spot import byte_level

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.grammar.router import BackendSet
from structout.grammar.schema_rewrites.rewriter import rewrite
from structout.grammar.vocabulary import Vocabulary
from structout.json_schema import check_keywords, subschemas
from structout.params import StructuredOutputsParams

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
S, I, N, O, A = ({"type": name} for name in ("string", "integer", "number", "object", "array"))  # noqa: E741 - schemas of one line each
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
CLOSED = {"additionalProperties": False}
STRING_OR_NULL = {"type": ["string", "null"]}
NAMES = "abc"
SCALARS = [None, True, False, 0, 1, 1.0, 1.5, 2, -1, "", "a", "ab", "b", "c"]
INSTANCES = [
    *SCALARS,
    *([], [1], ["a"], [1, 2], [1, 1], {"d": 1}, {"a": 1, "d": 2}, {"a": {"b": 1}}, {"a": {"a": "x"}}, {"b": "ab"}),
    *(
        dict(zip(names, values, strict=True))
        for size in range(4)
        for names in itertools.combinations(NAMES, size)
        for values in itertools.product([1, "a", None], repeat=size)
    ),
]


def rewritten(schema):
    return rewrite(schema, list(subschemas(schema)))


def keywords_of(schema):
    return {keyword for _, node in subschemas(schema) for keyword in node}


NOT_REQUIRED = {"not": {"required": ["a"]}}
REWRITTEN = [
    {**O, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}, {"required": ["d"]}]},
    {"oneOf": [{"required": ["a"]}, NOT_REQUIRED]},
    {"oneOf": [{"properties": {"a": {"const": name}}, "required": ["a"], **O} for name in ("a", "b")]},
    {"oneOf": [{"properties": {"a": {"enum": [1]}}}, {"properties": {"b": {"enum": ["a"]}}, "required": ["b"]}]},
    {"oneOf": [{**O, "properties": {"a": I}, "additionalProperties": False}, {**O, "required": ["b"]}]},
    {"oneOf": [S, I, {"type": ["null", "boolean"]}]},
    {"oneOf": [{**I, "minimum": 1}, {**I, "maximum": 1}]},
    {"oneOf": [{"minimum": 1}, {"maximum": 1}]},
    {"oneOf": [{"$ref": "#/$defs/x"}, {"enum": ["a", 1.0]}], "$defs": {"x": {"enum": ["a", "b"]}}},
    {"oneOf": [{"$ref": "#/$defs/x"}, {**O, "required": ["b"]}], "$defs": {"x": {"allOf": [S, {"minLength": 1}]}}},
    {"oneOf": [S]},
    {"not": S},
    {"not": {"type": ["number", "null"]}},
    {**I, "not": {"type": "integer"}, "title": "nothing"},
    {"type": ["string", "null"], "not": {"enum": ["a", "", None]}},
    {"enum": [1, 2, "a", None], "not": {"enum": [1.0, "a"]}},
    {"enum": [True, 1], "not": {"const": 1}},
    {"type": "boolean", "not": {"const": True}},
    {**S, "pattern": "^a", "not": {"const": "ab"}},
    {"not": {"enum": [1, 2.5, None]}},
    {**I, "not": {"enum": [1, -1, 2.0, 2.5]}},
    NOT_REQUIRED,
    {**O, "not": {"required": ["a", "b"]}},
    {**O, "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {**O, "properties": {"a": S}, "not": {"properties": {"a": {"enum": ["a"]}}, "required": ["a"]}},
    {"not": {"not": {"required": ["a"]}}},
    {"not": {**S, "minLength": 1}},
    {"not": {**A, "maxItems": 1}},
    {"dependentRequired": {"a": ["b", "c"], "b": ["c"]}},
    {**O, "required": ["a"], "dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"required": ["b"]}, "b": {"properties": {"c": I}}, "c": False}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"properties": {"b": False}}},
    {"if": {"properties": {"a": {"const": "a"}}, "required": ["a"]}, "then": {"required": ["b"]}},
    {"if": S},
    {"then": S},
    {"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": I}},
    {"propertyNames": {"pattern": "^[ab]$"}},
    {"propertyNames": {"minLength": 1, "maxLength": 1}},
    {"propertyNames": False},
    {"uniqueItems": True, "maxItems": 1},
]


@pytest.mark.parametrize("schema", REWRITTEN)
def test_rewrite_keeps_the_instances_and_leaves_nothing_that_engines_do_not_read(schema):
    given = copy.deepcopy(schema)
    result = rewritten(schema).schema
    assert schema == given
    assert not keywords_of(result) & {
        *("oneOf", "not", "if", "then", "else", "propertyNames", "uniqueItems"),
        *("dependentRequired", "dependentSchemas"),
    }
    before, after = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(result)
    for instance in INSTANCES:
        assert before.is_valid(instance) == after.is_valid(instance), (instance, result)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"pattern": "a"}},
        {"not": {"type": "integer"}},  # numbers with a fraction have no type of their own
        {"not": {"const": {"a": 1}}},
        {"oneOf": [I, N]},
        {"$schema": DRAFTS[4], "not": {"enum": [1]}},  # exclusive bounds are booleans yet
        {"not": {**S, "format": "date"}},
        {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
        {"if": {"pattern": "a"}, "then": {"minLength": 2}},
        {"propertyNames": {"pattern": "^a", "maxLength": 3}},
        {"uniqueItems": True, "maxItems": 2},
        {"not": {"required": ["a"]}, "unevaluatedProperties": False},
        {"anyOf": [{"$ref": "#/oneOf/0"}], "oneOf": [S, I]},
        {"$schema": "http://json-schema.org/draft-03/schema#", "dependencies": {"a": "b"}},
        {"$schema": DRAFTS[4], "oneOf": [{"const": 1}, {"const": 2}]},  # const is no keyword yet
    ],
)
def test_rewrite_leaves_what_cannot_be_written_in_other_keywords(schema):
    assert rewritten(schema).schema == schema


def test_rewrite_keeps_the_pointers_of_the_given_schema():
    schema = {
        "properties": {"a": {"oneOf": [{**S, "pattern": "^(?=a)"}, {**I, "not": {"pattern": "x"}}]}},
        "not": {"required": ["b"]},
    }
    pointers = {pointer: node for pointer, node in rewritten(schema).nodes if "pattern" in node or "not" in node}
    place = "/properties/a/oneOf"
    assert pointers.keys() == {f"{place}/0", f"{place}/1", f"{place}/1/not"}
    assert {pointer for pointer, node in rewritten(schema).nodes if "b" in node.get("properties", ())} == {"/not"}


def test_rewrite_of_many_dependencies_or_deep_comparisons_ends():
    names = [f"p{i}" for i in range(40)]
    schema = {"dependentRequired": {name: ["x"] for name in names}}
    assert rewritten(schema).schema == schema
    deep = {"$ref": "#/$defs/x"}
    schema = {"oneOf": [deep, deep], "$defs": {"x": {"anyOf": [{"allOf": [deep, deep]} for _ in range(8)]}}}
    assert rewritten(schema).schema["oneOf"] == [deep, deep]


class Schemas:
    """Random schemas over a few names and values.

    Args:
        seed: equal seeds give equal schemas.
    """

    def __init__(self, seed):
        self._random = random.Random(seed)

    def document(self):
        draft = self._random.choice(list(DRAFTS))
        return {"$schema": DRAFTS[draft], **self._node(3, draft), "$defs": {"x": self._any(2, draft), "y": S}}

    def _any(self, depth, draft):
        if depth == 0 or self._random.random() < 0.15:
            return self._random.choice([True, False, S, I, N, O, STRING_OR_NULL, {"enum": self._values()}])
        return self._node(depth, draft)

    def _node(self, depth, draft):
        node = {}
        if self._random.random() < 0.4:
            node["type"] = self._random.choice(["object", "object", "string", "integer", "number", ["object", "null"]])
        makers = self._makers(depth, draft)
        for keyword in self._random.sample(list(makers), self._random.randint(1, 3)):
            node[keyword] = makers[keyword]()
        return node

    def _makers(self, depth, draft):
        choice, number = self._random.choice, self._random.randint
        makers = {
            "required": self._names,
            "properties": lambda: {name: self._any(depth - 1, draft) for name in self._names()},
            "additionalProperties": lambda: choice([True, False, I]),
            "enum": self._values,
            "$ref": lambda: choice(["#/$defs/x", "#/$defs/y"]),
            "uniqueItems": lambda: True,
            "minimum": lambda: choice([0, 1, 1.5]),
        }
        makers |= dict.fromkeys(("minLength", "maxLength", "maxItems", "minProperties"), lambda: number(0, 2))
        makers |= dict.fromkeys(("not", "if", "then", "else"), lambda: self._any(depth - 1, draft))
        makers |= dict.fromkeys(
            ("oneOf", "anyOf", "allOf"), lambda: [self._any(depth - 1, draft) for _ in range(number(1, 3))]
        )
        if draft >= 6:
            makers["propertyNames"] = lambda: choice([{"enum": ["a"]}, {"maxLength": 1}, {"pattern": "^a"}, False])
            makers |= dict.fromkeys(("const", "exclusiveMinimum"), lambda: number(0, 1))
        if draft < 2019:
            makers["dependencies"] = lambda: {n: choice([self._names(), self._any(1, draft)]) for n in self._names()}
        else:
            makers["dependentRequired"] = lambda: {name: self._names() for name in self._names()}
            makers["dependentSchemas"] = lambda: {name: self._any(depth - 1, draft) for name in self._names()}
        return makers

    def _names(self):
        return self._random.sample(NAMES, self._random.randint(1, 2))

    def _values(self):
        return self._random.sample(["a", "b", 1, None, True, "", 2.5, {"a": 1}, [1]], self._random.randint(1, 3))


def changed_schemas(seed, number):
    """Yield random schemas that are rewritten, with the result."""
    schemas = Schemas(seed)
    for _ in range(number):
        schema = schemas.document()
        check_keywords(list(subschemas(schema)))
        result = rewritten(schema).schema
        if result is not schema:
            yield schema, result


def test_rewrite_keeps_the_instances_of_random_schemas(num_cases):
    num_pairs = 0
    for schema, result in changed_schemas(1, num_cases(400, long=12_000)):
        make = jsonschema.validators.validator_for(schema)
        before, after = make(schema), make(result)
        try:
            for instance in INSTANCES:
                assert before.is_valid(instance) == after.is_valid(instance), (instance, json.dumps(schema))
                num_pairs += 1
        except BaseException as error:
            if not is_endless(error):
                raise
    assert num_pairs > 10_000


def is_endless(error):
    """Whether the judge gave up on a schema that refers to itself. Inside of its native
    code that is a panic, which is no Exception."""
    return isinstance(error, RecursionError) or "RecursionError" in str(error)


def is_valid(validator, instance):
    """Whether an instance is valid. A schema that refers only to itself says
    nothing."""
    try:
        return validator.is_valid(instance)
    except BaseException as error:
        if not is_endless(error):
            raise
        return True


def test_texts_that_masks_of_random_rewritten_schemas_allow_are_valid(num_cases):
    """The engines read combinations of allOf and anyOf that schemas seldom have."""
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig())
    num_served = num_accepted = 0
    for schema, _ in changed_schemas(2, num_cases(150, long=6_000)):
        try:
            grammar = backends.compile(StructuredOutputsParams(json=schema).constraint()).grammar
        except GrammarError:
            continue
        validator = jsonschema.validators.validator_for(schema)(schema)
        num_served += 1
        for instance in INSTANCES:
            if is_allowed(grammar, json.dumps(instance)):
                num_accepted += 1
                assert is_valid(validator, instance), (instance, json.dumps(schema))
    backends.destroy()
    assert num_served > 20
    assert num_accepted > 100


TAG = {"type": "tag", "begin": "<a>", "end": "</a>"}


def tag_around(schema, **options):
    content = {"type": "json_schema", "json_schema": schema, **options}
    tag = {"type": "structural_tag", "format": {**TAG, "content": content}}
    return StructuredOutputsParams(structural_tag=tag).constraint()


def is_allowed(grammar, text):
    tokens = [*VOCABULARY.spell(text), VOCABULARY.stop_token_ids[0]]
    return len(grammar.validate_tokens(tokens)) == len(tokens)


SHAPES = {
    "oneOf": [
        {**O, "properties": {"kind": {"const": name}, "a": value}, "required": ["kind", "a"], **CLOSED}
        for name, value in (("s", S), ("i", I))
    ]
}


@pytest.mark.parametrize("as_given", [lambda schema: schema, json.dumps])
def test_schemas_in_structural_tags_are_rewritten(as_given):
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig())
    compiled = backends.compile(tag_around(as_given(SHAPES)))
    assert (compiled.backend_name, compiled.weakened) == ("xgrammar", ())
    for text, is_shape in (('{"kind": "s", "a": "x"}', True), ('{"kind": "i", "a": 3}', True), ("{}", False)):
        assert is_allowed(compiled.grammar, f"<a>{text}</a>") is is_shape
    assert not is_allowed(compiled.grammar, '<a>{"kind": "i", "a": "x"}</a>')
    backends.destroy()


@pytest.mark.parametrize("options", [{"style": "qwen_xml"}, {"any_order": True}])
def test_schemas_of_other_styles_in_structural_tags_are_not_rewritten(options):
    with pytest.raises(GrammarError, match="not supported: #/format/content/json_schema/oneOf"):
        BackendSet(VOCABULARY, StructuredOutputsConfig()).compile(tag_around(SHAPES, **options))


def test_refusal_of_a_rewritten_schema_in_a_structural_tag_points_into_the_given_one():
    schema = {"properties": {"a": {"oneOf": [{**S, "maxLength": 3}, I]}}, **O, **CLOSED}
    with pytest.raises(GrammarError) as refused:
        BackendSet(VOCABULARY, StructuredOutputsConfig()).compile(tag_around(schema))
    assert refused.value.pointer == "#/format/content/json_schema/properties/a/oneOf/0/maxLength"


def test_texts_in_structural_tags_of_random_rewritten_schemas_are_valid(num_cases):
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig())
    num_served = num_accepted = 0
    for schema, _ in changed_schemas(3, num_cases(1_000, long=20_000)):
        try:
            grammar = backends.compile(tag_around(schema)).grammar
        except GrammarError:
            continue
        validator = jsonschema.validators.validator_for(schema)(schema)
        num_served += 1
        for instance in INSTANCES:
            if is_allowed(grammar, f"<a>{json.dumps(instance)}</a>"):
                num_accepted += 1
                assert is_valid(validator, instance), (instance, json.dumps(schema))
    backends.destroy()
    assert num_served > 20
    assert num_accepted > 100


def test_keywords_beside_ref_in_a_branch_are_ignored_where_the_draft_says_so():
    """An engine that read them would take the branch for empty."""
    schema = {
        "$schema": "http://json-schema.org/draft-06/schema#",
        "oneOf": [{"$ref": "#/definitions/x", "required": ["b"], "properties": {"b": False}}, {"minProperties": 0}],
        "definitions": {"x": {"type": "object", "not": {"required": ["c"]}}},
    }
    validator = jsonschema.Draft6Validator(rewrite(schema, list(subschemas(schema))).schema)
    assert not validator.is_valid({})
    assert validator.is_valid({"c": 1})

    beside = {"$schema": DRAFTS[7], "$ref": "#/$defs/x", "not": S, "$defs": {"x": {}}}
    assert rewrite(beside, list(subschemas(beside))).schema == {key: beside[key] for key in beside if key != "not"}
