"""Speculative decoding with draft models, EAGLE and Medusa heads changes no text."""

from typing import get_args

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.config.speculative import SpeculativeMethod

from support.vllm_drafters import save_drafter
from support.vllm_engines import PROMPT, engine, finish_reasons, token_ids
from support.vllm_requests import check_dead_ends, every_kind, seeded_kinds

REPEATING = " ".join([PROMPT] * 4)
NEEDS_MEDUSA = pytest.mark.skipif("medusa" not in get_args(SpeculativeMethod), reason="vLLM 0.33 has no Medusa heads")
# A batch of only these gets no tokens of asynchronous steps before.
SHORT = [SamplingParams(seed=n, max_tokens=40, min_tokens=n, stop_token_ids=[*range(400)]) for n in range(3, 40, 4)]


@pytest.fixture(scope="module")
def expected(small_model):
    """Batches of requests, and their outputs without drafts."""
    with engine(small_model) as plain:
        kinds = every_kind(plain) | {f"seeded, {name}": params for name, params in seeded_kinds().items()}
        # vLLM refuses the others with drafts.
        requests = [params for params in kinds.values() if not params.logit_bias and not params.min_p]
        return [(batch, plain.generate(batch, REPEATING)) for batch in (requests, SHORT)]


@pytest.mark.parametrize(
    ("method", "is_async", "keeps_states"),
    [
        ("draft_model", False, False),
        ("draft_model", False, True),
        ("draft_model", True, None),
        ("eagle", False, True),
        ("eagle", True, None),
        pytest.param("medusa", False, True, marks=NEEDS_MEDUSA),
    ],
)
def test_texts_are_those_without_drafts(small_model, expected, tmp_path, method, is_async, keeps_states):
    drafter = {"method": method, "model": str(save_drafter(tmp_path, method, small_model)), "num_speculative_tokens": 4}
    arguments = {"is_async": is_async, "keeps_states": keeps_states, "speculative_config": drafter}
    with engine(small_model, **arguments) as drafting:
        assert (drafting.states is not None) == bool(keeps_states)
        for batch, outputs_without in expected:
            outputs = drafting.generate(batch, REPEATING)
            assert token_ids(outputs) == token_ids(outputs_without)
            assert finish_reasons(outputs) == finish_reasons(outputs_without)
        check_dead_ends(drafting)
        metrics = {metric.name: metric for metric in drafting.llm.get_metrics()}
        assert metrics["vllm:spec_decode_num_draft_tokens"].value > 100
        if method != "medusa":  # whose heads repeat a token
            assert metrics["vllm:spec_decode_num_accepted_tokens"].value > 100
        drafting.step(2)
        drafting.assert_empty()
