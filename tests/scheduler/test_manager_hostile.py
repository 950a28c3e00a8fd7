"""The manager under bad constraints, many threads, many requests and misuse."""

import gc
import hashlib
import os
import random
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import structout
from structout import (
    GrammarError,
    GrammarStatus,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
)
from structout.constraints.params import StructuredOutputOptions
from structout.errors import GrammarLimitError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.masks.buffers import BufferRing
from structout.scheduler.compile_pool import CompilePool
from support import fresh_process
from support.compilations import LONG
from support.locations import importing
from support.managers import STOP, TOKENIZER, V, add, ids_of, in_threads
from support.tokenizers_on_the_spot import of_two_letters


@pytest.mark.parametrize(
    "params",
    [
        {"json": "{"},
        {"json": "{}{}"},
        {"json": "[]"},
        {"json": "null"},
        {"json": b"{}"},
        {"json": {"const": "\ud800"}},
        {"json": {"const": "\0"}, "backend": "xgrammar"},
        {"json": {"pattern": "a\0"}, "backend": "xgrammar"},
        {"json": type},
        {"json": {"a": object()}},
        {"regex": "\0"},
        {"regex": 5},
        {"regex": ""},
        {"choice": "yes"},
        {"choice": []},
        {"choice": [1]},
        {"grammar": "root ::= ("},
        {"grammar": None},
        {"structural_tag": "[]"},
        {"structural_tag": {"type": "no such thing"}},
        {"json": {}, "regex": "a"},
        {"regex": "a", "backend": "no such backend"},
        {"regex": "a", "backend": 5},
        {"regex": "a", "whitespace_pattern": " "},
    ],
    ids=lambda params: str(params).split(" at 0x")[0],  # the same in every process
)
def test_invalid_constraint_fails_only_its_own_request(manager, params):
    add(manager, "good", regex="a")
    manager.add_request("bad", StructuredOutputsParams(**params))
    with pytest.raises(GrammarError) as caught:
        manager.wait_ready("bad", timeout=60)
    assert caught.value.request_id == "bad"
    batch = manager.grammar_bitmask(["good", "bad"])
    assert set(batch.errors) == {"bad"}
    assert batch.bitmask.any(axis=1).tolist() == [True, False]


def test_constraint_above_a_limit_fails_without_compiling(manager, monkeypatch):
    compiled = []
    monkeypatch.setattr(BackendSet, "compile", lambda backends, constraint: compiled.append(constraint))
    most = manager.config.limits.alternatives
    manager.add_request("bad", StructuredOutputsParams(choice=["a"] * (most + 1)))
    assert manager.status("bad") is GrammarStatus.FAILED
    error = manager.error("bad")
    assert isinstance(error, GrammarLimitError)
    assert (error.limit, error.got, error.max, error.request_id) == ("alternatives", most + 1, most, "bad")
    assert not compiled


def test_native_compilation_past_its_deadline_frees_the_worker(monkeypatch, request):
    """Native code that keeps a core busy without Python's global lock, until the test
    ends. Meanwhile the only worker is free for the next request, whose steps go on, and
    ``close`` does not wait."""
    is_over, compile_at_once = threading.Event(), BackendSet.compile

    def compile_with_delay(backends, constraint):
        while constraint.spec == "slow" and not is_over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
        return compile_at_once(backends, constraint)

    request.addfinalizer(is_over.set)
    monkeypatch.setattr(BackendSet, "compile", compile_with_delay)
    config = StructuredOutputsConfig(compile_workers=1, compile_timeout=0.3)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        manager.warm_up([])  # starting the backends must not count for the deadline
        manager.add_request("slow", StructuredOutputsParams(regex="slow"))
        manager.add_request("next", StructuredOutputsParams(regex="a"))
        manager.wait_ready("next", timeout=LONG)
        with pytest.raises(structout.GrammarTimeoutError):
            manager.wait_ready("slow", timeout=LONG)
        assert manager.status("slow") is GrammarStatus.FAILED
        assert manager.grammar_bitmask(["next"]).bitmask.any()
    assert manager.stats().compilation.overdue == 1


