"""Managers, and pools whose compilations the tests of this folder control."""

import time

import pytest

from structout import StructuredOutputManager
from structout.constraints.config import StructuredOutputsConfig
from structout.grammar.native.backend import NativeBackend
from structout.scheduler.compile_pool import CompilePool
from structout.scheduler.process_lock import ProcessLock
from support.compilations import LONG, Gates
from support.managers import PATIENT, TOKENIZER, V, gate_before


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V, PATIENT) as manager:
        yield manager


@pytest.fixture
def gate(monkeypatch):
    """An event for which every compilation waits."""
    with gate_before(monkeypatch, NativeBackend, "compile") as opened:
        yield opened


@pytest.fixture
def make(request):
    """Make pools that are closed after the test. Their default deadline is one that
    a busy machine keeps."""

    def make(compile, *, clock=time.monotonic, **config):
        config = {"compile_workers": 1, "compile_timeout": LONG, **config}
        lock = ProcessLock("CompilePool")
        pool = CompilePool(compile, StructuredOutputsConfig(**config), lock, clock=clock, cpu_clock=lambda: clock)
        request.addfinalizer(pool.close)
        return pool

    return make


@pytest.fixture
def gates():
    gates = Gates()
    yield gates
    gates.open_all()
