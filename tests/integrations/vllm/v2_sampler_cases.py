"""The sampler of model runner V2, on vLLM's own classes and kernels: what our draw
keeps of vLLM's results.

test_model_runner_v2.py runs this file.
"""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from support.vllm_v2_worker import Request, SamplingParams, Worker, structured_outputs, tokens_of  # isort: skip

from vllm.v1.worker.gpu.sample import batch_shard
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor
from vllm.v1.worker.gpu.sample.sampler import Sampler

from structout import MaskBatch, bitmask_width, masked_sample, pack_bitmask, unpack_bitmask
from structout.integrations.vllm import hooks, v2_sampling
from structout.integrations.vllm.grammar_manager import dense_masks
from structout.integrations.vllm.hooks import Hook
from structout.integrations.vllm.v2_masks import row_map

V = 203  # no multiple of 32
GREEDY = SamplingParams(temperature=0.0)

hooks.install(with_manager=False)


def random_logits(num_rows: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (2 * torch.randn(num_rows, V, generator=torch.Generator().manual_seed(seed))).to(dtype)


def random_masks(
    num_rows: dict[str, int], seed: int = 0, share: float = 0.3, acceptable: dict[str, int] | None = None
) -> MaskBatch:
    """Masks for these requests, with these numbers of rows."""
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(sum(num_rows.values()), V, generator=generator) < share
    return masks_of(allowed, num_rows, acceptable)


def masks_of(allowed: torch.Tensor, num_rows: dict[str, int], acceptable: dict[str, int] | None = None) -> MaskBatch:
    return MaskBatch(
        request_ids=tuple(num_rows),
        row_indptr=np.concatenate([[0], np.cumsum(list(num_rows.values()))]).astype(np.int32),
        bitmask=pack_bitmask(allowed).numpy(),
        num_acceptable_drafts=np.array([(acceptable or {}).get(i, n - 1) for i, n in num_rows.items()], dtype=np.int32),
    )


def masked(logits: torch.Tensor, masks: MaskBatch, worker: Worker) -> torch.Tensor:
    """The logits of a step with what the masks disallow at -inf, as vLLM has them."""
    rows = masks.rows_for(list(worker.requests), [1 + len(r.drafts) for r in worker.requests.values()])
    allowed = unpack_bitmask(masks.to("cpu"), V)[rows.clamp(min=0).long()] | (rows < 0)[:, None]
    return logits.masked_fill(~allowed, -torch.inf)


MIXED = {
    "greedy": GREEDY,
    "bias": SamplingParams(temperature=0.0, logit_bias={5: 8.0, 9: -3.0}),
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=1.7, frequency_penalty=0.6, presence_penalty=0.9),
    "bad words": SamplingParams(temperature=0.0, _bad_words_token_ids=[[7], [20, 21]]),
    "allowed": SamplingParams(temperature=0.0, allowed_token_ids=list(range(40, 90))),
    "free": GREEDY,
    "min tokens": SamplingParams(temperature=0.0, min_tokens=9, stop_token_ids=[int(i) for i in range(0, 60)]),
}


def add_mixed(worker: Worker) -> list[Request]:
    return [worker.add(name, params, prompt=[7, 30, 31], output=[20, 30, 20]) for name, params in MIXED.items()]


def test_greedy_draws_with_every_kind_of_processing_equal_those_of_vllm():
    worker = Worker(V)
    add_mixed(worker)
    for seed in range(8):
        logits = random_logits(len(MIXED), seed)
        masks = random_masks({name: 1 for name in MIXED if name != "free"}, seed)
        expected = worker.sample_as_vllm(masked(logits, masks, worker))
        assert tokens_of(worker.sample(logits.clone(), masks)) == tokens_of(expected)


def test_draw_without_processing_reads_the_logits_as_they_are(monkeypatch):
    worker = Worker(V)
    worker.add("a", SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, seed=1, logprobs=3))
    drawn_from = []

    def draw(logits: torch.Tensor, **arguments) -> torch.Tensor:
        drawn_from.append(logits)
        return masked_sample(logits, **arguments)

    monkeypatch.setattr(v2_sampling, "masked_sample", draw)
    logits = random_logits(1)
    worker.sample(logits, random_masks({"a": 1}))
    assert drawn_from == [worker.logits]
    assert torch.equal(worker.logits, logits)  # not masked in place either


