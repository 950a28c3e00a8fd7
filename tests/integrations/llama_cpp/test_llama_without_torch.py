"""The adapter where torch is missing: all but its own draws."""

import subprocess
import sys

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

from structout.cli.smollm2 import find_gguf

WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None  # every import of it fails
from llama_cpp import Llama

import structout.integrations.llama_cpp as adapter

llama = Llama(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
schema = {"type": "object", "properties": {"age": {"enum": [34, 43]}}, "required": ["age"]}
for constraint in ({"json": schema | {"additionalProperties": False}}, {"tools": [{"name": "now"}]}):
    processor = adapter.StructuredLogitsProcessor(llama, **constraint, max_tokens=60)
    answer = llama("Maria is 34.", max_tokens=60, temperature=0, logits_processor=[processor])
    print(processor.parse(answer["choices"][0]["text"]))
try:
    adapter.generate
except ImportError as error:
    print(error.name)
print([name for name in sys.modules if name.startswith(("structout.ops", "structout.integrations.transformers"))])
"""


def test_processor_masks_a_text_to_its_end_without_torch(tmp_path):
    command = [sys.executable, "-c", WITHOUT_TORCH, str(find_gguf(None))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    age, calls, missing, loaded = run.stdout.splitlines()
    assert age in ("{'age': 34}", "{'age': 43}")
    assert calls == "[]" or "now" in calls
    assert (missing, loaded) == ("torch", "[]")
