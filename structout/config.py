"""What an engine decides once, for all requests."""

import os
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """
    Attributes:
        compile_workers: constraints compiled at the same time. Default: one for each processor, at least 4.
        cache_bytes: bound on the cache of compiled grammars.
        num_mask_buffers: calls of ``grammar_bitmask`` until a MaskBatch's memory is used again. 2 lets one step be
            copied to the device while the next one is filled.
        any_whitespace: whether generated JSON may have whitespace anywhere between its tokens.
    """

    compile_workers: int = field(default_factory=lambda: max(4, os.cpu_count() or 1))
    cache_bytes: int = 256 << 20
    num_mask_buffers: int = 2
    any_whitespace: bool = True

    def __post_init__(self) -> None:
        for name, least in (("compile_workers", 1), ("cache_bytes", 0), ("num_mask_buffers", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
