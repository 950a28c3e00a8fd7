"""What the manager knows of one request."""

import enum
from dataclasses import dataclass, field
from typing import Any

from structout.errors import GrammarError, StructOutError
from structout.grammar.interface import StructuredOutputGrammar


class GrammarStatus(enum.Enum):
    WAITING = "waiting"  # its grammar is being compiled: the scheduler passes it over
    READY = "ready"
    FAILED = "failed"

    UNREADY = "waiting"  # the name in vLLM's RFC


@dataclass(eq=False, slots=True)
class Request:
    """
    Attributes:
        slot: a small integer that is this request's as long as it lives.
        grammar: where the request stands in its constraint; set once all else is, when it is READY.
        backend_name: which backend compiled it.
        weakened: what of the constraint is not enforced.
        error: why it FAILED.
        withdrawn: what to tell those who still wait: it has left the manager.
        num_slow_tokens: that it accepted last, one after the other, each of them taking too long.
        subscription: its place in the queue of compilations.
    """

    request_id: str
    slot: int
    status: GrammarStatus = GrammarStatus.WAITING
    grammar: StructuredOutputGrammar | None = None
    backend_name: str = ""
    weakened: tuple[str, ...] = ()
    error: GrammarError | None = None
    withdrawn: StructOutError | None = None
    num_slow_tokens: int = 0
    subscription: Any = field(default=None, repr=False)