def test_processing_changes_a_float32_copy_only():
    worker = Worker(V)
    add_mixed(worker)
    logits = random_logits(len(MIXED))
    worker.sample(logits, random_masks({"bias": 1}))
    assert torch.equal(worker.logits, logits)


@pytest.mark.parametrize("allowed", [[3, 11], [3, 11, 150]])
def test_min_tokens_gives_stop_tokens_back_where_the_grammar_allows_nothing_else(allowed: list[int]):
    from vllm.sampling_params import StructuredOutputsParams

    worker = Worker(V)
    params = SamplingParams(
        temperature=0.0,
        min_tokens=9,
        stop_token_ids=[3, 11],
        structured_outputs=StructuredOutputsParams(regex="a"),
    )
    worker.add("a", params)
    logits = random_logits(1)
    mask = torch.zeros(1, V, dtype=torch.bool)
    mask[0, allowed] = True
    masks = masks_of(mask, {"a": 1})
    ids = tokens_of(worker.sample(logits.clone(), masks))
    assert ids == tokens_of(worker.sample_as_vllm(masked(logits, masks, worker)))
    assert ids in ([[3]], [[11]]) if allowed == [3, 11] else ids == [[150]]


def test_the_end_of_a_thinking_budget_overrules_the_grammar():
    tokens = {"reasoning_start_token_ids": [50], "reasoning_end_token_ids": [51]}
    reasoning = SimpleNamespace(**tokens, natural_reasoning_end_token_ids=[51])
    worker = Worker(V, reasoning_config=reasoning)
    worker.add("thinks", SamplingParams(temperature=0.0, thinking_token_budget=2), prompt=[1, 50], output=[4, 5])
    worker.add("other", GREEDY)
    logits, masks = random_logits(2), random_masks({"thinks": 1, "other": 1}, share=0.02)
    ids = tokens_of(worker.sample(logits, masks))
    assert ids == tokens_of(worker.sample_as_vllm(masked(logits, masks, worker)))
    assert ids[0] == [51]


class KeepsLogits(LogitsProcessor):
    def apply(self, logits: torch.Tensor, ctx) -> torch.Tensor:
        self.logits = logits.clone()
        return logits


def test_processors_of_other_packages_see_masked_logits():
    processor = KeepsLogits(None, None)
    worker = Worker(V, custom_logits_processors=[processor])
    worker.add("a", SamplingParams(temperature=0.5, seed=1))
    logits, masks = random_logits(1), random_masks({"a": 1})
    worker.sample(logits, masks)
    assert torch.equal(processor.logits, masked(logits, masks, worker).float())


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, 64, 65, V])
def test_raw_logprobs_equal_those_of_vllm(num_logprobs: int):
    worker = Worker(V)
    worker.add("wants", SamplingParams(temperature=0.0, logprobs=num_logprobs, frequency_penalty=0.5), output=[4, 4])
    worker.add("wants none", SamplingParams(temperature=0.0))
    worker.add("free", SamplingParams(temperature=0.0, logprobs=1))
    logits = random_logits(3, dtype=torch.float32)  # without ties, whose order vLLM does not define
    masks = random_masks({"wants": 1, "wants none": 1}, share=0.5)
    expected = worker.sample_as_vllm(masked(logits, masks, worker)).logprobs_tensors
    output = worker.sample(logits.clone(), masks)
    got = output.logprobs_tensors
    assert got.logprob_token_ids[:, 0].tolist() == output.sampled_token_ids[:, 0].tolist()
    assert torch.equal(got.selected_token_ranks, expected.selected_token_ranks)
    assert torch.allclose(got.logprobs, expected.logprobs, atol=1e-5)
    counted = expected.logprobs > -torch.inf
    assert got.logprob_token_ids[counted].tolist() == expected.logprob_token_ids[counted].tolist()
    assert got.logprobs.dtype == torch.float32
    assert got.cu_num_generated_tokens is None
    for row in got.logprob_token_ids[:, 1:].tolist():  # vLLM's frontend decodes them, and keeps the last of equal ones
        assert len(set(row)) == len(row)
        assert all(0 <= token < V for token in row)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logprobs", "processed_logits"])
