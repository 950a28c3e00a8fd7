"""structout's grammar backend and sampler on the classes of an installed SGLang.

`make test-sglang` installs SGLang into a folder of its own and runs these tests on it.
"""

import argparse
import gc
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import jsonschema
import pytest
import tomllib
import torch
from locations import ROOT
from sglang_imports import make_sglang_importable
from tokenizers_on_the_spot import byte_fallback, byte_level

from structout import StructuredOutputsConfig, allocate_token_bitmask, masked_sample, unpack_bitmask
from structout.integrations import sglang as adapter
from structout.integrations.sglang.grammar_cache import GrammarCache

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt import plugins
from sglang.srt.constrained import base_grammar_backend as sglang_grammar
from sglang.srt.constrained.base_grammar_backend import (
    GrammarRow,
    InvalidGrammarObject,
    create_grammar_backend,
)
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.layers import sampler as sglang_sampler
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_utils import traverse_tree

from structout.integrations.sglang.grammar import RefusedGrammar, StructoutGrammar
from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
from structout.integrations.sglang.sampler import StructoutSampler

WIDTH = 525  # of the lm_head: beyond the tokenizer's ids, and no multiple of 32
EOS = byte_level().eos_token_id
ORDER = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<a>"],
        "tags": [
            {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": ORDER}, "end": "</a>"}
        ],
        "at_least_one": True,
    },
}
OLD_TAG = {
    "structures": [{"begin": "<a>", "schema": ORDER, "end": "</a>"}],
    "triggers": ["<a>"],
    "at_least_one": True,
}
KEYS = {
    "json": ("json", json.dumps(ORDER)),
    "any json": ("json", "$$ANY$$"),
    "regex": ("regex", r"[a-z]{3}-\d{2}"),
    "ebnf": ("ebnf", 'root ::= "yes" | "no" [0-9]'),
    "lark": ("ebnf", 'start: "yes" | "no" /[0-9]/'),
    "full_assistant_ebnf": ("full_assistant_ebnf", 'root ::= "yes" | "no" [0-9]'),
    "structural_tag": ("structural_tag", json.dumps(TAG)),
    "old structural_tag": ("structural_tag", json.dumps(OLD_TAG)),
}


def is_valid(kind, text):
    if kind == "json":
        jsonschema.validate(json.loads(text), ORDER)
        return True
    if kind == "any json":
        return json.loads(text) is not None
    if kind == "regex":
        return re.fullmatch(r"[a-z]{3}-\d{2}", text) is not None
    if "tag" in kind:
        tagged = re.findall("<a>(.*?)</a>", text, re.DOTALL)
        for content in tagged:
            jsonschema.validate(json.loads(content), ORDER)
        return bool(tagged)
    return re.fullmatch("yes|no[0-9]", text) is not None


@pytest.fixture(scope="module", autouse=True)
def registered():
    adapter.register()


@pytest.fixture(scope="module")
def backend():
    return StructoutGrammarBackend(byte_level(), WIDTH, [EOS])


def compile_key(backend, key, require_reasoning=False):
    """The grammar of a request, by the calls of SGLang's scheduler."""
    value, is_hit = backend.get_cached_or_future_value(key, require_reasoning)
    if is_hit:
        return value
    grammar = value.result(60)
    backend.set_cache(key, grammar.copy())
    return grammar


def row_of(grammar, row=0, num_rows=1):
    mask = grammar.allocate_vocab_mask(WIDTH, num_rows, "cpu")
    grammar.fill_vocab_mask(mask, row)
    return mask[row]


def allowed(grammar):
    return set(unpack_bitmask(row_of(grammar)[None], WIDTH)[0].nonzero().flatten().tolist())


