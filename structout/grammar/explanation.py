"""Explains a constraint: the engine that serves it, the parts that are only
annotations, the reason for a refusal, and the cost."""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions, StructuredOutputsParams
from structout.constraints.schema_walks import draft_of
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.interface import CompiledConstraint, StructuredOutputGrammar
from structout.grammar.keyword_use import (
    KeywordUse,
    keyword_use,
    memory_places,
    nearest_keyword,
    property_names,
    recursive_references,
)
from structout.grammar.native.grammars import ContextFreeGrammar
from structout.grammar.native.json_schema import JsonSchemaGrammar
from structout.grammar.native.token_index import FsmGrammar, TokenIndex
from structout.grammar.registry import BackendSet
from structout.grammar.text_sampler import TextSampler
from structout.grammar.vocabulary import Vocabulary

_REPEATED_BELOW = 0.5  # seconds: what compiles faster is compiled again, with warm caches
_SAMPLING_SECONDS = 2.0
_MAX_CLOSED_STATES = 5_000  # of an automaton all of whose masks are computed

# Advice on a refused constraint, by the feature that the message of its error names.
_ADVICE_BY_FEATURE = {
    "word boundaries": "write the characters out that may stand at the boundary, as in (^|\\W)word",
    "lookbehind": "write what stands in front into the expression, instead of a lookbehind",
    "backreferences": "write the alternatives out, instead of a backreference",
    "inline flags": "write both cases, as in [Aa], and groups as (?:...)",
    "possessive": "write one repetition: a+ matches what a++ does",
}
_ADVICE_BY_KEYWORD = {
    "format": "replace the format by a pattern, or pass lenient=True to take it as an annotation",
    "$ref": "copy the schema that it names into $defs, or give it with schemas={uri: schema}",
    "$dynamicRef": "replace it by a $ref",
    "uniqueItems": "bound the array by maxItems, and drop duplicates afterwards",
}
# By the name of a limit, or a part of it.
_ADVICE_BY_LIMIT = {
    "nesting": "nest less deeply",
    "repetition": "lower the bounds of repetitions and lengths",
    "one_of": "split the alternatives of oneOf into several schemas, or use anyOf",
    "unevaluated": "use additionalProperties or items, instead of the unevaluated ones",
    "references": "name fewer schemas by references inside each other",
    "digits": "lower the number of digits",
    "multiple_of": "use a multipleOf with fewer digits",
}
_ADVICE_ON_SIZE = (
    "write less, lower the bounds of lengths, sizes and repetitions, or split alternatives into several constraints"
)
_ADVICE_ON_IMPOSSIBLE = {
    "the json": "remove one of the keywords that contradict each other",
    "the regex": "remove one of the assertions, such as lookahead, ^ or $, that contradict the rest",
    "the grammar": "give each rule that refers to itself an alternative without the reference",
}


@dataclass(frozen=True)
class Size:
    """The size of a compiled constraint, with the masks that were computed so far.

    Attributes:
        states: the number of states.
        masks: the number of different masks.
        bytes: memory of both, without the trie of the vocabulary that all constraints
            share.
    """

    states: int
    masks: int
    bytes: int


@dataclass(frozen=True)
class Explanation:
    """The result of :func:`explain`: the engine or the error, and the cost.

    Attributes:
        constraint: the constraint; None if it is refused before any engine sees it.
        error: why no engine serves it; None if one does.
        advice: how a constraint that is refused could be changed; empty if unknown.
        backend_name: the engine that serves it; empty if none does.
        keywords: the keywords of a JSON schema, or of those in a tag, without those of
            ``annotations`` and ``weakened``.
        annotations: each ``format`` that constrains nothing, such as
            ``#/properties/file/format``.
        weakened: what is not enforced of a lenient constraint.
        num_needed: the least number of tokens of a text, its stop token included. None
            where no end is known: for other engines than structout's own.
        ready_seconds: from the constraint to its first mask, by a clock.
        memory_bytes: memory of the compiled constraint after the texts, for any engine.
        example: a text drawn from the masks.
        texts: the texts that were drawn; None for one without an end.
        visited: the states and masks that the texts have reached. None where another
            engine than structout's own serves.
        closed: the automaton with all its masks; None if there is none.
        index: the automaton over the tokens, which a device can follow; None if there
            is none.
        memory_places: parts of the schema that need a memory, and so prevent an
            automaton.
        recursive_references: parts that need a stack, and so prevent one.
    """

    constraint: Constraint | None = None
    error: GrammarError | None = None
    advice: str = ""
    backend_name: str = ""
    keywords: KeywordUse | None = None
    annotations: tuple[str, ...] = ()
    weakened: tuple[str, ...] = ()
    num_needed: int | None = None
    ready_seconds: float = 0.0
    memory_bytes: int = 0
    example: str | None = None
    texts: tuple[str | None, ...] = ()
    visited: Size | None = None
    closed: Size | None = None
    index: TokenIndex | None = None
    memory_places: tuple[str, ...] = ()
    recursive_references: tuple[str, ...] = ()


