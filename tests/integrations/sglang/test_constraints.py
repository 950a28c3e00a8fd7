"""The constraints of SGLang's requests: what is compiled, refused, cached and shared
between threads, and SGLang's own grammar manager over it."""

import gc
import json
import random
import re
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from structout import StructuredOutputsConfig
from structout.integrations.sglang.grammar_cache import GrammarCache
from support.sglang_imports import make_sglang_importable
from support.tokenizers_on_the_spot import byte_fallback, byte_level

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.runtime_context import get_context, get_parallel

from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
from structout.integrations.sglang.grammar_object import RefusedGrammar, StructoutGrammar
from support.sglang_requests import EOS, KEYS, ORDER, WIDTH, allowed, compile_key, generate, is_valid, row_of, text_of

# -- constraints -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEYS)
def test_texts_of_each_kind_satisfy_their_constraint(backend, kind):
    for seed in range(5):
        grammar = compile_key(backend, KEYS[kind])
        tokens = generate(backend, grammar, seed)
        assert is_valid(kind, text_of(backend, tokens[:-1]))


@pytest.mark.parametrize("kind", ["json", "regex", "old structural_tag"])
def test_texts_with_a_byte_fallback_tokenizer_satisfy_their_constraint(kind):
    tokenizer = byte_fallback()
    other = StructoutGrammarBackend(tokenizer, len(tokenizer))
    tokens = generate(other, compile_key(other, KEYS[kind]), 3)
    assert is_valid(kind, text_of(other, tokens[:-1]))


def test_mask_allows_what_is_accepted_and_nothing_else(backend):
    grammar = compile_key(backend, KEYS["json"])
    for token in backend._vocabulary.spell('{"name": "A'):
        allowed_now = allowed(grammar)
        for other in range(WIDTH):
            if other in allowed_now:
                grammar.accept_token(other)
                grammar.rollback(1)
            else:
                with pytest.raises(ValueError, match=f"does not allow token {other} after"):
                    grammar.accept_token(other)
        grammar.accept_token(token)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("json", '{"type": "foo"}'), "^#/type: unknown type foo"),
        (("json", "{"), "the JSON schema is not JSON"),
        (("json", ""), "not JSON"),
        (("json", "[]"), "must be an object or a boolean, got list"),
        (("json", "false"), "allows no text at all"),
        (("json", '{"$ref": "#/$defs/a"}'), "cannot follow the reference #/\\$defs/a"),
        (("json", "[" * 100_000), "nested too deeply|not JSON|limited|Recursion"),
        (("json", json.dumps({"enum": ["x" * 5_000_000]})), "is limited to"),
        (("regex", "("), "does not parse"),
        (("regex", ""), "empty string"),
        (("regex", "a\0"), "NUL"),
        (("json", '{"items": {"$ref": "#/$defs/a\\u0000"}}'), "NUL"),
        (("regex", "\ud800"), "lone surrogate"),
        (("regex", "a(?<=a)b"), "lookbehind"),
        (("ebnf", "root ::= root"), "."),
        (("ebnf", "nonsense"), "."),
        (("ebnf", "root ::= " + "(" * 100_000), "."),
        (("structural_tag", "{"), "not JSON"),
        (("structural_tag", "[]"), "must be an object"),
        (("structural_tag", "{}"), "."),
        (("structural_tag", '{"structures": 3}'), "."),
        (("structural_tag", '{"structures": [{}], "triggers": ["<"]}'), "."),
        (("structural_tag", '{"type": "structural_tag", "format": {"type": "nonsense"}}'), "."),
        (("unknown", "x"), "knows no constraint of type 'unknown'"),
    ],
)
def test_bad_constraint_fails_its_request_with_our_message(backend, key, message):
    value, _ = backend.get_cached_or_future_value(key, False)
    try:
        grammar = value.result(60) if isinstance(value, Future) else value
    except RecursionError:  # in SGLang's own search for NUL, which the scheduler catches
        return
    assert isinstance(grammar, InvalidGrammarObject), grammar
    assert re.search(message, grammar.error_message), grammar.error_message
    assert compile_key(backend, KEYS["regex"])  # others go on


def test_mangled_constraints_are_served_or_refused(backend, num_cases):
    """Constraints with characters removed, repeated and replaced."""
    chance = random.Random(0)
    for _ in range(num_cases(300, long=3_000)):
        kind, text = chance.choice(list(KEYS.values()))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text) + 1)
            text = (
                text[:at]
                + chance.choice(["", "{", "}", "[", "(", '"', "\\", "\0", "*", "é", text[:9]])
                + text[at + 1 :]
            )
        try:
            grammar = backend._init_value_dispatch((kind, text), False)
        except RecursionError:  # in SGLang's own search for NUL
            continue
        assert isinstance(grammar, StructoutGrammar | InvalidGrammarObject), text
        if isinstance(grammar, InvalidGrammarObject):
            assert grammar.error_message
            assert "compilation failed" not in grammar.error_message, text
        else:
            assert allowed(grammar)


