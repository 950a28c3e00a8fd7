"""Constraints as SGLang's scheduler passes them, and what tests ask of their grammars.

To be imported after ``make_sglang_importable``.
"""

import json
import re
from typing import Any

import jsonschema
import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from structout import unpack_bitmask
from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
from support.tokenizers_on_the_spot import byte_level

WIDTH = 525  # of the lm_head: beyond the tokenizer's ids, and no multiple of 32
EOS = byte_level().eos_token_id
ORDER = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<a>"],
        "tags": [
            {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": ORDER}, "end": "</a>"}
        ],
        "at_least_one": True,
    },
}
OLD_TAG = {
    "structures": [{"begin": "<a>", "schema": ORDER, "end": "</a>"}],
    "triggers": ["<a>"],
    "at_least_one": True,
}
KEYS = {  # the keys of SGLang's cache of grammars
    "json": ("json", json.dumps(ORDER)),
    "any json": ("json", "$$ANY$$"),
    "regex": ("regex", r"[a-z]{3}-\d{2}"),
    "ebnf": ("ebnf", 'root ::= "yes" | "no" [0-9]'),
    "lark": ("ebnf", 'start: "yes" | "no" /[0-9]/'),
    "recursive lark": ("ebnf", 'start: "x" | "(" start ")"'),
    "full_assistant_ebnf": ("full_assistant_ebnf", 'root ::= "yes" | "no" [0-9]'),
    "structural_tag": ("structural_tag", json.dumps(TAG)),
    "old structural_tag": ("structural_tag", json.dumps(OLD_TAG)),
}


def is_valid(kind: str, text: str) -> bool:
    """Whether a text satisfies the constraint of that name in ``KEYS``."""
    if kind == "json":
        jsonschema.validate(json.loads(text), ORDER)
        return True
    if kind == "any json":
        return json.loads(text) is not None
    if kind == "recursive lark":
        depth = text.find("x")
        return text == "(" * depth + "x" + ")" * depth
    if kind == "regex":
        return re.fullmatch(r"[a-z]{3}-\d{2}", text) is not None
    if "tag" in kind:
        tagged = re.findall("<a>(.*?)</a>", text, re.DOTALL)
        for content in tagged:
            jsonschema.validate(json.loads(content), ORDER)
        return bool(tagged)
    return re.fullmatch("yes|no[0-9]", text) is not None


def compile_key(backend: BaseGrammarBackend, key: tuple[str, str], require_reasoning: bool = False) -> Any:
    """The grammar of a request, by the calls of SGLang's scheduler."""
    value, is_hit = backend.get_cached_or_future_value(key, require_reasoning)
    if is_hit:
        return value
    grammar = value.result(60)
    backend.set_cache(key, grammar.copy())
    return grammar


def row_of(grammar: BaseGrammarObject) -> torch.Tensor:
    """The mask of the next token, int32 [W]."""
    mask = grammar.allocate_vocab_mask(WIDTH, 1, "cpu")
    grammar.fill_vocab_mask(mask, 0)
    return mask[0]


def allowed(grammar: BaseGrammarObject) -> set[int]:
    """The tokens that may come next."""
    return set(unpack_bitmask(row_of(grammar)[None], WIDTH)[0].nonzero().flatten().tolist())


def generate(
    backend: StructoutGrammarBackend, grammar: BaseGrammarObject, seed: int, max_tokens: int = 400
) -> list[int]:
    """Draw the tokens of a text from random logits under the grammar's masks, the stop
    token included."""
    vocabulary = backend._vocabulary
    generator = torch.Generator().manual_seed(seed)
    (stop,) = vocabulary.stop_token_ids
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        logits = torch.randn(1, vocabulary.size, generator=generator)
        logits[:, [stop, *vocabulary.spell('"}]')]] += 2 + len(tokens) / 10  # what ends a text or a part of it
        mask = grammar.allocate_vocab_mask(vocabulary.size, 1, "cpu")
        grammar.fill_vocab_mask(mask, 0)
        grammar.apply_vocab_mask(logits=logits, vocab_mask=grammar.move_vocab_mask(mask, "cpu"))
        tokens.append(int(logits.argmax()))
        grammar.accept_token(tokens[-1])
        if grammar.is_terminated():
            assert tokens[-1] == stop
            return tokens
    raise AssertionError(f"no end after {max_tokens} tokens: {vocabulary.text_of(tokens)}")


def text_of(backend: StructoutGrammarBackend, tokens: list[int]) -> str:
    return backend._vocabulary.text_of(tokens)


def sampling_info(
    num_rows: int,
    temperatures: float | list[float] = 1.0,
    top_p: float | list[float] = 1.0,
    top_k: int | list[int] = TOP_K_ALL,
    min_p: float | list[float] = 0.0,
    seed: list[int] | None = None,
    grammars: list[BaseGrammarObject | None] | None = None,
) -> SamplingBatchInfo:
    """SGLang's sampling parameters of a batch. One value stands for all rows."""

    def column(value: float | list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([value] * num_rows if not isinstance(value, list) else value, dtype=dtype)

    top_ks, top_ps, min_ps = column(top_k, torch.int32), column(top_p, torch.float), column(min_p, torch.float)
    return SamplingBatchInfo(
        temperatures=column(temperatures, torch.float).view(-1, 1),
        top_ps=top_ps,
        top_ks=top_ks,
        min_ps=min_ps,
        is_all_greedy=bool((top_ks <= 1).all()),
        is_any_greedy=bool((top_ks <= 1).any()),
        need_top_p_sampling=bool((top_ps != 1).any()),
        need_top_k_sampling=bool((top_ks != TOP_K_ALL).any()),
        need_min_p_sampling=bool((min_ps > 0).any()),
        vocab_size=WIDTH,
        grammars=grammars,
        sampling_seed=None if seed is None else column(seed, torch.int64),
        device="cpu",
    )
