"""Whether what a manager accepts is valid, over random constraints. Each function
returns counts and what is wrong."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.interface import CompiledConstraint
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.json_texts import texts_named_in
from support.mask_walks import STYLES, MaskWalker
from support.random_schemas import RandomSchema

IN_TAG = "structural tag"  # in place of a backend: the schema is the content of a tag


@dataclass
class Findings:
    """What a run has found.

    Attributes:
        counts: numbers of schemas and texts.
        wrong: what broke a promise, with the seed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.counts += other.counts
        self.wrong += other.wrong


class Speller:
    """Turns texts into tokens of random lengths."""

    def __init__(self, vocabulary: Vocabulary):
        self._ids = {token: i for i, token in enumerate(vocabulary.token_bytes) if token}
        self._longest = max(map(len, self._ids))

    def tokens(self, text: str, rng: random.Random) -> list[int]:
        data = text.encode(errors="surrogatepass")
        tokens, at = [], 0
        while at < len(data):
            longest = self._longest if rng.random() < 0.5 else 1
            length = next(n for n in range(longest, 0, -1) if data[at : at + n] in self._ids)
            tokens.append(self._ids[data[at : at + length]])
            at += length
        return tokens


def compile_or_none(backends: BackendSet, params: StructuredOutputsParams) -> CompiledConstraint | None:
    try:
        compiled = backends.compile(params.constraint())
    except GrammarError:
        return None
    assert compiled.weakened == ()
    return compiled


def params_of(schema: str, backend: str) -> StructuredOutputsParams:
    """The params that constrain a text, or the inside of a tag ``<a>``, to a schema."""
    if backend != IN_TAG:
        return StructuredOutputsParams(json=schema, backend=backend)
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    return StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": tag})


def served_schemas(
    backends: BackendSet, backend: str, rng: random.Random, count: int, found: Findings
) -> Iterator[tuple[RandomSchema, CompiledConstraint]]:
    """Draw random schemas, and yield those that are served. ``found`` counts both."""
    for _ in range(count):
        drawn = RandomSchema(rng)
        compiled = compile_or_none(backends, params_of(drawn.text, backend))
        found.counts["schemas"] += 1
        if compiled is not None:
            found.counts["schemas served"] += 1
            yield drawn, compiled


def check_schemas(
    backends: BackendSet, vocabulary: Vocabulary, backend: str, seed: int, num_schemas: int, num_texts: int
) -> Findings:
    """Judge texts that are instances of random schemas or nearly so.

    In tags, xgrammar takes a name that is spelled with escapes for another name. Such
    texts are left out there.
    """
    rng = random.Random(f"{backend} {seed}")
    speller, stop = Speller(vocabulary), vocabulary.stop_token_ids[0]
    found = Findings()
    for drawn, compiled in served_schemas(backends, backend, rng, num_schemas, found):
        grammar, checks_formats = compiled.grammar, not compiled.annotations
        for text in drawn.texts(num_texts):
            tokens = [*speller.tokens(f"<a>{text}</a>" if backend == IN_TAG else text, rng), stop]
            is_accepted = len(grammar.validate_tokens(tokens)) == len(tokens)
            is_valid = drawn.is_valid(text, checks_formats)
            if is_valid is None:
                continue
            found.counts[_verdict(is_valid, is_accepted)] += 1
            if is_accepted and not is_valid:
                found.wrong.append(f"{backend}, seed {seed}: {drawn.text} accepts {text}")
    return found


def check_walks(
    backends: BackendSet, vocabulary: Vocabulary, backend: str, seed: int, num_schemas: int, num_texts: int
) -> Findings:
    """Judge texts that are drawn from the masks of random schemas. Each must end.

    In tags it is enough that they are JSON: xgrammar writes numbers in as many digits
    as it likes, and in free strings bytes that no tokenizer writes for text.
    """
    rng = random.Random(f"walks {backend} {seed}")
    walker = MaskWalker(vocabulary)
    found = Findings()
    for drawn, compiled in served_schemas(backends, backend, rng, num_schemas, found):
        grammar, checks_formats = compiled.grammar, not compiled.annotations
        hints = texts_named_in(drawn.schema, rng) + drawn.hints()
        for _ in range(num_texts):
            style = rng.choice(STYLES)
            data = walker.draw(grammar, style, rng, rng.choice([0, 3, 10, 40]), hints)
            found.counts[f"texts, {style}"] += 1
            if data is None:
                found.wrong.append(f"{backend}, seed {seed}: {drawn.text} does not end")
            elif backend == IN_TAG:
                if not _is_json(data.removeprefix(b"<a>").removesuffix(b"</a>")):
                    found.wrong.append(f"{backend}, seed {seed}: {drawn.text} allows {data!r}")
            elif drawn.is_valid(data.decode(errors="replace"), checks_formats) is False or not _is_utf_8(data):
                found.wrong.append(f"{backend}, seed {seed}: {drawn.text} allows {data!r}")
    return found


def _verdict(is_valid: bool, is_accepted: bool) -> str:
    return f"{'valid' if is_valid else 'invalid'} {'accepted' if is_accepted else 'refused'}"


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode(errors="replace"))
    except ValueError:
        return False
    return True


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
