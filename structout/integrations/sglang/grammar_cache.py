"""GrammarCache: SGLang's dict of compiled grammars, within a number of bytes."""

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import Any

_ENTRY_BYTES = 2048  # the overhead of an entry: a matcher at its start, and its places in dicts

Key = tuple[str, str]


class GrammarCache(MutableMapping[Key, Any]):
    """A dict of grammars that drops the least recently used ones.

    SGLang keeps every constraint that it has ever compiled, and every failure. A server
    whose clients send a new schema with each request would run out of memory.

    The entries depend only on the order of requests and on the constraints, so the
    caches of tensor-parallel ranks agree. A grammar without a ``memory_bytes`` is not
    cached: SGLang's own failures, such as timeouts, say nothing about the constraint.

    Args:
        max_bytes: memory for grammars and keys.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """The memory of all entries, their overhead included."""
        return self._num_bytes

    def __getitem__(self, key: Key) -> Any:
        grammar, _ = self._entries[key]
        self._entries.move_to_end(key)
        return grammar

    def __setitem__(self, key: Key, grammar: Any) -> None:
        self.pop(key, None)
        memory_bytes = _memory_bytes(grammar)
        if memory_bytes is None:
            return
        num_bytes = memory_bytes + 4 * len(key[1]) + _ENTRY_BYTES  # a character takes up to 4 bytes
        if num_bytes > self._max_bytes:
            return
        self._entries[key] = grammar, num_bytes
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            del self[next(iter(self._entries))]

    def __delitem__(self, key: Key) -> None:
        _, num_bytes = self._entries.pop(key)
        self._num_bytes -= num_bytes

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _memory_bytes(grammar: Any) -> int | None:
    """The memory of a grammar, or of the one inside SGLang's wrapper for reasoning."""
    inner = getattr(grammar, "grammar", grammar)
    memory_bytes: int | None = getattr(inner, "memory_bytes", None)
    return memory_bytes
