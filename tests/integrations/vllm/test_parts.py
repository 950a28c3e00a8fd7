"""The adapter's parts beside vLLM's own code, without an engine."""

import math
import random

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from structout.integrations.vllm.layout import Layout
from structout.integrations.vllm.logprobs import _distinct, dense_logprobs, is_dense, listed_logprobs
from structout.integrations.vllm.mask_edits import MaskEdits, edits_masks
from structout.integrations.vllm.token_lists import TokenLists
from structout.masks.bitmask import bitmask_width
from structout.ops.listed_logits import apply_logit_bias, apply_penalties
from structout.ops.sampler import DeviceMasks
from structout.ops.token_bitmask import pack_bitmask, unpack_bitmask

VOCAB_SIZE = 77
CPU = torch.device("cpu")


def request(request_id="a", prompt=(), output=(), **arguments):
    """A request of vLLM's worker."""
    params = SamplingParams(**{"max_tokens": 50} | arguments)
    params.update_from_generation_config({}, eos_token_id=2)
    return CachedRequestState(
        req_id=request_id,
        prompt_token_ids=list(prompt),
        mm_features=[],
        sampling_params=params,
        generator=None,
        block_ids=([],),
        num_computed_tokens=0,
        output_token_ids=list(output),
    )


def with_bad_words(words, **arguments):
    made = request(**arguments)
    made.sampling_params._bad_words_token_ids = words
    return made


def allowed_tokens(masks, rows):
    """The tokens that each logits row may be, None for all."""
    unpacked = unpack_bitmask(torch.from_numpy(masks), VOCAB_SIZE)
    return [None if row < 0 else set(unpacked[row].nonzero().flatten().tolist()) for row in rows]


def edited(requests, num_drafts=None, drafts=(), masks=None, rows=None):
    layout = Layout(requests, num_drafts, drafts)
    editing = [each for each in requests if edits_masks(each.sampling_params)]
    masks, rows = MaskEdits(VOCAB_SIZE).edited(layout, editing, masks, rows)
    return [None] * layout.num_rows if rows is None else allowed_tokens(masks, rows)


def grammar_masks(*allowed):
    """A mask for each set of tokens."""
    is_allowed = torch.zeros(len(allowed), VOCAB_SIZE, dtype=torch.bool)
    for row, tokens in enumerate(allowed):
        is_allowed[row, list(tokens)] = True
    return pack_bitmask(is_allowed).numpy()


EVERY = set(range(VOCAB_SIZE))


# -- layout ----------------------------------------------------------------------------


def test_the_layout_of_drafts_has_one_row_more_for_each_request():
    requests = [request("a"), request("b"), request("c")]
    layout = Layout(requests, [2, 0, 1], [[7, 8], [], [9]])
    assert layout.num_logits == [3, 1, 2]
    assert layout.row_indptr.tolist() == [0, 3, 4, 6]
    assert layout.index_of_row.tolist() == [0, 0, 0, 1, 2, 2]
    assert layout.place_of_row.tolist() == [0, 1, 2, 0, 0, 1]
    rows = [(each.req_id, row, list(before)) for each, row, before in layout.rows_of([requests[2], requests[0]])]
    assert rows == [("c", 4, []), ("c", 5, [9]), ("a", 0, []), ("a", 1, [7]), ("a", 2, [7, 8])]


# -- mask edits ------------------------------------------------------------------------


def test_requests_that_forbid_nothing_leave_the_masks_as_they_are():
    masks, rows = grammar_masks({1, 2}), np.array([0, -1], dtype=np.int32)
    layout = Layout([request("a"), request("b")])
    assert MaskEdits(VOCAB_SIZE).edited(layout, [], masks, rows) == (masks, rows)
    assert MaskEdits(VOCAB_SIZE).edited(layout, [], None, None) == (None, None)


