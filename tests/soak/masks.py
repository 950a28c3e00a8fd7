"""Masks against ``accept`` for every token of small hostile vocabularies.

Vocabularies lack bytes, have tokens twice, tokens without a text, special tokens whose
names occur in texts, tokens that cut characters, and whitespace in front of tokens.
JSON may have little, much or special whitespace. In each state along a random text:

* the mask allows exactly the tokens that are accepted, and never none;
* tokens with equal texts have equal bits, and a token without text is forbidden;
* an allowed token is allowed byte by byte, and in a vocabulary with all bytes the
  converse holds, too;
* masks of drafts are those of the states that the drafts lead to, and a rollback leads
  back to the same masks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np

from soak.hunt import Hunter, Tally
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.json_schema import TextForm
from structout.grammar.vocabulary import BYTES, Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.random_grammars import random_scannerless_grammar
from support.random_patterns import random_pattern
from support.random_schemas import RandomSchema
from support.random_tags import random_format, random_tag_of_schemas, random_word

NUM_CONSTRAINTS, NUM_STEPS, NUM_DRAFTS = 6, 25, 3
_NAMES = ("<|end|>", "</s>", '"', "a")
_SPACES = (" ", " ", "\n", "\t", "\r")
_FORMS = (
    TextForm(),
    TextForm(key_order="any"),
    TextForm(max_whitespace=2),
    TextForm(max_whitespace=None),
    TextForm(any_whitespace=False),
    TextForm(whitespace_pattern=" *"),
    TextForm(whitespace_pattern="[ \t]*\n*", key_order="any"),
)
# A constraint and texts near it, whose parts become tokens.
_Made = tuple[Kind, str, list[bytes]]


def _regex(rng: random.Random) -> _Made:
    pattern = random_pattern(rng)
    return Kind.REGEX, pattern.text, [pattern.sample(rng).encode() for _ in range(6)]


def _schema(rng: random.Random) -> _Made:
    drawn = RandomSchema(rng)
    texts = [text.encode(errors="replace") for text in drawn.texts(10)]
    return Kind.JSON, drawn.text, texts


def _grammar(rng: random.Random) -> _Made:
    grammar = random_scannerless_grammar(rng)
    return Kind.GRAMMAR, grammar.gbnf(), grammar.tokens(rng)


def _tag(rng: random.Random) -> _Made:
    tag = {"type": "structural_tag", "format": random_format(rng, 2)}
    return Kind.STRUCTURAL_TAG, json.dumps(tag), [random_word(rng, 8).encode() for _ in range(12)]


def _tag_of_schemas(rng: random.Random) -> _Made:
    tag, texts = random_tag_of_schemas(rng)
    return Kind.STRUCTURAL_TAG, json.dumps(tag), texts


_MAKERS: tuple[Callable[[random.Random], _Made], ...] = (_regex, _schema, _schema, _grammar, _tag, _tag_of_schemas)


def hostile_vocabulary(rng: random.Random, texts: list[bytes]) -> Vocabulary:
    """A vocabulary of parts of the texts. Its last token is the stop token."""
    tokens: list[bytes] = []
    for _ in range(rng.choice([8, 20, 40])):
        text = rng.choice(texts) or b"x"
        begin = rng.randrange(len(text))
        tokens.append(text[begin : begin + rng.choice([1, 1, 2, 3, 8])])
    for _ in range(rng.choice([0, 0, 5, 20])):
        text = rng.choice(["", " "]).join(rng.choices(_SPACES, k=rng.choice([1, 2, 5]))).encode()
        tokens.append(text + rng.choice([b"", b"", rng.choice(tokens)]))
    bytes_of_texts = sorted(set(b"".join(texts)))
    kept = rng.choice([0.7, 0.95, 1.0, 1.0])
    tokens += [bytes([byte]) for byte in bytes_of_texts if rng.random() < kept]
    if rng.random() < 0.3:
        tokens += [bytes([byte]) for byte in range(256)]
    tokens += rng.choices(tokens, k=rng.choice([0, 2, 5]))
    tokens += [b""] * rng.choice([0, 1, 3])
    rng.shuffle(tokens)
    empty = [i for i, token in enumerate(tokens) if not token]
    special = tuple((rng.choice(_NAMES), i) for i in empty if rng.random() < 0.5)
    return Vocabulary((*tokens, b""), (len(tokens),), tuple(dict(special).items()))


class LimitError(Exception):
    """The engine gave up on a token: no verdict can be compared."""


class Walk:
    """A text of a constraint, in a hostile vocabulary and in one of all bytes."""

    def __init__(self, vocabulary: Vocabulary, grammar: StructuredOutputGrammar, in_bytes: StructuredOutputGrammar):
        self.vocabulary, self.grammar, self.in_bytes = vocabulary, grammar, in_bytes
        self.text = b""
        self._masks = allocate_token_bitmask(NUM_DRAFTS + 1, vocabulary.size, pin_memory=False)
        self._stop = vocabulary.stop_token_ids[0]
        # Names of special tokens in tags and grammars stand for these tokens.
        self._compares_bytes = not vocabulary.special_tokens
        self.has_all_bytes = set(BYTES.token_bytes) <= {*vocabulary.token_bytes, b""}

    def mask(self) -> np.ndarray:
        self.grammar.fill_bitmask(self._masks, 0)
        self._check_limits()
        return self._row(0)

    def _accepts(self, token: int) -> bool:
        is_accepted = self.grammar.accept_tokens("", [token])
        self._check_limits()
        return is_accepted

    def _check_limits(self) -> None:
        for grammar in (self.grammar, self.in_bytes):
            if grammar.error_reason:
                raise LimitError(grammar.error_reason)

    def _row(self, row: int) -> np.ndarray:
        words = self._masks[row].numpy().view(np.uint8)
        return np.unpackbits(words, bitorder="little", count=self.vocabulary.size).astype(bool)

    def problem(self, mask: np.ndarray) -> str | None:
        """What is wrong with the mask of this state."""
        if not mask.any():
            return "the mask allows nothing"
        bit_of_text: dict[bytes, bool] = {}
        for token, text in enumerate(self.vocabulary.token_bytes):
            is_allowed = bool(mask[token])
            is_accepted = self._accepts(token)
            if is_accepted:
                self.grammar.rollback(1)
            if is_allowed != is_accepted:
                return f"the mask says {is_allowed} of {text!r} ({token}), accept says {is_accepted}"
            if token == self._stop:
                continue
            if not text and is_allowed and self._compares_bytes:
                return f"token {token}, which has no text, is allowed"
            if text and bit_of_text.setdefault(text, is_allowed) != is_allowed:
                return f"tokens with the text {text!r} have other bits"
            if text and self._compares_bytes and (is_allowed or self.has_all_bytes):
                in_bytes = len(self.in_bytes.validate_tokens([*text])) == len(text)
                self._check_limits()
                if in_bytes != is_allowed:
                    return f"the mask says {is_allowed} of {text!r}, its bytes say {in_bytes}"
        return None

    def problem_of_drafts(self, drafts: list[int]) -> str | None:
        """Whether the rows of drafts are the masks of their states."""
        self._masks.fill_(-1)
        num_valid = self.grammar.fill_bitmask_drafts(self._masks, 0, drafts)
        self._check_limits()  # before the grammar moves
        rows = [self._row(row) for row in range(num_valid + 1)]
        accepted = self.grammar.validate_tokens(drafts)
        self._check_limits()
        if num_valid != len(accepted):
            return f"{num_valid} of the drafts {drafts} are valid, {accepted} are accepted"
        done = 0
        for row, draft in zip(rows, [*drafts, None], strict=False):
            if not self.grammar.is_terminated() and not np.array_equal(row, self.mask()):
                return f"the mask after {done} of the drafts {drafts} differs"
            if draft is None or not self._accepts(draft):
                break
            done += 1
        self.grammar.rollback(done)
        return None

    def advance(self, token: int) -> str | None:
        text = self.vocabulary.token_bytes[token]
        self.text += text
        is_accepted = self.in_bytes.accept_tokens("", [*text]) or not self._compares_bytes
        if not self._accepts(token) or not is_accepted:
            return f"{text!r} is allowed and not accepted"
        return None


class Masks(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"soak masks {seed}")
        for _ in range(NUM_CONSTRAINTS):
            kind, spec, texts = rng.choice(_MAKERS)(rng)
            vocabulary = hostile_vocabulary(rng, [text for text in texts if text] or [b"x"])
            form = rng.choice(_FORMS)
            try:
                in_bytes = NativeBackend(BYTES, form=form).compile_grammar(kind, spec)
                grammar = NativeBackend(vocabulary, form=form).compile_grammar(kind, spec)
            except GrammarError as error:
                tally.executions[f"constraints refused: {error.kind.value}"] += 1
                if error.kind is GrammarErrorKind.MALFORMED and "refers to itself" not in str(error):
                    tally.findings.append(f"{kind}: {spec}: {error}")
                continue
            tally.executions["constraints"] += 1
            walk = Walk(vocabulary, grammar, in_bytes)
            try:
                problem = _walked(walk, rng, tally)
            except LimitError:
                tally.executions["texts that met a limit"] += 1
                continue
            if problem is not None:
                where = f"{kind}: {spec}, {form}, after {walk.text!r} over {vocabulary}"
                tally.findings.append(f"{problem}: {where}"[:3000])


def _walked(walk: Walk, rng: random.Random, tally: Tally) -> str | None:
    """Check the masks along a random text, and after rollbacks. Return what is
    wrong."""
    masks = []
    for _ in range(NUM_STEPS):
        mask = walk.mask()
        masks.append(mask)
        tally.executions["states"] += 1
        tally.executions["tokens of these states"] += len(mask)
        problem = walk.problem(mask)
        if problem is not None:
            return problem
        tokens = [token for token in np.flatnonzero(mask).tolist() if token not in walk.vocabulary.stop_token_ids]
        if rng.random() < 0.3:
            drafts = [rng.choice(tokens or [0]), *(rng.randrange(len(mask) - 1) for _ in range(NUM_DRAFTS - 1))]
            problem = walk.problem_of_drafts(drafts)
            if problem is not None:
                return problem
        if not tokens:
            break
        problem = walk.advance(rng.choice(tokens))
        if problem is not None:
            return problem
    while walk.grammar.num_tokens:
        walk.grammar.rollback(1)
        if not np.array_equal(walk.mask(), masks[walk.grammar.num_tokens]):
            return f"another mask after a rollback to {walk.grammar.num_tokens} tokens"
    return None


make = Masks
