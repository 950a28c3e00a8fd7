"""Chooses the backend that compiles a constraint, and records what it does not
enforce."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from structout._version import __version__
from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarErrorKind, GrammarTimeoutError
from structout.grammar.compile_pool import CompileProcessPool
from structout.grammar.compile_worker import MAX_SERIALIZED, load_factory
from structout.grammar.compiled_files import CompiledFiles
from structout.grammar.engine_versions import MEASURED_VERSIONS
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.fsm.backend import FsmBackend
from structout.grammar.fsm.support import fsm_support
from structout.grammar.interface import CompiledConstraint, StructuredOutputBackend
from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.llguidance.support import llguidance_support
from structout.grammar.schema_rewrites.rewriter import rewrite
from structout.grammar.support import Support
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.grammar.xgrammar.support import xgrammar_support
from structout.json_schema import check_finite_text, check_keywords, keyword_at, unknown_formats
from structout.params import Constraint, StructuredOutputOptions, StructuredOutputsParams
from structout.structural_tag import TagSchema, with_schemas

BackendFactory = Callable[[Vocabulary, StructuredOutputsConfig, "CanonicalTokenizer | None"], StructuredOutputBackend]

_AUTO = "auto"
_PROCESS_START_SECONDS = 60.0
_BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))


@dataclass(frozen=True)
class _Registered:
    make: BackendFactory
    support: Callable[[Constraint], Support]
    needs_rewriting: bool = True  # of JSON Schema's keywords that the engine does not read

    @property
    def importable_name(self) -> str | None:
        """The name of ``make`` for another process, or None if it cannot be
        imported."""
        owner = getattr(self.make, "__self__", self.make)  # the class of a class method
        name = f"{getattr(owner, '__module__', '')}:{getattr(owner, '__qualname__', '')}"
        if owner is not self.make:
            name += f".{getattr(self.make, '__name__', '')}"
        with suppress(ImportError, AttributeError, ValueError):
            if not name.startswith("__main__:") and load_factory(name) == self.make:
                return name
        return None


def _default_support(constraint: Constraint) -> Support:
    return Support(weakened=() if constraint.whitespace_pattern is None else ("whitespace_pattern",))


@dataclass(frozen=True)
class _Candidate:
    """A backend that may serve a constraint.

    Attributes:
        name: the backend's name.
        support: how it would serve the constraint.
        constraint: what it would compile.
    """

    name: str
    support: Support
    constraint: Constraint

    @property
    def serves(self) -> bool:
        return self.support.enforces or (self.constraint.lenient and not self.support.refusal)


def register_backend(
    name: str, make: BackendFactory, support: Callable[[Constraint], Support] = _default_support
) -> None:
    """Register a grammar engine under a name.

    Managers made from now on offer it to requests that name it, and to constraints that
    no other backend enforces.

    Args:
        name: what requests call it. Replaces a backend of the same name.
        make: called once in each manager, with the vocabulary, the config, and what the
            grammars need to compute fast-forward tokens (None without a tokenizer).
        support: returns what the backend would not enforce of a constraint. By default
            whitespace_pattern only.

    Raises:
        ValueError: the name is ``auto`` or not an identifier.
    """
    if name == _AUTO or not name.isidentifier():
        raise ValueError(f"a backend needs a name that is an identifier and not {_AUTO!r}, got {name!r}")
    _registered[name] = _Registered(make, support)


_registered = {
    "llguidance": _Registered(LlguidanceBackend.from_config, llguidance_support),
    "xgrammar": _Registered(XgrammarBackend.from_config, xgrammar_support),
    "fsm": _Registered(FsmBackend.from_config, fsm_support, needs_rewriting=False),
}

# The backends that serve a constraint which several enforce, the best first. Backends
# that are not listed come last. The figures are in bench/results/ready_cpu.json.
# Regular languages and JSON: the fsm engine computes the mask of a state once,
# compiles within its limits or refuses, and enforces every keyword of a schema. JSON
# schemas that it refuses: llguidance compiles them in milliseconds, where xgrammar
# takes seconds for one in ten, and both fill as quickly. Other constraints: xgrammar
# fills 2 to 200 times faster than llguidance, unless it compiles slowly
# (Support.is_slow) or its masks take long (is_costly).
_PREFERRED = {
    StructuredOutputOptions.REGEX: ("fsm", "xgrammar"),
    StructuredOutputOptions.CHOICE: ("fsm", "xgrammar"),
    StructuredOutputOptions.GRAMMAR: ("fsm", "xgrammar"),
    StructuredOutputOptions.STRUCTURAL_TAG: ("xgrammar",),
    StructuredOutputOptions.JSON: ("fsm", "llguidance"),
    StructuredOutputOptions.JSON_OBJECT: ("fsm", "llguidance"),
}

# If several engines refuse, the error of the first of these kinds is reported.
_TELLING = (
    GrammarErrorKind.MALFORMED,
    GrammarErrorKind.IMPOSSIBLE,
    GrammarErrorKind.LIMIT,
    GrammarErrorKind.UNSUPPORTED,
)

# How a request can avoid keywords that no engine enforces, where there is a usual way.
_ALTERNATIVES = {"uniqueItems": "use a list instead of a set"}


def _canonical_tokenizer(tokenizer: Any, vocabulary: Vocabulary) -> CanonicalTokenizer | None:
    return None if tokenizer is None else CanonicalTokenizer(tokenizer, vocabulary)


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
        self._canonical_tokenizer = _Lazy(partial(_canonical_tokenizer, tokenizer, vocabulary))
        self._registered = dict(_registered)
        self._backends = {name: _Lazy(partial(self._make, known)) for name, known in _registered.items()}
        self._compile_pools = {
            name: _Lazy(partial(self._make_pool, known.importable_name))
            for name, known in _registered.items()
            if known.importable_name is not None
        }
        self._files = CompiledFiles(config.cache_dir, config.cache_dir_bytes) if config.cache_dir is not None else None
        self._file_context = _Lazy(partial(_file_context, vocabulary, config))
        self._is_destroyed = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the backends."""
        return tuple(self._backends)

    def prepare(self) -> None:
        """Make all backends now, and start the processes for slow compilations. Each
        takes up to two seconds."""
        for name, backend in self._backends.items():
            if self._is_isolated(name, backend.get()):
                self._compile_pools[name].get().start(_PROCESS_START_SECONDS)

    def canonical_tokenizer(self) -> CanonicalTokenizer | None:
        """The tokenizer that all backends share, or None."""
        return self._canonical_tokenizer.get()

    def backend(self, name: str) -> StructuredOutputBackend:
        """The backend of that name. Raises ``GrammarError`` if there is none, or after
        ``destroy``."""
        self._check_name(name)
        return self._backends[name].get()

    def compile(
        self,
        constraint: Constraint,
        stop_token_ids: Sequence[int] | None = None,
        refusals: dict[str, GrammarError] | None = None,
    ) -> CompiledConstraint:
        """Compile a constraint with the backend it names, or with the best one that
        enforces it.

        Args:
            constraint: see :class:`structout.params.Constraint`.
            stop_token_ids: tokens that end the text. Default: those of the vocabulary.
            refusals: receives the error of each backend that was tried before, by its
                name.

        Raises:
            GrammarError: the constraint is malformed or impossible, or no backend that
                may serve it enforces it.
        """
        if self._is_destroyed:
            raise _closed()
        annotations = tuple(_check_schemas(constraint))
        refusals = {} if refusals is None else refusals
        for candidate in self._candidates(constraint):
            name, support = candidate.name, candidate.support
            if not candidate.serves:
                refusals[name] = _unsupported(candidate)
                continue
            try:
                compiled = self._compile_with(candidate, stop_token_ids)
            except (GrammarTimeoutError, CompileCrashError):  # says nothing about the constraint
                raise
            except GrammarError as error:
                refusals[name] = error
            else:
                weakened = support.weakened + compiled.weakened
                unread = dict.fromkeys(annotations + support.formats + compiled.annotations)
                places = tuple(place for place in unread if place not in weakened)
                if self._refuses(constraint, places):
                    refusals[name] = _unenforced_format(name, places[0])
                    continue
                return replace(compiled, backend_name=name, weakened=weakened, annotations=places)
        raise _most_telling(constraint.kind, refusals)

    def check(self, constraint: Constraint, *, compiles: bool = False) -> tuple[str, ...]:
        """Find out what ``compile`` would refuse, without the vocabulary.

        An engine may still refuse the constraint when it compiles it.

        Args:
            constraint: see :class:`structout.params.Constraint`.
            compiles: whether to compile it too, unless that may take long.

        Returns:
            the parts of a lenient constraint that would not be enforced.

        Raises:
            GrammarError: as ``compile``.
        """
        annotations = tuple(_check_schemas(constraint))
        refusals: dict[str, GrammarError] = {}
        for candidate in self._candidates(constraint):
            name, support = candidate.name, candidate.support
            if not candidate.serves:
                refusals[name] = _unsupported(candidate)
                continue
            places = annotations + support.formats
            if self._refuses(constraint, places):
                refusals[name] = _unenforced_format(name, places[0])
                continue
            if not compiles or support.is_slow:
                return support.weakened
            try:
                return support.weakened + self.backend(name).check(candidate.constraint)
            except GrammarError as error:
                refusals[name] = error
        raise _most_telling(constraint.kind, refusals)

    def destroy(self) -> None:
        """Release everything that was compiled. Every later call raises
        ``GrammarError``."""
        self._is_destroyed = True
        for lazy_backend in self._backends.values():
            backend = lazy_backend.discard()
            if backend is not None:
                backend.destroy()
        for lazy_pool in self._compile_pools.values():
            pool = lazy_pool.discard()
            if pool is not None:
                pool.close()

    def _refuses(self, constraint: Constraint, unread_formats: tuple[str, ...]) -> bool:
        rule = constraint.formats or self._config.formats
        return bool(unread_formats) and rule == "strict" and not constraint.lenient

    def _check_name(self, name: str) -> None:
        if name not in self._backends:
            raise GrammarError(f"unknown backend {name!r}: the known ones are {', '.join([_AUTO, *self._backends])}")

    def _make(self, registered: _Registered) -> StructuredOutputBackend:
        return registered.make(self._vocabulary, self._config, self.canonical_tokenizer())

    def _make_pool(self, factory: str) -> CompileProcessPool:
        return CompileProcessPool(self._vocabulary, self._config, factory, num_processes=self._config.compile_workers)

    def _candidates(self, constraint: Constraint) -> Iterator["_Candidate"]:
        """The backends that may serve the constraint, the best first."""
        requested = constraint.backend_name
        if requested != _AUTO:
            self._check_name(requested)
        names = [*self._backends] if requested == _AUTO or constraint.allows_fallback else [requested]
        rewritten = _Lazy(partial(_rewritten, constraint))

        def candidate(name: str) -> _Candidate:
            registered = self._registered[name]
            own = rewritten.get() if registered.needs_rewriting else constraint
            support = registered.support(own)
            return _Candidate(name, support if name == requested else support.if_chosen_automatically(), own)

        first = candidate(_PREFERRED[constraint.kind][0] if requested == _AUTO else requested)
        support = first.support
        is_quick = not support.is_slow and not support.is_costly
        if support.enforces and not support.formats and is_quick:  # no other can be better
            names.remove(first.name)
            yield first

        def rank(candidate: _Candidate) -> tuple[bool, int, int, bool, bool, int]:
            support = candidate.support
            num_weakened = len(support.weakened) if constraint.lenient else bool(support.weakened)
            num_formats = len(support.formats)
            return (
                bool(support.refusal),
                num_weakened,
                num_formats,
                candidate.name != requested,
                support.is_slow or support.is_costly,
                _preference(constraint.kind, candidate.name),
            )

        yield from sorted(map(candidate, names), key=rank)

    def _is_isolated(self, name: str, backend: StructuredOutputBackend) -> bool:
        """Whether slow constraints of the backend are compiled in another process."""
        return self._config.isolate_slow_compiles and backend.can_isolate and name in self._compile_pools

    def _compile_with(self, candidate: "_Candidate", stop_token_ids: Sequence[int] | None) -> CompiledConstraint:
        name, constraint = candidate.name, candidate.constraint
        backend = self.backend(name)
        is_isolated = candidate.support.is_slow and self._is_isolated(name, backend)
        files = self._files if is_isolated or constraint.kind in backend.saved_kinds else None
        key = b"" if files is None else self._file_key(name, constraint)
        serialized = None if files is None else files.load(key)
        if serialized is not None:
            with suppress(GrammarError, ValueError):  # of another version of the engine
                return backend.load_grammar(constraint, serialized, stop_token_ids)
        if is_isolated:
            serialized = self._compile_pools[name].get().run(constraint, self._config.compile_timeout)
        elif files is not None:
            serialized = backend.serialize(backend.compile_native(constraint), MAX_SERIALIZED)
        if serialized is None:
            return backend.compile(constraint, stop_token_ids)
        compiled = backend.load_grammar(constraint, serialized, stop_token_ids)
        if files is not None:
            files.save(key, serialized)
        return compiled

    def _file_key(self, name: str, constraint: Constraint) -> bytes:
        """A hash of all that a compiled constraint depends on."""
        options = constraint.whitespace_pattern, constraint.lenient, constraint.key_order, constraint.schemas
        parts = name, constraint.kind, constraint.spec, *options
        return hashlib.sha256(self._file_context.get() + repr(parts).encode()).digest()


