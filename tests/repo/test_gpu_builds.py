"""What can be known of the GPU code without a GPU: that it compiles, and into which instructions."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import structout

ARCHITECTURES = (80, 90, 100)
CUDA_LIBRARY = Path(structout.__file__).parent / "_C_cuda.so"
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None and not CUDA_LIBRARY.exists(), reason="needs nvcc")


def cuobjdump(*arguments: str) -> str:
    """NVIDIA's disassembler, which Triton brings along."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, *arguments, CUDA_LIBRARY], capture_output=True, text=True, check=True).stdout


@NEEDS_NVCC
def test_the_cuda_library_has_code_for_every_architecture_and_spills_nothing():
    usage = cuobjdump("--dump-resource-usage")
    for architecture in ARCHITECTURES:
        assert f"arch = sm_{architecture}" in usage
    assert "Fatbin ptx code" in cuobjdump("--list-ptx") or ".ptx" in cuobjdump("--list-ptx")
    stacks = [line for line in usage.splitlines() if "STACK:" in line]
    assert len(stacks) >= 2 * len(ARCHITECTURES)
    assert all("STACK:0 " in line for line in stacks)


@NEEDS_NVCC
def test_apply_bitmask_moves_16_bytes_at_a_time_and_never_reads_logits():
    sections = cuobjdump("-sass", "-arch", "sm_90").split("Function : ")[1:]
    kernels = [section for section in sections if "apply_bitmask_kernel" in section.splitlines()[0]]
    assert len(kernels) == 2
    for sass in kernels:
        assert "LDG.E.128" in sass
        assert "STG.E.128" in sass
        # 16-byte loads are of the mask, and there is one; 16-bit loads could only be of logits.
        assert sass.count("LDG.E.128") == 1
        assert not re.search(r"LDG?\.E\.U16", sass)


TRITON_SCRIPT = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from structout.triton_kernels.apply_bitmask import TILE_WORDS, apply_bitmask_kernel

architecture, logits, has_rows = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "rows"
names = apply_bitmask_kernel.arg_names
signature = dict.fromkeys(names, "i32") | {"logits": f"*{logits}", "bitmask": "*i32", "rows": "*i64"}
signature |= {"HAS_ROWS": "constexpr", "TILE_WORDS": "constexpr"}
aligned = [names.index(name) for name in ("logits", "bitmask", "logits_row_stride", "mask_row_stride")]
source = ASTSource(
    apply_bitmask_kernel,
    signature,
    {"HAS_ROWS": has_rows, "TILE_WORDS": TILE_WORDS},
    {(i,): [["tt.divisibility", 16]] for i in aligned},
)
options = {"num_warps": 4, "enable_fp_fusion": False}
compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
assert len(compiled.asm["cubin"]) > 1000
print(compiled.asm["ptx"])
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("logits", "rows"), [("fp32", "rows"), ("bf16", "none"), ("fp16", "rows")])
def test_the_triton_kernel_compiles_and_stores_vectors(architecture, logits, rows):
    """In a process of its own: this one may have decorated the kernel for the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", TRITON_SCRIPT, str(architecture), logits, rows]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "st.global.v4.b32" in run.stdout
    # Mask words and row ids are loaded one by one; a vector or 16-bit load could only be of logits.
    assert not re.search(r"ld\.global\S*\.(v[248]|b16)", run.stdout)