def test_row_that_cannot_be_filled_is_closed_and_511_others_are_right(manager, monkeypatch):
    names = [f"r{i}" for i in range(512)]
    for i, name in enumerate(names):
        add(manager, name, choice=[f"answer {i % 7}"], backend="xgrammar")
        assert manager.accept_tokens(name, ids_of("answer "))
    expected = manager.grammar_bitmask(names).bitmask.copy()
    broken = manager._requests["r300"].grammar

    def raise_runtime_error():
        raise RuntimeError("the engine is broken")

    monkeypatch.setattr(broken._text, "mask", raise_runtime_error)
    batch = manager.grammar_bitmask(names)
    assert batch.errors == {"r300": "RuntimeError: the engine is broken"}
    expected[300] = 0
    assert (batch.bitmask == expected).all()


def test_one_request_used_from_eight_threads_stays_consistent(manager):
    """Two threads in one native matcher would crash."""
    add(manager, "r", regex="[ab]*")
    a, b = ids_of("a"), ids_of("b")
    expected = manager.grammar_bitmask(["r"]).bitmask.copy()

    def use(seed):
        rng = random.Random(seed)
        num_tokens = 0
        for _ in range(300):
            choice = rng.randrange(4)
            if choice == 0:
                assert manager.accept_tokens("r", a)
                num_tokens += len(a)
            elif choice == 1:
                assert manager.accept_batch({"r": b})["r"]
                num_tokens += len(b)
            elif choice == 2:
                assert (manager.grammar_bitmask(["r"], {"r": [*a, *b]}).num_acceptable_drafts == [2]).all()
            else:
                assert manager.validate_tokens("r", [*a, *b]) == [*a, *b]
        return num_tokens

    num_accepted = sum(in_threads(use, 8))
    with pytest.raises(ValueError, match=rf"num_tokens must be in \[0, {num_accepted}\], got"):
        manager.rollback("r", num_accepted + 1)
    manager.rollback("r", num_accepted)
    assert (manager.grammar_bitmask(["r"]).bitmask == expected).all()


def test_64_threads_with_different_schemas_get_their_own_grammars():
    def schema(i):
        return {
            "type": "object",
            "properties": {f"key{i}": {"const": f"value {i}"}},
            "required": [f"key{i}"],
            "additionalProperties": False,
        }

    config = StructuredOutputsConfig(any_whitespace=False, compile_timeout=60)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        barrier = threading.Barrier(64)

        def add_one(i):
            barrier.wait(60)
            add(manager, f"r{i}", json=schema(i), backend="xgrammar")

        in_threads(add_one, 64)
        for i in range(64):
            other_text = ids_of(f'{{"key{(i + 1) % 64}": "value')
            assert manager.validate_tokens(f"r{i}", other_text) != other_text
            assert manager.accept_tokens(f"r{i}", [*ids_of(f'{{"key{i}": "value {i}"}}'), STOP])
            assert manager.is_terminated(f"r{i}")


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_of_thousands_of_live_and_finished_requests_is_bounded(num_cases):
    """Runs in a process of its own, which measures its memory."""
    num_live, num_finished = num_cases(3_000, long=10_000), num_cases(10_000, long=100_000)
    script = f"import test_manager_hostile as t; t.many_requests({num_live}, {num_finished})"
    run = fresh_process.run("-c", script, env=importing(__file__))
    assert run.returncode == 0, run.stdout + run.stderr


