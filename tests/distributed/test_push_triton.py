"""push_all_gather in Triton without a GPU: interpreted in processes, and compiled."""

import json
import os
import re
import subprocess
import sys

import pytest

from support import fresh_process
from support.locations import TESTS

RANKS = TESTS / "support" / "push_ranks.py"


def run_ranks(*arguments):
    run = fresh_process.run(str(RANKS), *map(str, arguments), env=dict(os.environ))
    assert run.returncode == 0, run.stderr


@pytest.mark.interpreter
@pytest.mark.parametrize(("world_size", "epochs"), [(1, 5), (3, 20), pytest.param(2, 30, marks=pytest.mark.long)])
def test_push_all_gather_delivers_every_rank_its_peers_bytes(world_size, epochs, num_cases):
    run_ranks(world_size, num_cases((epochs + 1) // 2, long=epochs), 1)


@pytest.mark.interpreter
@pytest.mark.parametrize("failure", ["absent", "mismatch"])
def test_push_all_gather_after_a_failure_sets_the_state_and_fills_the_output(failure):
    run_ranks(3, 0, 0, failure)


COMPILE = """
import json, triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from structout.triton_kernels.push import LANES, NUM_WARPS, TILE, push_all_gather_kernel as kernel

def ptx(architecture, element, constant_size={}):
    constants = {"ELEMENT": element, "LANES": LANES, "TILE": TILE, "HAS_CLOCK": True, **constant_size}
    types = {"shard_bytes": "*u8", "out_bytes": "*u8", "state": "*i64", "rank": "i32", "world_size": "i32"}
    types |= {"fill_on_error": "i32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i64") for name in kernel.arg_names}
    aligned = {"shard_bytes", "out_bytes", "size"} - constants.keys()
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": NUM_WARPS})
    assert len(compiled.asm["cubin"]) > 1000
    return compiled.asm["ptx"]

words = [ptx(architecture, tl.int32) for architecture in (80, 90, 100)]
print(json.dumps([words, [ptx(90, tl.int8), ptx(90, tl.int8, {"size": 1})]]))
"""


def test_push_all_gather_ptx_signals_at_system_scope_and_moves_16_bytes_at_a_time():
    """Compiles in a new process, because here the kernel may be an interpreted one."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    words_ptx, bytes_ptx = json.loads(run.stdout)
    for ptx in [*words_ptx, *bytes_ptx]:
        assert re.search(r"atom\.global\.(sys\.release|release\.sys)\.exch\.b64", ptx)
        assert re.search(r"atom\.global\.(sys\.acquire|acquire\.sys)\.add\.u64", ptx)
        assert "ld.global.nc" not in ptx
    for ptx in words_ptx:
        assert ptx.count("st.global.v4.b32") == 4  # to peers, twice to out, and to fill out after a failure
        assert ptx.count("ld.global.v4.b32") == 3
