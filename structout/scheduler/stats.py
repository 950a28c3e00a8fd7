"""What a manager tells about itself."""

from dataclasses import dataclass

from structout.masks.pool import MaskPoolStats
from structout.scheduler.compile_service import CompileStats
from structout.scheduler.decoding_step import BackendFills


@dataclass(frozen=True)
class ManagerStats:
    """A manager's counters at one moment.

    Attributes:
        waiting: how many requests are WAITING.
        ready: how many requests are READY.
        failed: how many requests have FAILED.
        compilation: see :class:`structout.scheduler.compile_service.CompileStats`.
        rows_filled: how many mask rows have been filled since the start.
        fill_seconds: percentiles 50 and 99 over the last 1,024 calls of
            ``grammar_bitmask``.
        mask_pool: the deduplicator's counters; None without a mask pool.
        backends: by backend name, what its fills have taken since the start.
    """

    waiting: int
    ready: int
    failed: int
    compilation: CompileStats
    rows_filled: int
    fill_seconds: tuple[float, float]
    mask_pool: MaskPoolStats | None
    backends: dict[str, BackendFills]
