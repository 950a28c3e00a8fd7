"""The sampler that SGLang's model runner makes, alone and with the grammar backend."""

from types import SimpleNamespace

import pytest
import torch

from structout import masked_sample
from support.sglang_imports import make_sglang_importable

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt.layers import sampler as sglang_sampler
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from structout.integrations.sglang.token_sampler import StructoutSampler
from support.sglang_requests import EOS, KEYS, WIDTH, compile_key, is_valid, sampling_info, text_of

# -- the sampler -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampler():
    """The sampler that SGLang's model runner makes, in a group of one rank."""
    group = SimpleNamespace(device_group=None)
    settings = {"sampling_backend": "structout", "grammar_backend": "structout"}
    with get_context().override_server_args(**settings), get_parallel().override(tp_group=group):
        yield sglang_sampler.create_sampler()


def draw(sampler, logits, info, *, return_logprob=False, nums=None, token_ids=None, positions=None):
    output = LogitsProcessorOutput(next_token_logits=logits)
    num_rows = len(logits)
    ids = sampler(
        output,
        info,
        return_logprob,
        nums or [0] * num_rows,
        token_ids or [None] * num_rows,
        torch.arange(num_rows) if positions is None else positions,
    )
    return ids, output


def test_create_sampler_makes_ours(sampler):
    assert type(sampler) is StructoutSampler


def test_sampler_with_seeds_draws_what_masked_sample_draws(sampler):
    logits = torch.randn(6, WIDTH) * 3
    temperatures, top_k = [1.0, 0.5, 2.0, 1.0, 1.0, 0.7], [TOP_K_ALL, 5, 20, 1, 3, TOP_K_ALL]
    top_p, min_p, seed = [1.0, 0.9, 0.5, 1.0, 1.0, 0.8], [0.0, 0.1, 0.0, 0.0, 0.0, 0.2], [1, 2, 3, 4, 5, 6]
    info = sampling_info(6, temperatures, top_p, top_k, min_p, seed)
    before = logits.clone()
    ids, _ = draw(sampler, logits, info, positions=torch.arange(6, dtype=torch.int32) + 10)
    expected = masked_sample(
        logits,
        temperature=torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 0.7]),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor(top_p),
        min_p=torch.tensor(min_p),
        seed=torch.tensor(seed),
        position=torch.arange(6) + 10,
    )
    assert torch.equal(ids, expected)
    assert torch.equal(logits, before)
    assert int(ids[3]) == int(logits[3].argmax())


def test_sampler_without_seeds_follows_torchs_generator(sampler):
    logits = torch.zeros(64, WIDTH)
    torch.manual_seed(0)
    first, _ = draw(sampler, logits, sampling_info(64))
    second, _ = draw(sampler, logits, sampling_info(64))
    torch.manual_seed(0)
    again, _ = draw(sampler, logits, sampling_info(64))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert len(set(first.tolist())) > 32


