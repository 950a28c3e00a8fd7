"""Runs the tests of vLLM's model runner V2, each file in a process of its own.

They make vLLM use Triton, under its interpreter, which other tests must not see: vLLM
decides about Triton when it is imported.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.locations import ROOT

missing = [name for name in ("vllm", "triton") if importlib.util.find_spec(name) is None]
if missing:
    pytest.skip(f"needs {' and '.join(missing)}: make test-vllm", allow_module_level=True)


@pytest.mark.parametrize("cases", ["v2_sampler_cases", "v2_engine_cases"])
def test_model_runner_v2(cases: str):
    options = ["--disable-plugin-autoload", "--noconftest", "--quiet", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(Path(__file__).with_name(f"{cases}.py"))]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-20000:] + result.stderr[-5000:]