def check_params(
    params: StructuredOutputsParams, config: StructuredOutputsConfig | None = None, *, compiles: bool = False
) -> tuple[str, ...]:
    """Find out what a manager would refuse, without a tokenizer.

    For a frontend that answers a bad request at once. With the model's vocabulary an
    engine may still refuse the constraint.

    Args:
        params: the constraint of a request.
        config: the manager's config. Default: the default config.
        compiles: whether to compile the constraint, for a vocabulary of single bytes,
            unless that may take long. It finds syntax errors, and takes milliseconds.

    Returns:
        the parts of a ``lenient`` constraint that would not be enforced.

    Raises:
        GrammarError: the constraint is malformed, too large, or no backend that may
            serve it enforces it. Its ``as_dict`` is the body of a response.
    """
    config = config or StructuredOutputsConfig()
    return _check_constraint(params.constraint(config), config, compiles)


@lru_cache(maxsize=256)  # clients repeat their schemas
def _check_constraint(constraint: Constraint, config: StructuredOutputsConfig, compiles: bool) -> tuple[str, ...]:
    return _byte_backends(config).check(constraint, compiles=compiles)


@lru_cache(maxsize=4)
def _byte_backends(config: StructuredOutputsConfig) -> BackendSet:
    return BackendSet(_BYTES, config)


