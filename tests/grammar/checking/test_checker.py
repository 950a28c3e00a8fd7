"""Where texts leave their constraints, and what is named as the cause."""

import json
from collections import Counter

import jsonschema
import pytest

import structout
from structout import GrammarError, StructuredOutputsConfig, StructuredOutputsParams, check
from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.grammar.checking.checker import Checker
from structout.grammar.checking.requirements import RelaxedSchema
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import BYTES
from support.corpus import CASES
from support.locations import CORPUS
from support.tokenizers_on_the_spot import byte_fallback, byte_level

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
BEGUN = '{"name":"","age":3,"tags":'
SUMS = 'root ::= sum\nsum ::= term ("+" term)*\nterm ::= num | "(" sum ")"\nnum ::= [0-9]+'
TAGS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "type": "tag",
                "begin": "<f=one>",
                "content": {"type": "json_schema", "json_schema": PERSON},
                "end": "</f>",
            },
            {"type": "tag", "begin": "<f=two>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</f>"},
        ],
    },
}


def checked(text, tokenizer=None, config=None, **params):
    return check(StructuredOutputsParams(**params), text, tokenizer, config=config)


def places(found):
    return [cause.place for cause in found.causes]


# -- schemas ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "allowed", "causes", "path"),
    [
        ('{"name": "Bo", "age": 130}', '{"name": "Bo", "age": 13', ["#/properties/age/maximum"], "/age"),
        ('{"name": "Bonnard"}', '{"name": "Bonna', ["#/properties/name/maxLength"], "/name"),
        ('{"name": 3}', '{"name": ', ["#/properties/name/type"], "/name"),
        ('{"name": "Bo", "age": 1.5}', '{"name": "Bo", "age": 1', ["#/properties/age/type"], "/age"),
        ('{"name": "Bo"}', '{"name": "Bo"', ["#/required"], "/name"),
        ('{"name":"","age":3,"x":1}', '{"name":"","age":3,"', ["#/additionalProperties"], ""),
        (f'{BEGUN}["a","c"]}}', f'{BEGUN}["a","', ["#/properties/tags/items/enum"], "/tags/1"),
        (f'{BEGUN}["a","b","a"]}}', f'{BEGUN}["a","b"', ["#/properties/tags/maxItems"], "/tags/1"),
        ('{"age": 3, "name": ""}', '{"', ["#/required", "key_order"], ""),
        ('{"name":    ""}', '{"name": ', ["whitespace"], "/name"),
        ("{'name'", "{", [""], ""),
        ('{"name":"","age":3}}', '{"name":"","age":3}', [""], ""),
    ],
)
def test_check_with_a_schema_names_the_keyword_that_forbids_the_next_byte(text, allowed, causes, path):
    found = checked(text, json=PERSON)
    assert (found.status, found.allowed_text, found.offset) == ("forbidden", allowed, len(allowed))
    assert (places(found), found.path) == (causes, path)


@pytest.mark.parametrize(
    ("pattern", "config", "message"),
    [
        (None, {}, 'max_whitespace="indent" allows a space, or a line feed'),
        (None, {"max_whitespace": 1}, "max_whitespace is 1 in the configuration: "),
        (None, {"any_whitespace": False}, 'any_whitespace=False allows one space after "," and ":", and no other'),
        (" ?", {}, 'whitespace between two tokens of JSON matches whitespace_pattern=" ?"'),
    ],
)
def test_check_of_an_indented_text_names_the_setting_that_refuses_it(pattern, config, message):
    text = json.dumps({"name": "Bo", "age": 3}, indent=2, separators=(",", " : "))
    params = StructuredOutputsParams(json=PERSON, whitespace_pattern=pattern)
    (cause,) = check(params, text, config=StructuredOutputsConfig(**config)).causes
    assert (cause.kind, cause.place) == ("option", "whitespace")
    assert cause.message.startswith(message)


