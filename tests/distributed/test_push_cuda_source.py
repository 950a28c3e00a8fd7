"""csrc/cuda/push_*.cu without a GPU: ranks as CPU threads, under sanitizers."""

import re
import shutil

import pytest

from support import host_cuda
from support.gpu_code import NEEDS_NVCC, compiled_architectures, ptx_of_source, stack_bytes
from support.locations import CUDA_PROGRAMS

PROGRAM = CUDA_PROGRAMS / "push.cpp"


def run(sanitize, *arguments, csrc=host_cuda.CSRC):
    executable = host_cuda.build("push", [PROGRAM], sanitize=sanitize, shared=False, csrc=csrc)
    return host_cuda.run(executable, *arguments)


@pytest.mark.parametrize(
    ("sanitize", "what", "epochs", "ranks"),
    [
        (None, "mixed", 200, (1, 2, 3, 4, 8)),
        (None, "gather", 200, (2, 3, 8)),
        ("address", "mixed", 60, (1, 2, 3, 4, 8)),
        ("thread", "mixed", 10, (1, 2, 4)),
        ("thread", "mixed", 5, (8,)),
        ("thread", "gather", 10, (2, 3)),
    ],
)
def test_push_kernels_deliver_every_rank_its_peers_bytes(sanitize, what, epochs, ranks, num_cases):
    result = run(sanitize, what, num_cases((epochs + 1) // 2, long=epochs), 1, *ranks)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


@pytest.mark.parametrize("sanitize", [None, "address", "thread"])
@pytest.mark.parametrize(("ranks", "row_element_bytes"), [(2, 0), (3, 2), pytest.param(4, 0, marks=pytest.mark.long)])
@pytest.mark.parametrize("failure", ["absent", "mismatch"])
def test_push_kernels_after_a_failure_set_the_state_and_fill_the_output(failure, ranks, row_element_bytes, sanitize):
    result = run(sanitize, failure, ranks, row_element_bytes)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


MISTAKES = {
    "a signal that does not release": (
        "cuda/push.cuh",
        "store_release_system(&signal->epoch, epoch_)",
        "__atomic_store_n(&signal->epoch, epoch_, __ATOMIC_RELAXED)",
    ),
    "a wait that does not acquire": (
        "cuda/push.cuh",
        "load_acquire_system(&signal->epoch) != epoch_",
        "load_relaxed(&signal->epoch) != epoch_",
    ),
    "no barrier before the signals": (
        "cuda/push.cuh",
        "meet() {\n    __syncthreads();",
        "meet() {",
    ),
    "no barrier after the waits": (
        "cuda/push.cuh",
        "    __syncthreads();\n    return scratch_.have_all_arrived;",
        "    return scratch_.have_all_arrived;",
    ),
    "no wait": (
        "cuda/push.cuh",
        "has_arrived = wait_for(peer(distance));",
        "",
    ),
    "the end of the call is not ordered among blocks": (
        "cuda/push.cuh",
        "      __threadfence();\n      scratch_.is_last_block =",
        "      scratch_.is_last_block =",
    ),
    "one half for gathered bytes": (
        "common/push.h",
        "return signal(0, 2 * world_size, 0) + (half * world_size + source)",
        "return signal(0, 2 * world_size, 0) + (0 * half * world_size + source)",
    ),
    "rows are pushed over rows that may still be read": (
        "cuda/push_rows.cu",
        "must_meet_first = call.follows_push_rows();",
        "must_meet_first = false;",
    ),
}  # fmt: skip


@pytest.mark.planted
@pytest.mark.parametrize("mistake", MISTAKES)
def test_push_kernels_with_a_planted_mistake_fail(mistake, tmp_path):
    file, right, wrong = MISTAKES[mistake]
    csrc = tmp_path / "csrc"
    shutil.copytree(host_cuda.CSRC, csrc)
    source = (csrc / file).read_text()
    assert source.count(right) == 1
    (csrc / file).write_text(source.replace(right, wrong))
    result = run("thread", "mixed", 30, 3, 3, csrc=csrc)
    assert result.returncode != 0
    is_found_by_result = mistake == "no wait" and "has other bytes" in result.stdout
    assert is_found_by_result or "ThreadSanitizer: data race" in result.stderr


@NEEDS_NVCC
def test_push_machine_code_uses_no_stack():
    assert stack_bytes("push_all_gather_kernel") == [0] * len(compiled_architectures())
    assert stack_bytes("push_rows_kernel") == [0] * 2 * len(compiled_architectures())


@NEEDS_NVCC
def test_push_ptx_signals_at_system_scope_and_moves_16_bytes_at_a_time():
    push_all_gather, push_rows = ptx_of_source("push_all_gather_kernel"), ptx_of_source("push_rows_kernel")
    for ptx in (push_all_gather, push_rows):
        assert "st.release.sys.global.u64" in ptx
        assert "ld.acquire.sys.global.u64" in ptx
        assert "st.global.v4.b32" in ptx
    assert "multimem.st.relaxed.sys.global.v4.f32" in push_all_gather
    # Peers write data while the kernel runs, so it must not pass through the read-only
    # cache; addresses may.
    assert not re.search(r"ld\.global\.nc\S*\.(v4|u8|u32|b32)", push_all_gather)
