"""The example prints what its page shows."""

import runpy

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

from structout.cli.smollm2 import find_gguf
from support.locations import ROOT


def test_example_prints_what_its_page_shows(capsys):
    runpy.run_path(str(ROOT / "examples" / "llama_cpp_order.py"))["main"](str(find_gguf(None)))
    assert f"```text\n{capsys.readouterr().out}```" in (ROOT / "docs" / "llama_cpp.md").read_text()
