"""Texts of structural tags, drawn from masks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from structout.constraints.tools.styles import STYLES
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.client_tags import parts_of
from support.mask_walks import STYLES as WALKS, MaskWalker
from support.tool_calls import tags_with_schemas

_WORDS = (
    "<tool_call> </tool_call> </parameter> </arg_value> <|close|> ｜DSML｜ ]<]minimax[>[ {} [] : , é 日本 true null"
).split()
_TOKENS = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in _WORDS), b'{"', b'"}', b'": "', b""]
VOCABULARY = Vocabulary(tuple(_TOKENS), stop_token_ids=(len(_TOKENS) - 1,))


def drawn_texts(grammar: StructuredOutputGrammar, tag: Any, seed: str, number: int) -> Iterator[str]:
    """Texts that begin a call at once or after some free text, where that is allowed.

    Args:
        grammar: compiled from the tag for ``VOCABULARY``.
        tag: the structural tag.
        seed: of the draws.
        number: how many are tried. Some cannot be brought to an end.
    """
    rng = random.Random(seed)
    walker = MaskWalker(VOCABULARY)
    calls = tags_with_schemas(tag["format"])
    begins = [call["begin"] for call in calls]
    openings = list(dict.fromkeys(_trigger(part) for part in parts_of(tag["format"])))
    styles = [STYLES[part["style"]] for part in parts_of(tag["format"]) if part.get("style", "json") != "json"]
    closings = {style.closing(key).encode() for style in styles for key in ("location", "where", "tags", "a", None)}
    closings |= {quote.encode() for style in styles for quote in style.quotes or ()}
    hints = [*dict.fromkeys(text.encode() for text in _texts(tag["format"])), *sorted(closings), b'"', b"}", b"]"]
    for _ in range(number):
        fork = grammar.copy()
        lead = rng.choice(["", "", "a<b ", "日"])
        begun = ""
        for piece in (fork.forced_bytes().decode(), lead, rng.choice([*openings, *begins, ""])):
            tokens = VOCABULARY.spell(piece) if piece else None
            if tokens and fork.accept_tokens("", tokens):
                begun += piece
        text = walker.draw(fork, rng.choice(WALKS), rng, rng.choice([3, 40]), hints)
        if text is not None:
            yield begun + text.decode()


def _texts(part: Any) -> Iterator[str]:
    """The ends of tags."""
    for each in parts_of(part):
        ends = each.get("end", "")
        yield from (text for text in (ends if isinstance(ends, list) else [ends]) if text)


def _trigger(part: dict[str, Any]) -> str:
    return part["triggers"][0] if part.get("triggers") else part.get("begin", "") if part.get("type") == "tag" else ""
