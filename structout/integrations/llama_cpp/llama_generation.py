"""Texts from prompts in one call, with a GGUF model."""

import ctypes
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch

from structout.constraints.params import StructuredOutputsParams
from structout.integrations.llama_cpp.llama_tokenizer import tokenizer_of
from structout.integrations.transformers.constrained_sampler import ConstrainedSampler, Row, row_seeds
from structout.integrations.transformers.decode import DecodingLoop, Monitor, Text, mark_complete
from structout.integrations.transformers.generation import (
    Generation,
    generation_of,
    prompts_and_params,
    ready_requests,
)
from structout.integrations.transformers.streaming import TextStream, stream_of
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
    monitor: Monitor | None = None,
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
        jump_forward: see :func:`structout.jump_forward.jump`.
        monitor: called as by :func:`structout.generate`.
        **constraint: ``json``, ``regex``, ``choice``, ``grammar``, ``structural_tag``
            or ``tools``, and other arguments of
            :class:`structout.StructuredOutputsParams`.

    Raises:
        GrammarError: the constraint is bad, or needs more tokens than the limit.
        ValueError: a prompt is empty or fills the context, or the arguments do not go
            together.
        DeadEndError: the grammar has no way on, or nothing can be drawn from a row.
    """
    mode = JumpForward(jump_forward)
    tokenizer = tokenizer_of(llama)
    manager = manager or tokenizer.manager
    prompt_ids, params_of = prompts_and_params(
        tokenizer, prompts, params, constraint, fit=fit, describe=describe, config=manager.config
    )
    limits = [min(max_tokens, llama.n_ctx() - len(ids)) for ids in prompt_ids]
    if min(limits) < 1:
        raise ValueError(
            f"max_tokens is {max_tokens}, and the longest prompt has {max(map(len, prompt_ids)):,} tokens of the "
            f"{llama.n_ctx():,} that the context holds: raise max_tokens or n_ctx, or shorten the prompt"
        )
    sampler = ConstrainedSampler(manager, SamplingParams(temperature, top_k, top_p, min_p))
    monitor, texts = monitor or Monitor(), []
    with ready_requests(manager, "llama", params_of, limits) as request_ids:
        for i, row_seed in enumerate(row_seeds(seed, len(prompt_ids))):
            row = Row(0, request_ids[i], row_seed, len(prompt_ids[i]))
            text = Text(manager, row, limits[i], manager.vocabulary.stop_token_ids)
            feed: Any = LlamaFeed(llama, prompt_ids[i])  # has what the loop needs of a ModelFeed with one row
            DecodingLoop(feed, [text], sampler, [], None, mode, padding=0, monitor=monitor).run()
            mark_complete([text], sampler)
            texts.append(text)
        return generation_of(manager, prompt_ids, texts, request_ids, params_of)


def stream(llama: Any, prompt: Any, *, manager: StructuredOutputManager | None = None, **options: Any) -> TextStream:
    """Generate one text in a thread, and iterate over its pieces as they come, see
    :func:`structout.stream`. Leave the model alone until the text has ended.

    Args:
        llama: as in :func:`generate`, as are the others.
        prompt: one prompt.
        manager: the same.
        **options: arguments of :func:`generate`, but ``monitor``.

    Raises:
        ValueError: there is more than one prompt.
    """
    manager = manager or tokenizer_of(llama).manager
    generate_text = partial(generate, llama, prompt, manager=manager, **options)
    return stream_of(prompt, manager.vocabulary, generate_text)


class LlamaFeed:
    """Feeds one text to a ``llama_cpp.Llama``, in place of a :class:`ModelFeed`. The
    last token of the prompt is always read again, for its logits."""

    def __init__(self, llama: Any, prompt_ids: Sequence[int]):
        self._llama = llama
        self._row_type = ctypes.c_float * llama.n_vocab()
        self._unread: list[int] = []
        read = llama.input_ids[: llama.n_tokens].tolist()
        num_kept = sum(1 for _ in takewhile(bool, map(int.__eq__, read, prompt_ids[:-1])))
        self._rewind(num_kept)
        self.append([prompt_ids[num_kept:]])

    def append(self, token_ids: Sequence[Sequence[int]]) -> None:
        self._unread += token_ids[0]

    def forward(self, max_logits: int) -> torch.Tensor:
        """Let the model read the new tokens. Return the logits after the last ones,
        float32 ``[1, max_logits, V]``, which the next call may overwrite."""
        llama, tokens, self._unread = self._llama, self._unread, []
        if max_logits == 1:
            llama.eval(tokens)
            address = ctypes.addressof(llama._ctx.get_logits_ith(-1).contents)
            row = torch.frombuffer(self._row_type.from_address(address), dtype=torch.float32)
            return row.view(1, 1, -1)
        llama.eval(tokens[:-max_logits])
        logits = np.empty((1, max_logits, llama.n_vocab()), dtype=np.single)
        for first in range(0, max_logits, llama.n_batch):  # as llama.eval, which keeps no logits but the last
            rows = logits[0, first : first + llama.n_batch]
            tokens_read = tokens[first - max_logits :][: len(rows)]
            llama._batch.set_batch(batch=tokens_read, n_past=llama.n_tokens, logits_all=True)
            llama._ctx.decode(llama._batch)
            rows[:] = np.ctypeslib.as_array(llama._ctx.get_logits(), shape=rows.shape)
            llama.n_tokens += len(rows)
            llama.input_ids[llama.n_tokens - len(rows) : llama.n_tokens] = tokens_read
        return torch.from_numpy(logits)

    def forget(self, row: int, count: int) -> None:
        self._rewind(self._llama.n_tokens - count)

    def _rewind(self, num_kept: int) -> None:
        """Let the model forget all but the first tokens. One that cannot, such as a
        recurrent one, reads them again."""
        llama = self._llama
        if num_kept == llama.n_tokens or llama._ctx.kv_cache_seq_rm(-1, num_kept, -1):
            llama.n_tokens, llama._requires_eval = num_kept, True
        else:
            self._unread = llama.input_ids[:num_kept].tolist()
            llama.reset()