def test_min_tokens_forbids_the_stop_tokens_until_they_are_reached():
    stops = {"min_tokens": 3, "stop_token_ids": [5, 6]}
    assert edited([request(output=[1, 1], **stops)]) == [EVERY - {2, 5, 6}]
    assert edited([request(output=[1, 1, 1], **stops)]) == [None]
    assert edited([request(output=[1], **stops)], [3], [[4, 4, 4]]) == [
        EVERY - {2, 5, 6},
        EVERY - {2, 5, 6},
        EVERY,
        EVERY,
    ]


def test_a_grammar_that_can_only_end_overrides_min_tokens():
    requests = [request("a", min_tokens=9), request("b", min_tokens=9)]
    rows = np.array([0, 1], dtype=np.int32)
    assert edited(requests, masks=grammar_masks({2}, {2, 7}), rows=rows) == [{2}, {7}]


def test_min_tokens_does_not_open_an_empty_mask():
    assert edited([request(min_tokens=9)], masks=grammar_masks(set()), rows=np.array([0], dtype=np.int32)) == [set()]


def test_allowed_tokens_are_those_that_the_grammar_allows_too():
    requests = [request("a", allowed_token_ids=[1, 2, 76]), request("b", allowed_token_ids=[1, 2]), request("c")]
    rows = np.array([-1, 0, 0], dtype=np.int32)
    assert edited(requests, masks=grammar_masks({2, 3}), rows=rows) == [{1, 2, 76}, {2}, {2, 3}]


def test_the_masks_of_the_grammars_are_not_written():
    masks = grammar_masks({2, 3})
    before = masks.copy()
    edited([request(allowed_token_ids=[2])], masks=masks, rows=np.array([0], dtype=np.int32))
    assert (masks == before).all()


@pytest.mark.parametrize("seed", range(20))
def test_bad_words_across_drafts_are_those_that_vllm_forbids(seed):
    rng = random.Random(seed)
    words = [[rng.randrange(3) for _ in range(rng.randint(1, 4))] for _ in range(4)]
    output = [rng.randrange(3) for _ in range(rng.randint(0, 5))]
    drafts = [rng.randrange(3) for _ in range(rng.randint(0, 4))]
    logits = torch.zeros(len(drafts) + 1, VOCAB_SIZE)
    past = [output + drafts[:place] for place in range(len(drafts) + 1)]
    apply_bad_words(logits, dict.fromkeys(range(len(past)), words), past)
    expected = [set((row == 0).nonzero().flatten().tolist()) for row in logits]
    assert edited([with_bad_words(words, output=output)], [len(drafts)], [drafts]) == expected


def test_a_bad_word_longer_than_the_text_forbids_nothing():
    assert edited([with_bad_words([[1, 1, 5]], output=[1])]) == [EVERY]
    assert edited([with_bad_words([[1, 1, 5]], output=[1, 1])]) == [EVERY - {5}]
    assert edited([with_bad_words([[1, 1, 5]], output=[])], [2], [[1, 1]]) == [EVERY, EVERY, EVERY - {5}]


def test_stop_tokens_past_the_vocabulary_are_ignored():
    ids = [VOCAB_SIZE + 500]
    assert edited([request(min_tokens=3, stop_token_ids=ids)]) == [EVERY - {2}]


def test_the_mask_is_as_wide_as_the_grammars():
    masks = np.full((1, bitmask_width(VOCAB_SIZE)), -1, dtype=np.int32)
    layout = Layout([request(allowed_token_ids=[3])])
    edited_masks, rows = MaskEdits(VOCAB_SIZE).edited(layout, layout.requests, masks, None)
    assert edited_masks.shape == (2, bitmask_width(VOCAB_SIZE))
    assert rows.tolist() == [1]


# -- penalties and bias ----------------------------------------------------------------


def penalized(lists, logits, requests, num_drafts=None, drafts=()):
    logits = logits.clone()
    p = lists.penalties(Layout(requests, num_drafts, drafts), requests)
    per_row = {"repetition": p.repetition, "frequency": p.frequency, "presence": p.presence}
    apply_penalties(logits, p.indptr, p.token_ids, p.output_counts, **per_row)
    return logits