def explain(
    params: StructuredOutputsParams,
    tokenizer: Any,
    vocab_size: int | None = None,
    config: StructuredOutputsConfig | None = None,
    *,
    num_texts: int = 16,
    seed: int = 0,
) -> Explanation:
    """Compile a constraint, draw texts from its masks, and say what was found.

    Takes seconds: it draws texts.

    Args:
        params: the constraint of a request.
        tokenizer: a Hugging Face tokenizer.
        vocab_size: the width of the model's lm_head. Default: the highest token id + 1.
        config: the manager's config. Default: the default config.
        num_texts: the number of texts that are drawn, to visit states. Fewer are drawn
            if they take more than two seconds.
        seed: of the texts.

    Returns:
        also for a constraint that is refused, which never raises.

    Raises:
        ValueError: the tokenizer cannot be used.
    """
    config = config or StructuredOutputsConfig()
    try:
        constraint = params.constraint(config)
    except GrammarError as error:
        return Explanation(error=error, advice=advice(error))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    backends = BackendSet(vocabulary, config, tokenizer)
    try:
        try:
            compiled, seconds = _compiled(backends, constraint)
        except GrammarError as error:
            return Explanation(constraint, error, advice(error), keywords=_keywords(constraint))
        served = Explanation(
            constraint,
            backend_name=compiled.backend_name,
            keywords=_keywords(constraint, {*compiled.annotations, *compiled.weakened}),
            annotations=compiled.annotations,
            weakened=compiled.weakened,
            num_needed=compiled.grammar.num_needed,
            ready_seconds=seconds,
        )
        return _with_costs(served, compiled.grammar, vocabulary, num_texts, seed)
    finally:
        backends.destroy()


def advice(error: GrammarError) -> str:
    """The usual change to a constraint so that it is no longer refused. Empty if there
    is none, or the message of the error has it."""
    if ";" in str(error) or ": copy " in str(error):
        return ""
    message = str(error)
    if error.kind is GrammarErrorKind.UNSUPPORTED:
        by_feature = (advice for feature, advice in _ADVICE_BY_FEATURE.items() if feature in message)
        return next(by_feature, _ADVICE_BY_KEYWORD.get(error.keyword or "", ""))
    if isinstance(error, GrammarLimitError):
        return next((advice for name, advice in _ADVICE_BY_LIMIT.items() if name in error.limit), _ADVICE_ON_SIZE)
    if error.kind is GrammarErrorKind.IMPOSSIBLE:
        return next((advice for subject, advice in _ADVICE_ON_IMPOSSIBLE.items() if subject in message), "")
    return ""


def misspelled_keywords(constraint: Constraint) -> list[tuple[str, str]]:
    """JSON pointers to words in a schema, or in those of a tag, that are no keywords
    but almost, each with the keyword."""
    use = _keywords(constraint)
    unknown = [] if use is None else use.unknown
    found = [(place, nearest_keyword(place.rpartition("/")[2])) for place in unknown]
    return [(place, keyword) for place, keyword in found if keyword is not None]


def _compiled(backends: BackendSet, constraint: Constraint) -> tuple[CompiledConstraint, float]:
    """Compile, and return the seconds to the first mask."""
    fewest_seconds = float("inf")
    backends.prepare()
    for _ in range(2):  # the second time has warm caches
        start = time.perf_counter()
        compiled = backends.compile(constraint)
        compiled.grammar.mask()
        seconds = time.perf_counter() - start
        fewest_seconds = min(fewest_seconds, seconds)
        if seconds > _REPEATED_BELOW:
            break
    return compiled, fewest_seconds


def _keywords(constraint: Constraint, not_enforced: Collection[str] = ()) -> KeywordUse | None:
    if constraint.kind is StructuredOutputOptions.JSON:
        return keyword_use(constraint.nodes, draft_of(constraint.value), not_enforced)
    schemas = constraint.tag_schemas if constraint.kind is StructuredOutputOptions.STRUCTURAL_TAG else []
    if not schemas:
        return None
    nodes = [(schema.pointer[1:] + pointer, node) for schema in schemas for pointer, node in schema.nodes]
    return keyword_use(nodes, draft_of(schemas[0].schema), not_enforced)


def _with_costs(
    served: Explanation, grammar: StructuredOutputGrammar, vocabulary: Vocabulary, num_texts: int, seed: int
) -> Explanation:
    constraint = served.constraint
    assert constraint is not None
    is_schema = constraint.kind is StructuredOutputOptions.JSON
    names = property_names(constraint.nodes) if is_schema else []
    texts = tuple(_texts(TextSampler(vocabulary, names, seed), grammar, num_texts))
    example = min((text for text in texts if text is not None), key=_distance_from_readable, default=None)
    served = replace(served, example=example, texts=texts, memory_bytes=grammar.memory_bytes)
    if isinstance(grammar, JsonSchemaGrammar):
        visited = Size(grammar.index.num_states, grammar.index.num_masks, grammar.index.memory_bytes)
        index = grammar.index.closed
        if index is None and is_schema:
            is_closed = grammar.index.form.additional_properties == "closed"
            memory = memory_places(constraint.nodes, is_closed=is_closed)
            recursion = recursive_references(constraint.nodes)
            served = replace(served, memory_places=tuple(memory), recursive_references=tuple(recursion))
    elif isinstance(grammar, ContextFreeGrammar):
        visited = Size(grammar.index.num_states, grammar.index.num_masks, grammar.index.memory_bytes)
        index = None
    elif isinstance(grammar, FsmGrammar):
        index = grammar.index
        visited = Size(index.num_states, index.num_masks, index.memory_bytes)
    else:
        return served
    return replace(served, visited=visited, index=index, closed=None if index is None else _with_all_masks(index))


def _texts(sampler: TextSampler, grammar: StructuredOutputGrammar, num_texts: int) -> Iterator[str | None]:
    deadline = time.monotonic() + _SAMPLING_SECONDS
    for _ in range(num_texts):
        yield sampler.draw(grammar)
        if time.monotonic() > deadline:
            break


def _distance_from_readable(text: str) -> int:
    """Examples are best if they fill a line, and no more."""
    return abs(len(text) - 80)


def _with_all_masks(index: TokenIndex) -> Size:
    if index.num_states <= _MAX_CLOSED_STATES:
        index.compute_masks()
    return Size(index.num_states, index.num_masks, index.memory_bytes)
