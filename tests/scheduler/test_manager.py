"""StructuredOutputManager with real tokenizers and grammar engines."""

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import structout
from structout import (
    DuplicateRequestError,
    GrammarError,
    GrammarLimitError,
    GrammarStatus,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
    UnknownRequestError,
)
from structout.errors import StaleMasksError
from support import tokenizers_on_the_spot
from support.managers import PATIENT, V, add, allowed

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(params=["byte_level", "byte_fallback"])
def tokenizer(request):
    return getattr(tokenizers_on_the_spot, request.param)()


@pytest.fixture
def manager(tokenizer):
    with StructuredOutputManager(tokenizer, V, PATIENT) as manager:
        yield manager


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("params", "text", "wrong"),
    [
        ({"json": PERSON}, '{"name": "Ada", "age": 36}', '{"name": 3'),
        ({"regex": "[A-Z]{2}-[0-9]+"}, "AB-42", "ab"),
        ({"choice": ["positive", 'neg"at\\ive']}, 'neg"at\\ive', "x"),
        ({"choice": ["🦊 fox", "\U0010ffff"]}, "🦊 fox", "🦉"),
        ({"choice": ['a"b\\n\n\t\x01\x7f\u2028é']}, 'a"b\\n\n\t\x01\x7f\u2028é', "a\\"),
        ({"grammar": 'root ::= "a" root | "b"'}, "aaab", "c"),
        ({"json_object": True}, '{"x": [1, null]}', "5"),
    ],
    ids=["json", "regex", "choice", "choice-astral", "choice-escapes", "grammar", "json_object"],
)
def test_each_kind_of_constraint_from_first_token_to_termination(manager, tokenizer, params, text, wrong):
    add(manager, "r", **params)
    for token in ids_of(tokenizer, text):
        assert token in allowed(manager, "r")[0]
        assert manager.accept_tokens("r", [token])
        assert not manager.is_terminated("r")
    assert tokenizer.eos_token_id in allowed(manager, "r")[0]
    assert manager.accept_tokens("r", [tokenizer.eos_token_id])
    assert manager.is_terminated("r")

    add(manager, "wrong", **params)
    assert not manager.accept_tokens("wrong", ids_of(tokenizer, wrong))


def test_mask_inside_a_string_excludes_special_tokens_and_padding(manager, tokenizer):
    add(manager, "r", json=PERSON)
    assert manager.accept_tokens("r", ids_of(tokenizer, '{"name": "A'))
    inside = set(allowed(manager, "r")[0])
    assert len(inside) > 200
    assert not inside & set(tokenizer.all_special_ids)
    assert max(inside) < len(tokenizer)
    for special in tokenizer.all_special_ids:
        assert not manager.accept_tokens("r", [special])


def test_accept_tokens_with_rejected_token_changes_nothing(manager, tokenizer):
    add(manager, "r", json=PERSON)
    before = allowed(manager, "r")[0]
    good = ids_of(tokenizer, '{"name"')
    assert not manager.accept_tokens("r", [*good, good[0]])
    for token in (-1, V, 2**32 + good[0], 2**40, None, 1.5, "a", [1], torch.tensor(1.5), torch.tensor([1, 2])):
        assert not manager.accept_tokens("r", [token])
        assert not manager.accept_tokens("r", [good[0], token])
    assert not manager.accept_tokens("r", [torch.tensor(1, device="meta")])
    assert allowed(manager, "r")[0] == before
    assert manager.accept_tokens("r", torch.tensor(good))


def test_accept_tokens_after_stop_token_in_the_same_call_has_no_effect(manager, tokenizer):
    add(manager, "r", choice=["yes"])
    assert manager.accept_tokens("r", [*ids_of(tokenizer, "yes"), tokenizer.eos_token_id, 5, -1, None])
    assert manager.is_terminated("r")


