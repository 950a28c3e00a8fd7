"""Compilation in a separate process: same grammars, and an answer in time whatever
happens to the process."""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import fresh_process
import pytest
from locations import importing

from structout.bitmask import allocate_token_bitmask
from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError, StructOutError
from structout.grammar import compile_pool
from structout.grammar.compile_pool import CompileProcessPool
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.params import Constraint, StructuredOutputOptions
from structout.scheduler.compile_service import CompileService

STOP, OTHER_STOP = 256, 257
VOCABULARY = Vocabulary((*(bytes([i]) for i in range(256)), b"", b"", b"true", b'": '), (STOP,))
LONG = 60  # seconds, for what must happen
FACTORY = "structout.grammar.xgrammar.backend:XgrammarBackend.from_config"
CONFIGS = {spaced: StructuredOutputsConfig(any_whitespace=spaced) for spaced in (False, True)}


def make_pool(*, any_whitespace=True, **options):
    return CompileProcessPool(VOCABULARY, CONFIGS[any_whitespace], FACTORY, **options)


def json_of(spec):
    return Constraint(StructuredOutputOptions.JSON, spec)


def regex(pattern):
    return Constraint(StructuredOutputOptions.REGEX, pattern)


def enum_of(num_words):
    letters = "".join(random.Random(0).choices("abcdefghij", k=20 * num_words))
    return json.dumps({"enum": [letters[i : i + 20] for i in range(0, len(letters), 20)]})


SLOW = json_of(enum_of(30_000))  # more than 20 s on an idle machine
BEFORE_SLOW_ENDS = 15  # seconds: what takes less did not wait for SLOW


@pytest.fixture(scope="module")
def pool():
    pool = make_pool()
    pool.start(LONG)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def compact_pool():
    pool = make_pool(any_whitespace=False)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def backends():
    return {spaced: XgrammarBackend.from_config(VOCABULARY, config, None) for spaced, config in CONFIGS.items()}


def pid_of(pool):
    (worker,) = pool._workers
    return worker._process.pid


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_compiling(pid):
    """Whether the process uses processor time. One that waits for a request does
    not."""
    before = ticks_of(pid)
    time.sleep(0.1)
    return ticks_of(pid) - before > 3


def ticks_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


class BackgroundCall:
    def __init__(self, call, *arguments):
        self._arguments = call, *arguments
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        call, *arguments = self._arguments
        try:
            self._outcome = call(*arguments)
        except Exception as error:
            self._outcome = error

    def outcome(self):
        self._thread.join(LONG)
        return self._outcome


def masks_along(grammar, text):
    """The masks before each byte and at the end."""
    masks = allocate_token_bitmask(len(text) + 1, VOCABULARY.size, pin_memory=False)
    for row, byte in enumerate(text):
        grammar.fill_bitmask(masks, row)
        assert grammar.accept_tokens("", [byte])
    grammar.fill_bitmask(masks, len(text))
    return masks.tolist()


@pytest.mark.parametrize("any_whitespace", [False, True])
@pytest.mark.parametrize(
    ("kind", "spec", "text"),
    [
        ("json", '{"type": "object", "properties": {"é": {"type": "string", "maxLength": 2}}}', '{"é": "ab"}'),
        ("json_object", "{}", '{"a": [1, {"b": true}]}'),
        ("regex", "[a-c]+x{2,3}", "abxx"),
        ("choice", '["true", "tree 東京"]', "tree 東京"),
        ("grammar", 'root ::= "a" root | "b"', "aab"),
    ],
)
def test_run_returns_the_same_grammar_as_the_backend(pool, compact_pool, backends, kind, spec, text, any_whitespace):
    constraint = Constraint(StructuredOutputOptions(kind), spec)
    serialized = (pool if any_whitespace else compact_pool).run(constraint, LONG)
    loaded = backends[any_whitespace].load_grammar(constraint, serialized).grammar
    compiled = backends[any_whitespace].compile_grammar(constraint.kind, spec)
    assert masks_along(loaded, text.encode()) == masks_along(compiled, text.encode())


def test_load_grammar_with_other_stop_tokens_uses_them(pool, backends):
    grammar = backends[True].load_grammar(regex("a"), pool.run(regex("a"), LONG), [OTHER_STOP]).grammar
    assert not grammar.accept_tokens("", [97, STOP])
    assert grammar.accept_tokens("", [97, OTHER_STOP])


@pytest.mark.parametrize(
    "constraint",
    [json_of('{"type": "strin"}'), regex("("), Constraint(StructuredOutputOptions.GRAMMAR, "root ::= x")],
    ids=lambda constraint: constraint.kind.value,
)
def test_run_with_a_bad_constraint_raises_the_same_error_as_the_backend(pool, backends, constraint):
    pid = pid_of(pool)
    with pytest.raises(GrammarError) as expected:
        backends[True].compile_native(constraint)
    with pytest.raises(GrammarError) as caught:
        pool.run(constraint, LONG)
    assert str(caught.value) == str(expected.value)
    assert type(caught.value) is GrammarError
    assert pid_of(pool) == pid


