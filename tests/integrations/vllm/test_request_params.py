"""vLLM's requests as structout's: what a client, an operator and a parser say about
them."""

import json

import pytest

pytest.importorskip("vllm")

from tokenizers import AddedToken
from vllm import SamplingParams
from vllm.config import StructuredOutputsConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.vllm import hooks, request_params
from support.tokenizers_on_the_spot import byte_level, with_tokens

VALUE = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
CALL = {
    "type": "tag",
    "begin": '<tool_call>\n{"name": "f", "arguments": ',
    "content": {"type": "json_schema", "json_schema": VALUE},
    "end": "}\n</tool_call>",
}
TAG = json.dumps(
    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [CALL]}}
)


class ModelConfig:
    is_diffusion = False


@pytest.fixture(scope="module")
def tokenizer():
    return with_tokens(byte_level(), [AddedToken("<think>"), AddedToken("</think>")])


def taken(tokenizer, constraint, *texts, config=None, sampling=None):
    """Which of the texts a request may have as a whole."""
    config = config or StructuredOutputsConfig()
    params = request_params.params_of(constraint, config, tokenizer, sampling)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    backend = NativeBackend.from_config(vocabulary, request_params.manager_config(config), None)
    grammar = backend.compile(params.constraint()).grammar

    def takes(text):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return grammar.copy().accept_tokens("", [*tokens, *vocabulary.stop_token_ids])

    return [takes(text) for text in texts]


def validated(tokenizer, config, **constraint):
    """The constraint as vLLM's frontend leaves it."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    request_params.validating(vllms_own_validation())(params, ModelConfig(), config, tokenizer)
    return params.structured_outputs


def vllms_own_validation():
    """What the hook replaces, whether it is in place or not."""
    name = "_validate_structured_outputs"
    replaced = (original for hook, original in hooks._originals.items() if hook.attribute == name)
    return next(replaced, getattr(SamplingParams, name))


def test_the_order_of_keys_is_the_operators_unless_a_request_has_one(tokenizer, monkeypatch):
    constraint = StructuredOutputsParams(json=VALUE)
    texts = ('{"a": 1, "b": "x"}', '{"b": "x", "a": 1}')
    any_order = SamplingParams(extra_args={"structout_key_order": "any"})
    declared = SamplingParams(extra_args={"structout_key_order": "declared"})
    assert taken(tokenizer, constraint, *texts) == [True, False]
    assert taken(tokenizer, constraint, *texts, sampling=any_order) == [True, True]
    monkeypatch.setenv("STRUCTOUT_KEY_ORDER", "any")
    assert taken(tokenizer, constraint, *texts) == [True, True]
    assert taken(tokenizer, constraint, *texts, sampling=declared) == [True, False]
    call = CALL["begin"] + texts[1] + CALL["end"]
    assert taken(tokenizer, StructuredOutputsParams(structural_tag=TAG), call) == [True]


def test_additional_properties_are_disabled_by_the_operator_or_a_request(tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    texts = ('{"a": 1}', '{"b": 1}')
    closed = StructuredOutputsConfig(backend="guidance", disable_additional_properties=True)
    assert taken(tokenizer, StructuredOutputsParams(json=schema), *texts) == [True, True]
    assert taken(tokenizer, StructuredOutputsParams(json=schema), *texts, config=closed) == [True, False]
    asking = StructuredOutputsParams(json=schema, disable_additional_properties=True)
    assert taken(tokenizer, asking, *texts) == [True, False]
    in_tag = {"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": schema}, "end": ">"}
    tag = json.dumps({"type": "structural_tag", "format": in_tag})
    asking = StructuredOutputsParams(structural_tag=tag, disable_additional_properties=True)
    assert taken(tokenizer, asking, '<{"a": 1}>', '<{"b": 1}>') == [True, False]
    others = {"regex": "a"}, {"choice": ["a"]}, {"json_object": True}
    for other in others:  # vLLM ignores it there
        validated(tokenizer, StructuredOutputsConfig(), **other, disable_additional_properties=True)


def test_whitespace_and_the_deadline_are_the_operators(tokenizer, monkeypatch):
    constraint = StructuredOutputsParams(json=VALUE)
    texts = ('{"a": 1}', '{"a":  1}', '{"a":   1}')
    assert taken(tokenizer, constraint, *texts) == [True, False, False]
    compact = StructuredOutputsConfig(disable_any_whitespace=True, backend="xgrammar")
    assert taken(tokenizer, constraint, *texts[1:], config=compact) == [False, False]
    monkeypatch.setenv("STRUCTOUT_MAX_WHITESPACE", "3")
    monkeypatch.setenv("STRUCTOUT_COMPILE_TIMEOUT", "2.5")
    assert taken(tokenizer, constraint, *texts) == [True, True, True]
    assert request_params.manager_config(StructuredOutputsConfig()).compile_timeout == 2.5


@pytest.mark.parametrize("backend", ["auto", "xgrammar", "guidance"])
def test_lark_is_taken_by_every_backend(tokenizer, backend):
    config = StructuredOutputsConfig(backend=backend)
    assert validated(tokenizer, config, grammar='start: "id=" NUMBER\nNUMBER: /[0-9]+/')._backend_was_auto is (
        backend == "auto"
    )
    with pytest.raises(VLLMValidationError):
        validated(tokenizer, config, grammar='start: "id=" MISSING')


@pytest.mark.parametrize(
    ("config", "message"),
    [("xgrammar", "vLLM's own message"), ("guidance", "lookbehind is not"), ("auto", "lookbehind is not")],
)
def test_constraint_is_validated_by_the_engine_that_vllm_is_configured_with(tokenizer, config, message):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(?<=a)b"))

    def refuse(*_):
        raise VLLMValidationError("vLLM's own message")

    with pytest.raises(VLLMValidationError, match=message):
        request_params.validating(refuse)(params, ModelConfig(), StructuredOutputsConfig(backend=config), tokenizer)


@pytest.mark.parametrize(
    ("constraint", "backend"),
    [
        ({"regex": "a"}, "xgrammar"),
        ({"grammar": 'root ::= "a"'}, "xgrammar"),
        ({"grammar": 'start: "a"'}, "auto"),
        ({"json": VALUE, "whitespace_pattern": " ?"}, "auto"),
    ],
    ids=str,
)
def test_lark_and_whitespace_patterns_go_to_the_own_engine_where_vllm_names_xgrammar(tokenizer, constraint, backend):
    config = StructuredOutputsConfig(backend="xgrammar")
    params = request_params.params_of(StructuredOutputsParams(**constraint), config, tokenizer)
    assert params.backend == backend


def test_a_limit_below_the_shortest_text_is_refused_with_the_number_it_needs(tokenizer):
    def validate(**options):
        constraint = StructuredOutputsParams(choice=["abc" * 9, "abd" * 8])
        params = SamplingParams(structured_outputs=constraint, **options)
        request_params.validating(lambda *_: None)(params, ModelConfig(), StructuredOutputsConfig(), tokenizer)

    num_needed = 1 + len(tokenizer.encode("abd" * 8, add_special_tokens=False))
    validate(max_tokens=num_needed)
    with pytest.raises(VLLMValidationError, match=f"at least {num_needed} tokens, max_tokens is {num_needed - 1}"):
        validate(max_tokens=num_needed - 1)
    validate(max_tokens=1, extra_args={"structout_fit": "off"})
    validate(max_tokens=1, ignore_eos=True)
    with pytest.raises(VLLMValidationError, match="fit"):
        validate(max_tokens=9, extra_args={"structout_fit": "of"})


def test_json_object_takes_objects_only(tokenizer):
    constraint = StructuredOutputsParams(json_object=True)
    assert taken(tokenizer, constraint, '{"a": [1]}', "[1]", "1", "null") == [True, False, False, False]


def test_the_marks_of_a_reasoning_stand_in_no_call_that_its_parser_reads(tokenizer):
    """vLLM's parser of qwen3 drops "</think>" wherever it stands."""
    constraint = StructuredOutputsParams(structural_tag=TAG)
    texts = [
        f"{content}{CALL['begin']}{json.dumps({'b': value})}{CALL['end']}"
        for content, value in (("", "x"), ("", "</think>"), ("", "<think>"), ("</think>", "x"), ("<thin", "</thin>"))
    ]
    config = StructuredOutputsConfig(reasoning_parser="qwen3")
    assert taken(tokenizer, constraint, *texts, config=config) == [True, False, False, False, True]
    assert taken(tokenizer, constraint, *texts) == [True] * 5