def test_other_logprobs_modes_equal_those_of_vllm(mode: str):
    worker = Worker(V, logprobs_mode=mode)
    worker.add("a", SamplingParams(temperature=0.0, logprobs=4, logit_bias={3: 2.0}))
    worker.add("b", SamplingParams(temperature=0.0, logprobs=2))
    logits = random_logits(2, dtype=torch.float32)
    masks = random_masks({"a": 1, "b": 1})
    expected = worker.sample_as_vllm(masked(logits, masks, worker)).logprobs_tensors
    got = worker.sample(logits.clone(), masks).logprobs_tensors
    assert torch.equal(got.logprob_token_ids, expected.logprob_token_ids)
    assert torch.equal(got.logprobs, expected.logprobs)


def test_logprobs_of_listed_tokens_equal_those_of_vllm():
    worker = Worker(V)
    worker.add("a", SamplingParams(temperature=0.0, logprob_token_ids=[2, 8, 190]))
    logits = random_logits(1, dtype=torch.float32)
    masks = random_masks({"a": 1}, share=0.6)
    expected = worker.sample_as_vllm(masked(logits, masks, worker)).logprobs_tensors
    got = worker.sample(logits.clone(), masks).logprobs_tensors
    assert got.logprob_token_ids.tolist() == expected.logprob_token_ids.tolist()
    assert torch.equal(got.logprobs, expected.logprobs)


def test_draws_follow_the_distribution_of_the_allowed_tokens():
    worker, num_draws = Worker(V, max_num_reqs=512), 512
    for i in range(num_draws):
        worker.add(str(i), SamplingParams(temperature=0.8, seed=i))
    logits = random_logits(1, dtype=torch.float32).expand(num_draws, V)
    allowed = torch.zeros(num_draws, V, dtype=torch.bool)
    allowed[:, [3, 50, 77, 120]] = True
    masks = masks_of(allowed, {str(i): 1 for i in range(num_draws)})
    ids = torch.tensor(tokens_of(worker.sample(logits.clone(), masks)))[:, 0]
    expected = num_draws * (logits[0, [3, 50, 77, 120]] / 0.8).softmax(-1)
    counts = torch.tensor([(ids == token).sum() for token in (3, 50, 77, 120)])
    assert counts.sum() == num_draws
    assert ((counts - expected) ** 2 / expected).sum() < 30  # chi-square, 3 degrees of freedom: 1e-6


def test_filters_keep_what_those_of_vllm_keep():
    kinds = [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.7, "min_p": 0.02}]
    worker = Worker(V, max_num_reqs=64)
    for i in range(64):
        worker.add(str(i), SamplingParams(temperature=1.3, seed=i, **kinds[i % 4]))
    logits = random_logits(4, dtype=torch.float32).repeat(16, 1)
    masks = random_masks({str(i): 1 for i in range(64)})
    batch = worker.batch()
    context = v2_sampling.logits_context(batch, batch.input_ids, batch.positions)
    kept = (
        worker.sampler.apply_sampling_params(masked(logits, masks, worker), *_context_arguments(context)) > -torch.inf
    )
    ids = torch.tensor(tokens_of(worker.sample(logits.clone(), masks)))
    assert kept.gather(1, ids).all()
    assert (kept.sum(1) > 1).any()


def _context_arguments(context) -> tuple:
    return (
        context.expanded_idx_mapping,
        context.idx_mapping,
        context.idx_mapping_np,
        context.pos,
        context.input_ids,
        context.expanded_local_pos,
        context.seq_lens_upper_bound_np,
    )


def test_a_seeded_draw_does_not_depend_on_the_batch():
    params = {"a": SamplingParams(seed=5), "b": SamplingParams(seed=6, top_p=0.8), "c": GREEDY}
    logits = dict(zip(params, random_logits(3), strict=True))

    def tokens(order: str) -> dict[str, list[int]]:
        worker = Worker(V)
        for name in order:
            worker.add(name, params[name])
        return dict(zip(order, tokens_of(worker.sample(torch.stack([logits[i] for i in order]))), strict=True))

    assert tokens("abc") == tokens("cba")
    assert tokens("a")["a"] == tokens("abc")["a"]


# Drafts: request "some" has two of them, "none" has none, "free" has no grammar.


