"""JSON Schema on the engine: against ``jsonschema``, against its own masks, by laws and
by name.

``--full`` runs 1,000,000 pairs of a schema and a text, and 150,000 texts from masks.
"""

import json
import os
import random
import re

import pytest

from structout.grammar.native.extension import core
from structout.grammar.vocabulary import Vocabulary
from support import corpus, fresh_process
from support.engine_schemas import EngineSchema
from support.json_engine import BYTE_TOKENS, JsonEngine, refusal_of
from support.json_engine_checks import STYLES, Walker, check_texts, check_walks
from support.locations import TESTS
from support.mask_walks import NOT_ENDED
from support.soundness import Findings
from support.tokenizers_on_the_spot import byte_fallback, byte_level

ENGINE = JsonEngine()


def engine_over(tokenizer, vocab_size):
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    return JsonEngine(vocabulary.token_bytes, vocabulary.stop_token_ids[0])


def accepts(schema, text, engine=ENGINE):
    return engine.compile(schema).matches(text.encode())


def refusal(schema, engine=ENGINE):
    with pytest.raises((core().SchemaError, core().LimitError)) as error:
        engine.compile(schema)
    return refusal_of(error.value)


def over_seeds(check, num_seeds, **sizes):
    found = Findings()
    for seed in range(num_seeds):
        found.add(check(seed=seed, **sizes))
    return found


# -- random schemas --------------------------------------------------------------------


def test_text_is_accepted_if_and_only_if_jsonschema_finds_it_valid(num_cases):
    num_seeds = num_cases(2, long=100, full=520)
    found = over_seeds(lambda seed: check_texts(ENGINE, seed, num_schemas=100, num_texts=20), num_seeds)
    assert found.wrong == []
    counts = found.counts
    assert counts["valid accepted"] >= 600 * num_seeds
    assert counts["invalid refused"] >= 900 * num_seeds
    assert counts["limits while reading"] == counts["schemas refused: limit"] == 0


# -- texts from masks ------------------------------------------------------------------

ENGINES = {
    "bytes": (ENGINE, 300),
    "byte level": (engine_over(byte_level(), 525), 12),
    "byte fallback": (engine_over(byte_fallback(), 600), 12),
}


@pytest.mark.parametrize("vocabulary", ENGINES)
def test_text_drawn_from_masks_is_valid_and_ends(num_cases, vocabulary):
    engine, num_checked = ENGINES[vocabulary]
    num_seeds = num_cases(1, long=30, full=420)
    found = over_seeds(lambda seed: check_walks(engine, num_checked, seed, num_schemas=40, num_texts=3), num_seeds)
    assert found.wrong == []
    num_texts = sum(found.counts[f"texts, {style}"] for style in STYLES)
    assert num_texts >= 80 * num_seeds
    assert found.counts["not ended"] <= 0.01 * num_texts
    assert found.counts["limits while reading"] == 0


# -- by name ---------------------------------------------------------------------------


def test_string_at_the_top_is_complete_only_after_its_closing_quote():
    for schema in (True, {"type": "string"}, {"enum": ["a", "ab"]}):
        assert not accepts(schema, '"a')
        assert accepts(schema, '"a"')


def test_number_at_the_top_is_complete_without_a_closing_byte():
    assert accepts({"type": "integer"}, "12")
    assert not accepts({"type": "integer"}, "12.")
    assert not accepts({"minimum": 10}, "1")


def test_equal_alternatives_are_one_for_any_of_and_none_for_one_of():
    part = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    assert accepts({"anyOf": [part, part]}, '{"a":1}')
    assert not accepts({"anyOf": [part, part]}, '{"a":2}')
    assert refusal({"oneOf": [part, part]}) == "impossible"


def without_all(*types):
    """That some value has none of the types, once for each list of types."""
    return {
        "type": "object",
        "maxProperties": 1,
        "allOf": [{"not": {"additionalProperties": {"type": t}}} for t in types],
    }


