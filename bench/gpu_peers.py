"""Compiles the kernels of the peers, so that no bench has to wait for them, and says
which peers cannot be measured here.

    python bench/gpu_peers.py

They compile when they are first called and keep the result on disk. Always succeeds: a
missing peer is named in the results of each bench.
"""

import time
from collections.abc import Callable

import harness
import torch


def xgrammar(backend: str) -> None:
    import xgrammar

    logits = torch.zeros(1, 64, device="cuda")
    xgrammar.apply_token_bitmask_inplace(logits, torch.zeros(1, 2, dtype=torch.int32, device="cuda"), backend=backend)


def llguidance() -> None:
    import llguidance.torch

    logits = torch.zeros(1, 64, device="cuda")
    llguidance.torch.apply_token_bitmask_inplace(logits, torch.zeros(1, 2, dtype=torch.int32, device="cuda"))


def transformers() -> None:
    import transformers.generation.logits_process  # noqa: F401  (whether it can be imported)


def flashinfer() -> None:
    from flashinfer import sampling

    sampling.sampling_from_logits(torch.zeros(1, 64, device="cuda"))
    sampling.top_k_top_p_sampling_from_logits(torch.zeros(1, 2**17, device="cuda"), 50, 0.9)  # compiles more


PEERS: dict[str, Callable[[], None]] = {
    "xgrammar, Triton": lambda: xgrammar("triton"),
    "xgrammar, CUDA": lambda: xgrammar("cuda"),
    "llguidance": llguidance,
    "transformers": transformers,
    "FlashInfer": flashinfer,
}


def main() -> None:
    for name, call in PEERS.items():
        started = time.perf_counter()
        try:
            call()
            torch.cuda.synchronize()
            outcome = "ready"
        except Exception as error:
            outcome = f"MISSING: {harness.short_reason(error)}"
        print(f"{name:<20}{time.perf_counter() - started:6.1f} s  {outcome}", flush=True)


if __name__ == "__main__":
    main()
