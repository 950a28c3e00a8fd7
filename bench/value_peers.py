"""structout and its peers inside transformers' generate, each with its own defaults, as
its documentation uses it."""

import json
from typing import Any, Protocol

import llguidance.hf
import llguidance.torch
import outlines
import torch
import xgrammar
import xgrammar.contrib.hf
from llguidance import LLMatcher
from transformers import LogitsProcessor

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.integrations.transformers import generate

Prompts = list[list[dict[str, str]]]  # chats


class Peer(Protocol):
    def compile(self, schema: dict[str, Any]) -> Any:
        """Compile a schema and compute its first mask."""

    def generate(self, compiled: Any, prompts: Prompts, options: dict[str, Any]) -> list[list[int]]:
        """Return the new tokens of each prompt. Some are padded with stop tokens."""


class Structout:
    def __init__(self, model: Any, tokenizer: Any):
        self._manager = StructuredOutputManager(tokenizer, _width(model))
        self._model, self._tokenizer = model, tokenizer

    def compile(self, schema: dict[str, Any]) -> Any:
        self._manager.add_request("first mask", StructuredOutputsParams(json=schema))
        self._manager.wait_ready("first mask")
        self._manager.grammar_bitmask(["first mask"])
        self._manager.finish_request("first mask")
        return schema

    def generate(self, compiled: Any, prompts: Prompts, options: dict[str, Any]) -> list[list[int]]:
        texts = generate(
            self._model, self._tokenizer, prompts, json=compiled, fit="off", manager=self._manager, **options
        )
        stop = self._tokenizer.eos_token_id
        return [[*ids, *[stop] * whole] for ids, whole in zip(texts.token_ids, texts.is_complete, strict=True)]


class WithProcessors:
    """A peer that gives ``model.generate`` logits processors."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer

    def compile(self, schema: dict[str, Any]) -> Any:
        compiled = self.compiled(schema)
        for processor in self.processors(compiled, 1):
            processor(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, _width(self.model)))
        return compiled

    def generate(self, compiled: Any, prompts: Prompts, options: dict[str, Any]) -> list[list[int]]:
        texts = [self.tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in prompts]
        inputs = self.tokenizer(texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt")
        processors = self.processors(compiled, len(prompts))
        ids = self.model.generate(**inputs, logits_processor=processors, **options)
        return ids[:, inputs["input_ids"].shape[1] :].tolist()

    def compiled(self, schema: dict[str, Any]) -> Any:
        raise NotImplementedError

    def processors(self, compiled: Any, batch: int) -> list[Any]:
        raise NotImplementedError


class Unconstrained(WithProcessors):
    def compiled(self, schema: dict[str, Any]) -> Any:
        return None

    def processors(self, compiled: Any, batch: int) -> list[Any]:
        return []


class Outlines(WithProcessors):
    def __init__(self, model: Any, tokenizer: Any):
        super().__init__(model, tokenizer)
        self._outlines_model = outlines.from_transformers(model, tokenizer)

    def compiled(self, schema: dict[str, Any]) -> Any:
        return outlines.Generator(self._outlines_model, outlines.json_schema(schema)).logits_processor

    def processors(self, compiled: Any, batch: int) -> list[Any]:
        compiled.reset()
        return [compiled]


class Xgrammar(WithProcessors):
    def __init__(self, model: Any, tokenizer: Any):
        super().__init__(model, tokenizer)
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=_width(model))
        self._compiler = xgrammar.GrammarCompiler(info)

    def compiled(self, schema: dict[str, Any]) -> Any:
        return self._compiler.compile_json_schema(json.dumps(schema))

    def processors(self, compiled: Any, batch: int) -> list[Any]:
        return [xgrammar.contrib.hf.LogitsProcessor(compiled)]


class Llguidance(WithProcessors):
    def __init__(self, model: Any, tokenizer: Any):
        super().__init__(model, tokenizer)
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=_width(model))

    def compiled(self, schema: dict[str, Any]) -> Any:
        return LLMatcher(self._tokenizer, LLMatcher.grammar_from_json_schema(schema))

    def processors(self, compiled: Any, batch: int) -> list[Any]:
        return [_LlguidanceProcessor([compiled.deep_copy() for _ in range(batch)], _width(self.model))]


class _LlguidanceProcessor(LogitsProcessor):  # type: ignore[misc]  # mypy does not read transformers
    """The calls of its documentation; it brings no processor for transformers."""

    def __init__(self, matchers: list[LLMatcher], width: int):
        self._matchers, self._is_first = matchers, True
        self._bitmask = llguidance.torch.allocate_token_bitmask(len(matchers), width)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for i, (matcher, token) in enumerate(zip(self._matchers, input_ids[:, -1].tolist(), strict=True)):
            if not self._is_first and not matcher.is_stopped():
                matcher.consume_token(token)
            if matcher.is_error():
                raise RuntimeError(matcher.get_error())
            llguidance.torch.fill_next_token_bitmask(matcher, self._bitmask, i)
        self._is_first = False
        llguidance.torch.apply_token_bitmask_inplace(scores, self._bitmask)
        return scores


def _width(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])
