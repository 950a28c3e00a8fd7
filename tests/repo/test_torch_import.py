"""structout before torch, and without it."""

import subprocess
import sys

import pytest

OPS = "'apply_bitmask', 'masked_sample', 'fsm_advance', 'verify_drafts', 'sharded_masked_sample'"
IMPORT_AFTER_A_FAILURE = """
import importlib.util, pathlib, sys, structout
pathlib.Path("torch.py").write_text("raise OSError('libcuda is missing')")
sys.path.insert(0, ".")
try:
    import torch
except OSError:
    sys.path.remove(".")
assert importlib.util.find_spec("torch")
import torch
"""


def printed_by(script, folder):
    """What a Python prints that has imported nothing before."""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import structout.ops.token_logprobs, torch",
        "import structout.distributed.collectives, torch",
        IMPORT_AFTER_A_FAILURE,
    ],
)
def test_ops_are_registered_once_both_are_imported(imports, tmp_path):
    script = f"{imports}\nprint(all(hasattr(torch.ops.structout, name) for name in ({OPS})))"
    assert printed_by(script, tmp_path) == "True"


WITHOUT_TORCH = """
import importlib, pkgutil, sys, time
sys.modules["torch"] = None  # every import of it fails
import structout
rooms = [importlib.import_module(f"structout.{name}") for name in ("constraints", "masks", "grammar", "scheduler")]
modules = [found.name for room in rooms for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
failed = []
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError:
        failed.append(module.removeprefix("structout."))
print(len(modules), *failed)
"""


def test_side_of_the_scheduler_imports_without_torch(tmp_path):
    num_modules, *failed = printed_by(WITHOUT_TORCH, tmp_path).split()
    assert int(num_modules) > 80
    assert failed == ["grammar.native.device_fsm", "grammar.optional.xgrammar"]


TEXT_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
from structout import StructuredOutputManager, StructuredOutputsParams, Vocabulary
from structout.masks.bitmask import allowed_tokens

class Bytes:
    vocabulary = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (256,))

schema = {"type": "object", "properties": {"cups": {"enum": [2, 31]}}, "required": ["cups"]}
with StructuredOutputManager(Bytes(), 257) as manager:
    manager.add_request("r", StructuredOutputsParams(json=schema | {"additionalProperties": False}))
    manager.wait_ready("r")
    text = []
    while not manager.is_terminated("r"):
        masks = manager.grammar_bitmask(["r"])
        text.append(int(np.flatnonzero(allowed_tokens(masks.bitmask[0], 257))[-1]))
        assert manager.accept_tokens("r", text[-1:])
print(Bytes.vocabulary.bytes_of(text).decode())
"""


def test_manager_constrains_a_text_without_torch(tmp_path):
    assert printed_by(TEXT_WITHOUT_TORCH, tmp_path) == '{"cups":31}'
