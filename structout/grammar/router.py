"""All grammar engines behind one door: which of them compiles a constraint, and what it could not enforce."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError
from structout.grammar.compile_pool import CompileProcessPool
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.json_schema import allows_finite_text, check_keywords
from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.llguidance.support import is_told_by, llguidance_support
from structout.grammar.support import Support
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.grammar.xgrammar.support import schemas_in_tag, xgrammar_support
from structout.params import Constraint, StructuredOutputOptions

BackendFactory = Callable[[Vocabulary, StructuredOutputsConfig, "CanonicalTokenizer | None"], StructuredOutputBackend]

_AUTO = "auto"
_COMES_LATER = {"fsm": "our own engine for regular languages"}
_CLOSED = "the manager is closed"
_PROCESS_START_SECONDS = 60.0
_XGRAMMAR_CACHE_SHARE = 8  # of the cache's bytes: the compiled grammars themselves are kept by whoever asked for them


@dataclass(frozen=True)
class CompiledConstraint:
    """
    Attributes:
        grammar: at its start.
        backend_name: of the backend that compiled it.
        weakened: what the backend does not enforce of a lenient constraint, such as ``#/properties/age/not``.
    """

    grammar: StructuredOutputGrammar
    backend_name: str
    weakened: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        return self.grammar.memory_bytes


@dataclass(frozen=True)
class _Registered:
    make: BackendFactory
    support: Callable[[Constraint], Support]


def _support_of_others(constraint: Constraint) -> Support:
    return Support(weakened=() if constraint.whitespace_pattern is None else ("whitespace_pattern",))


def register_backend(
    name: str, make: BackendFactory, support: Callable[[Constraint], Support] = _support_of_others
) -> None:
    """Make a backend known to every :class:`BackendSet` that is made from now on. It serves requests that name it, and
    what no other backend enforces.

    Args:
        name: what requests call it; a name that is in use is replaced.
        make: called once in each set, with the vocabulary, the config, and what its grammars need to compute
            fast-forward tokens.
        support: what it would not enforce of a constraint. Default: whitespace_pattern alone.

    Raises:
        ValueError: the name is reserved.
    """
    if name == _AUTO or name in _COMES_LATER or not name.isidentifier():
        raise ValueError(f"{name!r} cannot name a backend: it is reserved or no identifier")
    _registered[name] = _Registered(make, support)


def _make_xgrammar(
    vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
) -> StructuredOutputBackend:
    return XgrammarBackend(
        vocabulary,
        any_whitespace=config.any_whitespace,
        cache_bytes=config.cache_bytes // _XGRAMMAR_CACHE_SHARE,
        canonical_tokenizer=canonical_tokenizer,
    )


def _make_llguidance(
    vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
) -> StructuredOutputBackend:
    return LlguidanceBackend(vocabulary, any_whitespace=config.any_whitespace, canonical_tokenizer=canonical_tokenizer)


_registered = {
    "llguidance": _Registered(_make_llguidance, llguidance_support),
    "xgrammar": _Registered(_make_xgrammar, xgrammar_support),
}

# Which of several that enforce a constraint serves it; bench/results/ready_cpu.json has the figures. JSON schemas:
# llguidance compiles them in milliseconds, where xgrammar takes seconds for one in ten, and both fill as quickly. JSON
# objects: llguidance compiles them in 3 ms instead of 28, and fills a row in 38 us instead of 26, but with UTF-8 only.
# Other constraints: xgrammar fills two to two hundred times faster, unless it compiles slowly, see Support.is_slow.
_FIRST = {kind: "xgrammar" for kind in StructuredOutputOptions} | {
    StructuredOutputOptions.JSON: "llguidance",
    StructuredOutputOptions.JSON_OBJECT: "llguidance",
}


def _canonical_tokenizer(tokenizer: Any, vocabulary: Vocabulary) -> CanonicalTokenizer | None:
    return None if tokenizer is None else CanonicalTokenizer(tokenizer, vocabulary)


class BackendSet:
    """The backends of one vocabulary, each made when it is first needed. Safe from any thread.

    Args:
        vocabulary: of the model.
        config: the manager's.
        tokenizer: the Hugging Face tokenizer of the vocabulary; without it grammars compute no fast-forward tokens.
    """

    def __init__(self, vocabulary: Vocabulary, config: StructuredOutputsConfig, tokenizer: Any = None):
        self._vocabulary = vocabulary
        self._config = config
        self._canonical_tokenizer = _Lazy(partial(_canonical_tokenizer, tokenizer, vocabulary))
        self._registered = dict(_registered)
        self._backends = {name: _Lazy(partial(self._make, known)) for name, known in _registered.items()}
        self._compile_pool = _Lazy(partial(CompileProcessPool, vocabulary, num_processes=config.compile_workers))
        self._is_destroyed = False

    def prepare(self) -> None:
        """Make all backends now: their tables of the vocabulary, and the process for slow compilations, take up to two
        seconds each."""
        for backend in self._backends.values():
            backend.get()
        if self._config.isolate_slow_compiles:
            self._compile_pool.get().start(_PROCESS_START_SECONDS)

    def canonical_tokenizer(self) -> CanonicalTokenizer | None:
        """The one that all backends share; None without a tokenizer."""
        return self._canonical_tokenizer.get()

    def backend(self, name: str) -> StructuredOutputBackend:
        """The backend of that name. Raises ``GrammarError`` if there is none, or after ``destroy``."""
        self._check_name(name)
        return self._backends[name].get()

    def compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None = None) -> CompiledConstraint:
        """
        Args:
            constraint: see :class:`structout.params.Constraint`: its backend, or the first that enforces it.
            stop_token_ids: that end the text. Default: the vocabulary's.

        Raises:
            GrammarError: malformed, impossible, or not enforced by any backend that may serve it; says by which for
                what reason.
        """
        if self._is_destroyed:
            raise GrammarError(_CLOSED)
        _check_schemas(constraint)
        reasons = []
        for name, support in self._candidates(constraint):
            if not (support.enforces or (constraint.lenient and not support.refusal)):
                reasons.append(f"{name} {support.reason}")
                continue
            try:
                return self._compile_with(name, support, constraint, stop_token_ids)
            except (GrammarTimeoutError, CompileCrashError):  # says nothing about the constraint
                raise
            except GrammarError as error:
                reasons.append(f"{name}: {error}")
        raise GrammarError("; ".join(reasons))

    def destroy(self) -> None:
        """Let go of what was compiled, for good: whatever is asked for later raises ``GrammarError``."""
        self._is_destroyed = True
        for backend in self._backends.values():
            made = backend.discard()
            if made is not None:
                made.destroy()
        pool = self._compile_pool.discard()
        if pool is not None:
            pool.close()

    def _check_name(self, name: str) -> None:
        if name in _COMES_LATER:
            raise GrammarError(f"the backend {name!r} is reserved for {_COMES_LATER[name]}, which comes later")
        if name not in self._backends:
            raise GrammarError(f"unknown backend {name!r}: the known ones are {', '.join([_AUTO, *self._backends])}")

    def _make(self, registered: _Registered) -> StructuredOutputBackend:
        return registered.make(self._vocabulary, self._config, self.canonical_tokenizer())

    def _candidates(self, constraint: Constraint) -> list[tuple[str, Support]]:
        """The backends that may serve the constraint, the best first."""
        wish = constraint.backend_name
        if wish != _AUTO:
            self._check_name(wish)
        names = [*self._backends] if wish == _AUTO or constraint.allows_fallback else [wish]
        candidates = [(name, self._registered[name].support(constraint)) for name in names]

        def rank(candidate: tuple[str, Support]) -> tuple[bool, int, bool, bool, bool]:
            name, support = candidate
            loss = len(support.weakened) if constraint.lenient else 0
            return bool(support.refusal), loss, name != wish, support.is_slow, name != _FIRST[constraint.kind]

        return sorted(candidates, key=rank)

    def _compile_with(
        self, name: str, support: Support, constraint: Constraint, stop_token_ids: Sequence[int] | None
    ) -> CompiledConstraint:
        backend = self.backend(name)
        if isinstance(backend, XgrammarBackend) and support.is_slow and self._config.isolate_slow_compiles:
            return CompiledConstraint(self._probe_first(backend, constraint, stop_token_ids), name, support.weakened)
        if not isinstance(backend, LlguidanceBackend):
            grammar = backend.compile_grammar(constraint.kind, constraint.spec, stop_token_ids)
            return CompiledConstraint(grammar, name, support.weakened)
        by_llguidance = backend.compile_grammar(
            constraint.kind,
            constraint.spec,
            stop_token_ids,
            whitespace_pattern=constraint.whitespace_pattern,
            lenient=constraint.lenient,
        )
        in_its_words = tuple(what for what in by_llguidance.weakened if not is_told_by(what, support.weakened))
        return CompiledConstraint(by_llguidance, name, support.weakened + in_its_words)

    def _probe_first(
        self, backend: XgrammarBackend, constraint: Constraint, stop_token_ids: Sequence[int] | None
    ) -> StructuredOutputGrammar:
        """Compiled by a process that can be killed; here, if the result is too large to be handed over."""
        any_whitespace, timeout = self._config.any_whitespace, self._config.compile_timeout
        compiled = self._compile_pool.get().run(constraint.kind, constraint.spec, any_whitespace, timeout)
        if compiled is None:
            return backend.compile_grammar(constraint.kind, constraint.spec, stop_token_ids)
        return backend.load_grammar(constraint.kind, compiled, stop_token_ids)


def _check_schemas(constraint: Constraint) -> None:
    """Raise ``GrammarError`` for a schema that is malformed, or whose every instance would go on for ever."""
    if constraint.kind is StructuredOutputOptions.JSON:
        schema = json.loads(constraint.spec)
        check_keywords(schema)
        if not allows_finite_text(schema):
            raise GrammarError("the json constraint allows no text at all: every instance would contain another one")
    elif constraint.kind is StructuredOutputOptions.STRUCTURAL_TAG:
        for pointer, schema in schemas_in_tag(json.loads(constraint.spec)):
            check_keywords(schema, pointer)


Made = TypeVar("Made")


class _Lazy(Generic[Made]):
    """What is made by the first who asks for it, while the others wait, until it is discarded for good."""

    def __init__(self, make: Callable[[], Made]):
        self._make = make
        self._made: Made | None = None
        self._is_discarded = False
        self._lock = threading.Lock()

    def get(self) -> Made:
        with self._lock:
            if self._is_discarded:
                raise GrammarError(_CLOSED)
            if self._made is None:
                self._made = self._make()
            return self._made

    def discard(self) -> Made | None:
        with self._lock:
            self._is_discarded = True
            made, self._made = self._made, None
            return made
