"""References of JSON schemas: identifiers, dynamic scopes, other documents, drafts."""

import json
import random
import urllib.parse

import jsonschema
import pytest

from structout import GrammarError, StructuredOutputManager, StructuredOutputsParams
from structout.constraints.metaschemas import metaschemas
from structout.errors import GrammarErrorKind, GrammarLimitError
from structout.grammar.native import json_schema
from structout.grammar.native.backend import NativeBackend
from structout.grammar.registry import check_params
from structout.grammar.vocabulary import Vocabulary
from support.json_engine import JsonEngine
from support.json_engine_checks import STYLES, Walker
from support.tokenizers_on_the_spot import byte_level

BACKEND = NativeBackend(Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,)))
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
DRAFT_2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
DRAFT_2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def compiled(schema, schemas=None):
    return BACKEND.compile_native(StructuredOutputsParams(json=schema, schemas=schemas, key_order="any").constraint())


def accepts(schema, value, schemas=None):
    return compiled(schema, schemas).matches(json.dumps(value, ensure_ascii=False))


def refusal(schema, schemas=None):
    with pytest.raises(GrammarError) as error:
        compiled(schema, schemas)
    return error.value


# -- dynamic references -------------------------------------------------------------


def list_of(name, anchored):
    """A resource that says what the items of the list "list" are."""
    anchor = {"$dynamicAnchor": "item"}
    return {"$id": name, "$ref": "list", "$defs": {"item": anchor | anchored}}


LISTS = {
    **DRAFT_2020,
    "$id": "http://t/root",
    "properties": {"numbers": {"$ref": "numbers"}, "words": {"$ref": "words"}, "any": {"$ref": "list"}},
    "$defs": {
        "list": {
            "$id": "list",
            "type": "array",
            "items": {"$dynamicRef": "#item"},
            "$defs": {"default": {"$dynamicAnchor": "item"}},
        },
        "numbers": list_of("numbers", INTEGER),
        "words": list_of("words", STRING),
    },
}


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ({"numbers": [1], "words": ["a"]}, True),
        ({"numbers": ["a"]}, False),
        ({"words": [1]}, False),
        ({"any": [1, "a", None]}, True),
        ({"any": [1], "numbers": [1]}, True),
    ],
)
def test_dynamic_reference_leads_to_the_outermost_anchor_of_its_own_path(value, is_valid):
    assert accepts(LISTS, value) == is_valid


def test_dynamic_reference_under_not_is_no_static_one():
    schema = LISTS | {"properties": {"numbers": {"not": {"$ref": "numbers"}}}}
    assert accepts(schema, {"numbers": ["a"]})
    assert not accepts(schema, {"numbers": [1]})


def strict_tree(root):
    tree = {"type": "object", "properties": {"data": True, "children": {"type": "array", "items": root}}}
    return {"tree": tree, "strict": {"$ref": "tree", "unevaluatedProperties": False}}