def test_terminated_request_accepts_tokens_and_owns_no_row(manager, tokenizer):
    add(manager, "r", choice=["yes"])
    assert manager.accept_tokens("r", [*ids_of(tokenizer, "yes"), tokenizer.eos_token_id])
    assert manager.accept_tokens("r", [5])
    batch = manager.grammar_bitmask(["r"])
    assert batch.bitmask.shape == (0, V // 32)
    assert batch.rows_for(["r"]).tolist() == [-1]


def test_grammar_bitmask_with_structured_free_terminated_and_failed_requests(manager, tokenizer):
    add(manager, "a", regex="a+")
    add(manager, "b", regex="b+")
    add(manager, "done", choice=["x"])
    assert manager.accept_tokens("done", [*ids_of(tokenizer, "x"), tokenizer.eos_token_id])
    manager.add_request("bad", StructuredOutputsParams(regex="("))
    with pytest.raises(GrammarError):
        manager.wait_ready("bad", timeout=30)

    batch = manager.grammar_bitmask(["b", "free", "done", "bad", "a"], strict=False)
    assert batch.request_ids == ("b", "free", "done", "bad", "a")
    assert batch.row_indptr.tolist() == [0, 1, 1, 1, 2, 3]
    assert batch.rows_for(["a", "bad", "b", "done", "free"]).tolist() == [2, 1, 0, -1, -1]
    assert set(batch.errors) == {"bad"}

    logits = torch.zeros(5, V)
    structout.apply_bitmask(logits, batch.to("cpu"), batch.rows_for(["a", "bad", "b", "done", "free"]))
    assert [int((row == 0).sum()) > 0 for row in logits] == [True, False, True, True, True]
    assert logits[0, ids_of(tokenizer, "a")[0]] == 0
    assert logits[2, ids_of(tokenizer, "a")[0]] == float("-inf")
    assert logits[3].eq(0).all()


def test_grammar_bitmask_in_any_order_equals_each_requests_own_mask(manager, tokenizer):
    """Rows are compact and in the given order, in every buffer of the ring."""
    specs = {"a": {"regex": "[ab]{3}"}, "b": {"json": PERSON}, "c": {"choice": ["red", "green"]}}
    for name, params in specs.items():
        add(manager, name, **params)
    for step in range(5):
        order = [["a", "b", "c"], ["c", "a", "b"], ["b"], ["c", "b"], ["a", "c"]][step]
        masks = manager.grammar_bitmask(order).bitmask.tolist()
        for row, name in enumerate(order):
            assert masks[row] == manager.grammar_bitmask([name]).bitmask[0].tolist()


def test_mask_buffer_stays_valid_until_it_is_reused(tokenizer):
    with StructuredOutputManager(tokenizer, V, StructuredOutputsConfig(num_mask_buffers=3)) as manager:
        add(manager, "a", regex="a+")
        add(manager, "b", regex="b+")
        for name in "ab":
            manager.grammar_bitmask([name])
        first = manager.grammar_bitmask(["a"])
        kept = first.bitmask.copy()
        manager.grammar_bitmask(["b"])
        manager.grammar_bitmask(["b"])
        assert (first.bitmask == kept).all()
        pickled = pickle.loads(pickle.dumps(first))  # noqa: S301 - our own bytes
        manager.grammar_bitmask(["b"])
        uses = (
            lambda: first.bitmask,
            lambda: first.to("cpu"),
            lambda: first.rows_for(["a"]),
            lambda: first.dense(["a"]),
            lambda: first.renamed(["x"]).bitmask,
            lambda: copy.copy(first).bitmask,
            lambda: pickle.dumps(first),
        )
        for use in uses:
            with pytest.raises(StaleMasksError, match="before the num_mask_buffers-th next call"):
                use()
        assert (pickled.bitmask == kept).all()
        assert pickled.rows_for(["a"]).tolist() == [0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "("}, "a regular expression does not parse"),
        ({"grammar": "root ::="}, "the grammar does not parse"),
        ({"json": {"type": "strin"}}, "#/type: unknown type strin"),
        ({"json": {"$ref": "#"}}, "refers to itself for the same value"),
        ({"grammar": "root ::= root"}, "allows no text at all"),
        ({}, "exactly one constraint"),
    ],
)
def test_bad_constraint_fails_only_its_own_request(manager, params, message):
    add(manager, "good", regex="a")
    manager.poll_ready()
    assert manager.add_request("bad", StructuredOutputsParams(**params)) in GrammarStatus
    with pytest.raises(GrammarError, match=message) as caught:
        manager.wait_ready("bad", timeout=30)
    assert caught.value.request_id == "bad"
    assert "/" not in str(caught.value).replace(str(caught.value.pointer), "")  # no path of native sources
    assert manager.status("bad") is GrammarStatus.FAILED
    assert str(manager.error("bad")) == str(caught.value)
    assert manager.poll_ready() == ["bad"]
    assert not manager.accept_tokens("bad", [1])
    stats = manager.stats()
    assert (stats.waiting, stats.ready, stats.failed) == (0, 1, 1)
    assert not manager.grammar_bitmask(["good"]).errors