def vllm_penalized(logits, requests, outputs):
    params = [each.sampling_params for each in requests]
    logits = logits.clone()
    longest = max(len(each.prompt_token_ids) for each in requests)
    prompts = torch.full((len(requests), longest), VOCAB_SIZE)
    for row, each in enumerate(requests):
        prompts[row, : len(each.prompt_token_ids)] = torch.tensor(each.prompt_token_ids)
    return apply_all_penalties(
        logits,
        prompts,
        torch.tensor([p.presence_penalty for p in params]),
        torch.tensor([p.frequency_penalty for p in params]),
        torch.tensor([p.repetition_penalty for p in params]),
        outputs,
    )


@pytest.mark.parametrize("seed", range(10))
def test_penalties_equal_vllms_bit_for_bit(seed):
    rng = random.Random(seed)
    logits = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5
    logits[0, :5] = -math.inf

    def tokens(longest):
        return [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, longest))]

    requests = [
        request(
            str(i),
            tokens(20),
            tokens(60),
            repetition_penalty=rng.choice([0.5, 1.0, 2.0]),  # their reciprocals are exact
            frequency_penalty=rng.uniform(-2, 2),
            presence_penalty=rng.choice([0.0, -1.3, 1.9]),
        )
        for i in range(6)
    ]
    lists = TokenLists(CPU)
    for _ in range(3):
        expected = vllm_penalized(logits, requests, [each.output_token_ids for each in requests])
        assert torch.equal(penalized(lists, logits, requests), expected)
        for each in requests:
            each.output_token_ids.extend(tokens(3))


@pytest.mark.parametrize("repetition", [0.3, 1.1, 1.7])
def test_repetition_penalties_are_those_of_vllm_up_to_rounding(repetition):
    # On the CPU vLLM multiplies by the reciprocal. On a GPU it divides.
    made = request(prompt=range(20), output=range(10, 40), repetition_penalty=repetition)
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 5
    expected = vllm_penalized(logits, [made], [made.output_token_ids])
    torch.testing.assert_close(penalized(TokenLists(CPU), logits, [made]), expected, rtol=3e-7, atol=0)


def test_counts_are_right_after_vllm_takes_tokens_back():
    made = request(prompt=[1, 2], output=[3, 3, 4, 5], frequency_penalty=0.5, repetition_penalty=2.0)
    lists = TokenLists(CPU)
    logits = torch.linspace(-3, 3, VOCAB_SIZE).unsqueeze(0)
    penalized(lists, logits, [made])
    del made.output_token_ids[1:]
    expected = vllm_penalized(logits, [made], [[3]])
    assert torch.equal(penalized(lists, logits, [made]), expected)


def test_penalties_count_the_drafts_before_each_row():
    made = request(prompt=[1], output=[3], frequency_penalty=0.5, presence_penalty=0.2)
    logits = torch.linspace(-3, 3, VOCAB_SIZE).repeat(3, 1)
    expected = vllm_penalized(logits, [made] * 3, [[3], [3, 9], [3, 9, 3]])
    lists = TokenLists(CPU)
    assert torch.equal(penalized(lists, logits, [made], [2], [[9, 3]]), expected)
    # Refused drafts are not counted later.
    assert torch.equal(penalized(lists, logits[:1], [made]), vllm_penalized(logits[:1], [made], [[3]]))


def test_another_request_with_the_same_id_is_counted_anew():
    lists = TokenLists(CPU)
    logits = torch.linspace(-3, 3, VOCAB_SIZE).unsqueeze(0)
    penalized(lists, logits, [request("a", [1], [5, 6], presence_penalty=1.0)])
    assert lists.penalties(Layout([request("b")]), []) is None
    other = request("a", [2], [7, 7, 7], presence_penalty=1.0)
    assert torch.equal(penalized(lists, logits, [other]), vllm_penalized(logits, [other], [[7, 7, 7]]))