def test_one_key_is_the_witness_of_two_demands():
    schema = without_all("string", "null")
    assert accepts(schema, '{"q":1}')
    assert not accepts(schema, '{"q":null}')
    assert not accepts(schema, '{"q":1,"r":2}')
    assert refusal(without_all(["string", "null"], ["number", "boolean", "array", "object"])) == "impossible"


def test_key_that_is_repeated_is_not_accepted():
    for schema in ({"minProperties": 2}, {}, {"properties": {"a": {}}}):
        assert not accepts(schema, '{"a":1,"a":1}')
        assert not accepts(schema, '{"a":1,"\\u0061":1}')
        assert accepts(schema, '{"a":1,"b":1}')


def test_anchors_inside_groups_hold_there():
    assert [accepts({"pattern": "^(?:^a|b$)"}, f'"{text}"') for text in ("ax", "b", "cb", "xb")] == [
        True,
        True,
        False,
        False,
    ]
    assert [accepts({"pattern": "(?:a|(?:^b))c"}, f'"{text}"') for text in ("xac", "bc", "xbc")] == [True, True, False]


def test_integer_has_no_fraction_and_no_exponent():
    for schema in ({"type": "integer"}, {"anyOf": [{"type": "integer"}, {"type": "number", "minimum": 9}]}):
        assert accepts(schema, "1")
        assert accepts(schema, "-20")
        assert not any(accepts(schema, text) for text in ("1.0", "1874332753628579500.0", "-0.0", "1.5", "-1e+16"))
    assert accepts({"type": ["integer", "number"]}, "1.0")
    assert accepts({"anyOf": [{"type": "integer"}, {"type": "number", "minimum": 9}]}, "10.0")
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}
    assert accepts(draft_4, "1")
    assert not accepts(draft_4, "1.0")
    assert accepts({"$schema": draft_4["$schema"], "not": draft_4}, "1.0")


def test_number_without_fraction_is_an_integer_where_that_is_negated_or_a_condition():
    integer = {"type": "integer"}
    assert not any(accepts({"not": integer}, text) for text in ("1", "1.0", "1e+16"))
    assert accepts({"not": integer}, "1.5")
    assert accepts({"not": integer}, "1e-05")
    condition = {"if": integer, "then": {"minimum": 5}}
    texts = ["4", "4.0", "5.0", "2.5", "1e+16", "-1e+16"]
    assert [accepts(condition, text) for text in texts] == [False, False, True, True, True, False]
    assert refusal({"allOf": [integer, {"not": integer}]}) == "impossible"
    one = {"oneOf": [integer, {"type": "number", "minimum": 3}]}
    assert [accepts(one, text) for text in ("1", "4", "4.0", "4.5", "1e+16")] == [True, False, False, True, False]