def many_requests(num_live, num_finished):
    params, answer = [StructuredOutputsParams(choice=[f"answer {i}", "none"]) for i in range(50)], ids_of("answer")
    with StructuredOutputManager(TOKENIZER, V) as manager:
        assert manager.warm_up(params) == [None] * len(params)
        before = resident_bytes()
        for i in range(num_live):
            assert manager.add_request(f"live {i}", params[i % 50]) is GrammarStatus.READY
            assert manager.accept_tokens(f"live {i}", answer)
        assert len(manager.poll_ready()) == num_live
        per_request = (resident_bytes() - before) / num_live
        assert per_request < 16 << 10, f"{per_request:,.0f} bytes a request"
        assert manager.grammar_bitmask([f"live {i}" for i in range(num_live)]).bitmask.any(axis=1).all()

        before = resident_bytes()
        for i in range(num_finished):
            manager.add_request(f"through {i}", params[i % 50])
            manager.finish_request(f"through {i}")
        grown = resident_bytes() - before
        assert grown < 8 << 20, f"{grown:,} bytes more after {num_finished:,} requests"
        assert manager.stats().ready == num_live
        assert not manager.poll_ready()
        assert manager.slot(f"live {num_live - 1}") == num_live - 1


@pytest.mark.parametrize(
    "buffer",
    [
        torch.zeros(2, 16),
        torch.zeros(2, 16, dtype=torch.int64),
        torch.zeros(2, 15, dtype=torch.int32),
        torch.zeros(2, 17, dtype=torch.int32),
        torch.zeros(16, dtype=torch.int32),
        torch.zeros(2, 32, dtype=torch.int32)[:, :16],
        torch.zeros(16, 2, dtype=torch.int32).T,
        torch.zeros(1, 16, dtype=torch.int32).expand(2, 16),
        torch.zeros(2, 16, dtype=torch.int32, device="meta"),
    ],
    ids=["float32", "int64", "narrow", "wide", "1-D", "row stride", "transposed", "expanded", "meta"],
)
def test_fill_with_unsuitable_buffer_raises_and_writes_nothing(buffer):
    backend = NativeBackend(Vocabulary.from_tokenizer(TOKENIZER, V))
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, "a")
    fills = [
        lambda: grammar.fill_bitmask(buffer, 0),
        lambda: backend.fill_bitmask_batch([grammar], buffer, [1]),
        lambda: grammar.fill_bitmask_drafts(buffer, 0, [5]),
    ]
    for fill in fills:
        with pytest.raises(ValueError, match="a mask buffer must be a contiguous int32 CPU tensor"):
            fill()
    if buffer.device.type == "cpu":
        assert not buffer.any()


# -- grammars read and advanced by several threads -------------------------------------