def test_check_of_a_complete_text_names_no_cause():
    found = checked('{"name": "Bo", "age": 3}', json=PERSON)
    assert (found.status, found.is_complete, found.causes, found.completion) == ("complete", True, (), "")
    assert (found.offset, found.token_ids, found.token_index) == (24, None, None)


def test_check_of_an_incomplete_text_names_what_forbids_its_end():
    assert checked("12", json={"type": "number", "minimum": 100}).causes[0].place == "#/minimum"
    assert checked('{"a', json=True).causes == (structout.Cause("json", "", "the JSON text is not complete"),)
    found = checked("12", json={"oneOf": [{"type": "integer"}, {"minimum": 10}]})
    assert (found.status, places(found)) == ("incomplete", ["#/oneOf"])


@pytest.mark.parametrize("text", ['{"\\u0041": 1}', '{"a": 1, "a": 2}', "1.00000000000000000001"])
def test_check_of_json_that_is_not_written_so_says_so(text):
    assert checked(text, json=True).causes[0].message.startswith("this is JSON, but not as structout writes it")


def test_check_with_alternatives_names_a_cause_in_each():
    schema = {"anyOf": [{"const": "abc"}, {"const": "abd"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer"}}}
    assert places(checked('"abe"', json=schema)) == ["#/anyOf/0/const", "#/anyOf/1/const", "#/$defs/n/type"]


def test_check_with_any_json_object_names_its_type():
    found = checked("[1]", json_object=True)
    assert (found.offset, places(found)) == (0, ["#/type"])


def test_check_counts_bytes_lines_and_columns():
    found = checked('{\n  "é": "ü", 1}', json={"type": "object"}, config=StructuredOutputsConfig(max_whitespace=None))
    assert (found.offset, found.line, found.column) == (len('{\n  "é": "ü", '.encode()), 2, 13)
    assert found.as_dict()["column"] == 13


def test_check_lists_what_may_follow_and_the_shortest_way_to_the_end():
    found = checked('{"name": "Bo", "age": 13', json=PERSON)
    assert [(way.characters, way.example) for way in found.may_follow] == [
        (",", ',"tags":[]}'),
        ("}", "}"),
        ("newline space", "\n}"),
    ]
    assert (found.completion, found.may_end) == ("}", False)


def test_check_with_every_invalid_text_of_the_corpus_names_keywords_that_jsonschema_finds_violated():
    """A whole text is forbidden by the causes alone, in the opinion of another
    validator; and without any one of them the engine allows the byte."""
    kinds = Counter()
    for case in CASES:
        params = StructuredOutputsParams(json=case["schema"], key_order="any")
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            found = check(params, text)
            if test["valid"]:
                assert found.status == "complete", (case["name"], text, found.causes)
                continue
            assert found.status != "complete", (case["name"], text)
            kinds.update(cause.kind for cause in found.causes)
            kept = set(places(found))
            if {cause.kind for cause in found.causes} != {"keyword"} or any("/format" in place for place in kept):
                continue  # jsonschema checks few formats
            alone = RelaxedSchema(case["schema"], kept).value
            validator = jsonschema.validators.validator_for(alone, jsonschema.Draft202012Validator)(alone)
            assert not validator.is_valid(test["data"]), (case["name"], text, kept)
            for place in kept:
                rest = RelaxedSchema(case["schema"], kept - {place}).value
                assert goes_on(rest, found), (case["name"], text, kept, place)
    assert kinds["keyword"] > 100
    assert kinds["json"] + kinds["option"] + kinds["end"] < kinds["keyword"] / 10, kinds


def goes_on(schema, found):
    """Whether a schema allows what was forbidden: another byte, or the end."""
    constraint = Constraint(StructuredOutputOptions.JSON, json.dumps(schema), key_order="any")
    grammar = (
        NativeBackend.from_config(BYTES, StructuredOutputsConfig(max_whitespace=None), None).compile(constraint).grammar
    )
    steps = [*found.text.encode()[: found.offset + 1], *(BYTES.stop_token_ids if found.status == "incomplete" else ())]
    return grammar.accept_tokens("", steps)


# -- other constraints ------------------------------------------------------------


def test_check_with_a_grammar_names_the_rules_that_have_begun_and_what_they_expect():
    found = checked("1+(2;", grammar=SUMS)
    assert (found.status, found.offset, found.open_rules) == ("forbidden", 4, ("root", "sum", "term"))
    assert [(cause.kind, cause.place, cause.message) for cause in found.causes] == [
        ("rule", "term", "expects )"),
        ("rule", "sum", "expects +"),
        ("rule", "num", "expects 0-9"),
    ]
    assert [(way.rule, way.example) for way in found.may_follow] == [("term", ")"), ("sum", "+0)"), ("num", "0)")]
    assert found.completion == ")"


def test_check_with_every_grammar_of_the_corpus_gives_its_verdicts_and_ends_that_complete_texts():
    num_ends = 0
    for case in json.loads((CORPUS / "gbnf_cases.json").read_text()):
        params = StructuredOutputsParams(grammar="\n".join(case["grammar"]))
        try:
            checker = Checker(params)
        except GrammarError:  # it needs special tokens, or has no text
            continue
        for status, texts in (("complete", "texts"), ("incomplete", "prefixes"), ("forbidden", "others")):
            for text in (text for text in case.get(texts, ()) if isinstance(text, str)):
                found = checker.check(text)
                assert found.status == status, (case["name"], text)
                assert bool(found.causes) == (status != "complete"), (case["name"], text)
                for end in [found.completion, *(way.example for way in found.may_follow)]:
                    if end is not None and "\\x" not in end:  # it begins inside a character
                        assert checker.check(found.allowed_text + end).is_complete, (case["name"], text, end)
                        num_ends += 1
    assert num_ends > 300


def test_check_with_a_lexer_names_terminals():
    lark = 'start: item ("," item)*\nitem: NAME "=" NUM\nNAME: /[a-z]+/\nNUM: /[0-9]/\n%ignore / /'
    found = checked("a= 1 , b;", grammar=lark)
    assert (found.offset, found.open_rules) == (8, ("start", "item"))
    assert {cause.place: cause.message for cause in found.causes} == {"item": "expects =, space", "NAME": "expects a-z"}


def test_check_inside_ignored_text_names_the_statement():
    found = checked("1 #", grammar='start: N ("," N)*\nN: /[0-9]+/\n%ignore / *#[a-z]+#/')
    assert found.causes == (structout.Cause("rule", "%ignore", "expects a-z"),)


@pytest.mark.parametrize("tokenizer", [None, byte_level(), byte_fallback()])
def test_check_with_tags_names_the_tag_and_the_keyword_in_it(tokenizer):
    found = checked('hello <f=one>{"name":"Bo","age":130', tokenizer, structural_tag=TAGS)
    assert places(found) == ["#/format/tags/0/content/json_schema/properties/age/maximum"]
    assert found.causes[0].message == 'maximum is 120, in the tag "<f=one>"'
    assert (found.path, found.open_rules) == ("/age", ("#/format", "#/format/tags/0/content"))
    found = checked("hello <f=two>1x", tokenizer, structural_tag=TAGS)
    assert found.causes == (structout.Cause("format", "#/format/tags/1/content", 'expects 0-9, in the tag "<f=two>"'),)
    found = checked('<f=one>{"name":"Bo","age":13}</g>', tokenizer, structural_tag=TAGS)
    assert [(cause.place, cause.message) for cause in found.causes] == [
        ("#/format/tags/0/content", 'expects f, in the tag "<f=one>"')
    ]


def test_check_with_tools_reads_the_names_of_special_tokens_as_these():
    tool = {"type": "function", "function": {"name": "get", "parameters": PERSON}}
    found = checked(
        '<tool_call>\n{"name": "get", "arguments": {"name": "Bo", "age": 1}}\n</tool_call>', byte_level(), tools=[tool]
    )
    assert found.is_complete
    assert found.token_ids[0] == byte_level().convert_tokens_to_ids("<tool_call>")


def test_check_names_special_tokens_that_may_follow():
    found = checked("ab", byte_level(), grammar='root ::= "a" ("b" <|im_start|> [0-9] | "c")')
    assert [(way.characters, way.example) for way in found.may_follow] == [("<|im_start|>", "<|im_start|>0")]
    assert (found.status, found.completion) == ("incomplete", None)
    assert checked("ab<|im_start|>7", byte_level(), grammar='root ::= "ab" <|im_start|> [0-9]').is_complete


def test_check_with_choices_and_regular_expressions_says_what_is_left():
    assert checked("ya", choice=["yes", "no", "yet"]).causes[0].message == 'the choices left are "yes", "yet"'
    assert checked("yesterday", choice=["yes", "no"]).causes[0].kind == "end"
    found = checked("ABCd", regex=r"[A-Z]{3}-\p{L}+")
    assert (found.offset, places(found), found.completion) == (3, [r"[A-Z]{3}-\p{L}+"], "-A")
    assert checked("", regex="a+").status == "incomplete"
    assert checked("naïf", regex="naïve").offset == len("naï".encode())


# -- tokens -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_check_with_a_tokenizer_names_the_first_token_that_the_manager_refuses(make):
    tokenizer = make()
    text = '{"name": "Bo", "age": 130}'
    found = checked(text, tokenizer, json=PERSON)
    assert found.offset == 24
    params = StructuredOutputsParams(json=PERSON)
    with structout.StructuredOutputManager(tokenizer, len(tokenizer)) as manager:
        manager.add_request("a", params)
        manager.wait_ready("a")
        assert len(manager.validate_tokens("a", list(found.token_ids))) == found.token_index
        manager.accept_tokens("a", list(found.token_ids[: found.token_index]))
        mask = manager.grammar_bitmask(["a"]).to("cpu")
        assert structout.count_allowed(mask, len(tokenizer))[0] == found.num_allowed_tokens
    assert manager.vocabulary.text_of(found.token_ids) == text


def test_check_with_a_tokenizer_counts_the_tokens_that_are_still_needed_as_the_manager_does():
    tokenizer = byte_level()
    found = checked('{"name": "Bo", "age": 13', tokenizer, json=PERSON)
    with structout.StructuredOutputManager(tokenizer, len(tokenizer)) as manager:
        manager.add_request("a", StructuredOutputsParams(json=PERSON))
        manager.wait_ready("a")
        expected = [manager.num_needed("a")]
        for token in found.token_ids:
            manager.accept_tokens("a", [token])
            expected.append(manager.num_needed("a"))
    assert found.num_needed == tuple(expected)
    assert found.num_needed[-1] == 2  # the bracket and the stop token


def test_check_without_a_tokenizer_counts_no_tokens():
    assert checked("a", regex="a+").num_needed is None


def test_check_of_a_refused_constraint_raises():
    with pytest.raises(GrammarError, match="does not parse"):
        checked("a", regex="(")
    with pytest.raises(ValueError, match="lone surrogate at 1"):
        checked("a\ud800", regex="a+")


def test_check_names_the_option_that_closes_an_object():
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}
    closed = {"json": schema, "additional_properties": "closed"}
    found = checked('{"a": {"c": 1}}', **closed)
    assert (found.status, found.allowed_text, places(found)) == ("forbidden", '{"a": {"', ["additional_properties"])
    assert found.causes[0].message == 'additional_properties="closed" allows no keys that the schema does not name'
    assert checked('{"a": {"c": 1}}', json=schema).status == "complete"
    config = StructuredOutputsConfig(additional_properties="closed")
    assert places(check(StructuredOutputsParams(json=schema), '{"c": 1}', config=config)) == ["additional_properties"]