def test_a_call_with_a_bad_schema_is_refused_with_its_place(tokenizer):
    bad = json.loads(TAG)
    bad["format"]["tags"][0]["content"]["json_schema"] = {"properties": {"a": {"type": "strin"}}}
    with pytest.raises(VLLMValidationError, match="#/format/tags/0/content/json_schema/properties/a/type"):
        validated(tokenizer, StructuredOutputsConfig(), structural_tag=json.dumps(bad))


@pytest.mark.parametrize(
    "constraint",
    [
        {"json": json.dumps(VALUE)},
        {"json_object": True},
        {"regex": "[a-z]+"},
        {"choice": ["a", "b"]},
        {"grammar": 'root ::= "a" | "(" root ")"'},
        {"grammar": 'start: "id=" /[0-9]+/'},
        {"structural_tag": TAG},
    ],
    ids=str,
)
def test_tools_may_stand_beside_every_kind_of_constraint(constraint):
    from vllm.parser import abstract_parser

    params = StructuredOutputsParams(**constraint)
    assert request_params.supporting(abstract_parser._xgrammar_supports)(params)


def test_tools_cannot_stand_beside_what_no_engine_takes():
    assert not request_params.supporting(None)(StructuredOutputsParams(regex="(?<=a)b"))


@pytest.fixture
def vllms_protocol():
    """vLLM's checks of what clients send, with the hooks in place."""
    from vllm.entrypoints.openai.chat_completion import protocol

    hooks.install()  # they stay: vLLM loads plugins once in a process, and other files make engines
    return protocol


def test_a_structural_tag_of_a_client_is_checked_by_structout(vllms_protocol):
    """xgrammar rewrites this schema to false and refuses the tag."""
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}
    part = {"type": "json_schema", "json_schema": schema}
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    tag = {"type": "structural_tag", "format": part}
    for body in ({"response_format": tag}, {"structured_outputs": {"structural_tag": json.dumps(tag)}}):
        vllms_protocol.ChatCompletionRequest.model_validate(request | body)
    schema["properties"]["a"] = {"type": "strin"}
    for body in ({"response_format": tag}, {"structured_outputs": {"structural_tag": json.dumps(tag)}}):
        with pytest.raises(VLLMValidationError, match="#/format/json_schema/properties/a/type: unknown type strin"):
            vllms_protocol.ChatCompletionRequest.model_validate(request | body)
