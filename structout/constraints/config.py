"""Settings of a manager, shared by all its requests."""

import os
from dataclasses import dataclass, field

from structout.constraints.limits import Limits

# The most spaces or tabs after a line feed with max_whitespace="indent". The native
# engine has them in csrc/json/automaton/whitespace.cpp.
MAX_INDENTATION, MAX_TABS = 32, 8
# The choices of options that a request may have, too.
CHOICES = {
    "key_order": ("declared", "any"),
    "formats": ("annotate", "strict"),
    "additional_properties": ("schema", "closed"),
}


_NUM_PROCESSORS = os.cpu_count() or 1


def _half_the_processors(least: int) -> int:
    return min(8, max(least, _NUM_PROCESSORS // 2))


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """Settings of a :class:`structout.StructuredOutputManager`.

    Attributes:
        limits: largest size of a single constraint.
        compile_workers: number of constraints compiled at the same time.
        compile_timeout: CPU seconds after which a constraint that still compiles fails,
            so that a busy machine fails nobody. One that gets no CPU time fails after
            ten times as many by the clock.
        queue_size: number of constraints that may wait to be compiled. One more is
            refused.
        cache_bytes: memory for the cache of compiled grammars, keys included.
        failures_kept: number of invalid constraints that are remembered, so that they
            fail at once.
        failure_ttl: seconds for which a failure is remembered.
        slow_token_seconds: a request of another engine than structout's own fails
            after three tokens in a row that each take longer than this to accept, or
            three masks to fill. Its grammar is so ambiguous that it would delay all
            other requests. CPU seconds of one thread: a busy machine fails nobody.
        num_mask_buffers: number of ``grammar_bitmask`` calls after which the memory of
            a MaskBatch is used again. With 2, one step can be copied to the device
            while the next one is filled.
        fill_threads: number of threads that copy the masks of a step, the caller's
            among them. Default: half of the processors, at most 8, as in vLLM. Only
            steps of many rows are shared, and only known masks.
        any_whitespace: whether generated JSON may contain whitespace where
            ``max_whitespace`` allows it. If False, it is written as
            ``{"a": 1, "b": [2, 3]}``.
        max_whitespace: "indent" allows what JSON writers emit: a space, or a line feed
            and up to 32 spaces or 8 tabs; but nothing in front of a colon, and at most
            a space after it. A number allows that many whitespace characters in a row
            between any two tokens. None allows any: then a small model may write
            spaces until it runs out of tokens. Does not apply to requests with a
            whitespace_pattern.
        key_order: the order of an object's keys in JSON that the native engine serves,
            for requests that choose none. "declared": the keys that the schema names
            come in its order, and other keys after them; those that are not required
            may be missing. "any": they come once each, in any order.
            docs/json_schema.md says which to choose.
        formats: what happens to a ``format`` that the engine of a request does not
            enforce, such as one that no draft defines. "annotate": it constrains
            nothing, and ``manager.compiled`` lists it. "strict": the request is refused
            unless it is ``lenient``.
        additional_properties: the keys of objects, in JSON that the native engine
            serves, for requests that choose nothing. "schema": an object may have any
            key that its schema does not forbid. "closed": it has only keys that its
            schema names, see docs/json_schema.md. Python types are closed in any case,
            unless they allow other keys.
    """

    limits: Limits = field(default_factory=Limits)
    compile_workers: int = field(default_factory=lambda: _half_the_processors(least=2))
    compile_timeout: float = 10.0
    queue_size: int = 512
    cache_bytes: int = 512 << 20
    failures_kept: int = 4_096
    failure_ttl: float = 60.0
    slow_token_seconds: float = 0.05
    num_mask_buffers: int = 2
    fill_threads: int = field(default_factory=lambda: _half_the_processors(least=1))
    any_whitespace: bool = True
    max_whitespace: int | str | None = "indent"
    key_order: str = "declared"
    formats: str = "annotate"
    additional_properties: str = "schema"

    def __post_init__(self) -> None:
        minimums = {
            "compile_workers": 1,
            "queue_size": 1,
            "cache_bytes": 0,
            "failures_kept": 0,
            "num_mask_buffers": 1,
            "fill_threads": 1,
        }
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < minimum:
                raise ValueError(f"{name} must be an int of at least {minimum}, got {value!r}")
        for name in ("compile_timeout", "failure_ttl", "slow_token_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds, got {getattr(self, name)!r}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f'{name} must be "{choices[0]}" or "{choices[1]}", got {getattr(self, name)!r}')
        spaces = self.max_whitespace
        is_number = isinstance(spaces, int) and not isinstance(spaces, bool) and spaces >= 1
        if spaces not in (None, "indent") and not is_number:
            raise ValueError(
                f'max_whitespace must be "indent", an int of at least 1 or None, got {spaces!r}; '
                "any_whitespace=False fixes the whitespace"
            )
