"""What must not take the manager down, or leak, or reach another request."""

import gc
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tokenizers_on_the_spot
import torch

import structout
from structout import (
    GrammarError,
    GrammarStatus,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
)
from structout.errors import GrammarLimitError
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar_backend import XgrammarBackend
from structout.params import StructuredOutputOptions

V = 512
TOKENIZER = tokenizers_on_the_spot.byte_level()
STOP = TOKENIZER.eos_token_id


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V) as manager:
        yield manager


def add(manager, request_id, **params):
    manager.add_request(request_id, StructuredOutputsParams(**params))
    manager.wait_ready(request_id, timeout=60)


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "params",
    [
        {"json": "{"},
        {"json": "{}{}"},
        {"json": "[]"},
        {"json": "null"},
        {"json": b"{}"},
        {"json": {"const": "\ud800"}},
        {"json": {"const": "\0"}},
        {"json": {"pattern": "a\0"}},
        {"json": object},
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
    ids=str,
)
def test_nonsense_fails_its_own_request(manager, params):
    add(manager, "good", regex="a")
    manager.add_request("bad", StructuredOutputsParams(**params))
    with pytest.raises(GrammarError) as caught:
        manager.wait_ready("bad", timeout=60)
    assert caught.value.request_id == "bad"
    batch = manager.grammar_bitmask(["good", "bad"])
    assert set(batch.errors) == {"bad"}
    assert batch.bitmask.any(axis=1).tolist() == [True, False]


def test_a_limit_is_checked_before_anything_is_compiled(manager, monkeypatch):
    monkeypatch.setattr(manager, "_compile", lambda key: pytest.fail("compiled"))
    config = StructuredOutputsConfig()
    manager.add_request("bad", StructuredOutputsParams(choice=["a"] * (config.limits.alternatives + 1)))
    assert manager.status("bad") is GrammarStatus.FAILED
    problem = manager.error("bad")
    assert isinstance(problem, GrammarLimitError)
    assert (problem.limit, problem.got, problem.max, problem.request_id) == ("alternatives", 5001, 5000, "bad")


def test_a_real_compilation_that_overruns_its_deadline_makes_room():
    """xgrammar takes many seconds for this one; the next request of the only worker must not."""
    config = StructuredOutputsConfig(compile_workers=1, compile_timeout=0.7)
    slow = {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(900)}}
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        manager.add_request("slow", StructuredOutputsParams(json=slow, backend="xgrammar:no-fallback"))
        manager.add_request("next", StructuredOutputsParams(regex="a"))
        manager.wait_ready("next", timeout=30)
        with pytest.raises(structout.GrammarTimeoutError):
            manager.wait_ready("slow", timeout=30)
        assert manager.status("slow") is GrammarStatus.FAILED


def test_a_row_that_cannot_be_filled_is_closed_and_the_other_511_are_right(manager, monkeypatch):
    names = [f"r{i}" for i in range(512)]
    for i, name in enumerate(names):
        add(manager, name, choice=[f"answer {i % 7}"], backend="xgrammar:no-fallback")
        assert manager.accept_tokens(name, ids_of("answer "))
    expected = manager.grammar_bitmask(names).bitmask.copy()
    broken = manager._requests["r300"].grammar
    assert broken.matcher.accept_token(ids_of("6")[0])
    assert broken.matcher.accept_token(STOP)
    monkeypatch.setattr(broken, "is_terminated", lambda: False)
    batch = manager.grammar_bitmask(names)
    assert set(batch.errors) == {"r300"}
    assert not batch.bitmask[300].any()
    batch.bitmask[300] = expected[300]
    assert (batch.bitmask == expected).all()


