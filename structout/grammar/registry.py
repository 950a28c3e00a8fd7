"""The engines that compile constraints: structout's own, xgrammar and registered ones,
which a request may name."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.limits import check_num_tokens
from structout.constraints.params import Constraint, StructuredOutputOptions, StructuredOutputsParams
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import CompiledConstraint, StructuredOutputBackend
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import BYTES, Vocabulary

BackendFactory = Callable[[Vocabulary, StructuredOutputsConfig, "CanonicalTokenizer | None"], StructuredOutputBackend]

_AUTO = "auto"
NATIVE = "native"  # the name of structout's own backend


def _make_xgrammar(
    vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
) -> StructuredOutputBackend:
    try:
        from structout.grammar.optional.xgrammar import XgrammarBackend
    except ImportError as error:
        message = f"backend 'xgrammar' needs a package that cannot be imported ({error}): "
        raise GrammarError(f"{message}pip install 'structout[xgrammar]'", kind=GrammarErrorKind.UNSUPPORTED) from error
    return XgrammarBackend.from_config(vocabulary, config, canonical_tokenizer)


_factories: dict[str, BackendFactory] = {NATIVE: NativeBackend.from_config, "xgrammar": _make_xgrammar}


def register_backend(name: str, make: BackendFactory) -> None:
    """Register a grammar engine under a name.

    Managers made from now on offer it to requests that name it.

    Args:
        name: what requests call it. Replaces a backend of the same name.
        make: called once in each manager, with the vocabulary, the config, and what the
            grammars need to compute fast-forward tokens (None without a tokenizer).

    Raises:
        ValueError: the name is ``auto``, ``native`` or not an identifier.
    """
    if name in (_AUTO, NATIVE) or not name.isidentifier():
        raise ValueError(
            f"a backend needs a name that is an identifier, and neither {_AUTO!r} nor {NATIVE!r}, got {name!r}"
        )
    _factories[name] = make


class BackendSet:
    """The backends of one vocabulary, each made when it is first needed. Safe to use
    from any thread.

    Args:
        vocabulary: the token ids of the model.
        config: the config of the manager.
        tokenizer: the Hugging Face tokenizer of the vocabulary. Without it, grammars
            compute no fast-forward tokens.
    """

    def __init__(self, vocabulary: Vocabulary, config: StructuredOutputsConfig, tokenizer: Any = None):
        self._vocabulary = vocabulary
        self._config = config
        self._tokenizer = tokenizer
        self._factories = dict(_factories)
        self._lock = threading.RLock()  # guards the fields below
        self._canonical_tokenizer: CanonicalTokenizer | None = None
        self._backends: dict[str, StructuredOutputBackend] = {}  # those that were needed
        self._is_destroyed = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the backends."""
        return tuple(self._factories)

    def prepare(self) -> None:
        """Make the backend that serves requests which name none."""
        self.backend(NATIVE)

    def canonical_tokenizer(self) -> CanonicalTokenizer | None:
        """The tokenizer that all backends share, or None."""
        with self._lock:
            if self._canonical_tokenizer is None and self._tokenizer is not None:
                self._canonical_tokenizer = CanonicalTokenizer(self._tokenizer, self._vocabulary)
            return self._canonical_tokenizer

    def backend(self, name: str) -> StructuredOutputBackend:
        """The backend of that name. Raises ``GrammarError`` if there is none, or after
        ``destroy``."""
        backend = self._backends.get(name)
        if backend is not None:
            return backend
        self._check_name(name)
        with self._lock:
            if self._is_destroyed:
                raise GrammarError("the manager is closed", kind=GrammarErrorKind.CLOSED)
            if name not in self._backends:
                make = self._factories[name]
                self._backends[name] = make(self._vocabulary, self._config, self.canonical_tokenizer())
            return self._backends[name]

    def compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None = None) -> CompiledConstraint:
        """Compile a constraint with the backend that it names.

        Args:
            constraint: see :class:`structout.constraints.params.Constraint`.
            stop_token_ids: tokens that end the text. Default: those of the vocabulary.

        Raises:
            GrammarError: the constraint is malformed or impossible, or the backend does
                not enforce all of it.
        """
        begin = time.thread_time()
        name = _name(constraint)
        compiled = self.backend(name).compile(constraint, stop_token_ids)
        # Nobody knows which formats another engine enforces.
        unread_formats = compiled.annotations if name == NATIVE else tuple(_formats(constraint))
        self._check_formats(name, constraint, unread_formats)
        return replace(compiled, backend_name=name, cpu_seconds=time.thread_time() - begin)

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        """Find out what ``compile`` would refuse, without the vocabulary and within
        milliseconds.

        Other backends than the native one are not asked: they may take long.

        Args:
            constraint: see :class:`structout.constraints.params.Constraint`.

        Returns:
            the parts of a lenient constraint that would not be enforced.

        Raises:
            GrammarError: as ``compile``.
        """
        name = _name(constraint)
        self._check_name(name)
        if name != NATIVE:
            return ()
        weakened, annotations = cast(NativeBackend, self.backend(NATIVE)).check(constraint)
        self._check_formats(NATIVE, constraint, annotations)
        return weakened

    def destroy(self) -> None:
        """Release everything that was compiled. Every later call raises
        ``GrammarError``."""
        with self._lock:
            self._is_destroyed = True
            backends, self._backends = self._backends, {}
        for backend in backends.values():
            backend.destroy()

    def _check_name(self, name: str) -> None:
        if name not in self._factories:
            raise GrammarError(f"unknown backend {name!r}: the known ones are {', '.join([_AUTO, *self._factories])}")

    def _check_formats(self, name: str, constraint: Constraint, unread_formats: Sequence[str]) -> None:
        rule = constraint.formats or self._config.formats
        if unread_formats and rule == "strict" and not constraint.lenient:
            pointer = unread_formats[0]
            message = f'{name} does not enforce {pointer}, and formats="strict" asks for it: '
            raise GrammarError(
                f"{message}drop the format or pass lenient=True",
                kind=GrammarErrorKind.UNSUPPORTED,
                pointer=pointer,
                keyword="format",
            )


