"""What an engine decides once, for all requests."""

import os
from dataclasses import dataclass, field

from structout.limits import Limits


def _half_the_processors() -> int:
    return min(8, max(2, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """
    Attributes:
        limits: of a single constraint.
        compile_workers: constraints compiled at the same time.
        compile_timeout: seconds until a constraint that is still being compiled fails.
        queue_size: constraints that may wait to be compiled; one more is refused.
        tenant_queue_size: the same of one tenant.
        cache_bytes: bound on compiled grammars that are kept, their keys included.
        failures_kept: constraints that were found to be bad, remembered so that they fail at once.
        failure_ttl: seconds that a failure is remembered.
        slow_token_seconds: three tokens in a row that take longer to accept fail their request: its grammar is so
            ambiguous that it would hold up all others.
        isolate_slow_compiles: whether a constraint that may compile for long is first compiled by a process of its own,
            which can be killed at the deadline; a thread could not.
        fill_threads: threads that share the masks of a large step.
        num_mask_buffers: calls of ``grammar_bitmask`` until a MaskBatch's memory is used again. 2 lets one step be
            copied to the device while the next one is filled.
        any_whitespace: whether generated JSON may have whitespace anywhere between its tokens.
        mask_pool_capacity: masks that the workers' MaskPool holds; the manager then has the ``deduplicator`` for it.
    """

    limits: Limits = field(default_factory=Limits)
    compile_workers: int = field(default_factory=_half_the_processors)
    compile_timeout: float = 10.0
    queue_size: int = 512
    tenant_queue_size: int = 64
    cache_bytes: int = 512 << 20
    failures_kept: int = 4_096
    failure_ttl: float = 60.0
    slow_token_seconds: float = 0.05
    isolate_slow_compiles: bool = True
    fill_threads: int = field(default_factory=lambda: min(8, os.cpu_count() or 1))
    num_mask_buffers: int = 2
    any_whitespace: bool = True
    mask_pool_capacity: int = 0

    def __post_init__(self) -> None:
        at_least = {
            "compile_workers": 1,
            "queue_size": 1,
            "tenant_queue_size": 1,
            "cache_bytes": 0,
            "failures_kept": 0,
            "fill_threads": 1,
            "num_mask_buffers": 1,
            "mask_pool_capacity": 0,
        }
        for name, least in at_least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
        for name in ("compile_timeout", "failure_ttl", "slow_token_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds, got {getattr(self, name)!r}")