def generate(backend, grammar, seed, max_tokens=400):
    """A text drawn from random logits under the grammar's masks, with its tokens."""
    vocabulary = backend._vocabulary
    generator = torch.Generator().manual_seed(seed)
    (stop,) = vocabulary.stop_token_ids
    tokens = []
    while len(tokens) < max_tokens:
        logits = torch.randn(1, vocabulary.size, generator=generator)
        logits[:, [stop, *vocabulary.spell('"}]')]] += 2 + len(tokens) / 10  # what ends a text or a part of it
        mask = grammar.allocate_vocab_mask(vocabulary.size, 1, "cpu")
        grammar.fill_vocab_mask(mask, 0)
        grammar.apply_vocab_mask(logits=logits, vocab_mask=grammar.move_vocab_mask(mask, "cpu"))
        tokens.append(int(logits.argmax()))
        grammar.accept_token(tokens[-1])
        if grammar.is_terminated():
            assert tokens[-1] == stop
            return tokens
    raise AssertionError(f"no end after {max_tokens} tokens: {vocabulary.text_of(tokens)}")


def text_of(backend, tokens):
    return backend._vocabulary.text_of(tokens)


# -- registration ----------------------------------------------------------------------


def test_entry_point_names_register():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["sglang.srt.plugins"].items()
    assert (name, EntryPoint(name, value, "sglang.srt.plugins").load()) == ("structout", adapter.register)


def test_plugin_loader_of_sglang_registers_both(monkeypatch):
    entry_point = EntryPoint("structout", "structout.integrations.sglang:register", "sglang.srt.plugins")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry_point] if group == entry_point.group else [])
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    monkeypatch.setattr(sglang_sampler, "_CUSTOM_SAMPLER_FACTORIES", {})
    plugins.load_plugins()
    assert set(sglang_grammar.GRAMMAR_BACKEND_REGISTRY) == {"structout"}
    assert {"structout": StructoutSampler} == sglang_sampler._CUSTOM_SAMPLER_FACTORIES


def test_register_in_a_process_without_sglangs_sampler_does_not_import_it():
    script = (
        "import sys, sglang_imports; sglang_imports.make_sglang_importable(); "
        "from structout.integrations import sglang; sglang.register(); "
        "from sglang.srt.arg_groups.choices import SAMPLING_BACKEND_CHOICES; "
        "print('structout' in SAMPLING_BACKEND_CHOICES, 'sglang.srt.layers.sampler' in sys.modules)"
    )
    path = os.pathsep.join([*sys.path, str(ROOT / "tests" / "support")])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert run.stdout.split() == ["True", "False"], run.stderr


def test_register_with_a_build_of_a_known_version_registers(monkeypatch):
    monkeypatch.setattr(adapter, "version", lambda name: "0.5.23+cu130")
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    adapter.register()
    assert set(sglang_grammar.GRAMMAR_BACKEND_REGISTRY) == {"structout"}


def test_register_offers_both_names_on_the_command_line():
    arguments = ["--model-path", "m", "--grammar-backend", "structout", "--sampling-backend", "structout"]
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(arguments)
    assert (parsed.grammar_backend, parsed.sampling_backend) == ("structout", "structout")


def test_register_twice_offers_the_name_once():
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES

    adapter.register()
    assert GRAMMAR_BACKEND_CHOICES.count("structout") == 1


def test_register_with_an_unknown_version_warns_and_registers_nothing(monkeypatch):
    monkeypatch.setattr(adapter, "version", lambda name: "0.6.0")
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    with pytest.warns(RuntimeWarning, match=r"supports SGLang 0\.5\.23, got 0\.6\.0"):
        adapter.register()
    assert sglang_grammar.GRAMMAR_BACKEND_REGISTRY == {}


def test_register_with_the_switch_off_registers_nothing(monkeypatch):
    monkeypatch.setenv("STRUCTOUT_SGLANG", "0")
    monkeypatch.setattr(sglang_grammar, "GRAMMAR_BACKEND_REGISTRY", {})
    adapter.register()
    assert sglang_grammar.GRAMMAR_BACKEND_REGISTRY == {}