def test_is_terminated_during_validate_tokens_and_drafts_stays_false(manager):
    """validate_tokens and drafts advance past a stop token and roll back."""
    add(manager, "r", regex="[ab]*")
    complete_text = [*ids_of("ab"), STOP]
    is_over = threading.Event()
    num_terminated = []

    def watch():
        while not is_over.is_set():
            if manager.is_terminated("r"):
                num_terminated.append(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(500):
        assert manager.validate_tokens("r", complete_text) == complete_text
        manager.grammar_bitmask(["r"], {"r": complete_text})
    is_over.set()
    watcher.join()
    assert not num_terminated


def test_grammar_bitmask_while_requests_become_ready_sees_none_half_made(manager):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        names = [f"r{i}" for i in range(300)]
        adder = threading.Thread(
            target=lambda: [manager.add_request(n, StructuredOutputsParams(choice=[n[:2]])) for n in names]
        )
        adder.start()
        while adder.is_alive():
            batch = manager.grammar_bitmask(names, strict=False)
            assert set(batch.errors.values()) <= {"scheduled before its grammar was ready"}
        adder.join()
    finally:
        sys.setswitchinterval(interval)


def test_finish_request_during_add_request_leaves_nothing_in_the_queue(manager, gate, monkeypatch):
    submit = CompilePool.submit

    def submit_and_finish(pool, key):
        future = submit(pool, key)
        manager.finish_request("r")
        return future

    for i in range(manager.config.compile_workers):
        manager.add_request(f"busy {i}", StructuredOutputsParams(regex=f"b{i}"))
    monkeypatch.setattr(CompilePool, "submit", submit_and_finish)
    manager.add_request("r", StructuredOutputsParams(regex="never compiled"))
    assert manager.stats().compilation.waiting == 0


def test_close_waits_for_the_step_in_progress(manager, monkeypatch):
    add(manager, "r", regex="[ab]*")
    is_filling, is_closed = threading.Event(), threading.Event()
    next_buffer = BufferRing.next

    def slow_buffer(ring, num_rows):
        is_filling.set()
        assert not is_closed.wait(0.2)
        return next_buffer(ring, num_rows)

    monkeypatch.setattr(BufferRing, "next", slow_buffer)
    batches = []
    step = threading.Thread(target=lambda: batches.append(manager.grammar_bitmask(["r"], {"r": ids_of("ab")})))
    step.start()
    assert is_filling.wait(60)
    manager.close()
    is_closed.set()
    step.join()
    assert batches[0].bitmask.any(axis=1).all()


def test_forked_process_is_told_to_create_its_own_manager(manager):
    add(manager, "r", regex="a")
    child = os.fork()
    if child == 0:
        calls = [
            lambda: manager.grammar_bitmask(["r"]),
            lambda: manager.accept_tokens("r", ids_of("a")),
            lambda: manager.is_terminated("r"),
            lambda: manager.add_request("new", StructuredOutputsParams(regex="b")),
        ]
        refused = 0
        for call in calls:
            try:
                call()
            except structout.StructOutError as error:
                refused += "forked" in str(error)
        manager.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


# -- misuse by an engine ---------------------------------------------------------------


def test_grammar_bitmask_with_repeated_id_raises_before_filling(manager):
    add(manager, "r", regex="[ab]*")
    drafts = {"r": ids_of("ab")}
    for _ in range(20):
        with pytest.raises(ValueError, match="request_ids must be unique, got 'r' more than once"):
            manager.grammar_bitmask(["r", "x", "r"], drafts)
    assert manager.grammar_bitmask(["r"], drafts).num_acceptable_drafts.tolist() == [2]


def test_empty_draft_tree_still_gives_each_constrained_request_a_row(manager):
    add(manager, "ready", regex="a")
    manager.add_request("failed", StructuredOutputsParams(regex="("))
    with pytest.raises(GrammarError):
        manager.wait_ready("failed", 30)
    for more in ({}, {"bounds": {"ready": (0, 0), "failed": (0, 0)}}):
        batch = manager.grammar_bitmask(
            ["ready", "failed"], {"ready": []}, draft_trees={"ready": ([], []), "failed": ([], [])}, **more
        )
        assert batch.row_indptr.tolist() == [0, 1, 2]
        assert batch.bitmask.any(axis=1).tolist() == [True, False]
        assert set(batch.errors) == {"failed"}
    tree = ([1, -1], [-1, -1])
    batch = manager.grammar_bitmask(["ready"], {"ready": [0, 1]}, bounds={"ready": (1, 1)}, draft_trees={"ready": tree})
    assert "bounds apply to chains of drafts, got a tree" in batch.errors["ready"]


def test_drafts_and_tokens_of_unusual_types_are_read_or_rejected(manager):
    add(manager, "a", regex="[ab]*")
    add(manager, "b", regex="[ab]*")
    manager.add_request("failed", StructuredOutputsParams(regex="("))
    tokens = np.array(ids_of("ab"))
    batch = manager.grammar_bitmask(["a", "b", "failed"], {"a": tokens, "b": [None, "x"], "failed": None})
    assert batch.num_acceptable_drafts.tolist() == [2, 0, 0]
    assert batch.row_indptr.tolist() == [0, 3, 6, 7]
    accepted = manager.accept_batch({"a": tokens, "b": None, "failed": 5})
    assert accepted == {"a": True, "b": False, "failed": False}


def test_dead_end_after_a_draft_is_not_an_error_of_the_request():
    """The vocabulary has no c: after the draft a nothing is allowed, but b is."""
    with StructuredOutputManager(of_two_letters(), 32) as manager:
        add(manager, "r", regex="b|a(c)", backend="xgrammar")
        batch = manager.grammar_bitmask(["r"], {"r": [1]})
        assert not batch.errors
        assert batch.bitmask.any(axis=1).tolist() == [True, False]
        assert manager.accept_tokens("r", [1])
        assert set(manager.grammar_bitmask(["r"]).errors) == {"r"}


def test_accept_tokens_with_a_bool_is_rejected(manager):
    add(manager, "r", choice=[TOKENIZER.decode([1])], backend="xgrammar")
    assert not manager.accept_tokens("r", [True])


# -- constraints of clients ------------------------------------------------------------


@pytest.mark.parametrize("text", ["[", "\\", "(", '"', "{", "[\\", "a{9999999999999999999999}", "{" + "9" * 5000 + "}"])
@pytest.mark.parametrize("kind", ["regex", "grammar"])
def test_add_request_with_pathological_text_returns_quickly(manager, kind, text):
    start = time.thread_time()
    manager.add_request("r", StructuredOutputsParams(**{kind: text * ((250 << 10) // len(text))}))
    assert time.thread_time() - start < 2
    with pytest.raises(GrammarError):
        manager.wait_ready("r", 60)


def test_repetition_of_thousands_of_digits_is_a_limit_error(manager):
    for params in ({"grammar": "root ::= a{" + "9" * 4400 + "}"}, {"json": {"pattern": "a{" + "9" * 900 + "}"}}):
        with pytest.raises(GrammarLimitError, match="repetition"):
            StructuredOutputsParams(**params).validate()


def test_schema_data_under_const_is_not_read_as_keywords(manager):
    data = {"minLength": -5, "pattern": "(" * 70, "$ref": "http://example.invalid", "enum": list(range(3))}
    add(manager, "r", json={"const": data})
    with pytest.raises(GrammarError, match="minLength"):
        StructuredOutputsParams(json={"properties": {"const": {"minLength": -5}}}).validate()


def test_ambiguous_grammar_with_slow_tokens_fails_only_its_own_request():
    config = StructuredOutputsConfig(slow_token_seconds=0.004)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        add(manager, "good", regex="a*")
        add(manager, "bad", grammar='root ::= s\ns ::= s s | s s s | "a"', backend="xgrammar")
        a = ids_of("a")
        for _ in range(400):
            manager.accept_tokens("bad", a)
            if manager.status("bad") is GrammarStatus.FAILED:
                break
        assert "too ambiguous" in str(manager.error("bad"))
        assert set(manager.grammar_bitmask(["good", "bad"]).errors) == {"bad"}
        assert "bad" in manager.poll_ready()


@pytest.mark.parametrize("with_drafts", [False, True])
def test_grammar_with_slow_masks_fails_only_its_own_request(with_drafts):
    """xgrammar follows every way to read the text, and the ways grow with its
    length."""
    config = StructuredOutputsConfig(slow_token_seconds=0.004)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        for i in range(8):
            add(manager, f"good {i}", json=True)
        add(manager, "bad", grammar='root ::= item* "!"\nitem ::= [a-z]+ " "?', backend="xgrammar")
        a = ids_of("a")
        names = [*(f"good {i}" for i in range(8)), "bad"]
        while manager.status("bad") is GrammarStatus.READY:
            manager.grammar_bitmask(names, {"bad": a} if with_drafts else None)
            manager.accept_tokens("bad", a)
        assert "each of the last masks took more than 0.004 s to fill" in str(manager.error("bad"))
        assert set(manager.grammar_bitmask(names).errors) == {"bad"}
        assert all(manager.status(name) is GrammarStatus.READY for name in names[:-1])


def test_warm_up_with_more_constraints_than_the_queue_compiles_all():
    config = StructuredOutputsConfig(queue_size=8)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        many = [StructuredOutputsParams(choice=[f"answer {i}"]) for i in range(60)]
        errors = manager.warm_up([*many, StructuredOutputsParams(regex="(")], timeout=60)
        assert errors[:-1] == [None] * 60
        assert isinstance(errors[-1], GrammarError)
        assert not manager.poll_ready()
        for i, params in enumerate(many):
            assert manager.add_request(f"r{i}", params, stop_token_ids=[STOP, 5]) is GrammarStatus.READY
        assert manager.stats().compilation.cache_misses == 61