def check_params(
    params: StructuredOutputsParams,
    config: StructuredOutputsConfig | None = None,
    *,
    tokenizer: Any = None,
    max_tokens: int | None = None,
) -> tuple[str, ...]:
    """Find out what a manager would refuse, without a tokenizer.

    Takes milliseconds, for a frontend that answers a bad request at once. The
    constraint is compiled for a vocabulary of single bytes. With the model's vocabulary
    it may still be refused.

    Args:
        params: the constraint of a request.
        config: the manager's config. Default: the default config.
        tokenizer: the model's. Needed with ``max_tokens``, and used if the least bytes
            of a text are more than these.
        max_tokens: the request's limit on the tokens of its text.

    Returns:
        the parts of a ``lenient`` constraint that would not be enforced.

    Raises:
        GrammarError: the constraint is malformed, too large, impossible or not
            supported. Its ``as_dict`` is the body of a response.
    """
    config = config or StructuredOutputsConfig()
    constraint = params.constraint(config)
    weakened = _check_constraint(constraint, config)
    if max_tokens is not None and params.fit != "off" and _num_needed(constraint, config, None) > max_tokens:
        check_num_tokens(_num_needed(constraint, config, tokenizer), max_tokens)
    return weakened


@lru_cache(maxsize=256)  # clients repeat their schemas
def _check_constraint(constraint: Constraint, config: StructuredOutputsConfig) -> tuple[str, ...]:
    return _byte_backends(config).check(constraint)


@lru_cache(maxsize=256)
def _num_needed(constraint: Constraint, config: StructuredOutputsConfig, tokenizer: Any) -> int:
    """The least number of tokens of a text, 0 if it is unknown; without a tokenizer, of
    its bytes and a stop token."""
    if _name(constraint) != NATIVE:
        return 0
    backends = _byte_backends(config) if tokenizer is None else _backends_of(tokenizer, config)
    return backends.compile(constraint).grammar.num_needed or 0


@lru_cache(maxsize=4)
def _byte_backends(config: StructuredOutputsConfig) -> BackendSet:
    return BackendSet(BYTES, config)


@lru_cache(maxsize=1)
def _backends_of(tokenizer: Any, config: StructuredOutputsConfig) -> BackendSet:
    return BackendSet(Vocabulary.from_tokenizer(tokenizer), config)


def _name(constraint: Constraint) -> str:
    return NATIVE if constraint.backend == _AUTO else constraint.backend


def _formats(constraint: Constraint) -> Iterator[str]:
    """Yield JSON pointers to the formats of a JSON schema."""
    if constraint.kind is StructuredOutputOptions.JSON:
        yield from (f"#{pointer}/format" for pointer, node in constraint.nodes if "format" in node)