def test_import_of_the_adapter_imports_neither_sglang_nor_engines():
    script = (
        "import sys, structout.integrations.sglang; "
        "print([n for n in ('sglang', 'xgrammar', 'llguidance') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "[]", run.stderr


# -- the backend that the server makes -------------------------------------------------


@pytest.fixture
def server():
    """A function that makes the backend of a server with some settings."""

    def make(tokenizer=None, eos=None, **settings):
        with get_context().override_server_args(grammar_backend="structout", **settings) as server_args:
            return create_grammar_backend(server_args, tokenizer or byte_level(), WIDTH, eos or {EOS})

    return make


def test_server_makes_the_backend_by_its_name(server, monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
    backend = server()
    assert isinstance(backend, StructoutGrammarBackend)
    assert is_valid("json", text_of(backend, generate(backend, compile_key(backend, KEYS["json"]), 0)[:-1]))
    assert server(eos={7, 9})._vocabulary.stop_token_ids == (7, 9)
    assert server(eos=7)._vocabulary.stop_token_ids == (7,)


def test_server_prepares_the_engines_at_its_start(server):
    backend = server()
    assert all(lazy._made is not None for lazy in backend._engines._backends.values())
    backend._engines.destroy()


def test_server_settings_reach_the_constraints(server, monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)

    def accepts(backend, text):
        grammar = compile_key(backend, KEYS["json"])
        return len(grammar._position.validate_tokens(tokens := backend._vocabulary.spell(text))) == len(tokens)

    assert not accepts(server(constrained_json_disable_any_whitespace=True), '{"name":  ')
    assert accepts(server(constrained_json_max_whitespace_cnt=4), '{    "name"')
    assert not accepts(server(), '{    "name"')
    assert not accepts(server(constrained_json_whitespace_pattern="\t"), '{ "name"')
    assert accepts(server(constrained_json_whitespace_pattern="\t"), '{\t"name"')


def test_several_ranks_compile_where_none_can_fail_alone(server, monkeypatch):
    monkeypatch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
    assert server()._config.isolate_slow_compiles
    for sizes in ({"tp_size": 2}, {"pp_size": 2}):
        with get_parallel().override(**sizes):
            assert not server()._config.isolate_slow_compiles


def test_tokenizer_without_known_bytes_stops_the_server():
    with pytest.raises(TypeError, match="expected a Hugging Face tokenizer"):
        StructoutGrammarBackend(object(), WIDTH, [0])


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
        (("json", '{"type": "foo"}'), "^#/type: there is no type foo"),
        (("json", "{"), "the JSON schema is not JSON"),
        (("json", ""), "not JSON"),
        (("json", "[]"), "must be an object or a boolean, got list"),
        (("json", "false"), "allows no text at all"),
        (("json", '{"$ref": "http://x"}'), "a \\$ref must be"),
        (("json", "[" * 100_000), "nested too deeply|not JSON|limited|Recursion"),
        (("json", json.dumps({"enum": ["x" * 300_000]})), "is limited to"),
        (("regex", "("), "does not parse"),
        (("regex", ""), "empty string"),
        (("regex", "a\0"), "NUL"),
        (("json", '{"pattern": "a\\u0000"}'), "NUL"),
        (("regex", "\ud800"), "lone surrogate"),
        (("regex", "a(?<=a)b"), "lookaround"),
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
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    grammar = compile_key(backend, ("json", json.dumps(schema)))
    assert isinstance(grammar, StructoutGrammar)
    (record,) = [record for record in caplog.records if record.name.startswith("structout")]
    assert record.getMessage() == "a json constraint is served without #/uniqueItems"


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


# -- masks of a batch ------------------------------------------------------------------


def test_batched_fill_over_engines_equals_fills_one_by_one(backend):
    grammars = [compile_key(backend, key) for key in KEYS.values()]
    assert {grammar._compiled.backend_name for grammar in grammars} == {"llguidance", "xgrammar"}
    ended = compile_key(backend, ("regex", "a"))
    ended.accept_token(backend._vocabulary.spell("a")[0])
    ended.accept_token(EOS)
    grammars += [ended, *(grammar.copy() for grammar in grammars * 4)]
    rows = torch.randperm(len(grammars) + 5, generator=torch.Generator().manual_seed(0))[: len(grammars)].tolist()
    serial = grammars[0].allocate_vocab_mask(WIDTH, len(grammars) + 5, "cpu")
    batched = serial.clone()
    for grammar, row in zip(grammars, rows, strict=True):
        grammar.fill_vocab_mask(serial, row)
    entries = [GrammarRow(row, grammar) for grammar, row in zip(grammars, rows, strict=True)]
    grammars[0].fill_vocab_mask_batched(entries, batched)
    assert torch.equal(batched, serial)
    untouched = sorted(set(range(len(grammars) + 5)) - set(rows))
    assert bool((batched[untouched] == -1).all())
    assert bool((batched[rows[len(KEYS)]] == -1).all())  # ended


def sampling_info(num_rows, temperatures=1.0, top_p=1.0, top_k=TOP_K_ALL, min_p=0.0, seed=None, grammars=None):
    def column(value, dtype):
        return torch.tensor([value] * num_rows if not isinstance(value, list) else value, dtype=dtype)

    top_ks, top_ps, min_ps = column(top_k, torch.int32), column(top_p, torch.float), column(min_p, torch.float)
    return SamplingBatchInfo(
        temperatures=column(temperatures, torch.float).view(-1, 1),
        top_ps=top_ps,
        top_ks=top_ks,
        min_ps=min_ps,
        is_all_greedy=bool((top_ks <= 1).all()),
        is_any_greedy=bool((top_ks <= 1).any()),
        need_top_p_sampling=bool((top_ps != 1).any()),
        need_top_k_sampling=bool((top_ks != TOP_K_ALL).any()),
        need_min_p_sampling=bool((min_ps > 0).any()),
        vocab_size=WIDTH,
        grammars=grammars,
        sampling_seed=None if seed is None else column(seed, torch.int64),
        device="cpu",
    )


def test_masks_of_sglangs_own_batch_reach_the_logits(backend):
    """update_regex_vocab_mask and apply_logits_bias are what SGLang's workers call."""
    grammars = [None, compile_key(backend, KEYS["json"]), None, compile_key(backend, KEYS["regex"])]
    ended = compile_key(backend, KEYS["ebnf"])
    for token in [*backend._vocabulary.spell("yes"), EOS]:
        ended.accept_token(token)
    finished = compile_key(backend, KEYS["ebnf"])
    finished.finished = True
    grammars += [ended, finished]
    info = sampling_info(len(grammars), grammars=grammars)
    info.update_regex_vocab_mask()
    logits = torch.randn(len(grammars), WIDTH + 3)  # the lm_head may be wider than the vocabulary
    before = logits.clone()
    info.apply_logits_bias(logits)
    for row, grammar in enumerate(grammars):
        is_free = grammar is None or grammar in (ended, finished)
        expected = set(range(WIDTH)) if is_free else allowed(grammar)
        kept = set((logits[row] > -torch.inf).nonzero().flatten().tolist())
        assert {token for token in kept if token < WIDTH} == expected
        assert torch.equal(logits[row][sorted(expected)], before[row][sorted(expected)])


def test_reset_allows_everything(backend):
    mask = torch.zeros(2, (WIDTH + 31) // 32, dtype=torch.int32)
    compile_key(backend, KEYS["json"]).reset_vocab_mask(mask)
    assert torch.equal(mask, allocate_token_bitmask(2, WIDTH))


# -- positions -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "regex"])
def test_rollback_gives_back_every_earlier_mask(backend, kind):
    grammar = compile_key(backend, KEYS[kind])
    tokens = generate(backend, grammar.copy(), 1)
    masks = []
    for token in tokens:
        masks.append(row_of(grammar).clone())
        grammar.accept_token(token)
    assert grammar.is_terminated()
    for back in (1, 3, len(tokens)):
        grammar.rollback(back)
        assert not grammar.is_terminated()
        assert torch.equal(row_of(grammar), masks[len(tokens) - back])
        for token in tokens[len(tokens) - back :]:
            grammar.accept_token(token)


def test_accept_after_the_end_changes_nothing_and_can_be_rolled_back(backend):
    grammar = compile_key(backend, KEYS["ebnf"])
    for token in [*backend._vocabulary.spell("yes"), EOS]:
        grammar.accept_token(token)
    for token in (5, EOS, WIDTH + 7):
        grammar.accept_token(token)
        assert grammar.is_terminated()
    assert bool((row_of(grammar) == -1).all())
    grammar.rollback(4)
    assert not grammar.is_terminated()
    assert allowed(grammar) == {EOS}


@pytest.mark.parametrize("token", [-1, WIDTH, 2**40, True, 1.5, None, EOS])
def test_token_that_is_none_raises_value_error(backend, token):
    grammar = compile_key(backend, KEYS["regex"])
    with pytest.raises(ValueError, match="does not allow token"):
        grammar.accept_token(token)
    assert (grammar.num_tokens, grammar.current_token) == (0, None)


@pytest.mark.parametrize("k", [-1, 2, 10**9])
def test_rollback_of_too_much_raises_value_error(backend, k):
    grammar = compile_key(backend, KEYS["regex"])
    grammar.accept_token(min(allowed(grammar)))
    with pytest.raises(ValueError, match="cannot roll back"):
        grammar.rollback(k)
    assert grammar.num_tokens == 1


def test_traverse_tree_fills_the_masks_of_a_tree_of_drafts(backend):
    grammar = compile_key(backend, KEYS["json"])
    spell = backend._vocabulary.spell
    good, bad = spell('{"name'), spell("]")
    #        0 ─ good[0] ─ good[1] …, with bad[0] as the sibling of good[1]
    drafts = torch.tensor([EOS, good[0], good[1], bad[0]])
    next_token = torch.tensor([1, 2, -1, -1])
    next_sibling = torch.tensor([-1, -1, 3, -1])
    mask = grammar.allocate_vocab_mask(WIDTH, 8, "cpu")
    traverse_tree(next_token, next_sibling, drafts, grammar, mask[2:6], vocab_size=WIDTH)
    assert grammar.num_tokens == 0
    expected = grammar.copy()
    for row, token in ((2, good[0]), (3, good[1]), (4, None)):
        assert torch.equal(mask[row], row_of(expected))
        if token is not None:
            expected.accept_token(token)
    assert bool((mask[[0, 1, 5, 6, 7]] == -1).all())


def test_traverse_tree_at_the_end_leaves_later_rows_free(backend):
    grammar = compile_key(backend, KEYS["ebnf"])
    for token in backend._vocabulary.spell("yes"):
        grammar.accept_token(token)
    mask = grammar.allocate_vocab_mask(WIDTH, 3, "cpu")
    chain = torch.tensor([1, 2, -1])
    none = torch.tensor([-1, -1, -1])
    traverse_tree(chain, none, torch.tensor([7, EOS, 5]), grammar, mask, vocab_size=WIDTH)
    assert unpack_bitmask(mask[:1], WIDTH)[0].nonzero().flatten().tolist() == [EOS]
    assert bool((mask[1:] == -1).all())
    assert not grammar.is_terminated()


def test_jump_forward_keeps_the_text(backend):
    """The jumped text is tokenized anew with the text before it, as SGLang's own jump
    did."""
    tokenizer = byte_level()
    compact = StructoutGrammarBackend(tokenizer, WIDTH, [EOS], StructuredOutputsConfig(any_whitespace=False))
    for seed in range(5):
        grammar = compile_key(compact, KEYS["json"])
        generator = torch.Generator().manual_seed(seed)
        output, num_jumps = [], 0
        while not grammar.is_terminated():
            helper = grammar.try_jump_forward(tokenizer)
            if helper is not None:
                jumped, state = grammar.jump_forward_str_state(helper)
                text = text_of(compact, output) + jumped
                retokenized = tokenizer.encode(text, add_special_tokens=False)
                grammar.jump_and_retokenize(output, retokenized, state)
                assert text_of(compact, retokenized) == text
                output, num_jumps = retokenized, num_jumps + 1
                continue
            choices = sorted(allowed(grammar))
            token = choices[int(torch.randint(len(choices), (), generator=generator))]
            grammar.accept_token(token)
            output.append(token)
        assert num_jumps >= 2
        assert is_valid("json", text_of(compact, output[:-1]))


def test_jump_to_tokens_that_are_not_allowed_changes_nothing(backend):
    grammar = compile_key(backend, KEYS["ebnf"])
    old = backend._vocabulary.spell("y")
    for token in old:
        grammar.accept_token(token)
    before = row_of(grammar).clone()
    with pytest.raises(ValueError, match="does not allow the tokens after a jump"):
        grammar.jump_and_retokenize(old, backend._vocabulary.spell("maybe"), -1)
    assert torch.equal(row_of(grammar), before)
    assert grammar.num_tokens == len(old)


# -- reasoning -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reasoning():
    """The backend of a server with a reasoning parser, and the id of ``</think>``."""
    tokenizer = type(byte_level())(tokenizer_object=byte_level().backend_tokenizer, eos_token="<|end|>")  # noqa: S106
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StructoutGrammarBackend, "prepare", lambda self: None)
        settings = {"reasoning_parser": "deepseek-r1", "enable_strict_thinking": True}
        with get_context().override_server_args(grammar_backend="structout", **settings) as server_args:
            backend = create_grammar_backend(server_args, tokenizer, WIDTH, {EOS})
    return backend, tokenizer.convert_tokens_to_ids("</think>")


def test_reasoning_is_free_and_the_constraint_applies_after_it(reasoning):
    backend, end = reasoning
    assert isinstance(backend, ReasonerGrammarBackend)
    grammar = compile_key(backend, KEYS["json"], require_reasoning=True)
    for token in (5, 300, 7):
        assert bool((row_of(grammar) == -1).all())
        grammar.accept_token(token)
    grammar.accept_token(end)
    constrained = compile_key(backend.grammar_backend, KEYS["json"])
    assert allowed(grammar) == allowed(constrained)
    tokens = generate(backend.grammar_backend, grammar, 0)
    assert is_valid("json", text_of(backend.grammar_backend, tokens[:-1]))
    grammar.rollback(len(tokens) + 1)
    assert bool((row_of(grammar) == -1).all())


def test_request_without_reasoning_is_constrained_at_once(reasoning):
    backend, _ = reasoning
    grammar = compile_key(backend, KEYS["regex"], require_reasoning=False)
    assert allowed(grammar) == allowed(compile_key(backend.grammar_backend, KEYS["regex"]))
    again = compile_key(backend, KEYS["regex"], require_reasoning=True)
    assert bool((row_of(again) == -1).all())


def test_refused_constraint_under_reasoning_stays_refused(reasoning):
    backend, _ = reasoning
    assert isinstance(compile_key(backend, ("regex", "("), True), InvalidGrammarObject)


def test_cache_under_reasoning_is_bounded_too(reasoning):
    backend, _ = reasoning
    compile_key(backend, ("regex", "bounded"))
    assert isinstance(backend.cache, GrammarCache)
    assert backend.cache.num_bytes > 0


def test_batch_of_wrapped_and_plain_grammars(reasoning):
    """The one is wrapped for reasoning; "full_assistant_ebnf" never is."""
    backend, end = reasoning
    plain = compile_key(backend, KEYS["full_assistant_ebnf"])
    assert isinstance(plain, StructoutGrammar)
    wrapped = compile_key(backend, KEYS["json"], require_reasoning=True)
    wrapped.accept_token(end)
    for grammars in ([plain, wrapped], [wrapped, plain]):
        mask = grammars[0].allocate_vocab_mask(WIDTH, 2, "cpu")
        grammars[0].fill_vocab_mask_batched([GrammarRow(row, g) for row, g in enumerate(grammars)], mask)
        for row, grammar in enumerate(grammars):
            assert torch.equal(mask[row], row_of(grammar))


def test_strict_thinking_ends_the_reasoning_at_its_budget(reasoning, monkeypatch):
    backend, end = reasoning
    monkeypatch.setattr(backend, "enable_token_filter", True)
    monkeypatch.setattr(backend, "max_think_tokens", 2)
    monkeypatch.setattr(backend, "_token_filter_fn", backend.grammar_backend.set_token_filter)
    grammar = backend.init_strict_reasoning_grammar(True)
    assert grammar.grammar is None
    for token in (5, 6):
        assert bool((row_of(grammar) == -1).all())
        grammar.accept_token(token)
    assert allowed(grammar) == {end}
    logits = torch.zeros(1, WIDTH)
    grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(row_of(grammar)[None], "cpu"))
    assert (logits > -torch.inf).nonzero().tolist() == [[0, end]]


# -- the sampler -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampler():
    """The sampler that SGLang's model runner makes, in a group of one rank."""
    group = SimpleNamespace(device_group=None)
    settings = {"sampling_backend": "structout", "grammar_backend": "structout"}
    with get_context().override_server_args(**settings), get_parallel().override(tp_group=group):
        yield sglang_sampler.create_sampler()


def draw(sampler, logits, info, *, return_logprob=False, nums=None, token_ids=None, positions=None):
    output = LogitsProcessorOutput(next_token_logits=logits)
    num_rows = len(logits)
    ids = sampler(
        output,
        info,
        return_logprob,
        nums or [0] * num_rows,
        token_ids or [None] * num_rows,
        torch.arange(num_rows) if positions is None else positions,
    )
    return ids, output


def test_create_sampler_makes_ours(sampler):
    assert type(sampler) is StructoutSampler


def test_sampler_with_seeds_draws_what_masked_sample_draws(sampler):
    logits = torch.randn(6, WIDTH) * 3
    temperatures, top_k = [1.0, 0.5, 2.0, 1.0, 1.0, 0.7], [TOP_K_ALL, 5, 20, 1, 3, TOP_K_ALL]
    top_p, min_p, seed = [1.0, 0.9, 0.5, 1.0, 1.0, 0.8], [0.0, 0.1, 0.0, 0.0, 0.0, 0.2], [1, 2, 3, 4, 5, 6]
    info = sampling_info(6, temperatures, top_p, top_k, min_p, seed)
    before = logits.clone()
    ids, _ = draw(sampler, logits, info, positions=torch.arange(6, dtype=torch.int32) + 10)
    expected = masked_sample(
        logits,
        temperature=torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 0.7]),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
        seed=torch.tensor(seed),
        position=torch.arange(6) + 10,
    )
    assert torch.equal(ids, expected)
    assert torch.equal(logits, before)
    assert int(ids[3]) == int(logits[3].argmax())


