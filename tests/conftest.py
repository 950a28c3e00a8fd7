"""Options, fixtures and the summary of every test run.

Without a GPU, Triton kernels run under Triton's interpreter.
"""

import atexit
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before any test imports one

# On a busy machine OpenMP's threads spin while they wait for one another: the reference
# took twenty times the CPU time with two threads. Tests of shared work ask for
# `four_threads`.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

# Tests compare the results and graphs of torch.compile, not its speed. Its C++ compiles
# three times as fast without probes of the CPU, a precompiled header and processes.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the random tests at their length in CI")
    parser.addoption("--full", action="store_true", help="run them at the length that the documents tell: hours")
    parser.addoption("--maskbench", metavar="PATH", help="schemas with instances, one JSON object a line")


def pytest_configure(config: pytest.Config) -> None:
    config.option.long |= config.option.full


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores: a worker often waits for a process or a deadline."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HAS_GPU and item.get_closest_marker("triton"):
            item.add_marker("gpu")
        if not HAS_GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("long") and not item.config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: make test-all"))
        if item.get_closest_marker("planted") and not item.config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="shows that other tests find a planted fault: make test-all"))
        if HAS_GPU and item.get_closest_marker("interpreter"):
            item.add_marker(pytest.mark.skip(reason="needs Triton's interpreter, which runs where there is no GPU"))


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which would look through it for
    half a second each time."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # extensions report what is left at exit as leaked


@pytest.fixture(scope="session")
def num_cases(pytestconfig: pytest.Config) -> Callable[..., int]:
    """A function that gives the length of a random test.

    ``num_cases(100, long=2000, full=9000)`` is 2000 under ``--long``, 9000 under
    ``--full`` and 100 otherwise. Each run is the beginning of the longer one.
    """
    is_long, is_full = pytestconfig.getoption("--long"), pytestconfig.getoption("--full")

    def choose(default: int, *, long: int, full: int | None = None) -> int:
        return (full or long) if is_full else long if is_long else default

    return choose


@pytest.fixture(scope="session")
def demo() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, for tests of what texts mean.

    They come from the cache that the command uses.
    """
    from structout.cli import demo_model

    model, tokenizer, directory = demo_model.load_demo_model()
    assert directory.name == demo_model.NAME, "make demo installs the model"
    return model, tokenizer


@pytest.fixture
def four_threads() -> Iterator[None]:
    """Four CPU threads for torch and the CPU ops, for tests of work that is shared."""
    previous = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(previous)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count} tests: {reason}")
    if not skipped:
        terminalreporter.write_line("skipped no test")
