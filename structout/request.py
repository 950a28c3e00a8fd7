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
        grammar: where the request stands in its constraint; set once it is READY.
        engine: what masks are asked of: the grammar, without the gate that may be before it.
        backend_name: which backend compiled it.
        weakened: what of the constraint is not enforced.
        error: why it FAILED.
        withdrawn: what to tell those who still wait: it has left the manager.
        ticket: its place in the queue of compilations.
    """

    request_id: str
    slot: int
    status: GrammarStatus = GrammarStatus.WAITING
    grammar: StructuredOutputGrammar | None = None
    engine: StructuredOutputGrammar | None = None
    backend_name: str = ""
    weakened: tuple[str, ...] = ()
    error: GrammarError | None = None
    withdrawn: StructOutError | None = None
    ticket: Any = field(default=None, repr=False)