def test_integer_is_counted_and_excluded_however_it_is_written():
    counted = {"items": {"type": "number"}, "contains": {"type": "integer"}, "maxContains": 1, "minItems": 1}
    texts = ["[1,2.5]", "[1.0,2.5]", "[1.0,2]", "[1.0,2.0]", "[2.5]"]
    assert [accepts(counted, text) for text in texts] == [True, True, False, False, False]
    either = {"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "null"}}}]}
    texts = ['{"a":1.0,"b":1}', '{"a":1.0,"b":null}', '{"a":1.5,"b":1}', '{"a":1.5,"b":null}']
    assert [accepts(either, text) for text in texts] == [True, True, False, True]


def test_constant_and_multiple_have_a_fraction_only_if_the_schema_writes_it():
    whole = ({"const": 1}, {"enum": [1, 2.5]}, {"multipleOf": 1}, {"multipleOf": 0.5, "type": "integer"})
    for schema in whole:
        assert accepts(schema, "1")
        assert not accepts(schema, "1.0")
    for schema in ({"const": 1.0}, {"enum": [1.0]}, {"multipleOf": 0.5}, {"minimum": 1}, {"not": {"const": 2}}):
        assert [accepts(schema, text) for text in ("1", "1.0", "1.00")] == [True, True, False]


def test_number_has_17_digits_unless_the_schema_needs_more():
    for text, is_accepted in (("1" * 17, True), ("1" * 18, False), ("1.5" + "0" * 14 + "1", True), ("1.50", False)):
        assert accepts({"type": "number"}, text) is is_accepted
    assert accepts({}, "[0.30000000000000004,1000000000000000.0,0.0000001,1e-7]")
    assert accepts({}, "0." + "0" * 17 + "1")
    assert not accepts({}, "0." + "0" * 18)
    assert not accepts({}, "0." + "1" * 18)
    near = '{"minimum": 9007199254740993.25, "maximum": 9007199254740993.75}'
    texts = ["9007199254740993.24", "9007199254740993.25", "9007199254740993.5", "9007199254740994"]
    assert [accepts(near, text) for text in texts] == [False, True, True, False]
    between = '{"exclusiveMinimum": 123456789012345678, "exclusiveMaximum": 123456789012345679}'
    assert accepts(between, "123456789012345678.5")
    assert accepts({"minimum": 2**63, "maximum": 2**64, "type": "integer"}, str(2**64 - 1))
    assert accepts('{"multipleOf": 0.00000000000000000003}', "0.00000000000000000006")
    assert accepts('{"multipleOf": 1e30}', "7" + "0" * 30)
    places = {"properties": {"long": {"minimum": 2**64}, "free": {"type": "number"}}}
    assert accepts(places, '{"long":' + "2" * 20 + ',"free":1}')
    assert not accepts(places, '{"free":' + "2" * 20 + "}")


def test_number_of_large_or_small_magnitude_has_an_exponent_as_python_and_javascript_write_it():
    written = ["1e+16", "1.5e+300", "1e-05", "2.5e-7", "1e-07", "-1e+21", "1.2345678901234567e+30"]
    assert [text for text in written if not accepts({"type": "number"}, text)] == []
    others = ["1e16", "1E+16", "1e+15", "1e-04", "1e-4", "10e+16", "0e+16", "1.50e+16", "1e+308", "1e+400", "1e+016"]
    assert [text for text in others if accepts({"type": "number"}, text)] == []
    assert [accepts('{"const": 1e400}', text) for text in ("1e+400", "1e+399", "1" + "0" * 400)] == [True, False, False]
    assert accepts('{"const": 1e400, "type": "integer"}', "1" + "0" * 400)
    bounds = '{"exclusiveMinimum": -2e300, "maximum": 1.5e-9}'
    texts = [
        "-2e+300",
        "-1.9e+300",
        "-2e+299",
        "-1e+301",
        "1e-09",
        "1.5e-9",
        "1.6e-9",
        "1e-08",
        "0",
        "1e+16",
        "-1e-300",
    ]
    assert [accepts(bounds, text) for text in texts] == [
        *(False, True, True, False, True, True, False, False, True, False, True),
    ]
    assert not accepts({"multipleOf": 0.5}, "1e+16")
    assert not accepts({"not": {"multipleOf": 3}}, "1e+16")
    assert accepts({"items": {"type": "number"}, "uniqueItems": True}, "[1,2.5]")
    assert not accepts({"items": {"type": "number"}, "uniqueItems": True}, "[1e+16,1e-05]")


def test_declared_order_never_skips_a_required_key():
    engine = JsonEngine(declared=True)
    schema = {"properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": False}
    texts = ['{"a":1,"b":1}', '{"a":1}', '{"b":1,"a":1}', '{"b":1}', "{}"]
    assert [accepts(schema, text, engine) for text in texts] == [True, True, False, False, False]


def test_items_that_are_equal_but_spelled_differently_are_not_unique():
    equal = ['{"a":1,"b":2},{"b":2,"a":1}', "1,1.0", '{"a":1},{"a":1.0}', "[1],[1.00]", "0,-0", '"a","\\u0061"']
    equal += ['{"a":[1,{"b":2,"c":3}]},{"a":[1,{"c":3,"b":2}]}']
    for items in equal:
        assert not accepts({"uniqueItems": True}, f"[{items}]"), items
    for items in ("1,true", "0,false", "[],{}", '1,"1"', "[1,2],[2,1]"):
        assert accepts({"uniqueItems": True}, f"[{items}]"), items


IMPOSSIBLE = corpus.schemas("impossible")


def test_schema_that_is_not_utf_8_is_malformed():
    assert refusal(b'{"const": "\xff"}') == "malformed"
    assert refusal(b'{"properties": {"\xc3": {}}}') == "malformed"


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_schema_without_a_value_is_refused_as_impossible(name):
    assert refusal(IMPOSSIBLE[name]) == "impossible"


FINITE = corpus.schemas("finite")


@pytest.mark.parametrize("name", FINITE)
def test_walk_through_few_values_ends_and_has_no_dead_end(num_cases, name):
    rng = random.Random(name)
    index = ENGINE.compile(FINITE[name])
    walker = Walker(ENGINE, 300)
    num_walks, num_ended = num_cases(8, long=100), 0
    for _ in range(num_walks):
        text, problem = walker.draw(index, rng.choice(STYLES), rng, rng.choice([0, 10, 100]), [b"1"])
        assert problem in (None, NOT_ENDED), (text, problem)
        num_ended += problem is None
        if problem is None:
            json.loads(text)
    assert num_ended >= 0.9 * num_walks


def assert_can_only_end(schema, opening, parts, closing):
    """Check that only ``closing`` may follow a text with all ``parts``, in random
    order."""
    parts = random.Random(0).sample(parts, len(parts))
    walk = ENGINE.walk(ENGINE.compile(schema))
    for byte in (opening + ",".join(parts)).encode():
        assert walk.matcher.accept([byte])
    assert {BYTE_TOKENS[token] for token in walk.allowed()} - {b" ", b"\n", b"\r", b"\t"} == {closing}


def test_object_that_has_every_possible_key_can_only_end():
    for pattern, names in (("^a[0-9]$", [f"a{i}" for i in range(10)]), ("^[0-9]{2}$", [f"{i:02}" for i in range(100)])):
        for schema in (
            {"propertyNames": {"pattern": pattern}},
            {"patternProperties": {pattern: {}}, "additionalProperties": False},
        ):
            assert_can_only_end({"type": "object"} | schema, "{", [f'"{name}":null' for name in names], b"}")


def test_array_that_has_every_possible_item_can_only_end():
    schema = {"type": "array", "items": {"enum": [True, "a", None, "ab"]}, "uniqueItems": True}
    assert_can_only_end(schema, "[", ["null", '"a"', '"ab"', "true"], b"]")


def test_first_item_of_two_that_are_equal_forbids_a_token_with_the_second():
    engine = JsonEngine([*BYTE_TOKENS[:-1], b"[1,1]", b"1,1,", b",1", b'"a":1,"a"', b""])
    for schema, text, token in (
        ({"uniqueItems": True}, b"", b"[1,1]"),
        ({"uniqueItems": True}, b"[", b"1,1,"),
        ({"uniqueItems": True, "items": {"const": 1}}, b"[1", b",1"),
        ({"uniqueItems": True, "items": {"const": 1}}, b"[1", b","),
        ({}, b"{", b'"a":1,"a"'),
    ):
        walk = engine.walk(engine.compile(schema))
        assert walk.matcher.accept_bytes(text) or not text
        number = engine.token_bytes.index(token)
        assert not walk.accepts(number), (schema, token)
        assert number not in walk.allowed(), (schema, token)


def test_unique_item_that_would_use_up_what_must_follow_is_not_allowed():
    schema = {"type": "array", "prefixItems": [{"enum": [1, 2]}, {"const": 1}], "minItems": 2, "uniqueItems": True}
    assert accepts(schema, "[2,1]")
    walk = ENGINE.walk(ENGINE.compile(schema))
    assert walk.matcher.accept_bytes(b"[")
    assert {BYTE_TOKENS[token] for token in walk.allowed()} & {b"1", b"2"} == {b"2"}


# -- laws of Boolean algebra -----------------------------------------------------------


def assert_agree(first, second, texts):
    """Check that two schemas are refused alike, or accept the same texts.

    Returns:
        How many texts were compared: none where a limit was in the way.
    """
    indices, refusals = [], []
    for schema in (first, second):
        try:
            indices.append(ENGINE.compile(schema))
        except ValueError as error:
            refusals.append(refusal_of(error))
    if refusals:
        if set(refusals) == {"impossible"} and len(refusals) == 1:
            assert not any(indices[0].matches(text.encode()) for text in texts)
        return 0
    try:
        verdicts = [[index.matches(text.encode()) for text in texts] for index in indices]
    except core().LimitError:
        return 0
    assert verdicts[0] == verdicts[1], (json.dumps(first, default=float), json.dumps(second, default=float), texts)
    return len(texts)


def test_boolean_laws_hold(num_cases):
    rng = random.Random("laws")
    num_texts = 0
    for _ in range(num_cases(60, long=3000)):
        drawn, other = EngineSchema(rng), EngineSchema(rng)
        if any("$ref" in each.text or "$schema" in each.text or "unique" in each.text for each in (drawn, other)):
            continue  # a reference would lead elsewhere, and items under negated uniqueItems still differ
        a, b = json.loads(drawn.text), json.loads(other.text)
        texts = [*drawn.compact_texts(8), *other.compact_texts(8)]
        # How numbers like 5.0, 1e+20 and long ones are written depends on the schema.
        texts = [text for text in texts if not re.search(r"\.[0-9]*0\b|\.0|[0-9.]{16}|[0-9][eE]", text)]
        no = {"not": a}
        for first, second in (
            (a, {"not": no}),
            ({"not": {"anyOf": [a, b]}}, {"allOf": [no, {"not": b}]}),
            ({"not": {"allOf": [a, b]}}, {"anyOf": [no, {"not": b}]}),
            ({"oneOf": [a, b]}, {"anyOf": [{"allOf": [a, {"not": b}]}, {"allOf": [no, b]}]}),
            ({"if": a, "then": b, "else": False}, {"allOf": [a, b]}),
            ({"anyOf": [a, no]}, True),
        ):
            num_texts += assert_agree(first, second, texts)
        assert refusal({"allOf": [a, no]}) in ("impossible", "limit")
    assert num_texts > 300


def test_few_keys_may_refute_many_schemas():
    def without(*names):
        return {"propertyNames": {"not": {"enum": names}}}

    schema = {"type": "object", "not": {"anyOf": [without("1", "3"), without("2", "4"), without("1", "2")]}}
    for text, is_valid in (('{"1":0,"2":0}', True), ('{"2":0,"3":0}', True), ('{"3":0,"4":0}', False)):
        assert accepts({**schema, "maxProperties": 2}, text) == is_valid
    assert refusal({**schema, "maxProperties": 1}) == "impossible"


def test_array_that_needs_more_items_than_there_are_values_is_refused():
    few = FINITE["kinds"]
    assert accepts({**few, "minItems": 2}, '[{"kind":"ab"},{"kind":"a"}]')
    with pytest.raises(core().SchemaError, match="needs more items than there are values") as error:
        ENGINE.compile({"type": "object", "properties": {"a": {**few, "minItems": 3}}, "required": ["a"]})
    assert error.value.args[1:] == ("impossible", "#/properties/a/uniqueItems")


def test_array_that_must_contain_itself_is_impossible_also_under_unique_items():
    itself = {"$ref": "#/$defs/x"}
    for unique in (False, True):
        array = {"type": "array", "contains": itself, "uniqueItems": unique}
        assert refusal({**itself, "$defs": {"x": array}}) == "impossible"
        assert accepts({"not": itself, "$defs": {"x": array}}, "[[],1]")
        assert accepts({**itself, "$defs": {"x": {"anyOf": [array, {"const": 0}]}}}, "[1,[[0]]]")


# -- hostile schemas and texts ---------------------------------------------------------

# Expressions of a schema, as a value or as a text, and of a text.
HOSTILE = {
    "nested 10,000 deep": ("'{\"items\":' * 10_000 + '{}' + '}' * 10_000", "'[]'"),
    "nested 10,000 arrays": ("'[' * 10_000", "'[]'"),
    "not in not": ("'{\"not\":' * 500 + '{}' + '}' * 500", "'[]'"),
    "100,000 properties": ("{'properties': {f'k{i}': {'type': 'integer'} for i in range(100_000)}}", "'{\"k1\":1}'"),
    "100,000 required": ("{'type': 'object', 'required': [f'k{i}' for i in range(100_000)]}", "'{\"k1\":1}'"),
    "100,000 strings": ("{'enum': [f'value {i * 7919}' for i in range(100_000)]}", "'\"value 0\"'"),
    "100,000 numbers": ("{'enum': list(range(0, 700_000, 7))}", "'7'"),
    "20,000 objects": ("{'enum': [{'a': i, 'b': [i]} for i in range(20_000)]}", "'{\"a\":1'"),
    "1,000 alternatives": ("{'oneOf': [{'required': [f'k{i}']} for i in range(1_000)]}", "'{\"k1\":1}'"),
    "2^20 alternatives": (
        "{'$ref': '#/$defs/0', '$defs': {'20': {'type': 'string'}}"
        " | {'$defs': {str(i): {'oneOf': [{'$ref': f'#/$defs/{i + 1}'}] * 2 + [{'minLength': i}]} for i in range(20)}"
        " | {'20': {'type': 'string'}}}}",
        "'\"a\"'",
    ),
    "product of alternatives": (
        "{'allOf': [{'anyOf': [{'properties': {f'k{j}': {'type': ['string', 'integer', 'null'][(i + j) % 3]}},"
        " 'required': [f'k{j}']} for j in range(8)]} for i in range(20)]}",
        "'{}'",
    ),
    "pigeons": (
        "{'allOf': [{'anyOf': [{'required': [f'p{i}_{j}']} for j in range(8)]} for i in range(9)]"
        " + [{'not': {'required': [f'p{i}_{j}', f'p{k}_{j}']}} for j in range(8) for i in range(9) for k in range(i)]}",
        "'{}'",
    ),
    "product of patterns": ("{'allOf': [{'pattern': '(a|b)*a(a|b){%d}' % k} for k in range(3, 15)]}", "'\"aa\"'"),
    "product of multiples": ("{'allOf': [{'multipleOf': p} for p in (97, 89, 83, 79, 73, 71, 67, 61)]}", "'97'"),
    "huge pattern": ("{'pattern': '(a|b)*a(a|b){22}'}", "'\"a\"'"),
    "long pattern": ("{'pattern': 'abc' * 40_000}", "'\"a\"'"),
    "minLength": ("{'type': 'string', 'minLength': 10**9}", "'\"a\"'"),
    "maxLength": ("{'type': 'string', 'maxLength': 10**9}", "'\"a\"'"),
    "lengths and a pattern": ("{'type': 'string', 'minLength': 10**9 - 1, 'pattern': '^(ab)*$'}", "'\"a\"'"),
    "minItems": ("{'type': 'array', 'minItems': 10**9}", "'[1]'"),
    "unique minItems": ("{'type': 'array', 'minItems': 10**9, 'uniqueItems': True, 'items': {'enum': [1]}}", "'[1]'"),
    "minContains": ("{'type': 'array', 'contains': {'const': 1}, 'minContains': 10**9}", "'[1]'"),
    "minContains and maxItems": (
        "{'type': 'array', 'contains': {'const': 1}, 'minContains': 10**9, 'maxItems': 10**9}",
        "'[1]'",
    ),
    "minContains and maxContains": (
        "{'type': 'array', 'allOf': [{'contains': {'const': 1}, 'minContains': 10**9},"
        " {'contains': {'type': 'integer'}, 'maxContains': 2 * 10**8}]}",
        "'[1]'",
    ),
    "maxContains": ("{'type': 'array', 'contains': {'const': 1}, 'maxContains': 10**9}", "'[1]'"),
    "minProperties": ("{'type': 'object', 'minProperties': 10**9}", "'{}'"),
    "maxProperties": ("{'type': 'object', 'maxProperties': 10**9}", "'{}'"),
    "100,000 items": ("{'prefixItems': [{'type': 'integer'}] * 100_000, 'minItems': 100_000}", "'[1]'"),
    "exponents": ('\'{"multipleOf":1e999999999,"minLength":1e999999999}\'', "'1'"),
    "long number": ("'{\"minimum\":' + '9' * 1_000_000 + '}'", "'1'"),
    "chain of references": (
        "{'$ref': '#/$defs/0', '$defs': {str(i): {'$ref': f'#/$defs/{i + 1}'} for i in range(10_000)}}",
        "'1'",
    ),
    "chain of items": (
        "{'$ref': '#/$defs/0', '$defs': {str(i):"
        " {'type': 'array', 'minItems': 1, 'items': {'$ref': f'#/$defs/{i + 1}'}} for i in range(10_000)}"
        " | {'10000': {}}}",
        "'1'",
    ),
    "cycle of references": (
        "{'$ref': '#/$defs/a', '$defs': {'a': {'$ref': '#/$defs/b'}, 'b': {'$ref': '#/$defs/a'}}}",
        "'1'",
    ),
    "half a surrogate pair": ('\'{"const":"\\\\ud800"}\'', "'1'"),
    "deep text": ("True", "'[' * 1_000_000"),
    "deep text of a recursive schema": ("{'type': 'array', 'items': {'$ref': '#'}}", "'[' * 500_000 + ']' * 500_000"),
    "deep text of objects": ("True", "'{\"a\":' * 300_000 + '1'"),
    "long string in an object": ("True", "'{\"a\":\"' + 'x' * 1_000_000"),
    "long key": ("True", "'{\"' + 'x' * 1_000_000"),
    "many keys": ("True", "'{' + ','.join(f'\"k{i}\":1' for i in range(5_000)) + '}'"),
    "many items that differ": ("{'uniqueItems': True}", "'[' + ','.join(map(str, range(5_000))) + ']'"),
    "deep items that differ": ("{'uniqueItems': True}", "'[' + '[' * 10_000 + ']' * 10_000 + ']'"),
    "long number that differs": ("{'uniqueItems': True}", "'[' + '9' * 100_000 + ']'"),
}
MEASURE = """
import json, resource, sys, time
sys.path.insert(0, {tests!r})
from support.json_engine import JsonEngine
from structout.grammar.native.extension import core
engine = JsonEngine()
engine.compile({{"type": "string"}})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
schema, text = {schema}, {text}
seconds = []

def timed(call):
    start = time.thread_time()
    try:
        return call()
    except (core().SchemaError, core().LimitError):
        return None
    finally:
        seconds.append(time.thread_time() - start)

index = timed(lambda: engine.compile(schema))
if index is not None:
    timed(lambda: index.matches(text.encode()))
    timed(engine.walk(index).allowed)
del index
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schema_or_text_works_or_fails_at_a_limit_in_time_and_memory(name):
    """In a process of its own, which shows its peak of memory."""
    schema, text = HOSTILE[name]
    program = MEASURE.format(tests=str(TESTS), schema=schema, text=text)
    run = fresh_process.run("-c", program, env=dict(os.environ), timeout=120)
    assert run.returncode == 0, run.stderr[-2_000:]
    seconds, kilobytes = json.loads(run.stdout)
    assert max(seconds) < 1.5
    assert kilobytes < 512 << 10