def test_greedy_batch_takes_the_lowest_of_equal_logits(sampler):
    logits = torch.zeros(3, WIDTH)
    logits[1, 40] = logits[1, 500] = 1.0
    ids, _ = draw(sampler, logits, sampling_info(3, top_k=1))
    assert ids.tolist() == [0, 40, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", [1, TOP_K_ALL, [1, 5, TOP_K_ALL, 7]])
@pytest.mark.parametrize(
    ("nums", "token_ids"),
    [([0, 3, 1, 0], None), ([0, 0, 0, 0], None), ([2, 0, 70, 0], None), ([0, 2, 0, 0], [[3, 9], None, [4], None])],
)
def test_logprobs_agree_with_sglangs_own_sampler(sampler, dtype, top_k, nums, token_ids):
    logits = torch.randn(4, WIDTH, dtype=torch.float32).to(dtype)
    logits[2, 100:] = -torch.inf
    info = sampling_info(4, [1.0, 0.5, 2.0, 0.7], 1.0, top_k, 0.0, [1, 2, 3, 4])
    arguments = {"return_logprob": True, "nums": nums, "token_ids": token_ids}
    ids, ours = draw(sampler, logits, info, **arguments)
    scores = logits.float() if info.is_all_greedy else logits.float() / info.temperatures
    theirs = LogitsProcessorOutput(next_token_logits=logits)
    sampler.output_logprob_processor.compute_logprobs(
        scores.log_softmax(-1), nums, token_ids or [None] * 4, ids
    ).write_output_to(theirs)
    torch.testing.assert_close(ours.next_token_logprobs, theirs.next_token_logprobs, rtol=1e-5, atol=1e-5)
    for name in ("next_token_top_logprobs_val", "next_token_token_ids_logprobs_val"):
        for mine, expected in zip(getattr(ours, name) or [], getattr(theirs, name) or [], strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
    assert (ours.next_token_top_logprobs_val is None) == (theirs.next_token_top_logprobs_val is None)
    for mine, expected in zip(
        ours.next_token_top_logprobs_idx or [], theirs.next_token_top_logprobs_idx or [], strict=True
    ):
        assert mine.shape == expected.shape
        assert dtype is torch.bfloat16 or torch.equal(mine, expected)  # bfloat16 has ties


def test_row_without_a_token_gets_one_that_its_grammar_refuses(sampler, backend):
    logits = torch.full((3, WIDTH), -torch.inf)
    logits[1] = torch.nan
    logits[2, 9] = 0.0
    ids, output = draw(sampler, logits, sampling_info(3, top_k=50), return_logprob=True, nums=[2, 2, 2])
    assert ids.tolist() == [0, 0, 9]
    assert bool(torch.isfinite(output.next_token_logprobs).all())
    assert all(int(row.min()) >= 0 for row in output.next_token_top_logprobs_idx)
    with pytest.raises(ValueError, match="does not allow token 0"):
        compile_key(backend, KEYS["json"]).accept_token(int(ids[0]))


def test_request_for_the_sampling_mask_is_served_by_sglangs_code(sampler):
    logits = torch.randn(3, WIDTH)
    info = sampling_info(3, top_k=5)
    info.return_sampling_masks = [True, False, True]
    info.sampling_mask_batch_indices = torch.tensor([0, 2])
    top = logits.topk(5).indices
    ids, output = draw(sampler, logits.clone(), info)
    assert output.sampling_mask_output.lengths.tolist() == [5, 5]
    assert all(int(ids[row]) in top[row].tolist() for row in range(3))


def test_sampler_refuses_to_sample_for_training(sampler):
    group = SimpleNamespace(device_group=None)
    settings = {"sampling_backend": "structout", "rl_on_policy_target": "fsdp"}
    with (
        get_context().override_server_args(**settings),
        get_parallel().override(tp_group=group),
        pytest.raises(ValueError, match="does not support --rl-on-policy-target"),
    ):
        sglang_sampler.create_sampler()


def test_backend_and_sampler_together_generate_valid_texts(sampler, backend):
    """Eight requests in one batch, with SGLang's own mask calls, to their end."""
    kinds = [*KEYS, None]
    grammars = [None if kind is None else compile_key(backend, KEYS[kind]) for kind in kinds]
    outputs = [[] for _ in kinds]
    generator = torch.Generator().manual_seed(5)
    for step in range(400):
        for grammar in filter(None, grammars):
            grammar.finished = grammar.is_terminated()
        info = sampling_info(len(kinds), 0.8, 0.95, 200, 0.0, list(range(len(kinds))), grammars)
        info.update_regex_vocab_mask()
        logits = torch.randn(len(kinds), WIDTH, generator=generator)
        logits[:, [EOS, *backend._vocabulary.spell('"}]')]] += step / 10
        info.apply_logits_bias(logits)
        info.grammars = None  # their ids are equal on all ranks, of which there is one
        ids, _ = draw(sampler, logits, info, positions=torch.full((len(kinds),), step))
        for output, grammar, token in zip(outputs, grammars, ids.tolist(), strict=True):
            if grammar is None or not grammar.is_terminated():
                output.append(token)
            if grammar is not None:
                grammar.accept_token(token)
        if all(grammar is None or grammar.is_terminated() for grammar in grammars):
            break
    for kind, output in zip(kinds, outputs, strict=True):
        assert kind is None or is_valid(kind, text_of(backend, output[:-1])), kind