def test_constraint_that_no_engine_enforces_is_served_with_one_log_line(backend, caplog):
    schema = {"enum": ["b"], "pattern": "^(?<=x)b$"}
    grammar = compile_key(backend, ("json", json.dumps(schema)))
    assert isinstance(grammar, StructoutGrammar)
    (record,) = [record for record in caplog.records if record.name.startswith("structout")]
    assert record.getMessage() == "a json constraint is served without #/pattern"


def test_crash_of_an_engine_fails_its_request_only(backend, monkeypatch):
    def crash(constraint):
        raise MemoryError("no memory")

    monkeypatch.setattr(backend._engines, "compile", crash)
    grammar = compile_key(backend, ("regex", "crash"))
    assert isinstance(grammar, RefusedGrammar)
    assert grammar.error_message == "compilation failed: no memory"
    assert ("regex", "crash") not in backend.cache


def test_tag_without_a_schema_takes_any_json(backend):
    old = {"structures": [{"begin": "<a>", "schema": None, "end": "</a>"}], "triggers": ["<a>"]}
    new = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema"}, "end": "</a>"},
    }
    for tag in (old, new):
        grammar = compile_key(backend, ("structural_tag", json.dumps(tag)))
        tokens = backend._vocabulary.spell('<a>[1, {"b": null}]</a>')
        assert grammar._position.validate_tokens(tokens) == tokens


# -- the cache, copies and threads -----------------------------------------------------


def test_second_request_is_served_from_the_cache_by_a_copy(backend):
    first = compile_key(backend, KEYS["json"])
    first.accept_token(min(allowed(first)))
    second, is_hit = backend.get_cached_or_future_value(KEYS["json"], False)
    third, _ = backend.get_cached_or_future_value(KEYS["json"], False)
    assert is_hit
    assert second.grammar_stats.is_cache_hit
    assert (second.num_tokens, third.num_tokens) == (0, 0)
    for token in backend._vocabulary.spell('{"name"'):
        second.accept_token(token)
    assert (first.num_tokens, third.num_tokens) == (1, 0)
    assert third.grammar_stats is not second.grammar_stats
    assert allowed(third) == allowed(compile_key(backend, KEYS["json"]))


class Sized:
    def __init__(self, memory_bytes):
        self.memory_bytes = memory_bytes


def test_cache_drops_the_least_recently_used():
    cache = GrammarCache(30_000)
    for name in "abc":
        cache["regex", name] = Sized(5_000)
    assert cache.get(("regex", "a"))
    cache["regex", "d"] = Sized(10_000)
    assert set(cache) == {("regex", "a"), ("regex", "c"), ("regex", "d")}
    assert cache.num_bytes <= 30_000
    cache["regex", "huge"] = Sized(40_000)
    cache["regex", "timed out"] = object()
    assert len(cache) == 3
    cache["regex", "a"] = object()  # replaces what was known
    assert ("regex", "a") not in cache
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)
    assert cache.pop(("regex", "a"), None) is None


def test_failures_of_sglang_are_not_cached(backend):
    backend.set_cache(("regex", "slow"), InvalidGrammarObject("Grammar preprocessing timed out"))
    assert ("regex", "slow") not in backend.cache
    compile_key(backend, ("regex", "(bad"))
    value, is_hit = backend.get_cached_or_future_value(("regex", "(bad"), False)
    assert is_hit
    assert isinstance(value, InvalidGrammarObject)


def test_many_constraints_stay_within_the_memory_of_the_cache():
    small = StructoutGrammarBackend(byte_level(), WIDTH, [EOS], StructuredOutputsConfig(cache_bytes=1_000_000))
    for i in range(200):
        compile_key(small, ("regex", f"a{{{i + 1}}}"))
    assert 0 < len(small.cache) < 200
    assert small.cache.num_bytes <= 1_000_000
    small.reset()
    assert len(small.cache) == 0


def test_threads_get_grammars_of_their_own_constraint(backend):
    """SGLang compiles on several threads at once."""
    futures = {i: backend.get_cached_or_future_value(("regex", f"x{i}y"), False)[0] for i in range(64)}
    for i, future in futures.items():
        grammar = future.result(120)
        tokens = backend._vocabulary.spell(f"x{i}y")
        assert grammar._position.validate_tokens([*tokens, EOS]) == [*tokens, EOS]
        assert not grammar._position.validate_tokens(backend._vocabulary.spell("y"))


