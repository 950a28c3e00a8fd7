"""Two workers, each with half of the model."""

import pytest

pytest.importorskip("vllm")

from support.vllm_engines import engine, finish_reasons, token_ids
from support.vllm_requests import dead_ends, every_kind, seeded_kinds


def test_two_workers_draw_what_one_draws(small_model):
    with engine(small_model) as alone:
        kinds = every_kind(alone)
        names = "all penalties", "allowed, bad words, bias, penalties", "regex", "json", "regex, minimum"
        requests = [*(kinds[name] for name in names), *seeded_kinds().values()]
        for params in requests:
            params.max_tokens = min(params.max_tokens, 30)
        expected = alone.generate(requests)
    with engine(small_model, tensor_parallel_size=2, distributed_executor_backend="mp") as running:
        outputs = running.generate(requests)
        assert token_ids(outputs) == token_ids(expected)
        assert finish_reasons(outputs) == finish_reasons(expected)
        ends = dead_ends(running)
        assert finish_reasons(running.generate([params for params, _ in ends[:4]])) == [["error"]] * 4
        assert running.num_held == 0
