"""Compilation in a process of its own: the same grammars, and whatever becomes of the process, an answer in time."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from locations import importing

from structout.bitmask import allocate_token_bitmask
from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError, StructOutError
from structout.grammar import compile_pool as probe_module
from structout.grammar.compile_pool import CompileProcessPool
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.params import StructuredOutputOptions
from structout.scheduler.compile_service import CompileService

STOP, OTHER_STOP = 256, 257
VOCABULARY = Vocabulary((*(bytes([i]) for i in range(256)), b"", b"", b"true", b'": '), (STOP,))
LONG = 60  # seconds, for what must come
JSON, REGEX = StructuredOutputOptions.JSON, StructuredOutputOptions.REGEX


def enum_of(num_words):
    words = ["".join(random.Random(i).choices("abcdefghij", k=20)) for i in range(num_words)]
    return json.dumps({"enum": words})


SLOW = enum_of(30_000)  # more than 20 s


@pytest.fixture(scope="module")
def probe():
    probe = CompileProcessPool(VOCABULARY)
    probe.start(LONG)
    yield probe
    probe.close()


@pytest.fixture(scope="module")
def backends():
    return {spaced: XgrammarBackend(VOCABULARY, any_whitespace=spaced) for spaced in (False, True)}


def pid_of(probe):
    (worker,) = probe._workers
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
    """By its processor time, which a process that waits for a request uses none of."""
    before = ticks_of(pid)
    time.sleep(0.1)
    return ticks_of(pid) - before > 3


def ticks_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


class InTheBackground:
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
    """The masks before each byte, and of the end."""
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
def test_its_grammars_are_those_of_the_backend(probe, backends, kind, spec, text, any_whitespace):
    kind = StructuredOutputOptions(kind)
    serialized = probe.run(kind, spec, any_whitespace, LONG)
    loaded = backends[any_whitespace].load_grammar(kind, serialized)
    compiled = backends[any_whitespace].compile_grammar(kind, spec)
    assert masks_along(loaded, text.encode()) == masks_along(compiled, text.encode())


def test_stop_tokens_are_chosen_when_it_is_loaded(probe, backends):
    grammar = backends[True].load_grammar(REGEX, probe.run(REGEX, "a", True, LONG), [OTHER_STOP])
    assert not grammar.accept_tokens("", [97, STOP])
    assert grammar.accept_tokens("", [97, OTHER_STOP])


@pytest.mark.parametrize(
    ("kind", "spec"), [(JSON, '{"type": "strin"}'), (REGEX, "("), (StructuredOutputOptions.GRAMMAR, "root ::= x")]
)
def test_bad_constraints_are_refused_in_the_same_words(probe, backends, kind, spec):
    pid = pid_of(probe)
    with pytest.raises(GrammarError) as expected:
        backends[True].compile_native(kind, spec)
    with pytest.raises(GrammarError) as caught:
        probe.run(kind, spec, True, LONG)
    assert str(caught.value) == str(expected.value)
    assert type(caught.value) is GrammarError
    assert pid_of(probe) == pid


def test_what_is_too_large_to_hand_over_is_left_to_the_caller(probe, monkeypatch):
    pid = pid_of(probe)
    assert probe.run(JSON, enum_of(2000), True, LONG) is None
    assert pid_of(probe) == pid
    monkeypatch.setattr(probe_module, "_HANDOVER", 0.0)  # as if it took too long
    assert probe.run(REGEX, "[a-z]+", True, LONG) is None
    assert not is_running(pid)


def test_at_the_deadline_the_process_is_killed_and_the_next_one_serves(probe):
    probe.start(LONG)
    pid = pid_of(probe)
    begun = time.monotonic()
    with pytest.raises(GrammarTimeoutError, match=r"the constraint took more than 0\.5 s to compile"):
        probe.run(JSON, SLOW, True, 0.5)
    assert 0.5 <= time.monotonic() - begun < 1.5
    assert not is_running(pid)
    assert probe.run(REGEX, "a", True, LONG) is not None
    assert pid_of(probe) != pid


def test_a_process_that_reads_nothing_is_killed_too(probe):
    probe.start(LONG)
    pid = pid_of(probe)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(GrammarTimeoutError):
        probe.run(REGEX, "a" * 300_000, True, 0.2)
    assert not is_running(pid)


def test_killed_while_it_compiles_and_while_it_is_idle(probe):
    probe.start(LONG)
    pid = pid_of(probe)
    running = InTheBackground(probe.run, JSON, SLOW, True, LONG)
    wait_until(lambda: is_compiling(pid))
    os.kill(pid, signal.SIGKILL)
    error = running.outcome()
    assert isinstance(error, CompileCrashError)
    assert str(error) == "compilation failed: the compile process ended with -9"

    probe.start(LONG)
    pid = pid_of(probe)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert probe.run(REGEX, "a", True, LONG) is not None


def test_the_service_tries_once_more_when_the_process_is_killed(probe):
    class Compiled:
        def __init__(self, spec):
            self.memory_bytes = len(probe.run(REGEX, spec, True, LONG))

    probe.start(LONG)
    pid = pid_of(probe)
    os.kill(pid, signal.SIGSTOP)  # so that it is in the middle, however quick it is
    service = CompileService(Compiled, StructuredOutputsConfig(compile_workers=1, compile_timeout=LONG))
    outcomes, is_done = [], threading.Event()
    service.submit("[a-z]+", "", lambda outcome: (outcomes.append(outcome), is_done.set()))
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    assert is_done.wait(LONG)
    service.close()
    assert outcomes[0].memory_bytes > 100
    assert pid_of(probe) != pid


def test_want_of_memory_is_an_accident():
    probe = CompileProcessPool(VOCABULARY, memory_bytes=24 << 20)
    with pytest.raises(CompileCrashError, match=r"more memory than it may have|ended with"):
        probe.run(JSON, enum_of(3000), True, LONG)
    assert not probe._workers
    probe.close()


def test_closing_ends_what_runs():
    own = CompileProcessPool(VOCABULARY)
    own.start(LONG)
    pid = pid_of(own)
    running = InTheBackground(own.run, JSON, SLOW, True, LONG)
    wait_until(lambda: is_compiling(pid))
    with pytest.raises(GrammarTimeoutError, match=r"no compile process was free for 0\.1 s"):
        own.run(REGEX, "a", True, 0.1)
    begun = time.monotonic()
    own.close()
    assert isinstance(running.outcome(), CompileCrashError)
    assert time.monotonic() - begun < 1
    assert not is_running(pid)
    with pytest.raises(CompileCrashError, match="closed"):
        own.run(REGEX, "a", True, LONG)
    own.close()


def test_a_forked_process_is_refused_and_closes_nothing(probe, monkeypatch):
    probe.start(LONG)
    pid = pid_of(probe)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StructOutError, match="forked"):
            probe.run(REGEX, "a", True, LONG)
        probe.close()
    assert pid_of(probe) == pid
    assert probe.run(REGEX, "a", True, LONG) is not None


def test_it_ends_with_its_parent_while_it_compiles():
    script = f"""
import os, signal, threading
import test_compile_pool
probe = test_compile_pool.CompileProcessPool(test_compile_pool.VOCABULARY, num_processes=2)
probe.start({LONG})
pid = test_compile_pool.pid_of(probe)
slow = (test_compile_pool.JSON, test_compile_pool.SLOW, True, {LONG})
threading.Thread(target=probe.run, args=slow, daemon=True).start()
test_compile_pool.wait_until(lambda: test_compile_pool.is_compiling(pid))
print(pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = importing(__file__)
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, timeout=LONG
    )
    assert run.returncode == -signal.SIGKILL
    killed = time.monotonic()
    wait_until(lambda: not is_running(int(run.stdout)))
    assert time.monotonic() - killed < 2