def test_run_with_a_too_large_result_returns_none(pool, monkeypatch):
    pid = pid_of(pool)
    assert pool.run(json_of(enum_of(2000)), LONG) is None
    assert pid_of(pool) == pid
    monkeypatch.setattr(compile_pool, "_MAX_SERIALIZING", 0.0)  # as if it took too long
    assert pool.run(regex("[a-z]+"), LONG) is None
    assert not is_running(pid)


def test_run_past_the_deadline_kills_the_process_and_the_next_one_serves(pool):
    pool.start(LONG)
    pid = pid_of(pool)
    begun = time.monotonic()
    with pytest.raises(GrammarTimeoutError, match=r"the constraint took more than 0\.5 s to compile"):
        pool.run(SLOW, 0.5)
    assert 0.5 <= time.monotonic() - begun < BEFORE_SLOW_ENDS
    assert not is_running(pid)
    assert pool.run(regex("a"), LONG) is not None
    assert pid_of(pool) != pid


def test_run_with_a_process_that_reads_nothing_kills_it(pool):
    pool.start(LONG)
    pid = pid_of(pool)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(GrammarTimeoutError):
        pool.run(regex("a" * 300_000), 0.2)
    assert not is_running(pid)


def test_run_after_the_process_was_killed_raises_or_starts_another(pool):
    pool.start(LONG)
    pid = pid_of(pool)
    running = BackgroundCall(pool.run, SLOW, LONG)
    wait_until(lambda: is_compiling(pid))
    os.kill(pid, signal.SIGKILL)
    error = running.outcome()
    assert isinstance(error, CompileCrashError)
    assert str(error) == "compilation failed: the compile process ended with -9"

    pool.start(LONG)
    pid = pid_of(pool)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert pool.run(regex("a"), LONG) is not None


def test_compile_service_with_a_killed_process_tries_once_more(pool):
    class Compiled:
        def __init__(self, spec):
            self.memory_bytes = len(pool.run(regex(spec), LONG))

    pool.start(LONG)
    pid = pid_of(pool)
    os.kill(pid, signal.SIGSTOP)  # so that it cannot finish before it is killed
    service = CompileService(Compiled, StructuredOutputsConfig(compile_workers=1, compile_timeout=LONG))
    outcomes, is_done = [], threading.Event()
    service.submit("[a-z]+", "", lambda outcome: (outcomes.append(outcome), is_done.set()))
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert is_done.wait(LONG)
    service.close()
    assert outcomes[0].memory_bytes > 100
    assert pid_of(pool) != pid


def test_run_with_too_little_memory_raises_compile_crash_error():
    pool = make_pool(memory_bytes=24 << 20)
    with pytest.raises(CompileCrashError, match=r"more memory than its process may use|ended with"):
        pool.run(json_of(enum_of(3000)), LONG)
    assert not pool._workers
    pool.close()


def test_close_ends_running_compilations():
    own = make_pool()
    own.start(LONG)
    pid = pid_of(own)
    running = BackgroundCall(own.run, SLOW, LONG)
    wait_until(lambda: is_compiling(pid))
    with pytest.raises(GrammarTimeoutError, match=r"no compile process was free for 0\.1 s"):
        own.run(regex("a"), 0.1)
    begun = time.monotonic()
    own.close()
    assert isinstance(running.outcome(), CompileCrashError)
    assert time.monotonic() - begun < BEFORE_SLOW_ENDS
    assert not is_running(pid)
    with pytest.raises(CompileCrashError, match="closed"):
        own.run(regex("a"), LONG)
    own.close()


def test_pool_in_a_forked_process_refuses_and_closes_nothing(pool, monkeypatch):
    pool.start(LONG)
    pid = pid_of(pool)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StructOutError, match="forked"):
            pool.run(regex("a"), LONG)
        pool.close()
    assert pid_of(pool) == pid
    assert pool.run(regex("a"), LONG) is not None


def test_process_ends_with_its_parent_while_it_compiles():
    script = f"""
import os, signal, threading
import test_compile_pool
pool = test_compile_pool.make_pool(num_processes=2)
pool.start({LONG})
pid = test_compile_pool.pid_of(pool)
slow = (test_compile_pool.SLOW, {LONG})
threading.Thread(target=pool.run, args=slow, daemon=True).start()
test_compile_pool.wait_until(lambda: test_compile_pool.is_compiling(pid))
print(pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = fresh_process.run("-c", script, env=importing(__file__), timeout=LONG)
    assert run.returncode == -signal.SIGKILL
    killed = time.monotonic()
    wait_until(lambda: not is_running(int(run.stdout)))
    assert time.monotonic() - killed < BEFORE_SLOW_ENDS
