"""One small tokenizer for managers, and requests to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import structout
from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from support import tokenizers_on_the_spot

V = 512
TOKENIZER = tokenizers_on_the_spot.byte_level()
STOP = TOKENIZER.eos_token_id
PATIENT = StructuredOutputsConfig(compile_timeout=60)  # for a busy machine


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def add(manager: StructuredOutputManager, request_id: str, **params: Any) -> None:
    """Add a request with a constraint, and wait until it is ready."""
    manager.add_request(request_id, StructuredOutputsParams(**params))
    manager.wait_ready(request_id, timeout=60)


def allowed(manager: StructuredOutputManager, request_id: str, drafts: Iterable[int] = ()) -> list[list[int]]:
    """The ids that each of the request's masks allows."""
    batch = manager.grammar_bitmask([request_id], {request_id: drafts})
    assert not batch.errors
    return [row.nonzero().flatten().tolist() for row in structout.unpack_bitmask(batch.to("cpu"), V)]


@contextmanager
def gate_before(monkeypatch: Any, owner: type, method: str) -> Iterator[threading.Event]:
    """An event for which each call of a method waits. It is set in the end."""
    opened, original = threading.Event(), getattr(owner, method)

    def wait_and_go_on(*arguments: Any) -> Any:
        assert opened.wait(60)
        return original(*arguments)

    monkeypatch.setattr(owner, method, wait_and_go_on)
    yield opened
    opened.set()


def in_threads(call: Callable[[int], Any], count: int) -> list[Any]:
    """What ``call(0)`` to ``call(count - 1)`` return, each in a thread of its own. The
    first exception of one is raised."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(call, range(count)))