def test_a_bias_applies_to_each_row_of_its_request():
    requests = [request("a"), request("b", logit_bias={3: 1.5, 70: -2.0}), request("c", logit_bias={1: 0.5})]
    layout = Layout(requests, [0, 1, 0])
    bias = TokenLists(CPU).bias(layout, requests[1:])
    logits = torch.zeros(4, VOCAB_SIZE)
    apply_logit_bias(logits, bias.indptr, bias.token_ids, bias.bias)
    assert [{i: row[i].item() for i in row.nonzero().flatten().tolist()} for row in logits] == [
        {},
        {3: 1.5, 70: -2.0},
        {3: 1.5, 70: -2.0},
        {1: 0.5},
    ]


# -- logprobs --------------------------------------------------------------------------


def test_missing_ids_of_a_list_become_ids_that_are_not_in_it():
    top = torch.tensor([[5, 0, 1, -1, -1], [-1, -1, -1, -1, -1], [4, 3, 2, 1, 0], [9, 8, 7, 6, -1]])
    distinct = _distinct(top)
    for row, before in zip(distinct.tolist(), top.tolist(), strict=True):
        assert len(set(row)) == len(row)
        assert [new for new, old in zip(row, before, strict=True) if old >= 0] == [i for i in before if i >= 0]


def metadata(**changes):
    return SamplingMetadata(
        **{
            "temperature": None,
            "all_greedy": True,
            "all_random": False,
            "top_p": None,
            "top_k": None,
            "generators": {},
            "max_num_logprobs": 5,
            "no_penalties": True,
            "prompt_token_ids": None,
            "frequency_penalties": torch.empty(0),
            "presence_penalties": torch.empty(0),
            "repetition_penalties": torch.empty(0),
            "output_token_ids": [],
            "allowed_token_ids_mask": None,
            "bad_words_token_ids": {},
            "logitsprocs": LogitsProcessors(),
        }
        | changes
    )


@pytest.mark.parametrize(
    ("changes", "mode", "expected"),
    [
        ({}, "raw_logprobs", False),
        ({"max_num_logprobs": 0}, "raw_logprobs", False),
        ({"max_num_logprobs": 64}, "raw_logprobs", False),
        ({"max_num_logprobs": 65}, "raw_logprobs", True),
        ({"max_num_logprobs": -1}, "raw_logprobs", True),
        ({"logprob_token_ids": {0: [3]}}, "raw_logprobs", True),
        ({}, "raw_logits", True),
    ],
)
def test_long_lists_and_raw_logits_are_computed_as_vllm_does(changes, mode, expected):
    assert is_dense(metadata(**changes), mode) is expected


@pytest.mark.parametrize("top_n", [0, 1, 5, 64])
@pytest.mark.parametrize("is_masked", [False, True])
def test_listed_logprobs_equal_dense_ones(top_n, is_masked):
    logits = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    masks = None
    if is_masked:
        bitmask = torch.from_numpy(grammar_masks(range(30), {5}))
        masks = DeviceMasks(bitmask, torch.tensor([0, -1, 1, 0], dtype=torch.int32))
    before = logits.clone()
    ids = torch.tensor([3, 50, 5, 7])
    listed = listed_logprobs(logits, ids, masks, top_n)
    dense = dense_logprobs(Sampler(), logits, ids, masks, metadata(max_num_logprobs=top_n))
    assert torch.equal(logits, before)
    torch.testing.assert_close(listed.logprobs, dense.logprobs, atol=1e-5, rtol=0)
    assert listed.selected_token_ranks.tolist() == dense.selected_token_ranks.tolist()
    finite = dense.logprobs > -math.inf
    assert torch.equal(listed.logprob_token_ids[finite], dense.logprob_token_ids[finite])
    assert listed.logprob_token_ids.dtype == dense.logprob_token_ids.dtype
    assert ((listed.logprob_token_ids >= 0) & (listed.logprob_token_ids < VOCAB_SIZE)).all()


def test_logprobs_of_a_dead_end_have_valid_ids():
    logits = torch.randn(1, VOCAB_SIZE)
    masks = DeviceMasks(torch.from_numpy(grammar_masks(set())), torch.tensor([0], dtype=torch.int32))
    result = listed_logprobs(logits, torch.tensor([-1]), masks, 3)
    assert (result.logprob_token_ids >= 0).all()
    assert (result.logprobs == -math.inf).all()
