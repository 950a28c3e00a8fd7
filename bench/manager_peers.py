"""The calls that bench_manager.py times beside vLLM: the manager, and a backend without
a manager."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import structout
from structout import StructuredOutputManager, StructuredOutputOptions, StructuredOutputsParams
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.vocabulary import Vocabulary


class Peer(Protocol):
    """The calls that are timed."""

    def start(self, request_id: str, constraint: Mapping[str, Any], token_ids: Sequence[int]) -> bool:
        """Add a request that has generated ``token_ids``. Returns False if it cannot be
        served.

        Args:
            constraint: a schema as ``{"json": ...}``, a pattern as ``{"regex": ...}``.
        """

    def finish(self, request_id: str) -> None: ...

    def grammar_bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> Any: ...

    def rows(self, masks: Any) -> npt.NDArray[np.int32]:
        """What ``grammar_bitmask`` has returned, as mask rows. Not timed."""
        return masks

    def accept(self, token_ids: Mapping[str, Sequence[int]]) -> None: ...


class Structout(Peer):
    """
    Args:
        prefix: a prefix of request ids, so that two instances may share a manager.
        max_tokens: the limit of each request.
    """

    def __init__(self, manager: StructuredOutputManager, backend: str, prefix: str = "", max_tokens: int | None = None):
        self._manager = manager
        self._backend = backend
        self._prefix = prefix
        self._max_tokens = max_tokens

    def start(self, request_id: str, constraint: Mapping[str, Any], token_ids: Sequence[int]) -> bool:
        name = self._prefix + request_id
        params = StructuredOutputsParams(**constraint, backend=self._backend)
        self._manager.add_request(name, params, output_token_ids=token_ids, max_tokens=self._max_tokens)
        try:
            self._manager.wait_ready(name)
        except structout.GrammarError:
            self._manager.finish_request(name)
            return False
        return True

    def finish(self, request_id: str) -> None:
        self._manager.finish_request(self._prefix + request_id)

    def grammar_bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> Any:
        if self._prefix:
            request_ids, drafts = [self._prefix + i for i in request_ids], self._named(drafts)
        return self._manager.grammar_bitmask(request_ids, drafts or None).bitmask

    def accept(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        self._manager.accept_batch(self._named(token_ids) if self._prefix else token_ids)

    def _named(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
        return {self._prefix + request_id: ids for request_id, ids in tokens.items()}


class BareBackend(Peer):
    """The fills of the xgrammar backend, without a manager."""

    def __init__(self, vocabulary: Vocabulary, max_rows: int):
        self._backend = XgrammarBackend(vocabulary)
        self._bitmask = structout.allocate_token_bitmask(max_rows, vocabulary.size)
        self._grammars: dict[str, Any] = {}

    def start(self, request_id: str, constraint: Mapping[str, Any], token_ids: Sequence[int]) -> bool:
        ((kind, spec),) = constraint.items()
        grammar = self._backend.compile_grammar(StructuredOutputOptions(kind), spec)
        self._grammars[request_id] = grammar
        return grammar.accept_tokens(request_id, list(token_ids))

    def finish(self, request_id: str) -> None:
        del self._grammars[request_id]

    def grammar_bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> npt.NDArray[np.int32]:
        grammars = [self._grammars[request_id] for request_id in request_ids]
        num_rows = len(grammars)
        if drafts:
            num_rows = 0
            for request_id, grammar in zip(request_ids, grammars, strict=True):
                grammar.fill_bitmask_drafts(self._bitmask, num_rows, drafts[request_id])
                num_rows += 1 + len(drafts[request_id])
        else:
            self._backend.fill_bitmask_batch(grammars, self._bitmask, range(num_rows))
        return self._bitmask.numpy()[:num_rows]

    def accept(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        for request_id, tokens in token_ids.items():
            self._grammars[request_id].accept_tokens(request_id, list(tokens))