@pytest.mark.parametrize(
    ("draft", "anchor", "reference"),
    [
        (DRAFT_2020, {"$dynamicAnchor": "node"}, {"$dynamicRef": "#node"}),
        (DRAFT_2019, {"$recursiveAnchor": True}, {"$recursiveRef": "#"}),
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_extension_of_a_recursive_schema_holds_at_every_depth(draft, anchor, reference, is_open):
    trees = strict_tree(reference)
    schema = {**draft, "$id": "http://t/strict", **anchor, **trees["strict"]}
    if is_open:  # the base is named on its own
        schema = {**draft, "$id": "http://t/open", "$ref": "tree"}
    schema["$defs"] = {"tree": {"$id": "tree", **anchor, **trees["tree"]}}
    assert accepts(schema, {"children": [{"data": 1, "children": []}]})
    assert accepts(schema, {"children": [{"children": [{"daat": 1}]}]}) == is_open


@pytest.mark.parametrize("outer", [True, False, None])
@pytest.mark.parametrize("inner", [True, False, None])
def test_recursive_reference_needs_an_anchor_where_it_begins(outer, inner):
    def anchored(value, schema):
        return schema if value is None else schema | {"$recursiveAnchor": value}

    base = {"$id": "base", "properties": {"n": {"$recursiveRef": "#"}}}
    schema = {**DRAFT_2019, "$id": "http://t/o", "$defs": {"b": anchored(inner, base)}, "required": ["x"]}
    schema = anchored(outer, schema | {"properties": {"y": {"$ref": "base"}}})
    is_dynamic = bool(outer and inner)
    assert accepts(schema, {"x": 1, "y": {"n": {}}}) != is_dynamic
    assert accepts(schema, {"x": 1, "y": {"n": {"x": 1}}})


def test_recursive_reference_is_no_keyword_of_later_drafts():
    schema = {"properties": {"a": {"$recursiveRef": "#"}}, "required": ["a"]}
    assert accepts(DRAFT_2020 | schema, {"a": 1})
    assert not accepts(DRAFT_2019 | schema, {"a": {}})


def random_reference(rng, resources, own):
    """A reference that stands in a resource, to a schema that exists."""
    target = rng.choice(sorted(resources))
    anchors = resources[target]
    if anchors and rng.random() < 0.7:
        name = rng.choice(anchors)
        return {"$dynamicRef": f"{'' if target == own else target}#{name}"}  # jsonschema takes a $ref for dynamic too
    return {"$ref": rng.choice([target, f"{target}#/$defs/x"])}


def random_document(rng):
    """Resources with anchors of the same names, which refer to each other from their
    properties."""
    resources = {f"r{i}": rng.choice([[], ["m"], ["n"], ["m", "n"]]) for i in range(4)}
    document = {**DRAFT_2020, "$id": "http://t/root", "$defs": {}, "properties": {}}
    for i, (name, anchors) in enumerate(resources.items()):
        resource = {"$id": name, "$defs": {"x": {"enum": [i, {}]}}}
        for number, anchor in enumerate(anchors):
            if rng.random() < 0.3 and "$dynamicAnchor" not in resource:
                resource["$dynamicAnchor"] = anchor
            else:
                resource["$defs"][f"d{number}"] = {"$dynamicAnchor": anchor, "enum": [i, "s", {}]}
        resource["properties"] = {key: random_reference(rng, resources, name) for key in "ab"}
        if i + 1 < len(resources) and rng.random() < 0.4:
            resource["allOf"] = [{"$ref": f"r{rng.randrange(i + 1, len(resources))}"}]
        if rng.random() < 0.3:
            resource["$defs"]["x"] = {"properties": {"a": random_reference(rng, resources, name)}}
        document["$defs"][name] = resource
    for key in "ab":
        reference = random_reference(rng, resources, "root")
        document["properties"][key] = {"not": reference} if rng.random() < 0.2 else reference
    return document


def random_value(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([0, 1, 2, 3, "s", {}])
    return {key: random_value(rng, depth - 1) for key in "ab" if rng.random() < 0.7}


def test_references_between_resources_lead_where_jsonschema_follows_them(num_cases):
    rng = random.Random("resources")
    counts, num_limits = {True: 0, False: 0}, 0
    for _ in range(num_cases(60, long=3000)):
        document = random_document(rng)
        validator = jsonschema.Draft202012Validator(document)
        try:
            index = compiled(document)
        except GrammarLimitError:
            num_limits += 1
            continue
        for _ in range(20):
            value = random_value(rng, 4)
            is_valid = validator.is_valid(value)
            try:
                is_accepted = index.matches(json.dumps(value))
            except GrammarLimitError:
                num_limits += 1
                break
            assert is_accepted == is_valid, (document, value)
            counts[is_valid] += 1
    assert min(counts.values()) > sum(counts.values()) / 10
    assert num_limits < sum(counts.values()) / 1000


# -- identifiers --------------------------------------------------------------------


@pytest.mark.parametrize("keyword", ["x-schemas", "enum", "const", "default", "examples"])
def test_identifier_where_no_schema_stands_is_none(keyword):
    false_friend = {"$id": "http://t/a", "type": "string"}
    schema = {"$defs": {"x": {keyword: [false_friend]}, "y": {"$id": "http://t/a", "type": "integer"}}}
    schema["$ref"] = "http://t/a"
    assert accepts(schema, 1)
    assert not accepts(schema, "a")
    del schema["$defs"]["y"]
    assert refusal(schema).kind is GrammarErrorKind.UNSUPPORTED


def test_name_that_looks_like_a_keyword_is_no_identifier():
    schema = {"properties": {"$id": {"type": "string"}, "$ref": {"type": "integer"}, "const": {"$anchor": "c"}}}
    assert accepts({**schema, "$defs": {"a": {"$anchor": "a", "const": 1}}}, {"$id": "x", "$ref": 1})
    assert accepts({"properties": schema["properties"], "items": {"$ref": "#c"}}, [1])


@pytest.mark.parametrize(
    ("draft", "identified", "is_known"),
    [
        ("http://json-schema.org/draft-04/schema#", {"id": "http://t/a"}, True),
        ("http://json-schema.org/draft-04/schema#", {"$id": "http://t/a"}, False),
        ("http://json-schema.org/draft-06/schema#", {"id": "http://t/a"}, False),
        ("http://json-schema.org/draft-07/schema#", {"$id": "http://t/a"}, True),
        ("http://json-schema.org/draft-07/schema#", {"$id": "http://t/a", "$ref": "#/definitions/b"}, False),
        ("https://json-schema.org/draft/2019-09/schema", {"$id": "http://t/a"}, True),
        ("https://json-schema.org/draft/2020-12/schema", {"$id": "http://t/a", "$ref": "#/definitions/b"}, True),
        ("https://json-schema.org/draft/2020-12/schema", {"id": "http://t/a"}, False),
    ],
)
def test_identifier_counts_by_the_rules_of_its_draft(draft, identified, is_known):
    if "$ref" in identified and is_known:  # references are relative to the identifier
        identified = identified | {"definitions": {"b": INTEGER}}
    schema = {"$schema": draft, "items": {"$ref": "http://t/a"}, "definitions": {"a": INTEGER | identified, "b": {}}}
    if is_known:
        assert accepts(schema, [1])
        assert not accepts(schema, ["a"])
    else:
        assert "no schema is given for http://t/a" in str(refusal(schema))


@pytest.mark.parametrize(
    ("draft", "anchored", "is_known"),
    [
        ("http://json-schema.org/draft-04/schema#", {"id": "#a"}, True),
        ("http://json-schema.org/draft-07/schema#", {"$id": "#a"}, True),
        ("http://json-schema.org/draft-07/schema#", {"$anchor": "a"}, False),
        ("https://json-schema.org/draft/2019-09/schema", {"$anchor": "a"}, True),
        ("https://json-schema.org/draft/2019-09/schema", {"$dynamicAnchor": "a"}, False),
        ("https://json-schema.org/draft/2020-12/schema", {"$dynamicAnchor": "a"}, True),
        ("https://json-schema.org/draft/2020-12/schema", {"$id": "#a"}, False),
    ],
)
def test_anchor_counts_by_the_rules_of_its_draft(draft, anchored, is_known):
    schema = {"$schema": draft, "items": {"$ref": "#a"}, "definitions": {"x": INTEGER | anchored}}
    if is_known:
        assert accepts(schema, [1])
        assert not accepts(schema, ["a"])
    else:
        error = refusal(schema)
        assert (error.kind, error.pointer) == (GrammarErrorKind.MALFORMED, "#/items/$ref")


def test_identifier_of_several_schemas_is_refused_where_something_refers_to_it():
    schema = {"$defs": {str(i): {"$id": "http://t/a", "const": i} for i in range(2)}}
    assert accepts(schema, 5)
    assert "several schemas have this identifier" in str(refusal(schema | {"$ref": "http://t/a"}))
    schema["$defs"]["1"] = dict(schema["$defs"]["0"])
    assert accepts(schema | {"$ref": "http://t/a"}, 0)


def test_reference_into_an_unknown_keyword_finds_a_schema_with_its_own_base():
    inner = {"$id": "http://t/inner/", "items": {"$ref": "leaf"}, "$defs": {"leaf": {"$id": "leaf"} | INTEGER}}
    schema = {"$ref": "#/components/a", "components": {"a": inner}}
    assert accepts(schema, [1])
    assert not accepts(schema, ["a"])


@pytest.mark.parametrize("base", ["http://a/b/c/d;p?q", "http://a", "urn:x:y", "file:///a/b"])
def test_relative_reference_is_resolved_as_rfc_3986_says(base):
    relative = "g ./g g/ /g //g ?y g?y ;x g;x . ./ .. ../ ../g ../.. ../../g /./g /../g g. g.. ..g ./../g g/./h g/../h"
    for reference in relative.split():
        if base.startswith("urn:") and not reference.startswith("/"):
            continue  # nothing but such URIs has no slash before its path
        resolved = urllib.parse.urljoin(base, reference)
        schema = {"$id": base, "$defs": {"a": {"$id": resolved, "const": 1}}, "items": {"$ref": reference}}
        assert accepts(schema, [1]), (reference, resolved)
        assert not accepts(schema, [2]), (reference, resolved)


@pytest.mark.parametrize("reference", ["http://t/nowhere", "other.json", "#nowhere", "#/$defs/nowhere", "#/a/-1"])
def test_reference_to_nothing_is_refused_with_its_pointer(reference):
    error = refusal({"properties": {"a": {"$ref": reference}}})
    assert error.pointer == "#/properties/a/$ref"
    assert f"cannot follow the reference {reference}" in str(error)


@pytest.mark.parametrize(
    "keyword", ["properties", "patternProperties", "dependencies", "dependentRequired", "dependentSchemas"]
)
def test_malformed_keyword_that_only_an_anchor_leads_to_is_refused(keyword):
    schema = {"$ref": "#a", "$defs": {"a": {"$anchor": "a", "allOf": [{keyword: [{}, "a"]}]}}}
    error = refusal(schema)
    assert (error.kind, error.pointer) == (GrammarErrorKind.MALFORMED, f"#/$defs/a/allOf/0/{keyword}")
    assert accepts(DRAFT_7 | {"$ref": "#/definitions/a", keyword: [{}, "a"], "definitions": {"a": {}}}, {"a": 1})


# -- other documents ----------------------------------------------------------------

ITEM = {"$id": "http://t/item.json", "type": "object", "properties": {"next": {"$ref": "list.json"}}}
LIST = {"type": "array", "items": {"$ref": "http://t/item.json"}}
ADDRESS = {"$defs": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "any": {"$anchor": "any"}}}


def test_schema_refers_to_other_documents_and_they_to_each_other():
    schemas = {"http://t/list.json": LIST, "http://t/item.json#": json.dumps(ITEM)}
    schema = {"$ref": "http://t/list.json"}
    assert accepts(schema, [{"next": [{}]}], schemas)
    assert not accepts(schema, [{"next": [1]}], schemas)
    assert not accepts({"not": schema}, [{"next": [{}]}], schemas)


def test_fragments_of_other_documents_are_found():
    schemas = {"http://t/address": ADDRESS, "urn:x:flag": True}
    schema = {"prefixItems": [{"$ref": "http://t/address#/$defs/zip"}, {"$ref": "http://t/address#any"}]}
    assert accepts(schema, ["01234", 1], schemas)
    assert not accepts(schema, ["0123"], schemas)
    assert accepts({"$ref": "urn:x:flag"}, 1, schemas)


def test_document_that_nothing_refers_to_is_not_read():
    assert accepts(INTEGER, 1, {"http://t/a": {"$ref": "http://t/nowhere"}})
    assert "http://t/a#/$ref" in str(refusal({"$ref": "http://t/a"}, {"http://t/a": {"$ref": "http://t/nowhere"}}))


def test_each_document_is_read_by_its_own_draft():
    old = DRAFT_7 | {"type": "array", "prefixItems": [STRING], "items": [INTEGER]}
    assert accepts({"$ref": "http://t/old"}, [1], {"http://t/old": old})
    assert not accepts({"$ref": "http://t/old"}, ["a"], {"http://t/old": old})
    new = DRAFT_2020 | {"type": "array", "prefixItems": [STRING]}
    assert accepts(DRAFT_7 | {"items": {"$ref": "http://t/new"}}, [["a"]], {"http://t/new": new})
    assert not accepts(DRAFT_7 | {"items": {"$ref": "http://t/new"}}, [[1]], {"http://t/new": new})


def test_document_without_a_draft_has_that_of_the_schema():
    document = {"dependentRequired": {"a": ["b"]}}
    assert accepts(DRAFT_7 | {"items": {"$ref": "http://t/a"}}, [{"a": 1}], {"http://t/a": document})
    assert not accepts({"items": {"$ref": "http://t/a"}}, [{"a": 1}], {"http://t/a": document})


VOCABULARY = "https://json-schema.org/draft/2020-12/vocab/"


def test_metaschema_among_the_documents_tells_the_draft():
    schemas = {"http://t/meta": DRAFT_7}
    assert accepts({"$schema": "http://t/meta", "dependentRequired": {"a": ["b"]}}, {"a": 1}, schemas)
    assert not accepts({"$schema": "http://t/meta", "dependencies": {"a": ["b"]}}, {"a": 1}, schemas)


@pytest.mark.parametrize(
    ("vocabularies", "is_valid"),
    [
        ("applicator unevaluated validation", (True, False, False, False)),
        ("applicator unevaluated", (True, False, True, True)),
        ("applicator validation", (True, True, False, False)),
        ("unevaluated validation", (False, False, True, False)),
        ("", (True, True, True, True)),
    ],
)
def test_keyword_of_a_vocabulary_that_the_metaschema_leaves_out_constrains_nothing(vocabularies, is_valid):
    meta = DRAFT_2020 | {"$vocabulary": {VOCABULARY + name: True for name in vocabularies.split()}}
    properties = {"a": {"minimum": 2}, "$id": {"const": {"minimum": 1}}}
    schema = {"minProperties": 1, "required": ["a"], "properties": properties, "unevaluatedProperties": False}
    instances = [{"a": 2}, {"a": 2, "b": 1}, {"a": 1}, {}]
    if "applicator" not in vocabularies and vocabularies:  # without `properties` no key is evaluated
        schema["unevaluatedProperties"] = {"minimum": 3}
        instances = [{"a": 2}, {"a": 2, "b": 1}, {"a": 3, "b": 3}, {}]
    index = compiled({"$schema": "http://t/meta", **schema}, {"http://t/meta": meta})
    assert tuple(index.matches(json.dumps(instance)) for instance in instances) == is_valid


def test_unknown_vocabulary_is_refused_if_it_is_required():
    def schemas(is_required):
        known = dict.fromkeys([VOCABULARY + name for name in ("applicator", "unevaluated", "validation")], True)
        return {"http://t/meta": DRAFT_2020 | {"$vocabulary": known | {"http://t/vocabulary": is_required}}}

    schema = {"$schema": "http://t/meta", "minimum": 2}
    assert not accepts(schema, 1, schemas(is_required=False))
    assert "unknown vocabulary http://t/vocabulary" in str(refusal(schema, schemas(is_required=True)))


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        ([ITEM], "schemas must be a dict from URIs to JSON schemas, got list"),
        ({"list.json": LIST}, "must be absolute and have no fragment, got 'list.json'"),
        ({"http://t/a#b": LIST}, "must be absolute and have no fragment, got 'http://t/a#b'"),
        ({5: LIST}, "must be absolute and have no fragment, got 5"),
        ({"http://t/a": 5}, "the schema http://t/a: a JSON schema must be an object or a boolean, got int"),
        ({"http://t/a": "{"}, "the schema http://t/a: the JSON schema is not JSON"),
        ({"http://t/a": {"const": "\ud800"}}, "the schema http://t/a: .* lone surrogate"),
    ],
)
def test_bad_schemas_are_refused_by_message(schemas, message):
    with pytest.raises(GrammarError, match=message):
        StructuredOutputsParams(json={}, schemas=schemas).validate()


