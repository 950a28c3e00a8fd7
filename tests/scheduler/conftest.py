"""Services whose compilations the tests of this folder control."""

import time

import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.scheduler.compile_service import CompileService
from structout.scheduler.process_lock import ProcessLock
from support.compile_jobs import LONG, Gates


@pytest.fixture
def make(request):
    """Make services that are closed after the test. Their default deadline is one that
    a busy machine keeps."""

    def make(compile, *, clock=time.monotonic, **config):
        config = {"compile_workers": 1, "compile_timeout": LONG, **config}
        lock = ProcessLock("CompileService")
        service = CompileService(compile, StructuredOutputsConfig(**config), lock, clock=clock, cpu_clock=lambda: clock)
        request.addfinalizer(service.close)
        return service

    return make


@pytest.fixture
def gates():
    gates = Gates()
    yield gates
    for key in list(gates.count):
        gates.open(key)
