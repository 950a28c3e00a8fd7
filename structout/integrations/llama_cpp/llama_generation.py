"""Texts from prompts in one call, with a GGUF model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch

from structout.constraints.params import StructuredOutputsParams
from structout.integrations.llama_cpp.llama_tokenizer import tokenizer_of
from structout.integrations.transformers.constrained_sampler import ConstrainedSampler, Row, row_seeds
from structout.integrations.transformers.decode import DecodingLoop, Monitor, Text, mark_complete
from structout.integrations.transformers.generation import Generation, generation_of, params_of_prompts
from structout.integrations.transformers.manager_cache import new_request_id
from structout.integrations.transformers.prompts import list_of_prompts, tokens_of
from structout.jump_forward import JumpForward
from structout.ops.sampler import SamplingParams
from structout.scheduler.manager import StructuredOutputManager


def generate(
    llama: Any,
    prompts: Any,
    *,
    fit: Literal["on", "exact", "off"] | None = None,
    params: StructuredOutputsParams | Sequence[StructuredOutputsParams | None] | None = None,
    describe: bool = False,
    manager: StructuredOutputManager | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    jump_forward: JumpForward | str = JumpForward.OFF,
    **constraint: Any,
) -> Generation:
    """Generate a text for each prompt that satisfies a constraint, one after another.

    The model does not read again what it has read last and a prompt begins with.
    structout draws the tokens: from equal logits the texts are those of
    :func:`structout.generate`.

    Args:
        llama: a ``llama_cpp.Llama``.
        prompts: a string, a list of token ids, or a list of chat messages, for the chat
            template of the GGUF; or a list of such prompts.
        fit: as in :func:`structout.generate`; the limit is ``max_tokens``.
        params: the same.
        describe: the same.
        manager: made for :func:`tokenizer_of` the model. Default: its own.
        max_tokens: the limit on the tokens of each text, its stop token included. The
            context of the model may lower it.
        temperature: as in :class:`structout.SamplingParams`: 0 is greedy.
        top_k: the same.
        top_p: the same.
        min_p: the same.
        seed: any integer of 64 bits.
        jump_forward: "ff_tokens" appends the tokens of forced text, and "retokenize"
            the text, so that the model reads them together; "off" draws each.
        **constraint: ``json``, ``regex``, ``choice``, ``grammar``, ``structural_tag``
            or ``tools``, and other arguments of
            :class:`structout.StructuredOutputsParams`.

    Raises:
        GrammarError: the constraint is bad, or needs more tokens than the limit.
        ValueError: a prompt is empty or fills the context, the arguments do not go
            together, or ``jump_forward="draft"``.
        DeadEndError: the grammar has no way on, or nothing can be drawn from a row.
    """
    mode = JumpForward(jump_forward)
    if mode is JumpForward.DRAFT:
        raise ValueError("jump_forward must be 'off', 'ff_tokens' or 'retokenize' with llama.cpp, got 'draft'")
    prompts = list_of_prompts(prompts)
    params_of = params_of_prompts(params, constraint, len(prompts))
    if fit is not None:
        params_of = [None if each is None else replace(each, fit=fit) for each in params_of]
    tokenizer = tokenizer_of(llama)
    manager = manager or tokenizer.manager
    pairs = zip(prompts, params_of, strict=True)
    prompt_ids = [tokens_of(tokenizer, prompt, each, describe=describe) for prompt, each in pairs]
    limits = [min(max_tokens, llama.n_ctx() - len(ids)) for ids in prompt_ids]
    if min(limits) < 1:
        raise ValueError(
            f"max_tokens is {max_tokens}, and the longest prompt has {max(map(len, prompt_ids)):,} tokens of the "
            f"{llama.n_ctx():,} that the context holds: raise max_tokens or n_ctx, or shorten the prompt"
        )
    sampler = ConstrainedSampler(manager, SamplingParams(temperature, top_k, top_p, min_p))
    request_ids = [None if each is None else new_request_id("llama") for each in params_of]
    constrained = [request_id for request_id in request_ids if request_id is not None]
    try:
        for request_id, each, limit in zip(request_ids, params_of, limits, strict=True):
            if request_id is not None and each is not None:
                manager.add_request(request_id, each, max_tokens=limit)
        for request_id in constrained:
            manager.wait_ready(request_id)
        texts = []
        for i, row_seed in enumerate(row_seeds(seed, len(prompts))):
            row = Row(0, request_ids[i], row_seed, len(prompt_ids[i]))
            text = Text(manager, row, limits[i], manager.vocabulary.stop_token_ids)
            feed: Any = LlamaFeed(llama, prompt_ids[i])  # has what the loop needs of a ModelFeed with one row
            DecodingLoop(
                feed, [text], sampler, [], lambda *_: torch.tensor([False]), mode, padding=0, monitor=Monitor()
            ).run()
            mark_complete([text], sampler)
            texts.append(text)
        return generation_of(manager, prompt_ids, texts, request_ids, params_of)
    finally:
        for request_id in constrained:
            manager.finish_request(request_id)


class LlamaFeed:
    """Feeds one text to a ``llama_cpp.Llama``, in place of a :class:`ModelFeed`. The
    last token of the prompt is always read again, for its logits."""

    columns = torch.empty(1, 0, dtype=torch.int64)  # for criteria

    def __init__(self, llama: Any, prompt_ids: Sequence[int]):
        self._llama = llama
        self._unread: list[int] = []
        read = llama.input_ids[: llama.n_tokens].tolist()
        num_kept = sum(1 for _ in takewhile(bool, map(int.__eq__, read, prompt_ids[:-1])))
        self._rewind(num_kept)
        self.append([prompt_ids[num_kept:]])

    def append(self, token_ids: Sequence[Sequence[int]]) -> None:
        self._unread += token_ids[0]

    def forward(self, max_logits: int | None = None) -> torch.Tensor:
        """Let the model read the new tokens. Return the logits after the last one,
        float32 ``[1, 1, V]``, which the next call overwrites."""
        self._llama.eval(self._unread)
        self._unread = []
        logits = self._llama._ctx.get_logits_ith(-1)
        row = np.ctypeslib.as_array(logits, shape=(self._llama.n_vocab(),))
        return torch.from_numpy(row).view(1, 1, -1)

    def forget(self, row: int, count: int) -> None:
        self._rewind(self._llama.n_tokens - count)

    def _rewind(self, num_kept: int) -> None:
        """Let the model forget all but the first tokens. One that cannot, such as a
        recurrent one, reads them again."""
        llama = self._llama
        if num_kept == llama.n_tokens or llama._ctx.kv_cache_seq_rm(-1, num_kept, -1):
            llama.n_tokens = num_kept
        else:
            self._unread = llama.input_ids[:num_kept].tolist()
            llama.reset()