def drafting_worker(params: SamplingParams = GREEDY, **options) -> Worker:
    worker = Worker(V, num_drafts=3, **options)
    for name, drafts in {"some": [8, 9], "none": [], "free": [4, 5, 6]}.items():
        worker.add(name, params, output=[20, 21]).drafts = drafts
    return worker


def make_likely(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Let the first rows draw these tokens."""
    logits[range(len(tokens)), tokens] = 60.0
    return logits


ROWS = {"some": 3, "none": 1}  # and four of "free"


@pytest.mark.parametrize("likely", [[8, 9], [8, 10], [3, 9], [8, 9, 77, 11, 4, 5, 6], [8, 9, 77, 11, 4, 6]])
def test_greedy_verification_equals_that_of_vllm(likely: list[int]):
    params = SamplingParams(temperature=0.0, frequency_penalty=0.4, logit_bias={50: 1.0}, logprobs=2)
    worker = drafting_worker(params)
    logits = make_likely(random_logits(8, dtype=torch.float32), likely)
    masks = random_masks(ROWS, share=0.95)
    expected = worker.sample_as_vllm(masked(logits, masks, worker))
    output = worker.sample(logits.clone(), masks)
    assert tokens_of(output) == tokens_of(expected)
    assert output.num_sampled.tolist() == expected.num_sampled.tolist()
    assert output.num_rejected.tolist() == expected.num_rejected.tolist()
    assert output.sampled_token_ids.shape == (3, 4)
    assert output.sampled_token_ids.dtype == torch.int64
    got, wanted = output.logprobs_tensors, expected.logprobs_tensors
    assert got.cu_num_generated_tokens == wanted.cu_num_generated_tokens == [0, 3, 4, 8]
    for first_row, count in zip([0, 3, 4], output.num_sampled.tolist(), strict=True):
        rows = slice(first_row, first_row + count)
        assert got.logprob_token_ids[rows].tolist() == wanted.logprob_token_ids[rows].tolist()
        assert torch.allclose(got.logprobs[rows], wanted.logprobs[rows], atol=1e-5)
        assert torch.equal(got.selected_token_ranks[rows], wanted.selected_token_ranks[rows])


def test_drafts_that_the_grammar_has_not_seen_are_not_accepted():
    worker = drafting_worker()
    logits = make_likely(random_logits(8), [8, 9])
    allowed = torch.ones(4, V, dtype=torch.bool)
    for acceptable in (0, 1, 2):
        output = worker.sample(logits.clone(), masks_of(allowed, ROWS, {"some": acceptable}))
        assert output.num_sampled[0] == 1 + acceptable
        assert tokens_of(output)[0][: acceptable + 1] == [8, 9, int(logits[2].argmax())][: acceptable + 1]


def test_drafts_in_the_step_that_ends_a_prefill_are_placeholders():
    worker = Worker(V, num_drafts=2)
    worker.add("a", GREEDY, prompt=[1, 2]).drafts = [8, 9]
    logits = make_likely(random_logits(3), [8, 9])
    assert tokens_of(worker.sample(logits.clone())) == tokens_of(worker.sample_as_vllm(logits)) == [[8]]


def test_a_chunk_of_a_prefill_samples_nothing():
    worker = Worker(V)
    worker.add("a", GREEDY, prompt=[1, 2, 3]).tokens = [1, 2]
    assert tokens_of(worker.sample(random_logits(1))) == [[]]


@pytest.mark.parametrize("params", [{}, {"top_p": 0.7, "temperature": 2.0}])
def test_tokens_of_verified_drafts_are_those_of_decoding_one_by_one(params: dict):
    tokens = [40, 41, 42]
    allowed = torch.rand(4, V, generator=torch.Generator().manual_seed(3)) < 0.5
    allowed[range(3), tokens] = True
    for seed in range(6):
        logits = random_logits(4, seed)
        one_by_one = []
        single = Worker(V)
        request = single.add("a", SamplingParams(seed=seed, **params))
        for row in range(4):
            ids = tokens_of(single.sample(logits[row : row + 1].clone(), masks_of(allowed[row : row + 1], {"a": 1})))
            one_by_one += ids[0]
            if row == 3 or ids[0] != tokens[row : row + 1]:
                break
            single.commit(request, ids[0][0])
        worker = Worker(V, num_drafts=3)
        worker.add("a", SamplingParams(seed=seed, **params)).drafts = tokens
        worker.states.prefill_len.np[:] = 0  # so that these are real drafts
        worker.states.prefill_len.copy_to_uva()
        assert tokens_of(worker.sample(logits.clone(), masks_of(allowed, {"a": 4}))) == [one_by_one]


def test_verification_in_parts_equals_that_of_the_whole_batch(monkeypatch):
    params = SamplingParams(seed=3, presence_penalty=0.5, logprobs=1)
    logits, masks = make_likely(random_logits(8), [8, 9]), random_masks(ROWS, share=0.9)
    expected = drafting_worker(params).sample(logits.clone(), masks)
    monkeypatch.setattr(v2_sampling, "get_max_chunk_logits", lambda _: 4)
    got = drafting_worker(params).sample(logits.clone(), masks)
    assert tokens_of(got) == tokens_of(expected)
    assert torch.equal(got.num_rejected, expected.num_rejected)
    assert torch.equal(got.logprobs_tensors.logprobs, expected.logprobs_tensors.logprobs)


def test_row_map_follows_drafts_that_were_dropped_on_the_device():
    worker = drafting_worker()
    masks = random_masks(ROWS)
    assert row_map(masks, worker.batch()).tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    batch = worker.batch()
    batch.cu_num_logits = torch.tensor([0, 2, 3, 5], dtype=torch.int32)
    batch.expanded_local_pos = torch.tensor([0, 1, 0, 0, 1], dtype=torch.int32)
    assert row_map(masks, batch).tolist() == [0, 1, 3, -1, -1]


def test_row_map_lets_nothing_be_drawn_from_rows_without_a_mask():
    worker = drafting_worker()
    assert row_map(random_masks({"some": 1, "none": 1}), worker.batch()).tolist() == [0, 2, 2, 1, -1, -1, -1, -1]


def test_row_map_of_a_batch_without_drafts_has_a_row_for_each_request():
    worker = Worker(V)
    for name in "abc":
        worker.add(name, GREEDY)
    assert row_map(random_masks({"c": 1, "a": 1}), worker.batch()).tolist() == [1, -1, 0]


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_a_dead_end_reaches_the_scheduler_but_not_the_next_step(num_drafts: int):
    worker = Worker(V, num_drafts)
    for name in ("dead", "alive"):
        worker.add(name, SamplingParams(temperature=0.0, logprobs=1), output=[7])
        worker.requests[name].drafts = [8] * (num_drafts > 0)
    rows = 1 + (num_drafts > 0)
    allowed = torch.ones(2 * rows, V, dtype=torch.bool)
    allowed[rows - 1] = False
    logits = random_logits(2 * rows)
    logits[:, 8] = 60.0
    output = worker.sample(logits, masks_of(allowed, {"dead": rows, "alive": rows}))
    assert tokens_of(output)[0] == [8] * (rows - 1) + [-1]
    assert tokens_of(output)[1][0] == 8
    assert output.logprobs_tensors.logprob_token_ids.min() >= 0

    counts = worker.sampler.penalties_state.output_bin_counts.clone()
    batch = worker.batch()
    worker.runner.postprocess_sampled(
        batch.idx_mapping, output.sampled_token_ids, output.num_sampled, output.num_rejected, batch.query_start_loc
    )
    slot = worker.states.req_id_to_index["dead"]
    assert worker.states.last_sampled_tokens[slot].item() == 0
    assert worker.states.all_token_ids.gpu.min() >= 0
    changed = worker.sampler.penalties_state.output_bin_counts - counts
    assert changed[slot].sum() == rows
    assert changed[slot, 0] == 1


def test_a_request_that_has_terminated_is_free():
    worker = Worker(V)
    worker.add("done", GREEDY)
    worker.add("b", GREEDY)
    logits = random_logits(2)
    masks = random_masks({"done": 0, "b": 1})
    ids = tokens_of(worker.sample(logits.clone(), masks))
    assert ids == tokens_of(worker.sample_as_vllm(masked(logits, masks, worker)))
    assert ids[0] == [int(logits[0].argmax())]


def test_a_step_of_terminated_requests_only_is_free():
    worker = Worker(V)
    worker.add("done", GREEDY)
    logits = random_logits(1)
    assert tokens_of(worker.sample(logits.clone(), random_masks({"done": 0}))) == [[int(logits[0].argmax())]]


def test_masks_of_one_step_are_not_those_of_the_next():
    worker = Worker(V)
    worker.add("a", GREEDY)
    logits = random_logits(1)
    for _ in range(2):
        assert tokens_of(worker.sample(logits.clone(), random_masks({"a": 1}, share=0.02))) != [[int(logits.argmax())]]
        assert tokens_of(worker.sample(logits.clone())) == [[int(logits.argmax())]]


def test_a_dense_mask_takes_the_path_of_vllm():
    worker = Worker(V)
    worker.add("a", GREEDY)
    logits, batch, masks = random_logits(1), worker.batch(), random_masks({"a": 1})
    expected = masked(logits, masks, worker)
    worker.runner.structured_outputs_worker.apply_grammar_bitmask(logits, batch, ["a"], masks.bitmask)
    assert torch.equal(logits, expected)
    assert worker.sampler(logits, batch).sampled_token_ids.tolist() == [[int(expected.argmax())]]


def test_dense_masks_are_in_the_layout_of_vllm():
    worker = drafting_worker()
    logits, batch, masks = random_logits(8), worker.batch(), random_masks(ROWS)
    expected = masked(logits, masks, worker)
    dense = dense_masks(masks, list(ROWS.values()), 4)
    worker.runner.structured_outputs_worker.apply_grammar_bitmask(logits, batch, list(ROWS), dense)
    assert torch.equal(logits, expected)


class OtherSampler(Sampler):
    pass


def test_a_sampler_that_is_not_known_draws_by_itself_from_masked_logits():
    worker = Worker(V)
    worker.add("a", GREEDY)
    worker.sampler.__class__ = OtherSampler
    logits = random_logits(1)
    masks = random_masks({"a": 1}, share=0.05)
    expected = masked(logits, masks, worker)
    assert tokens_of(worker.sample(logits, masks)) == [[int(expected.argmax())]]
    assert torch.equal(worker.logits, expected)


def test_a_rule_of_acceptance_that_is_not_known_gets_masked_logits():
    worker = drafting_worker()
    worker.runner.rejection_sampler.use_block_verification = True
    logits = make_likely(random_logits(8, dtype=torch.float32), [8, 9])
    masks = random_masks(ROWS, share=0.95)
    expected = masked(logits, masks, worker)
    tokens = tokens_of(worker.sample(logits, masks))
    assert torch.equal(worker.logits, expected)
    assert tokens == tokens_of(drafting_worker().sample_as_vllm(expected))


def test_each_rank_of_sharded_sampling_keeps_its_own_requests():
    from vllm.v1.core.sched.output import GrammarOutput

    masks = random_masks({"a": 1, "b": 1, "c": 1})
    output = GrammarOutput(["a", "b", "c"], masks, [0, 1, 2])
    layout = (object(),) if hasattr(structured_outputs, "_build_grammar_mapping") else ()  # vLLM 0.32
    kept = batch_shard._shard_grammar_output(output, *layout, ["c", "a", "x"])
    assert kept.structured_output_request_ids == ["a", "c"]
    assert kept.num_acceptable_drafts == [0, 2]
    assert kept.grammar_bitmask is masks
    assert batch_shard._shard_grammar_output(output, *layout, ["x"]) is None
    dense = GrammarOutput(["a", "b", "c"], masks.bitmask, [0, 1, 2])
    if not layout:
        assert batch_shard._shard_grammar_output(dense, ["b"]).grammar_bitmask.shape == (1, bitmask_width(V))


def test_a_vllm_that_lacks_a_name_is_left_alone(monkeypatch):
    known, unknown = Hook("collections", "Counter.update", lambda _: None), Hook("collections", "gone", lambda _: None)
    warnings = []
    monkeypatch.setattr(hooks, "manager_hooks", lambda: [known, unknown])
    monkeypatch.setattr(hooks, "_log", SimpleNamespace(warning=lambda *args: warnings.append(args[0] % args[1:])))
    update = Counter.update
    hooks.install(with_sampler=False)
    assert Counter.update is update
    assert warnings == [
        "structout does not know this build of vLLM: module 'collections' has no attribute 'gone'. "
        "Structured output is vLLM's own."
    ]