def test_add_failed_request_closes_its_rows_and_reports_the_error(manager):
    add(manager, "good", regex="a")
    manager.poll_ready()
    error = GrammarLimitError("schema_bytes", 7, 5)
    for request_id in ("bad", "also bad"):
        manager.add_failed_request(request_id, error)
        assert manager.status(request_id) is GrammarStatus.FAILED
        with pytest.raises(GrammarLimitError, match="schema_bytes is limited to 5, got 7") as caught:
            manager.wait_ready(request_id, timeout=30)
        assert caught.value.request_id == request_id
    assert error.request_id is None
    assert manager.error("bad").request_id == "bad"
    assert manager.poll_ready() == ["bad", "also bad"]
    assert (manager.stats().ready, manager.stats().failed) == (1, 2)
    assert manager.stats().compilation.cache_misses == 1  # only the good request was compiled
    assert [manager.slot(name) for name in ("good", "bad", "also bad")] == [0, 1, 2]
    assert not manager.accept_tokens("bad", [1])

    batch = manager.grammar_bitmask(["bad", "good"], {"bad": [1, 2]})
    assert batch.errors == {"bad": str(error)}
    assert batch.row_indptr.tolist() == [0, 3, 4]
    assert batch.bitmask.any(axis=1).tolist() == [False, False, False, True]

    with pytest.raises(DuplicateRequestError, match="'good' is already with the manager"):
        manager.add_failed_request("good", error)
    assert manager.status("good") is GrammarStatus.READY
    manager.finish_request("bad")
    with pytest.raises(UnknownRequestError):
        manager.status("bad")


@pytest.mark.parametrize("bounds", [{"minLength": 1}, {"maxLength": 9}, {"minLength": 1, "maxLength": 9}])
def test_mask_inside_a_bounded_string_excludes_control_characters(manager, tokenizer, bounds):
    inner = {"type": "object", "properties": {"b": {"type": "string", **bounds}}, "required": ["b"]}
    add(manager, "r", json={"type": "array", "items": inner})
    assert manager.accept_tokens("r", ids_of(tokenizer, '[{"b": "x'))
    vocabulary = manager.vocabulary.token_bytes
    assert not any(byte < 0x20 for i in allowed(manager, "r")[0] for byte in vocabulary[i])
    assert manager.accept_tokens("r", ids_of(tokenizer, 'é 東"}]'))


@pytest.mark.parametrize("text", ['{"a": 1, "b": [true, {}]}', "{}", '{"x": [1, 2]}'])
def test_json_object_without_any_whitespace_rejects_extra_spaces(tokenizer, text):
    with StructuredOutputManager(tokenizer, V, StructuredOutputsConfig(any_whitespace=False)) as manager:
        add(manager, "r", json_object=True)
        assert manager.accept_tokens("r", [*ids_of(tokenizer, text), tokenizer.eos_token_id])
        add(manager, "other", json_object=True)
        assert not manager.accept_tokens("other", ids_of(tokenizer, text[0] + " "))


def test_dead_end_closes_its_row_and_reports_an_error():
    """The vocabulary does not have the letter that must follow."""
    with StructuredOutputManager(tokenizers_on_the_spot.of_two_letters(), 32) as manager:
        add(manager, "r", regex="(ab|acd)")
        add(manager, "ok", regex="a+")
        manager.accept_tokens("r", [1])
        add(manager, "stuck", regex="a(c)", backend="xgrammar")  # the own engine refuses it
        assert manager.accept_tokens("stuck", [1])
        batch = manager.grammar_bitmask(["ok", "stuck", "r"])
        assert set(batch.errors) == {"stuck"}
        assert "allows no token here" in batch.errors["stuck"]
        assert batch.bitmask[1].tolist() == [0]
        assert batch.bitmask[0].any()


def test_request_ids_are_unique_and_slots_are_reused(manager):
    add(manager, "a", regex="a")
    add(manager, "b", regex="b")
    assert [manager.slot("a"), manager.slot("b")] == [0, 1]
    with pytest.raises(DuplicateRequestError, match="'a' is already") as caught:
        manager.add_request("a", StructuredOutputsParams(regex="x"))
    assert caught.value.request_id == "a"
    manager.finish_request("a")
    manager.finish_request("a")
    with pytest.raises(UnknownRequestError, match="'a' is not with the manager"):
        manager.accept_tokens("a", [1])
    add(manager, "c", regex="c")
    assert manager.slot("c") == 0


