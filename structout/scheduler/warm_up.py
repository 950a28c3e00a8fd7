"""Compiles constraints ahead of their requests."""

import queue
from collections.abc import Iterable

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputsParams
from structout.errors import GrammarError, GrammarTimeoutError
from structout.grammar.interface import CompiledConstraint
from structout.scheduler.compile_service import CompileService

_Service = CompileService[Constraint, CompiledConstraint]


def compile_ahead(
    compiler: _Service,
    constraints: Iterable[StructuredOutputsParams],
    config: StructuredOutputsConfig,
    timeout: float | None,
) -> list[GrammarError | None]:
    """Compile the constraints and wait; see ``StructuredOutputManager.warm_up``."""
    errors: list[GrammarError | None] = []
    remaining = list(constraints)
    # Stay well below the queue limits, which are meant for clients.
    window = max(1, min(config.queue_size, config.tenant_queue_size) // 2)
    while remaining:
        results = [_start(compiler, params, config) for params in remaining[:window]]
        del remaining[:window]
        for result_queue in results:
            try:
                result = result_queue.get(timeout=timeout)
            except queue.Empty:
                result = GrammarTimeoutError(f"still compiling after {timeout} s")
            errors.append(result if isinstance(result, GrammarError) else None)
    return errors


def _start(
    compiler: _Service, params: StructuredOutputsParams, config: StructuredOutputsConfig
) -> "queue.SimpleQueue[CompiledConstraint | GrammarError]":
    """A queue that will receive the result."""
    result_queue: queue.SimpleQueue[CompiledConstraint | GrammarError] = queue.SimpleQueue()
    try:
        constraint = params.constraint(config)
        known_result = compiler.get(constraint)
        if known_result is None:
            compiler.submit(constraint, "", result_queue.put)
    except GrammarError as error:
        known_result = error
    if known_result is not None:
        result_queue.put(known_result)
    return result_queue
