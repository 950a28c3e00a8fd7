"""Calls every op once on the GPU, on one backend, and compares it with the reference.

    python bench/gpu_smoke.py cuda|triton

The first step of `make gpu-check` that runs a kernel: it names the op that fails.
"""

import os
import sys
import time
from collections.abc import Callable

os.environ["STRUCTOUT_BACKEND"] = sys.argv[1]  # read when structout is imported

import torch

import structout
from structout import _kernels, reference

VOCAB, ROWS = 151_936, 4
OPS = torch.ops.structout
Result = torch.Tensor | tuple[torch.Tensor, ...]


def main() -> int:
    loaded = _kernels.load()
    print(loaded)
    if loaded.cuda != sys.argv[1]:
        return 1
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(ROWS, VOCAB, generator=generator, device="cuda") * 3
    shares = torch.tensor([0.9, 0.001, 0.5], device="cuda")
    bitmask = structout.pack_bitmask(torch.rand(3, VOCAB, generator=generator, device="cuda") < shares[:, None])
    rows = torch.tensor([0, 1, -1, 2], device="cuda")
    seeds = torch.arange(ROWS, device="cuda")
    temperature = torch.tensor([0.7, 1.0, 0.0, 1.3], device="cuda")
    top_k = torch.full((ROWS,), 50, device="cuda")
    top_p = torch.full((ROWS,), 0.9, device="cuda")
    plain = (logits, bitmask, rows, temperature, None, None, None, seeds, seeds)
    filtered = (logits, bitmask, rows, temperature, top_k, top_p, None, seeds, seeds)

    def masked(apply: Callable[..., None]) -> torch.Tensor:
        copy = logits.clone()
        apply(copy, bitmask, rows)
        return copy

    def by_shards() -> tuple[torch.Tensor, torch.Tensor]:
        cuts = [(0, 70_000), (70_000, VOCAB)]
        shards = [(logits[:, a:b], bitmask, rows, temperature, seeds, seeds, a) for a, b in cuts]
        results = torch.stack([OPS._sample_shard(*shard) for shard in shards])
        ids, merged = OPS._merge_shard_results(results, temperature)
        highest, token_logits = merged[0].view(torch.float32), merged[3].view(torch.float32)
        masks = (shards[0][1], shards[0][2], temperature)
        totals = [OPS._row_totals(shard[0], *masks, highest, token_logits, shard[-1]) for shard in shards]
        no_top = token_logits.new_empty(len(ids), 0)
        return ids, OPS._merge_totals(torch.stack(totals), temperature, highest, token_logits, no_top)[0]

    def changed(apply: Callable[..., None], *lists: torch.Tensor) -> torch.Tensor:
        copy = logits.clone()
        apply(copy, *lists)
        return copy

    token_lists = (torch.tensor([0, 3, 3, 6, 7], device="cuda"), torch.tensor([5, 9, 5, 0, 1, -4, 7], device="cuda"))
    values = torch.tensor([1.5, 0.5, 2.0, -1.0], device="cuda")
    penalties = (*token_lists, torch.arange(7, device="cuda") % 3, values, values, values)
    bias = (*token_lists, torch.arange(7, dtype=torch.float32, device="cuda"))
    tables, states, tokens = fsm_inputs()

    def advanced(advance: Callable[..., None]) -> torch.Tensor:
        copy = states.clone()
        advance(copy, tokens, *tables)
        return copy

    def rows_and_masks(find_rows: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        masks, num_computed = states.new_zeros(5, 1), torch.zeros(1, dtype=torch.int64, device="cuda")
        mask_slots = torch.tensor([0, -1], dtype=torch.int32, device="cuda")
        return find_rows(states, masks, num_computed, mask_slots, *tables, 1), masks, num_computed

    chains = (states[:1], tokens, torch.tensor([0, 4], device="cuda"), *tables)
    drafts = (torch.ops.structout.masked_sample(*plain), torch.tensor([0, 3, 4], device="cuda"))
    expected = reference.masked_sample_logprobs(*plain)
    checks: dict[str, tuple[Callable[[], Result], Result]] = {
        "apply_bitmask": (lambda: masked(OPS.apply_bitmask), masked(reference.apply_bitmask)),
        "masked_sample": (lambda: OPS.masked_sample(*plain), expected[0]),
        "masked_sample_logprobs": (lambda: OPS.masked_sample_logprobs(*plain), expected),
        "masked_sample with filters": (lambda: OPS.masked_sample(*filtered), reference.masked_sample(*filtered)),
        "masked_sample_topn": (
            lambda: OPS.masked_sample_topn(*filtered, 5, False),
            reference.masked_sample_topn(*filtered, 5, False),
        ),
        "masked_sample_topn, raw": (
            lambda: OPS.masked_sample_topn(*plain, 20, True),
            reference.masked_sample_topn(*plain, 20, True),
        ),
        "verify_drafts": (lambda: OPS.verify_drafts(*plain, *drafts), reference.verify_drafts(*plain, *drafts)),
        "apply_penalties": (
            lambda: changed(OPS.apply_penalties, *penalties),
            changed(reference.apply_penalties, *penalties),
        ),
        "apply_logit_bias": (lambda: changed(OPS.apply_logit_bias, *bias), changed(reference.apply_logit_bias, *bias)),
        "fsm_advance": (lambda: advanced(OPS.fsm_advance), advanced(reference.fsm_advance)),
        "fsm_rows": (lambda: rows_and_masks(OPS.fsm_rows), rows_and_masks(reference.fsm_rows)),
        "fsm_draft_states": (lambda: OPS.fsm_draft_states(*chains), reference.fsm_draft_states(*chains)),
        "shards, merged": (by_shards, expected),
        "all_gather_bitmask of one rank": (lambda: OPS.all_gather_bitmask(bitmask, ""), bitmask),
    }
    failed = 0
    for name, (call, wanted) in checks.items():
        started = time.perf_counter()
        try:
            got = call()
            torch.cuda.synchronize()
            is_right = all(map(torch.equal, _tensors(got), _tensors(wanted)))
            outcome = "right" if is_right else f"WRONG: {got} instead of {wanted}"
        except Exception as error:
            is_right, outcome = False, f"{type(error).__name__}: {error}"
        failed += not is_right
        print(f"{name:<32}{time.perf_counter() - started:6.2f} s  {outcome}", flush=True)
    return 1 if failed else 0


def fsm_inputs() -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """The tables of the automaton of ``ab*`` with the tokens "a", "b", "ab", "bb" and a
    stop token; states; and tokens that they may take."""
    transitions = torch.full((2, 256), -1, dtype=torch.int32, device="cuda")
    transitions[0, ord("a")] = transitions[1, ord("b")] = 1

    def integers(values: list[int] | list[list[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device="cuda")

    token_bytes = integers(list(b"ababbb"), torch.uint8)
    tables = (transitions, integers([2, 3]), integers([[4]]), token_bytes, integers([0, 1, 2, 4, 6, 6]))
    return tables, integers([0, 1, -1, -3]), integers([2, 3, 4, 0], torch.int64)


def _tensors(result: Result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


if __name__ == "__main__":
    sys.exit(main())
