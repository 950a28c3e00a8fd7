"""Grammars with texts that they have and texts that they do not have, and the engines
that read them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from typing import Any

import llguidance
import xgrammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from structout.constraints.params import StructuredOutputOptions
from structout.errors import GrammarError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.locations import CORPUS

END, SPECIAL = "<|end|>", ("<|end|>", "<|tool|>", "<think>", "</think>")

# The key of a case under which texts are listed, and what a grammar says of them: they
# are texts, beginnings of longer ones only, or neither.
VERDICTS = {"texts": "text", "prefixes": "prefix", "others": "other"}

# Tokens: one for each byte. In a list, names of special tokens stand for these.
Text = str | list[str]


class Refused(Exception):
    """An engine refuses a grammar."""


@functools.cache
def byte_tokenizer() -> Any:
    """A tokenizer whose tokens are the bytes, token 97 is "a", and special tokens."""
    printable = bytes_to_unicode()
    tokenizer = Tokenizer(models.BPE({printable[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, additional_special_tokens=list(SPECIAL[1:])
    )


@functools.cache
def program_vocabulary() -> Vocabulary:
    """Pieces of programs, as a vocabulary has them: bytes, characters, words, and what
    stands between words; also characters of other scripts, some of them cut."""
    rng = random.Random(7)
    programs = "".join(path.read_text() for path in sorted((CORPUS / "grammars").glob("*.*")))
    cuts = {programs[i : i + rng.randint(2, 7)].encode() for i in rng.sample(range(len(programs) - 8), 3_000)}
    characters = [chr(code) for code in (*range(0xA1, 0x180), *range(0x4E00, 0x4E80), *range(0x1F600, 0x1F640))]
    foreign = {"".join(rng.choices(characters, k=rng.randint(1, 3))).encode() for _ in range(1_500)}
    cuts |= foreign | {token[: rng.randint(2, len(token))] for token in sorted(foreign)}
    tokens = [*(bytes([byte]) for byte in range(256)), *sorted(cuts), b""]
    return Vocabulary(tuple(tokens), stop_token_ids=(len(tokens) - 1,))


@functools.cache
def byte_vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(byte_tokenizer())


def tokens_of(text: Text) -> list[int]:
    """The tokens of a text: one for each byte. In a list, names of special tokens stand
    for these."""
    if isinstance(text, str):
        return list(text.encode())
    return [
        token
        for part in text
        for token in ([256 + SPECIAL.index(part)] if part in SPECIAL else list(part.encode(errors="surrogateescape")))
    ]


def read_cases(name: str) -> list[dict[str, Any]]:
    """The cases of a file in tests/corpus.

    Grammars are lists of lines there. A long text may be written as
    ``{"times": [["(", 1000], ["x", 1]]}``.
    """
    cases = json.loads((CORPUS / name).read_text())
    for case in cases:
        case["grammar"] = "\n".join(case["grammar"])
        for kind in VERDICTS:
            case[kind] = [_expanded(text) for text in case.get(kind, ())]
        for known in case.setdefault("differs", {}).values():
            known["verdicts"] = [(_expanded(text), verdict) for text, verdict in known.get("verdicts", ())]
    return cases


def texts_of(case: dict[str, Any]) -> list[Text]:
    """All texts of a case, whatever the grammar says of them."""
    return [text for kind in VERDICTS for text in case[kind]]


def expected_verdicts(case: dict[str, Any], engine: str) -> list[str]:
    """What an engine is known to say of each text."""
    differing = case["differs"].get(engine, {}).get("verdicts", ())
    verdicts = [verdict for kind, verdict in VERDICTS.items() for _ in case[kind]]
    for i, text in enumerate(texts_of(case)):
        verdicts[i] = next((verdict for other, verdict in differing if other == text), verdicts[i])
    return verdicts


def expected_refusal(case: dict[str, Any], engine: str) -> str | None:
    """Part of the message with which an engine is known to refuse the grammar. None if
    it takes it."""
    known = case["differs"].get(engine, {})
    if "refuses" in known:
        refusal: str = known["refuses"]
        return refusal
    return "" if case.get("refused") and "serves" not in known else None


def _expanded(text: Any) -> Text:
    if isinstance(text, dict):
        return "".join(part * count for part, count in text["times"])
    return text


class OwnEngine:
    name = "structout"

    def __init__(self) -> None:
        self._backend = NativeBackend(byte_vocabulary())

    def verdicts(self, case: dict[str, Any], texts: Sequence[Text]) -> list[str]:
        """Say what each text is. Raises ``Refused``."""
        if "grammars" in case:
            raise Refused("the interface takes one grammar")
        try:
            grammar = self._backend.compile_grammar(StructuredOutputOptions.GRAMMAR, case["grammar"])
        except GrammarError as error:
            raise Refused(f"{error.kind.value}: {error}") from error
        return [self._verdict(grammar.copy(), tokens_of(text)) for text in texts]

    def captures(self, case: dict[str, Any], text: Text) -> list[tuple[str, bytes]]:
        """The captures of a whole text."""
        grammar = self._backend.compile_grammar(StructuredOutputOptions.GRAMMAR, case["grammar"])
        assert grammar.accept_tokens("", tokens_of(text))
        return grammar.captures()

    def _verdict(self, grammar: Any, tokens: list[int]) -> str:
        stop = byte_vocabulary().stop_token_ids[0]
        if not grammar.accept_tokens("", tokens):
            return "other"
        return "text" if grammar.accept_tokens("", [stop]) else "prefix"


class Llguidance:
    name = "llguidance"

    def __init__(self) -> None:
        self._tokenizer = llguidance.LLTokenizer(_NamedTokens(), eos_token=[256])

    def verdicts(self, case: dict[str, Any], texts: Sequence[Text]) -> list[str]:
        others = [{"name": name, **other} for name, other in case.get("grammars", {}).items()]
        grammar = case["grammar"]
        if "::=" in grammar:
            try:
                grammar = llguidance.gbnf_to_lark.any_to_lark(grammar)
            except Exception as error:
                raise Refused(f"no Lark: {error}") from error
        lark = '%llguidance {"no_forcing": true}\n' + grammar
        matcher = llguidance.LLMatcher(
            self._tokenizer, json.dumps({"grammars": [{"lark_grammar": lark}, *others]}), log_level=0
        )
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return [self._verdict(matcher.deep_copy(), tokens_of(text)) for text in texts]

    def _verdict(self, matcher: Any, tokens: list[int]) -> str:
        for token in tokens:
            if matcher.is_stopped() or not matcher.consume_token(token):
                return "other"
        return "text" if matcher.is_accepting() else "prefix"


class Xgrammar:
    name = "xgrammar"

    def __init__(self) -> None:
        names = [bytes([byte]) for byte in range(256)] + [token.encode() for token in SPECIAL]
        self._info = xgrammar.TokenizerInfo(names, xgrammar.VocabType.RAW, stop_token_ids=[256])
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def verdicts(self, case: dict[str, Any], texts: Sequence[Text]) -> list[str]:
        try:
            grammar = case["grammar"]
            if "::=" not in grammar:
                others = {name: other["lark_grammar"] for name, other in case.get("grammars", {}).items()}
                grammar = xgrammar.Grammar.from_lark(grammar, tokenizer_info=self._info, named_grammars=others)
            compiled = self._compiler.compile_grammar(grammar)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise Refused(str(error)) from error
        return [self._verdict(xgrammar.GrammarMatcher(compiled), tokens_of(text)) for text in texts]

    def _verdict(self, matcher: Any, tokens: list[int]) -> str:
        if not all(matcher.accept_token(token) for token in tokens):
            return "other"
        return "text" if matcher.accept_token(256) else "prefix"


class _NamedTokens:
    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = tuple(range(256, 256 + len(SPECIAL)))
    tokens = tuple(bytes([byte]) for byte in range(256)) + tuple(token.encode() for token in SPECIAL)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())