def test_one_request_from_many_threads_never_comes_apart(manager):
    """Two threads in one native matcher would be a crash."""
    add(manager, "r", regex="[ab]*")
    a, b = ids_of("a"), ids_of("b")
    expected = manager.grammar_bitmask(["r"]).bitmask.copy()
    problems = []

    def hammer(seed):
        rng = random.Random(seed)
        try:
            for _ in range(300):
                what = rng.randrange(4)
                if what == 0:
                    assert manager.accept_tokens("r", a)
                elif what == 1:
                    assert manager.accept_batch({"r": b})["r"]
                elif what == 2:
                    assert (manager.grammar_bitmask(["r"], {"r": [*a, *b]}).num_acceptable_drafts == [2]).all()
                else:
                    assert manager.validate_tokens("r", [*a, *b]) == [*a, *b]
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    manager.rollback("r", manager._requests["r"].grammar.num_tokens)
    assert (manager.grammar_bitmask(["r"]).bitmask == expected).all()


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_64_threads_with_a_schema_each_get_their_own_language(backend):
    def schema(i):
        return {
            "type": "object",
            "properties": {f"key{i}": {"const": f"value {i}"}},
            "required": [f"key{i}"],
            "additionalProperties": False,
        }

    config = StructuredOutputsConfig(any_whitespace=False, tenant_queue_size=512)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        barrier, problems = threading.Barrier(64), []

        def one(i):
            try:
                barrier.wait(60)
                add(manager, f"r{i}", json=schema(i), backend=f"{backend}:no-fallback")
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        for i in range(64):
            of_another = ids_of(f'{{"key{(i + 1) % 64}": "value')
            assert manager.validate_tokens(f"r{i}", of_another) != of_another
            assert manager.accept_tokens(f"r{i}", [*ids_of(f'{{"key{i}": "value {i}"}}'), STOP])
            assert manager.is_terminated(f"r{i}")


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_ten_thousand_live_requests_and_a_hundred_thousand_through():
    """In a process of its own, so that its memory is its own."""
    folder = str(Path(__file__).parent)
    script = f"import sys; sys.path.insert(0, {folder!r}); import test_manager_hostile as t; t.many_requests()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def many_requests():
    params = [StructuredOutputsParams(choice=[f"answer {i}", "none"]) for i in range(50)]
    with StructuredOutputManager(TOKENIZER, V) as manager:
        assert manager.warm_up(params) == [None] * len(params)
        before = resident_bytes()
        for i in range(10_000):
            assert manager.add_request(f"live {i}", params[i % 50]) is GrammarStatus.READY
            assert manager.accept_tokens(f"live {i}", ids_of("answer"))
        assert len(manager.poll_ready()) == 10_000
        per_request = (resident_bytes() - before) / 10_000
        assert per_request < 16 << 10, f"{per_request:,.0f} bytes a request"
        assert manager.grammar_bitmask([f"live {i}" for i in range(10_000)]).bitmask.any(axis=1).all()

        before = resident_bytes()
        for i in range(100_000):
            manager.add_request(f"through {i}", params[i % 50])
            manager.finish_request(f"through {i}")
        grown = resident_bytes() - before
        assert grown < 8 << 20, f"{grown:,} bytes more after 100,000 requests"
        assert manager.stats().ready == 10_000
        assert not manager.poll_ready()
        assert manager.slot("live 9999") == 9_999


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
def test_backends_refuse_buffers_that_a_native_fill_would_write_wrongly(buffer):
    backend = XgrammarBackend(Vocabulary.from_tokenizer(TOKENIZER, V))
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, "a")
    fills = [
        lambda: grammar.fill_bitmask(buffer, 0),
        lambda: backend.fill_bitmask_batch([grammar], buffer, [1]),
        lambda: grammar.fill_bitmask_drafts(buffer, 0, [5]),
        lambda: grammar.fill_bitmask_tree(buffer, 0, [0, 5], [1, -1], [-1, -1]),
    ]
    for fill in fills:
        with pytest.raises(ValueError, match="a mask buffer is a contiguous int32 CPU tensor"):
            fill()
    if buffer.device.type == "cpu":
        assert not buffer.any()