def test_malformed_keyword_in_another_document_is_refused_where_a_reference_leads_to_it():
    schemas = {"http://t/a": {"$defs": {"b": {"properties": 5}}}}
    error = refusal({"items": {"$ref": "http://t/a#/$defs/b"}}, schemas)
    assert error.kind is GrammarErrorKind.MALFORMED
    assert str(error) == "http://t/a#/$defs/b/properties: must be object, got number"
    assert accepts({"items": {"$ref": "http://t/a"}}, [1], schemas)


def test_schemas_count_against_the_limits():
    with pytest.raises(GrammarLimitError, match="spec_bytes"):
        StructuredOutputsParams(json={}, schemas={f"http://t/{i}": {"const": "a" * (3 << 20)} for i in "ab"}).validate()


def test_schemas_apply_to_json_only():
    with pytest.raises(GrammarError, match="schemas apply to json only, got a regex constraint"):
        StructuredOutputsParams(regex="a", schemas={"http://t/a": {}}).validate()


def test_schemas_are_part_of_what_a_manager_compiles():
    tokenizer = byte_level()
    with StructuredOutputManager(tokenizer, vocab_size=len(tokenizer)) as manager:
        for request_id, target in (("numbers", INTEGER), ("words", STRING)):
            params = StructuredOutputsParams(json={"$ref": "http://t/a"}, schemas={"http://t/a": target})
            manager.add_request(request_id, params)
            manager.wait_ready(request_id)
            assert params.validate() is None
            assert check_params(params) == ()
        number = tokenizer.encode("7")
        assert manager.validate_tokens("numbers", number) == number
        assert manager.validate_tokens("words", number) == []


