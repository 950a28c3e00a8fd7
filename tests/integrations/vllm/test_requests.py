"""How requests begin and end: bad constraints, dead ends, aborts, preemption, leaks."""

import gc
import json
import logging
import re

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from structout.integrations.vllm import grammar_manager as adapter
from support.vllm_engines import PROMPT, engine, finish_reasons, texts, token_ids, vllm_sampler
from support.vllm_requests import CUT_OFF, LETTERS, check_dead_ends, check_preempted_requests, letters_of, structured

BAD_CONSTRAINTS = {
    "regex without a closing bracket": {"regex": "[a-"},
    "regex without a closing parenthesis": {"regex": "(ab"},
    "regex with a backreference": {"regex": r"(a)\1"},
    "grammar that is no grammar": {"grammar": "not a grammar"},
    "grammar with an unknown rule": {"grammar": "root ::= missing"},
    "schema that is not JSON": {"json": "{"},
    "schema of an unknown type": {"json": {"type": "strin"}},
    "schema with a missing reference": {"json": {"$ref": "#/$defs/missing"}},
    "schema that is a number": {"json": "12"},
    "no choices": {"choice": []},
    "empty grammar": {"grammar": " "},
    "empty schema": {"json": " "},
    "structural tag without a format": {"structural_tag": "{}"},
    "structural tag that is not JSON": {"structural_tag": "{"},
    "object: false": {"json_object": False},
}


@pytest.fixture(scope="module")
def running(small_model):
    with engine(small_model) as running:
        yield running


@pytest.fixture(autouse=True)
def no_request_is_left(running):
    yield
    running.assert_empty()


def test_a_dead_end_ends_its_request_with_an_error_and_no_other(running):
    check_dead_ends(running)


def test_a_grammar_that_can_only_end_ends_before_min_tokens(running):
    requests = [
        SamplingParams(temperature=0, max_tokens=40, min_tokens=30, **structured(choice=["red"])),
        SamplingParams(temperature=0, max_tokens=40, min_tokens=10, **structured(regex="[ab]{1,20}")),
    ]
    outputs = running.generate(requests)
    assert texts(outputs)[0] == ["red"]
    assert len(texts(outputs)[1][0]) >= 10
    assert finish_reasons(outputs) == [["stop"], ["stop"]]


@pytest.mark.parametrize("constraint", BAD_CONSTRAINTS.values(), ids=BAD_CONSTRAINTS)
def test_a_bad_constraint_is_refused_when_the_request_arrives(running, constraint):
    with pytest.raises((VLLMValidationError, ValueError)):
        running.generate([SamplingParams(**structured(**constraint))])
    assert running.is_idle


def test_a_bad_constraint_past_the_frontend_fails_its_request_only(running):
    others = SamplingParams(temperature=0, max_tokens=30, **structured(regex=LETTERS))
    expected = texts(running.generate([others]))
    bad = [constraint for constraint in BAD_CONSTRAINTS.values() if constraint not in ({"json_object": False},)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SamplingParams, "_validate_structured_outputs", lambda *_: None)
        outputs = running.generate(
            [*(SamplingParams(max_tokens=10, **structured(**constraint)) for constraint in bad), others]
        )
    assert finish_reasons(outputs[:-1]) == [["error"]] * len(bad)
    assert texts(outputs[:-1]) == [[""]] * len(bad)
    assert texts(outputs[-1:]) == expected


WEAKENED = {"enum": ["b"], "pattern": "^(?<=x)b$"}  # no engine looks behind


def test_a_weakened_schema_is_logged_once(running, caplog):
    from structout.integrations.vllm import request_params

    request_params._log_weakened.cache_clear()
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)
    try:
        params = SamplingParams(max_tokens=60, seed=1, **structured(json=WEAKENED))
        running.generate([params, params])
    finally:
        vllm_log.removeHandler(caplog.handler)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vllm.structout"]
    assert "#/pattern" in line
    assert "STRUCTOUT_VLLM_STRICT=1" in line