def test_fill_while_other_threads_compile(backend):
    grammar = compile_key(backend, KEYS["json"])
    expected = row_of(grammar).clone()
    stop = threading.Event()

    def compile_forever(start):
        i = start
        while not stop.is_set():
            backend.dispatch_regex(f"[a-f]{{{i}}}")
            i += 2

    with ThreadPoolExecutor(2) as pool:
        compiling = [pool.submit(compile_forever, start) for start in (1, 2)]
        for _ in range(200):
            assert torch.equal(row_of(grammar), expected)
        stop.set()
        for future in compiling:
            future.result()


def test_released_grammars_leave_nothing_behind(backend):
    template = compile_key(backend, KEYS["json"])
    released = []
    for _ in range(200):
        copy = template.copy()
        copy.accept_token(min(allowed(copy)))
        released.append(weakref.ref(copy._position))
    del copy
    gc.collect()
    assert not any(ref() for ref in released)


# -- SGLang's grammar manager ----------------------------------------------------------


class Req:
    """What the grammar manager reads and writes of a request."""

    def __init__(self, require_reasoning=False, **constraint):
        names = ("json_schema", "regex", "ebnf", "structural_tag")
        self.sampling_params = SimpleNamespace(**dict.fromkeys(names), ebnf_full_assistant=False, custom_params=None)
        vars(self.sampling_params).update(constraint)
        self.require_reasoning, self.rid, self.origin_input_ids = require_reasoning, "r", [1]
        self.grammar = self.error = None
        self.grammar_wait_ct = 0

    def set_finish_with_abort(self, error):
        self.error = error

    def finished(self):
        return self.error is not None


@pytest.fixture
def manager(monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
    scheduler = SimpleNamespace(
        server_args=None,
        tokenizer=byte_level(),
        model_config=SimpleNamespace(vocab_size=WIDTH, hf_eos_token_id={EOS}, think_end_ids=None),
        dp_tp_cpu_group=None,
        dp_tp_group=SimpleNamespace(world_size=1, first_rank=0, is_first_rank=True),
        pp_group=None,
    )
    with (
        get_context().override_server_args(grammar_backend="structout") as scheduler.server_args,
        get_parallel().override(pp_rank=0),
    ):
        yield GrammarManager(scheduler)


def ready_requests(manager, num_requests):
    ready = []
    deadline = time.monotonic() + 60
    while len(ready) < num_requests:
        assert time.monotonic() < deadline
        ready += manager.get_ready_grammar_requests()
    return ready


def test_grammar_manager_serves_good_requests_and_aborts_bad_ones(manager):
    good = [Req(json_schema=json.dumps(ORDER)), Req(regex="[a-z]+"), Req(ebnf=KEYS["ebnf"][1])]
    bad = [Req(regex="("), Req(json_schema="{"), Req(structural_tag="{}")]
    for request in good + bad:
        assert manager.process_req_with_grammar(request)
    assert len(ready_requests(manager, 6)) == 6
    assert len(manager) == 0
    assert all(isinstance(request.grammar, StructoutGrammar) and not request.error for request in good)
    assert bad[0].error.startswith("Failed to compile regex grammar: a regular expression does not parse")
    assert bad[1].error.startswith("Failed to compile json grammar: the JSON schema is not JSON")
    assert all(request.error for request in bad)
    cached, cached_bad = Req(regex="[a-z]+"), Req(regex="(")
    assert not manager.process_req_with_grammar(cached)
    assert not manager.process_req_with_grammar(cached_bad)
    assert cached.grammar is not good[1].grammar
    assert cached_bad.error == bad[0].error
    manager.clear()
    assert manager.process_req_with_grammar(Req(regex="[a-z]+"))


def test_constraint_that_sglang_gives_up_on_is_compiled_again(manager, monkeypatch):
    release = threading.Event()
    compile_constraint = manager.grammar_backend._engines.compile

    def wait(constraint):
        release.wait(60)
        return compile_constraint(constraint)

    monkeypatch.setattr(manager.grammar_backend._engines, "compile", wait)
    manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 2
    slow = Req(regex="slow")
    manager.process_req_with_grammar(slow)
    ready_requests(manager, 1)
    assert slow.error.startswith("Grammar preprocessing timed out")
    release.set()
    again = Req(regex="slow")
    assert manager.process_req_with_grammar(again)
    manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 10_000
    ready_requests(manager, 1)
    assert isinstance(again.grammar, StructoutGrammar)
