"""Run push_all_gather as Triton compiles it for a GPU: each rank is a thread of this
process and a device of the machine that executes PTX, which finds data races between
devices.

Usage: python push_ranks_on_ptx.py ARCHITECTURE RANKS EPOCHS SEED [absent] [mismatch]
       [--replace OLD NEW]

``absent`` and ``mismatch`` are failures that new ranks run into after the epochs.

``--replace`` plants a fault: a pattern that the PTX must have, and its replacement.
"""

from __future__ import annotations

import argparse
import os
import re
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from support import triton_on_ptx
from support.ptx_machine import watching


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("architecture", "world_size", "epochs", "seed"):
        parser.add_argument(name, type=int)
    parser.add_argument("failures", nargs="*", metavar="absent | mismatch")
    parser.add_argument("--replace", nargs=2, metavar=("OLD", "NEW"))
    asked = parser.parse_args()

    def changed(text: str) -> str:
        if asked.replace is None:
            return text
        text, count = re.subn(*asked.replace, text)
        assert count > 0, f"no {asked.replace[0]} in the PTX"
        return text

    triton_on_ptx.install(asked.architecture, changed, races=1, undefined=1, equal_stores=1)
    from support.push_ranks import buffer_size, run, run_failure  # decorates the kernel for what is installed

    def run_rank(rank: int, failure: str | None) -> None:
        if failure is None:
            run(rank, buffers, asked.epochs, asked.seed)
        else:
            run_failure(rank, buffers, failure)

    for failure in (None, *asked.failures):
        buffers = [torch.zeros(buffer_size(asked.world_size), dtype=torch.uint8) for _ in range(asked.world_size)]
        with watching(buffers), ThreadPoolExecutor(asked.world_size) as pool:
            for ended in as_completed([pool.submit(run_rank, rank, failure) for rank in range(asked.world_size)]):
                if (problem := ended.exception()) is not None:  # the others would wait for this rank
                    traceback.print_exception(problem)
                    os._exit(1)


if __name__ == "__main__":
    main()