def _rewritten(constraint: Constraint) -> Constraint:
    """The constraint as the backends see it."""
    if constraint.kind is StructuredOutputOptions.JSON:
        rewritten = rewrite(constraint.value, constraint.nodes)
        if rewritten.schema is not constraint.value:
            return constraint.rewritten(rewritten.schema, nodes=rewritten.nodes)
    elif constraint.kind is StructuredOutputOptions.STRUCTURAL_TAG:
        given = constraint.tag_schemas
        schemas = [_rewritten_in_tag(schema) for schema in given]
        if any(new is not old for new, old in zip(schemas, given, strict=True)):
            tag = with_schemas(constraint.value, {schema.pointer: schema.schema for schema in schemas})
            return constraint.rewritten(tag, tag_schemas=schemas)
    return constraint


def _rewritten_in_tag(given: TagSchema) -> TagSchema:
    rewritten = rewrite(given.schema, given.nodes) if given.is_plain else None
    if rewritten is None or rewritten.schema is given.schema:
        return given
    return replace(given, schema=rewritten.schema, nodes=rewritten.nodes)


def _most_telling(kind: StructuredOutputOptions, refusals: dict[str, GrammarError]) -> GrammarError:
    return min(refusals.items(), key=lambda refusal: _reserve(kind, *refusal))[1]