def test_add_request_with_stop_tokens_and_replayed_output(manager, tokenizer):
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = ids_of(tokenizer, '{"name": "Ada"')
    manager.add_request("r", StructuredOutputsParams(json=PERSON), stop_token_ids=[stop], output_token_ids=text)
    manager.wait_ready("r", timeout=30)
    assert manager.accept_tokens("r", ids_of(tokenizer, ', "age": 1}'))
    assert stop in allowed(manager, "r")[0]
    assert not manager.accept_tokens("r", [tokenizer.eos_token_id])
    assert manager.accept_tokens("r", [stop])
    assert manager.is_terminated("r")

    manager.add_request("bad stop", StructuredOutputsParams(regex="a"), stop_token_ids=[V])
    with pytest.raises(GrammarError, match="stop_token_ids must be in"):
        manager.wait_ready("bad stop", timeout=30)
    manager.add_request("no stop", StructuredOutputsParams(regex="a"), stop_token_ids=[])
    with pytest.raises(GrammarError, match="stop_token_ids is empty"):
        manager.wait_ready("no stop", timeout=30)
    manager.add_request("bad replay", StructuredOutputsParams(regex="a"), output_token_ids=text)
    with pytest.raises(GrammarError, match="output_token_ids do not satisfy"):
        manager.wait_ready("bad replay", timeout=30)


def test_grammar_bitmask_while_eight_threads_add_and_finish(manager, tokenizer):

    def add_and_finish(thread):
        for i in range(20):
            name = f"{thread}-{i}"
            add(manager, name, choice=[f"answer {thread} {i}"])
            if i % 2:
                manager.finish_request(name)

    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(add_and_finish, i) for i in range(8)]
        while not all(future.done() for future in futures):
            ready = [f"{t}-{i}" for t in range(8) for i in range(0, 20, 2)]
            batch = manager.grammar_bitmask(ready, strict=False)
            assert all(message == "scheduled before its grammar was ready" for message in batch.errors.values())
    for future in futures:
        future.result()
    for t in range(8):
        for i in range(0, 20, 2):
            text = [*ids_of(tokenizer, f"answer {t} {i}"), tokenizer.eos_token_id]
            assert manager.accept_tokens(f"{t}-{i}", text)
            assert manager.is_terminated(f"{t}-{i}")


def test_grammar_interface_without_a_manager(tokenizer):
    """validate_tokens, rollback across termination, copy, fork and reset."""
    from structout.constraints.params import StructuredOutputOptions
    from structout.grammar.native.backend import NativeBackend
    from structout.grammar.vocabulary import Vocabulary

    backend = NativeBackend(Vocabulary.from_tokenizer(tokenizer, V))
    grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(PERSON))
    masks = structout.allocate_token_bitmask(2, V)
    text = ids_of(tokenizer, '{"name": "Ada", "age": 36}')
    assert grammar.validate_tokens([*text[:3], -1, *text]) == text[:3]
    assert grammar.accept_tokens("r", text[:4])
    fork, copy = grammar.fork(), grammar.copy()
    assert fork.accept_tokens("r", [*text[4:], tokenizer.eos_token_id])
    assert fork.is_terminated()
    assert not grammar.is_terminated()
    fork.rollback(len(text) - 4 + 1)
    fork.fill_bitmask(masks, 0)
    grammar.fill_bitmask(masks, 1)
    assert torch.equal(masks[0], masks[1])
    assert grammar.accept_tokens("r", [*text[4:], tokenizer.eos_token_id, 5, 6])
    assert grammar.validate_tokens([7, -1]) == [7, -1]
    assert grammar.fork().is_terminated()
    grammar.rollback(2)
    assert grammar.is_terminated()
    grammar.rollback(1 + len(text) - 4)
    grammar.fill_bitmask(masks, 0)
    assert torch.equal(masks[0], masks[1])
    with pytest.raises(TypeError, match="expected grammars that a backend compiled, got a object"):
        backend.fill_bitmask_batch([grammar, object()], masks, [0, 1])
    grammar.reset()
    backend.fill_bitmask_batch([grammar, copy], masks, [1, 0])
    assert torch.equal(masks[0], masks[1])
    backend.destroy()


def test_annotations_of_unknown_formats_are_reported_and_forked(manager):
    schema = {"type": "object", "properties": {"file": {"type": "string", "format": "path"}}}
    manager.add_request("annotated", StructuredOutputsParams(json=schema))
    manager.wait_ready("annotated", 60)
    manager.fork("annotated", "forked")
    for request_id in ("annotated", "forked"):
        assert manager.compiled(request_id).annotations == ("#/properties/file/format",)
        assert manager.compiled(request_id).weakened == ()