def test_a_weakened_schema_is_refused_where_strict(running, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_VLLM_STRICT", "1")
    with pytest.raises(VLLMValidationError, match="#/pattern"):
        running.generate([SamplingParams(max_tokens=60, **structured(json=WEAKENED))])


def test_keys_are_in_the_order_that_the_request_asks_for(running):
    names = ["a", "b"]
    schema = {
        "type": "object",
        "properties": {name: {"const": 1} for name in names},
        "required": names,
        "additionalProperties": False,
    }

    def orders(extra_args):
        requests = [
            SamplingParams(temperature=2, max_tokens=60, seed=seed, extra_args=extra_args, **structured(json=schema))
            for seed in range(40)
        ]
        return {tuple(json.loads(text)) for (text,) in texts(running.generate(requests))}

    assert orders(None) == {("a", "b")}
    assert orders({"structout_key_order": "any"}) == {("a", "b"), ("b", "a")}
    assert orders({"structout_key_order": "declared"}) == {("a", "b")}
    with pytest.raises(VLLMValidationError, match='key_order must be "declared" or "any", got \'sorted\''):
        orders({"structout_key_order": "sorted"})


def test_aborting_while_grammars_compile_leaves_nothing(running):
    # Each takes a tenth of a second, and they take turns.
    schemas = [{"enum": [f"value {i} {i * 7919 % 10007} {k}" for i in range(3000)]} for k in range(10)]
    ids = [running.add(SamplingParams(max_tokens=20, **structured(json=schema))) for schema in schemas]
    assert running.num_held == len(ids)
    assert running.manager.structout.stats().waiting
    running.step()
    running.abort(*ids)
    running.step()
    assert running.num_held == 0


def test_aborting_while_running_leaves_nothing(running):
    params = SamplingParams(max_tokens=200, **structured(regex="[a-z ]{150,}"))
    ids = [running.add(params) for _ in range(4)]
    while not running.manager.structout.stats().rows_filled:
        running.step()
    running.step(5)
    running.abort(*ids[:3])
    assert running.num_held == 1
    running.step(5)
    running.abort(ids[3])
    running.step()
    assert running.num_held == 0


def test_an_id_is_used_again_while_the_earlier_request_is_ending(running):
    params = SamplingParams(temperature=0, max_tokens=40, **structured(regex=LETTERS))
    expected = texts(running.generate([params]))[0]
    running.add(params, request_id="again")
    running.step(4)
    running.abort("again")
    running.add(params, request_id="again")
    (output,) = running.run().values()
    assert [completion.text for completion in output.outputs] == expected


def test_nothing_is_left_after_many_requests_of_all_ends(running):
    a = letters_of(running, "a")
    ends = [
        SamplingParams(max_tokens=40, **structured(regex=LETTERS)),
        SamplingParams(max_tokens=2, **structured(regex=LETTERS), **CUT_OFF, n=2),
        SamplingParams(max_tokens=40, **structured(regex="ab"), allowed_token_ids=a),
        SamplingParams(max_tokens=40, stop=["c"], **structured(regex=LETTERS)),
        SamplingParams(max_tokens=5),
    ]
    requests = ends * 30
    outputs = running.generate(requests)
    reasons = finish_reasons(outputs)
    assert {reason for group in reasons for reason in group} == {"stop", "length", "error"}
    assert [group for group in reasons[2::5] if group != ["error"]] == []
    for output in outputs[::5]:
        assert re.fullmatch(LETTERS, output.outputs[0].text)
    assert running.num_held == 0
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, adapter.Grammar | adapter.PendingGrammar)]


def test_a_request_goes_on_where_the_sampler_changes(running):
    params = SamplingParams(temperature=0, max_tokens=40, repetition_penalty=1.2, **structured(regex=LETTERS))
    expected = texts(running.generate([params]))
    request_id = running.add(params)
    while not running.manager.structout.stats().ready:
        running.step()
    running.step(4)
    with vllm_sampler():
        running.step(4)
    (output,) = running.run().values()
    assert output.request_id == request_id
    assert [[completion.text for completion in output.outputs]] == expected


@pytest.fixture(scope="module")
def tight(small_model):
    """An engine whose KV cache is too small for its requests."""
    with engine(small_model, block_size=32, num_gpu_blocks_override=17, max_num_seqs=16) as tight:
        yield tight


def test_preempted_requests_draw_what_they_draw_alone(running, tight):
    check_preempted_requests(tight, running)


def test_a_cached_prefix_changes_no_text(running):
    prompt = " ".join([PROMPT] * 20)
    requests = [
        SamplingParams(temperature=0, max_tokens=40, **structured(regex=LETTERS)),
        SamplingParams(temperature=0, max_tokens=40, repetition_penalty=1.3),
        SamplingParams(seed=3, max_tokens=40, frequency_penalty=0.5),
    ]
    first = token_ids(running.generate(requests, prompt))
    outputs = running.generate(requests, prompt)
    assert token_ids(outputs) == first
    assert min(output.num_cached_tokens for output in outputs) > 0
