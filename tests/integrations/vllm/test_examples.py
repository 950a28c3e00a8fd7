"""The example of vLLM's offline engine. test_server.py runs that of a client."""

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from support.example_scripts import load_example
from support.vllm_engines import engine


def test_offline_example_prints_an_order_and_an_answer(small_model, monkeypatch):
    example = load_example("vllm_offline")
    printed = []
    monkeypatch.setattr(example, "print", printed.append, raising=False)  # stdout has vLLM's log too
    with ExitStack() as engines:
        monkeypatch.setattr(
            example, "LLM", lambda model, **options: engines.enter_context(engine(Path(model), **options)).llm
        )
        example.main(str(small_model))
    order, answer = printed
    assert json.loads(order).keys() == {"item", "cups"}
    assert json.loads(order)["item"] in ("tea", "coffee")
    assert json.loads(order)["cups"] in range(1, 10)
    assert re.fullmatch(r"(yes|no), \d{1,3}%", answer)
