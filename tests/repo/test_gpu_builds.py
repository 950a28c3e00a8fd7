"""The compiled GPU code, read without a GPU: architectures, spills and instructions."""

import re
import shutil
import subprocess

import pytest

from structout.triton_kernels.apply_bitmask import NUM_WARPS, TILE_BYTES
from support.gpu_code import (
    ARCHITECTURES,
    CUDA_LIBRARY,
    NEEDS_NVCC,
    compiled_architectures,
    cuobjdump,
    function_names,
    require_architectures,
)
from support.locations import ROOT
from support.triton_ptx import Kernel, compile_for


@NEEDS_NVCC
def test_cuda_library_names_torchs_libraries_as_needed_and_has_no_search_path():
    """torch does not make its symbols global, so the loader has to find them by these
    names."""
    dynamic = subprocess.run(["readelf", "-d", CUDA_LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert {"libtorch_cpu.so", "libtorch_cuda.so"} <= set(needed)
    assert not any(name.startswith("libcudart") for name in needed)
    assert "PATH)" not in dynamic


@NEEDS_NVCC
def test_cuda_library_has_code_for_every_architecture():
    require_architectures(*ARCHITECTURES)
    assert compiled_architectures() == list(ARCHITECTURES)


@NEEDS_NVCC
def test_cuda_library_has_ptx_and_spills_nothing():
    usage = cuobjdump("--dump-resource-usage")
    assert "Fatbin ptx code" in cuobjdump("--list-ptx") or ".ptx" in cuobjdump("--list-ptx")
    stacks = [line for line in usage.splitlines() if "STACK:" in line]
    assert len(stacks) >= 2 * len(compiled_architectures())
    assert all("STACK:0 " in line for line in stacks)


@NEEDS_NVCC
def test_apply_bitmask_in_cuda_moves_16_bytes_at_a_time():
    require_architectures(90)
    names = {name for name in function_names() if "apply_bitmask_by" in name}
    kernels = cuobjdump("-sass", "-arch", "sm_90", "-fun", ",".join(names)).split("Function : ")[1:]
    assert len(kernels) == len(names) == 4
    for sass in kernels:
        assert "LDG.E.128" in sass
        assert "STG.E.128" in sass
        assert not re.search(r"LDG?\.E\.U16", sass)  # of a single logit


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("source", "flags"),
    [
        ("masked_sample", ["-G"]),  # without optimizations, which would take a minute
        ("listed_logits", []),
        ("verify_drafts", []),
        ("fsm_states", []),
        ("push_all_gather", ["-G"]),
        ("push_rows", ["-G"]),
    ],
)
def test_nvcc_accepts_the_kernels_without_a_message(source, flags, tmp_path):
    command = ["nvcc", "-ptx", *flags, "-arch=sm_90", "-std=c++17", f"-I{ROOT / 'csrc'}"]
    command += [str(ROOT / "csrc" / "cuda" / f"{source}.cu"), "-o", str(tmp_path / "kernels.ptx")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("logits", "rows"), [("fp32", "rows"), ("bf16", "none"), ("fp16", "rows")])
def test_the_triton_kernel_compiles_and_moves_vectors(architecture, logits, rows):
    kernel = Kernel(
        "apply_bitmask",
        "apply_bitmask_kernel",
        {"logits": logits, "bitmask": "i32", "rows": "i64"},
        {"HAS_ROWS": rows == "rows", "TILE_BYTES": TILE_BYTES},
        ("logits", "bitmask", "logits_row_stride", "mask_row_stride"),
        num_warps=NUM_WARPS,
    )
    ptx = compile_for(architecture, kernel)
    # What is stored as vectors is loaded as vectors.
    assert ptx.count("ld.global.v4.b32") == ptx.count("st.global.v4.b32") > 0