# -- the drafts' own schemas --------------------------------------------------------

DRAFTS = {
    "http://json-schema.org/draft-03/schema": jsonschema.Draft3Validator,
    "http://json-schema.org/draft-04/schema": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
SCHEMAS = [
    *({}, True, [], 5, {"type": "integer"}, {"type": 5}, {"type": "word"}, {"type": ["string", "string"]}),
    *({"minLength": 1}, {"minLength": -1}, {"minLength": 1.5}, {"minimum": "a"}, {"enum": 5}, {"enum": []}),
    *({"properties": {"a": {"properties": 5}}}, {"properties": {"a": {"properties": {}}}}, {"items": {"items": 5}}),
    *({"allOf": []}, {"allOf": [{"type": 5}]}, {"anyOf": [{}]}, {"required": ["a"]}, {"required": True}),
    *({"not": {"maximum": "a"}}, {"dependencies": {"a": ["b", "b"]}}, {"dependencies": {"a": {"type": 5}}}),
    *({"$defs": {"a": {"type": 5}}}, {"definitions": {"a": {"type": 5}}}, {"unevaluatedItems": {"type": 5}}),
    *({"dependentSchemas": {"a": 5}}, {"$anchor": "a b"}, {"$id": "a#b"}, {"contains": 5}, {"if": {"then": 5}}),
    *({"exclusiveMinimum": True}, {"exclusiveMinimum": 1}, {"extends": {"type": 5}}, {"divisibleBy": 0}),
]


@pytest.mark.parametrize("uri", DRAFTS)
def test_schema_of_a_draft_accepts_the_schemas_that_jsonschema_finds_valid(uri):
    validator = DRAFTS[uri](DRAFTS[uri].META_SCHEMA)
    index = compiled({"$schema": uri, "allOf": [{"$ref": uri}], "extends": {"$ref": uri}})
    verdicts = [validator.is_valid(schema) for schema in SCHEMAS]
    assert len({*verdicts}) == 2
    for schema, is_valid in zip(SCHEMAS, verdicts, strict=True):
        if isinstance(schema, dict) and any(type(value) is float for value in schema.values()):
            continue
        assert index.matches(json.dumps(schema)) == is_valid, schema


@pytest.mark.parametrize("uri", sorted(metaschemas()))
def test_document_of_a_draft_is_a_schema_of_its_draft(uri):
    document = json.loads(metaschemas()[uri])
    assert accepts({"$ref": document["$schema"]}, document)


@pytest.mark.parametrize("uri", DRAFTS)
def test_schema_of_a_draft_asks_for_regular_expressions(uri):
    schema = {"$schema": uri, "$ref": uri, "extends": {"$ref": uri}}
    assert accepts(schema, {"pattern": "^(a|b)*$"})
    assert not accepts(schema, {"pattern": "("})


def test_texts_drawn_for_a_recursive_document_are_valid(num_cases):
    rng = random.Random("drawn")
    walker = Walker(JsonEngine(), num_checked=8)
    schemas = [{"$schema": uri, "allOf": [{"$ref": uri}], "extends": {"$ref": uri}} for uri in DRAFTS]
    schemas += [LISTS | {"required": ["numbers", "words"]}, CONTAINS_EITHER]
    for schema in schemas * num_cases(1, long=10):
        validator = DRAFTS[schema.get("$schema", DRAFT_2020["$schema"])](schema)
        index = compiled(schema).native
        for style in STYLES:
            text, problem = walker.draw(index, style, rng, 60)
            assert problem in (None, "not ended"), (schema, text, problem)
            assert problem or validator.is_valid(json.loads(text)), (schema, text)


def test_schema_of_a_draft_may_be_extended_by_its_dynamic_anchor():
    schema = {
        **DRAFT_2020,
        "$id": "http://t/strict",
        "$dynamicAnchor": "meta",
        "$ref": DRAFT_2020["$schema"],
        "unevaluatedProperties": False,
    }
    assert accepts(schema, {"properties": {"a": {"type": "integer"}}})
    assert not accepts(schema, {"properties": {"a": {"tpye": "integer"}}})


def test_files_of_the_metaschemas_are_read_for_those_that_refer_to_them_only(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(json_schema, "metaschemas", None)
        compiled(DRAFT_2020)
        for keyword in ("$ref", "$dynamicRef"):
            schema = {"items": {keyword: DRAFT_2020["$schema"]}}
            with pytest.raises(TypeError, match="not callable"):
                compiled(schema)
            with pytest.raises(TypeError, match="not callable"):
                compiled({"$ref": "http://t/other"}, {"http://t/other": schema})
    assert {*DRAFTS} < {*metaschemas()}


# -- keywords -----------------------------------------------------------------------


def test_dependencies_under_not_hold_for_validators_that_read_them_and_those_that_do_not():
    dependencies = {"dependencies": {"a": ["b"]}}
    assert not accepts(DRAFT_2020 | dependencies, {"a": 1})
    assert refusal(DRAFT_2020 | {"not": dependencies}).kind is GrammarErrorKind.IMPOSSIBLE
    assert accepts(DRAFT_7 | {"not": dependencies}, {"a": 1})
    schema = DRAFT_2020 | {"oneOf": [dependencies, {"required": ["c"]}]}
    assert accepts(schema, {"a": 1, "b": 1})
    assert not accepts(schema, {"a": 1, "c": 1})  # valid where dependencies count
    assert not accepts(schema, {"a": 1})  # valid where they do not


def test_no_engine_reads_dependencies_under_not_in_drafts_without_them():
    params = StructuredOutputsParams(json=DRAFT_2020 | {"not": {"dependencies": {"a": ["b"]}}})
    with pytest.raises(GrammarError, match="allows no text at all"):
        check_params(params)


CONTAINS_EITHER = {
    "type": "array",
    "if": {"contains": {"const": "a"}},
    "then": {"if": {"contains": {"const": "b"}}, "then": {"if": {"contains": {"const": "c"}}}},
    "unevaluatedItems": False,
}


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", "b", "ac", "ad", "cb"])
def test_contains_under_a_condition_evaluates_items(text):
    instance = [*text]
    is_valid = jsonschema.Draft202012Validator(CONTAINS_EITHER).is_valid(instance)
    assert accepts(CONTAINS_EITHER, instance) == is_valid
    assert accepts({"type": "array", "not": CONTAINS_EITHER}, instance) == (not is_valid)


def test_contains_in_alternatives_evaluates_items_as_jsonschema_finds(num_cases):
    rng = random.Random("contains")
    for _ in range(num_cases(100, long=2000)):
        branches = [{"contains": {"enum": rng.sample([0, 1, 2], 2)}, "maxContains": rng.randrange(1, 3)} for _ in "ab"]
        prefix = {"prefixItems": [{"const": rng.randrange(3)}]} if rng.random() < 0.5 else {}
        schema = {"type": "array", rng.choice(["anyOf", "oneOf"]): [*branches, prefix], "unevaluatedItems": False}
        if rng.random() < 0.3:
            schema["unevaluatedItems"] = {"const": 3}
        index = compiled(schema)
        validator = jsonschema.Draft202012Validator(schema)
        for _ in range(20):
            instance = [rng.randrange(4) for _ in range(rng.randrange(4))]
            assert index.matches(json.dumps(instance)) == validator.is_valid(instance), (schema, instance)


def test_constants_and_names_may_contain_nul():
    schema = {"properties": {"a\0b": {"enum": ["\0", "c"]}}, "required": ["a\0b"], "additionalProperties": False}
    assert accepts(schema, {"a\0b": "\0"})
    assert not accepts(schema, {"a": "\0"})
    assert not accepts(schema, {"a\0b": ""})
    assert accepts({"const": {"\0": ["\0"]}}, {"\0": ["\0"]})
    assert accepts({"type": "string", "pattern": "^a\0$"}, "a\0")
    assert not accepts({"type": "string", "pattern": "^a\0$"}, "a")


@pytest.mark.parametrize(
    ("items", "count"),
    [
        ({"enum": [1, 2, 2]}, "2 values"),
        ({"const": 1}, "1 value"),
        ({"type": ["boolean", "null"]}, "3 values"),
        ({"type": "integer", "minimum": 3, "maximum": 1000}, "998 values"),
    ],
)
def test_array_of_more_different_items_than_values_is_refused_with_their_number(items, count):
    least = int(count.split()[0]) + 1
    array = {"type": "array", "items": items, "uniqueItems": True, "minItems": least}
    message = f"minItems asks for {least:,} different items, and items allows only {count}"
    params = StructuredOutputsParams(json={"type": "object", "properties": {"a": array}, "required": ["a"]})
    with pytest.raises(GrammarError, match=message) as error:
        check_params(params)
    assert (error.value.kind, error.value.pointer) == (GrammarErrorKind.IMPOSSIBLE, "#/properties/a/uniqueItems")
    check_params(StructuredOutputsParams(json=array | {"minItems": least - 1}))


@pytest.mark.parametrize(
    "defs",
    [
        {"x": {"allOf": [{"$ref": "#/$defs/x"}, INTEGER]}},
        {"x": {"$ref": "#/$defs/y"}, "y": {"type": "integer", "allOf": [True, {"$ref": "#/$defs/x"}]}},
    ],
)
def test_value_whose_schema_always_refers_to_itself_never_comes(defs):
    schema = {"properties": {"a": {"$ref": "#/$defs/x"}, "b": INTEGER}, "$defs": defs}
    assert accepts(schema, {"b": 1})
    assert not accepts(schema, {"a": 1})
    either = {"anyOf": [{"$ref": "#/$defs/x"}, STRING], "$defs": defs}
    assert accepts(either, "s")
    assert not accepts(either, 1)
    assert "refers to itself" in str(refusal(schema | {"type": "object", "required": ["a"]}))


def test_schema_that_may_refer_to_itself_for_the_same_value_is_malformed():
    schema = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"anyOf": [INTEGER, {"$ref": "#/$defs/x"}]}}}
    assert "refers to itself" in str(refusal(schema))
