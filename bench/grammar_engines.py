"""Grammars on structout's own engine, xgrammar and llguidance, step by step: the latter
two as their documentation uses them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import llguidance.hf
import llguidance.torch
import numpy as np
import torch
import xgrammar
from engines_alone import Refused
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from structout import GrammarError, allocate_token_bitmask
from structout.constraints.params import StructuredOutputOptions
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary

GRAMMARS = Path(__file__).parent.parent / "tests" / "corpus" / "grammars"


class Steps(NamedTuple):
    """The calls of one text.

    Attributes:
        fill: computes the mask of the next token.
        accept: returns whether a token is accepted.
        row: the memory that ``fill`` writes to, int32 ``[1, W]``.
    """

    fill: Callable[[], object]
    accept: Callable[[int], bool]
    row: torch.Tensor


class GrammarEngine(Protocol):
    name: str

    def compile(self, grammar: str) -> Any:
        """Return what ``start`` takes. Raises ``Refused``."""

    def start(self, compiled: Any) -> Steps:
        """Start a text."""


class Own:
    name = "structout"

    def __init__(self, vocabulary: Vocabulary):
        self.backend = NativeBackend(vocabulary)
        self._size = vocabulary.size

    def compile(self, grammar: str) -> Any:
        try:
            return self.backend.compile_grammar(StructuredOutputOptions.GRAMMAR, grammar)
        except GrammarError as error:
            raise Refused.by(error) from error

    def num_pieces(self, compiled: Any) -> int:
        """How many walks over the vocabulary the masks of a grammar are made of so far.
        0 for a regular language."""
        return getattr(compiled.index.native, "num_partial_masks", 0)

    def start(self, compiled: Any) -> Steps:
        text, row = compiled.copy(), allocate_token_bitmask(1, self._size, pin_memory=False)
        return Steps(lambda: text.fill_bitmask(row, 0), lambda token: bool(text.accept_tokens("", [token])), row)


class Xgrammar:
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary):
        stops = list(vocabulary.stop_token_ids)
        self._size = vocabulary.size
        info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes), xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=stops
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, grammar: str) -> Any:
        try:
            return self._compiler.compile_grammar(grammar if "::=" in grammar else xgrammar.Grammar.from_lark(grammar))
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error)) from error

    def start(self, compiled: Any) -> Steps:
        state, row = xgrammar.GrammarMatcher(compiled), allocate_token_bitmask(1, self._size, pin_memory=False)

        def fill() -> None:
            row.fill_(-1)  # it may leave the row as it is where all is allowed
            state.fill_next_token_bitmask(row, 0)

        return Steps(fill, state.accept_token, row)


class Llguidance:
    """All tokens of a text, not only those that the tokenizer itself would write."""

    name = "llguidance"

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        self._size = vocabulary.size
        self._tokenizer: LLTokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocabulary.size)

    def compile(self, grammar: str) -> Any:
        try:
            lark = any_to_lark(grammar) if "::=" in grammar else grammar
        except Exception as error:  # its reader of GBNF raises what its parts raise
            raise Refused(str(error)) from error
        text = '%llguidance {"no_forcing": true}\n' + lark.replace("%llguidance {}", "")
        spec = json.dumps({"grammars": [{"lark_grammar": text}]})
        matcher = LLMatcher(self._tokenizer, spec, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def start(self, compiled: Any) -> Steps:
        state, row = compiled.deep_copy(), allocate_token_bitmask(1, self._size, pin_memory=False)

        def fill() -> None:
            llguidance.torch.fill_next_token_bitmask(state, row, 0)
            if state.is_error():
                raise Refused(state.get_error())

        return Steps(fill, lambda token: bool(state.consume_token(token)) and not state.is_error(), row)


def allowed_tokens(row: torch.Tensor, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The mask as booleans."""
    return np.unpackbits(row[0].numpy().view(np.uint8), bitorder="little", count=size).astype(bool)


def read_grammars(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """The grammars of a folder and their texts, by file name. ``texts.json`` lists the
    texts of each."""
    texts: Mapping[str, Any] = json.loads((folder / "texts.json").read_text())
    found = {name: ((folder / name).read_text(), list(of_grammar["texts"])) for name, of_grammar in texts.items()}
    if not found:
        raise SystemExit(f"{folder} has no grammars")
    return found