def test_sampler_without_seeds_follows_torchs_generator(sampler):
    logits = torch.zeros(64, WIDTH)
    torch.manual_seed(0)
    first, _ = draw(sampler, logits, sampling_info(64))
    second, _ = draw(sampler, logits, sampling_info(64))
    torch.manual_seed(0)
    again, _ = draw(sampler, logits, sampling_info(64))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert len(set(first.tolist())) > 32


def test_greedy_batch_takes_the_lowest_of_equal_logits(sampler):
    logits = torch.zeros(3, WIDTH)
    logits[1, 40] = logits[1, 500] = 1.0
    ids, _ = draw(sampler, logits, sampling_info(3, top_k=1))
    assert ids.tolist() == [0, 40, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", [1, TOP_K_ALL, [1, 5, TOP_K_ALL, 7]])
@pytest.mark.parametrize(
    ("nums", "token_ids"),
    [([0, 3, 1, 0], None), ([0, 0, 0, 0], None), ([2, 0, 70, 0], None), ([0, 2, 0, 0], [[3, 9], None, [4], None])],
)
def test_logprobs_agree_with_sglangs_own_sampler(sampler, dtype, top_k, nums, token_ids):
    logits = torch.randn(4, WIDTH, dtype=torch.float32).to(dtype)
    logits[2, 100:] = -torch.inf
    info = sampling_info(4, [1.0, 0.5, 2.0, 0.7], 1.0, top_k, 0.0, [1, 2, 3, 4])
    arguments = {"return_logprob": True, "nums": nums, "token_ids": token_ids}
    ids, ours = draw(sampler, logits, info, **arguments)
    scores = logits.float() if info.is_all_greedy else logits.float() / info.temperatures
    theirs = LogitsProcessorOutput(next_token_logits=logits)
    sampler.output_logprob_processor.compute_logprobs(
        scores.log_softmax(-1), nums, token_ids or [None] * 4, ids
    ).write_output_to(theirs)
    torch.testing.assert_close(ours.next_token_logprobs, theirs.next_token_logprobs, rtol=1e-5, atol=1e-5)
    for name in ("next_token_top_logprobs_val", "next_token_token_ids_logprobs_val"):
        for mine, expected in zip(getattr(ours, name) or [], getattr(theirs, name) or [], strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
    assert (ours.next_token_top_logprobs_val is None) == (theirs.next_token_top_logprobs_val is None)
    for mine, expected in zip(
        ours.next_token_top_logprobs_idx or [], theirs.next_token_top_logprobs_idx or [], strict=True
    ):
        assert mine.shape == expected.shape
        assert dtype is torch.bfloat16 or torch.equal(mine, expected)  # bfloat16 has ties


def test_row_without_a_token_gets_one_that_its_grammar_refuses(sampler, backend):
    logits = torch.full((3, WIDTH), -torch.inf)
    logits[1] = torch.nan
    logits[2, 9] = 0.0
    ids, output = draw(sampler, logits, sampling_info(3, top_k=50), return_logprob=True, nums=[2, 2, 2])
    assert ids.tolist() == [0, 0, 9]
    assert bool(torch.isfinite(output.next_token_logprobs).all())
    assert all(int(row.min()) >= 0 for row in output.next_token_top_logprobs_idx)
    with pytest.raises(ValueError, match="does not allow token 0"):
        compile_key(backend, KEYS["json"]).accept_token(int(ids[0]))


def test_request_for_the_sampling_mask_is_served_by_sglangs_code(sampler):
    logits = torch.randn(3, WIDTH)
    info = sampling_info(3, top_k=5)
    info.return_sampling_masks = [True, False, True]
    info.sampling_mask_batch_indices = torch.tensor([0, 2])
    top = logits.topk(5).indices
    ids, output = draw(sampler, logits.clone(), info)
    assert output.sampling_mask_output.lengths.tolist() == [5, 5]
    assert all(int(ids[row]) in top[row].tolist() for row in range(3))


def test_sampler_refuses_to_sample_for_training(sampler):
    group = SimpleNamespace(device_group=None)
    settings = {"sampling_backend": "structout", "rl_on_policy_target": "fsdp"}
    with (
        get_context().override_server_args(**settings),
        get_parallel().override(tp_group=group),
        pytest.raises(ValueError, match="does not support --rl-on-policy-target"),
    ):
        sglang_sampler.create_sampler()


def test_backend_and_sampler_together_generate_valid_texts(sampler, backend):
    """Eight requests in one batch, with SGLang's own mask calls, to their end."""
    kinds = [*KEYS, None]
    grammars = [None if kind is None else compile_key(backend, KEYS[kind]) for kind in kinds]
    outputs = [[] for _ in kinds]
    generator = torch.Generator().manual_seed(5)
    for step in range(400):
        for grammar in filter(None, grammars):
            grammar.finished = grammar.is_terminated()
        info = sampling_info(len(kinds), 0.8, 0.95, 200, 0.0, list(range(len(kinds))), grammars)
        info.update_regex_vocab_mask()
        logits = torch.randn(len(kinds), WIDTH, generator=generator)
        logits[:, [EOS, *backend._vocabulary.spell('"}]')]] += step / 10
        info.apply_logits_bias(logits)
        info.grammars = None  # their ids are equal on all ranks, of which there is one
        ids, _ = draw(sampler, logits, info, positions=torch.full((len(kinds),), step))
        for output, grammar, token in zip(outputs, grammars, ids.tolist(), strict=True):
            if grammar is None or not grammar.is_terminated():
                output.append(token)
            if grammar is not None:
                grammar.accept_token(token)
        if all(grammar is None or grammar.is_terminated() for grammar in grammars):
            break
    for kind, output in zip(kinds, outputs, strict=True):
        assert kind is None or is_valid(kind, text_of(backend, output[:-1])), kind
