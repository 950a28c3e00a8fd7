"""JSON Schema on the engine's own core, as the tests of it use it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from structout.grammar.native.automaton import DEFAULT_LIMITS, AutomatonLimits
from structout.grammar.native.extension import core
from structout.grammar.native.formats import native_formats
from structout.ops.token_bitmask import allocate_token_bitmask

BYTE_TOKENS = [bytes([byte]) for byte in range(256)] + [b""]  # the last one is a stop token


class JsonEngine:
    """Compiles schemas over one vocabulary.

    Args:
        token_bytes: the bytes of each token. An empty one is a special token.
        stop: the token that ends a text.
        declared: whether named keys keep the order of their declaration.
        may_negate_hosts: whether ``hostname`` is taken by its shape, as the engine does
            for schemas in which it is negated.
        closes_objects: whether objects have only keys that their schemas name.

    Attributes:
        trie: the vocabulary of the core.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes] = BYTE_TOKENS,
        stop: int | None = None,
        *,
        declared: bool = False,
        may_negate_hosts: bool = True,
        closes_objects: bool = False,
    ):
        self.token_bytes = list(token_bytes)
        self.stop = len(self.token_bytes) - 1 if stop is None else stop
        self.trie = core().VocabularyTrie(self.token_bytes)
        self._options = core().SchemaOptions()
        self._options.formats = native_formats(may_be_negated=may_negate_hosts)
        self._options.closes_objects = closes_objects
        self._form = core().TextForm()
        self._form.set_whitespace(core().WhitespaceRule.ANY, None)
        self._form.declared_key_order = declared

    def compile(self, schema: Any, seconds: float = DEFAULT_LIMITS.seconds, **options: Any) -> Any:
        """Compile a schema: a JSON text, or a value.

        Args:
            options: further arguments of the core, such as ``max_growth``, or
                ``limits`` in the place of its own.

        Raises:
            SchemaError: with a message, a kind and a JSON pointer.
            LimitError: with the name of a limit.
        """
        text = schema if isinstance(schema, str | bytes) else json.dumps(schema, ensure_ascii=False)
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        limits = AutomatonLimits().native
        limits.seconds = seconds
        return core().CompiledSchema(
            data, self._options, self._form, options.pop("limits", limits), self.trie, **options
        )

    def walk(self, index: Any) -> EngineWalk:
        """The start of a text."""
        return EngineWalk(self, core().SchemaMatcher(index, [self.stop]))


class EngineWalk:
    """A text that is drawn token by token.

    Attributes:
        matcher: the matcher of the core.
    """

    def __init__(self, engine: JsonEngine, matcher: Any):
        self.matcher = matcher
        self._size = len(engine.token_bytes)
        self._row = allocate_token_bitmask(1, self._size, pin_memory=False)

    def allowed(self) -> np.ndarray:
        """The tokens that the mask allows. Raises ``LimitError`` if a limit was met."""
        core().fill_batch([self.matcher], self._row.data_ptr(), 4 * self._row.stride(0), [0])
        if self.matcher.error:
            raise core().LimitError(self.matcher.error)
        bits = np.unpackbits(self._row[0].numpy().view(np.uint8), bitorder="little", count=self._size)
        return np.flatnonzero(bits)

    def accept(self, token: int) -> bool:
        return self.matcher.accept([token])

    def accept_hint(self, data: bytes) -> int:
        """Accept the bytes. Returns in how many steps, 0 if they are not accepted."""
        return int(self.matcher.accept_bytes(data))

    def rollback(self, num_steps: int) -> None:
        self.matcher.rollback(num_steps)

    def accepts(self, token: int) -> bool:
        """Whether a token is accepted. The text does not change."""
        if not self.matcher.accept([token]):
            return False
        self.matcher.rollback(1)
        return True


def refusal_of(error: ValueError) -> str:
    """What kind of error ``compile`` has raised: "impossible", "unsupported",
    "malformed" or "limit"."""
    if isinstance(error, core().SchemaError):
        return error.args[1]
    assert isinstance(error, core().LimitError), error
    return "limit"