def _check_schemas(constraint: Constraint) -> Iterator[str]:
    """Check the schemas of a constraint, and yield JSON pointers to those of their
    keywords that are annotations.

    Raises:
        GrammarError: a schema is malformed, or no finite text satisfies it.
    """
    if constraint.kind is StructuredOutputOptions.JSON:
        check_keywords(constraint.nodes)
        check_finite_text(constraint.value, constraint.nodes)
        yield from unknown_formats(constraint.nodes)
    elif constraint.kind is StructuredOutputOptions.STRUCTURAL_TAG:
        for schema in constraint.tag_schemas:
            check_keywords(schema.nodes, schema.pointer)
            check_finite_text(schema.schema, schema.nodes, schema.pointer)
            yield from unknown_formats(schema.nodes, schema.pointer)


def _unsupported(candidate: _Candidate) -> GrammarError:
    """The error for a constraint that a backend does not serve because of its table."""
    name, support, constraint = candidate.name, candidate.support, candidate.constraint
    is_alone = constraint.backend_name != _AUTO and not constraint.allows_fallback
    message = f"{name} {support.reason}" if support.refusal or is_alone else f"not supported: {support.places}"
    pointer = support.pointer
    keyword = None if pointer is None else keyword_at(pointer)
    message = "; ".join([message, *_advice(constraint.kind, support)])
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED, pointer=pointer, keyword=keyword)


