"""SGLang's sampler over structout's ops."""

from typing import Any

import torch
from sglang.srt.layers.logprob_processor import LogprobResult
from sglang.srt.layers.sampler import SGLANG_RETURN_ORIGINAL_LOGPROB, Sampler
from sglang.srt.runtime_context import get_exec

from structout.ops.masked_sample import masked_sample
from structout.ops.token_logprobs import MAX_TOP_N, token_logprobs

_LOWEST = torch.finfo(torch.float32).min  # SGLang's logprob of an impossible token, which JSON can hold


class StructoutSampler(Sampler):  # type: ignore[misc]  # mypy does not read SGLang
    """Draws the tokens of a batch with :func:`structout.masked_sample`.

    SGLang has applied the masks of the grammars to the logits by then. The order of the
    filters is structout's: min-p, top-k, top-p, each over the tokens that the one
    before keeps. The logits are only read.

    A row from which nothing can be drawn gets token 0, because SGLang feeds the ids to
    the model before it looks at them. If the row has a grammar, the grammar refuses the
    token, and SGLang aborts the request.

    Raises:
        ValueError: the server is set up for training on its own samples
            (``--rl-on-policy-target``), which prescribes SGLang's own arithmetic.
    """

    def __init__(self) -> None:
        super().__init__()
        if self.rl_on_policy_target is not None:
            raise ValueError("--sampling-backend structout does not support --rl-on-policy-target; use pytorch")

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int] | None],
        positions: torch.Tensor,
        *,
        logprob_logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Draw one token from each row, and write the requested logprobs to
        ``logits_output``.

        Args:
            logits_output: holds ``next_token_logits`` ``[N, V]``.
            sampling_info: SGLang's parameters of the batch.
            return_logprob: whether any request asks for logprobs.
            top_logprobs_nums: how many of the likeliest tokens each request asks for.
            token_ids_logprobs: tokens whose logprobs each request asks for.
            positions: the index of the token in its text, ``[N]``.
            logprob_logits: the logits to take logprobs from, if not those of the draw.

        Returns:
            the ids, int64 ``[N]``.
        """
        if sampling_info.sampling_mask_batch_indices is not None:
            # A request asks which tokens the filters kept. SGLang's code for that is
            # part of its own backends.
            arguments = (return_logprob, top_logprobs_nums, token_ids_logprobs, positions)
            with get_exec().kernel.override(sampling_backend="pytorch"):
                return super().forward(logits_output, sampling_info, *arguments, logprob_logits=logprob_logits)
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        temperature = None if sampling_info.is_all_greedy else _temperatures(sampling_info)
        ids = masked_sample(logits, **_draw_arguments(sampling_info, temperature, positions)).clamp_(min=0)
        if return_logprob:
            source = logits if logprob_logits is None else self._preprocess_logits(logprob_logits, sampling_info)
            context = None if SGLANG_RETURN_ORIGINAL_LOGPROB else temperature
            result = self._logprobs(source, ids, context, top_logprobs_nums, token_ids_logprobs)
            result.write_output_to(logits_output)
        self._sync_token_ids_across_tp(ids, sampling_info)
        return ids

    def _logprobs(
        self,
        logits: torch.Tensor,
        ids: torch.Tensor,
        temperature: torch.Tensor | None,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int] | None],
    ) -> LogprobResult:
        top_n = max(top_logprobs_nums, default=0)
        if top_n > MAX_TOP_N or any(token_ids is not None for token_ids in token_ids_logprobs):
            scores = logits.float()
            if temperature is not None:
                scores = scores / torch.where(temperature == 0, 1.0, temperature)[:, None]
            return self.output_logprob_processor.compute_logprobs(
                scores.log_softmax(-1), top_logprobs_nums, token_ids_logprobs, ids
            )
        found = token_logprobs(logits, ids, temperature=temperature, top_n=top_n)
        result = LogprobResult(token_logprobs=found.logprobs.clamp_(min=_LOWEST))
        if top_n:
            top_logprobs, top_ids = found.top_logprobs.clamp_(min=_LOWEST), found.top_ids.clamp_(min=0)
            result.top_logprobs_val = [top_logprobs[row, :num] for row, num in enumerate(top_logprobs_nums)]
            result.top_logprobs_idx = [top_ids[row, :num] for row, num in enumerate(top_logprobs_nums)]
        return result


def _temperatures(sampling_info: Any) -> torch.Tensor:
    """The temperature of each row, float32 ``[N]``.

    SGLang writes a greedy request as top_k = 1 at temperature 1, which would draw among
    equal logits.
    """
    temperatures: torch.Tensor = sampling_info.temperatures.view(-1)
    return torch.where(sampling_info.top_ks <= 1, 0.0, temperatures) if sampling_info.is_any_greedy else temperatures


def _draw_arguments(sampling_info: Any, temperature: torch.Tensor | None, positions: torch.Tensor) -> dict[str, Any]:
    """The arguments of ``masked_sample`` beside the logits.

    Without seeds, which SGLang has in deterministic inference only, the seeds come from
    torch's generator, whose state all ranks share.
    """
    if temperature is None:
        return {"temperature": 0.0}
    arguments: dict[str, Any] = {
        "temperature": temperature,
        "top_k": sampling_info.top_ks if sampling_info.need_top_k_sampling else None,
        "top_p": sampling_info.top_ps if sampling_info.need_top_p_sampling else None,
        "min_p": sampling_info.min_ps if sampling_info.need_min_p_sampling else None,
    }
    if sampling_info.sampling_seed is not None:
        return arguments | {"seed": sampling_info.sampling_seed, "position": positions.to(torch.int64)}
    return arguments | {"seed": torch.randint(2**63 - 1, temperature.shape, device=temperature.device)}
