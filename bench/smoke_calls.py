"""One call of every op, with what the reference gives: what a new machine or backend
runs first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import structout
from structout.ops import reference

ROWS = 4
Result = torch.Tensor | tuple[torch.Tensor, ...]


def smoke_calls(ops: Any, device: str, vocab_size: int) -> dict[str, tuple[Callable[[], Result], Result]]:
    """Return calls and their right results, by name.

    Args:
        ops: Has the ops as ``torch.ops.structout`` does.
        device: The device of the tensors.
        vocab_size: The width of the logits.
    """
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.randn(ROWS, vocab_size, generator=generator, device=device) * 3
    shares = torch.tensor([0.9, 0.001, 0.5], device=device)
    bitmask = structout.pack_bitmask(torch.rand(3, vocab_size, generator=generator, device=device) < shares[:, None])
    rows = torch.tensor([0, 1, -1, 2], device=device)
    seeds = torch.arange(ROWS, device=device)
    temperature = torch.tensor([0.7, 1.0, 0.0, 1.3], device=device)
    top_k = torch.full((ROWS,), 50, device=device)
    top_p = torch.full((ROWS,), 0.9, device=device)
    plain = (logits, bitmask, rows, temperature, None, None, None, seeds, seeds)
    filtered = (logits, bitmask, rows, temperature, top_k, top_p, None, seeds, seeds)

    def masked(apply: Callable[..., None]) -> torch.Tensor:
        copy = logits.clone()
        apply(copy, bitmask, rows)
        return copy

    def by_shards() -> tuple[torch.Tensor, torch.Tensor]:
        cuts = [(0, vocab_size // 2), (vocab_size // 2, vocab_size)]
        shards = [(logits[:, a:b], bitmask, rows, temperature, seeds, seeds, a) for a, b in cuts]
        results = torch.stack([ops._sample_shard(*shard) for shard in shards])
        ids, merged = ops._merge_shard_results(results, temperature)
        highest, token_logits = merged[0].view(torch.float32), merged[3].view(torch.float32)
        masks = (shards[0][1], shards[0][2], temperature)
        totals = [ops._row_totals(shard[0], *masks, highest, token_logits, shard[-1]) for shard in shards]
        no_top = token_logits.new_empty(len(ids), 0)
        return ids, ops._merge_totals(torch.stack(totals), temperature, highest, token_logits, no_top)[0]

    def changed(apply: Callable[..., None], *lists: torch.Tensor) -> torch.Tensor:
        copy = logits.clone()
        apply(copy, *lists)
        return copy

    token_lists = (torch.tensor([0, 3, 3, 6, 7], device=device), torch.tensor([5, 9, 5, 0, 1, -4, 7], device=device))
    values = torch.tensor([1.5, 0.5, 2.0, -1.0], device=device)
    penalties = (*token_lists, torch.arange(7, device=device) % 3, values, values, values)
    bias = (*token_lists, torch.arange(7, dtype=torch.float32, device=device))
    tables, states, tokens = fsm_inputs(device)

    def advanced(advance: Callable[..., None]) -> torch.Tensor:
        copy = states.clone()
        advance(copy, tokens, *tables)
        return copy

    def rows_and_masks(find_rows: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        masks, num_computed = states.new_zeros(5, 1), torch.zeros(1, dtype=torch.int64, device=device)
        mask_slots = torch.tensor([0, -1], dtype=torch.int32, device=device)
        return find_rows(states, masks, num_computed, mask_slots, *tables, 1), masks, num_computed

    chains = (states[:1], tokens, torch.tensor([0, 4], device=device), *tables)
    expected = reference.masked_sample_logprobs(*plain)
    drafts = (expected[0], torch.tensor([0, 3, 4], device=device))
    return {
        "apply_bitmask": (lambda: masked(ops.apply_bitmask), masked(reference.apply_bitmask)),
        "masked_sample": (lambda: ops.masked_sample(*plain), expected[0]),
        "masked_sample_logprobs": (lambda: ops.masked_sample_logprobs(*plain), expected),
        "masked_sample with filters": (lambda: ops.masked_sample(*filtered), reference.masked_sample(*filtered)),
        "masked_sample_topn": (
            lambda: ops.masked_sample_topn(*filtered, 5, False),
            reference.masked_sample_topn(*filtered, 5, False),
        ),
        "masked_sample_topn, raw": (
            lambda: ops.masked_sample_topn(*plain, 20, True),
            reference.masked_sample_topn(*plain, 20, True),
        ),
        "verify_drafts": (lambda: ops.verify_drafts(*plain, *drafts), reference.verify_drafts(*plain, *drafts)),
        "apply_penalties": (
            lambda: changed(ops.apply_penalties, *penalties),
            changed(reference.apply_penalties, *penalties),
        ),
        "apply_logit_bias": (lambda: changed(ops.apply_logit_bias, *bias), changed(reference.apply_logit_bias, *bias)),
        "fsm_advance": (lambda: advanced(ops.fsm_advance), advanced(reference.fsm_advance)),
        "fsm_rows": (lambda: rows_and_masks(ops.fsm_rows), rows_and_masks(reference.fsm_rows)),
        "fsm_draft_states": (lambda: ops.fsm_draft_states(*chains), reference.fsm_draft_states(*chains)),
        "shards, merged": (by_shards, expected),
    }


def fsm_inputs(device: str) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """The tables of the automaton of ``ab*`` with the tokens "a", "b", "ab", "bb" and a
    stop token; states; and tokens that they may take."""
    transitions = torch.full((2, 256), -1, dtype=torch.int32, device=device)
    transitions[0, ord("a")] = transitions[1, ord("b")] = 1

    def integers(values: list[int] | list[list[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    token_bytes = integers(list(b"ababbb"), torch.uint8)
    tables = (transitions, integers([2, 3]), integers([[4]]), token_bytes, integers([0, 1, 2, 4, 6, 6]))
    return tables, integers([0, 1, -1, -3]), integers([2, 3, 4, 0], torch.int64)


def is_same(got: Result, wanted: Result) -> bool:
    """Whether two results are equal."""
    return all(map(torch.equal, _tensors(got), _tensors(wanted)))


def _tensors(result: Result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