def _preference(kind: StructuredOutputOptions, name: str) -> int:
    """The place of a backend among those that may serve a kind of constraint, 0 for the
    best."""
    preferred = _PREFERRED[kind]
    return preferred.index(name) if name in preferred else len(preferred)


def _reserve(kind: StructuredOutputOptions, name: str, error: GrammarError) -> tuple[int, bool, bool]:
    """Smallest for the refusal that tells most about a constraint."""
    has_place = error.pointer is not None
    names_place = has_place or kind is StructuredOutputOptions.REGEX  # fsm names the character
    telling = _TELLING.index(error.kind) if error.kind in _TELLING else len(_TELLING)
    return telling, not has_place, names_place and name != _PREFERRED[kind][0]


def _advice(kind: StructuredOutputOptions, support: Support) -> Iterator[str]:
    """How to change a constraint that is refused because of what a backend ignores."""
    if not support.refusal and kind in (StructuredOutputOptions.JSON, StructuredOutputOptions.STRUCTURAL_TAG):
        keywords = {keyword_at(pointer) or "" for pointer in support.weakened}
        alternatives = [_ALTERNATIVES[keyword] for keyword in sorted(keywords & _ALTERNATIVES.keys())]
        yield " or ".join([*alternatives, "pass lenient=True to accept the constraint without what is not enforced"])


def _unenforced_format(name: str, pointer: str) -> GrammarError:
    message = (
        f'{name} does not enforce {pointer}, and formats="strict" asks for it: drop the format or pass lenient=True'
    )
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED, pointer=pointer, keyword="format")


def _file_context(vocabulary: Vocabulary, config: StructuredOutputsConfig) -> bytes:
    """A hash of what is the same for all compiled constraints of a manager."""
    versions = __version__, *map(version, MEASURED_VERSIONS)
    options = config.any_whitespace, config.max_whitespace, config.key_order
    return hashlib.sha256(repr((versions, vocabulary, options)).encode()).digest()


def _closed() -> GrammarError:
    return GrammarError("the manager is closed", kind=GrammarErrorKind.CLOSED)


Made = TypeVar("Made")


class _Lazy(Generic[Made]):
    """A value made by the first thread that needs it, while others wait. It can be
    discarded for good."""

    def __init__(self, make: Callable[[], Made]):
        self._make = make
        self._made: Made | None = None
        self._is_discarded = False
        self._lock = threading.Lock()

    def get(self) -> Made:
        with self._lock:
            if self._is_discarded:
                raise _closed()
            if self._made is None:
                self._made = self._make()
            return self._made

    def discard(self) -> Made | None:
        with self._lock:
            self._is_discarded = True
            made, self._made = self._made, None
            return made
