"""The example of vLLM's offline engine. test_real_model.py runs that of a client."""

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from support.example_scripts import load_example
from support.locations import ROOT
from support.vllm_engines import engine


def test_offline_example_prints_what_its_page_shows(real_model, monkeypatch):
    example = load_example("vllm_offline")
    printed = []
    monkeypatch.setattr(example, "print", printed.append, raising=False)  # stdout has vLLM's log too
    with ExitStack() as engines:
        monkeypatch.setattr(
            example, "LLM", lambda model, **options: engines.enter_context(engine(Path(model), **options)).llm
        )
        example.main(str(real_model))
    text = "\n".join(map(str, printed))
    assert f"```text\n{text}\n```" in (ROOT / "docs" / "vllm.md").read_text()
