"""Counts the instructions of one step of the loops that stream logits, from the machine
code in the CUDA library. Needs no GPU.

    python bench/bench_sass.py

A step reads 16 bytes of logits per thread. Its length is that of the shortest path
through the loop on which random numbers are made: nearly all steps take it, because
code for tokens that could win, and for rows at the edges, lies on longer paths.
``cycles`` is the time in which a multiprocessor issues the step of one warp: it has
four schedulers, each of which issues one instruction per cycle.
"""

import heapq
import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import harness
import torch

import structout

LIBRARY = Path(structout.__file__).parent / "_C_cuda.so"
SCHEDULERS = 4
LANES = 32
TOKENS_OF_FORMAT = {"float32": 4, "float16": 8, "bfloat16": 8}  # FloatFormat's order
READS_LOGITS = re.compile(r"\bLDG\.E\.128")
MAKES_RANDOM_NUMBERS = re.compile(r"0x2daee0ad|0xd2511f53")  # a multiplier of Philox, or its negative

_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_TARGET = re.compile(r"(0x[0-9a-f]+)$")
_UNFILTERED_DRAW = re.compile(r"sample_by_(blocks|clusters)ILNS_11FloatFormatE(\d)ELb0")


@dataclass
class Block:
    """Instructions without a jump into or out of their middle."""

    instructions: list[str]
    successors: set[int]


def kernels(architecture: int, name: re.Pattern[str]) -> Iterator[tuple[re.Match[str], dict[int, Block]]]:
    """Yield, for each kernel whose mangled name matches, the match and the blocks by
    address."""
    import triton  # brings NVIDIA's disassembler

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(tool), "-sass", "-arch", f"sm_{architecture}", str(LIBRARY)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, *parts = _FUNCTION.split(text)
    for function, body in zip(parts[::2], parts[1::2], strict=True):
        if match := name.search(function):
            code = {int(address, 16): instruction for address, instruction in _INSTRUCTION.findall(body)}
            yield match, blocks_of(code)


def blocks_of(code: dict[int, str]) -> dict[int, Block]:
    """Split instructions, given by address, into blocks."""
    addresses = sorted(code)
    following = dict(itertools.pairwise(addresses))
    successors = {address: _successors(code[address], following.get(address)) for address in addresses}
    starts = {addresses[0]}
    for address in addresses:
        if successors[address] != {following.get(address)}:
            starts |= successors[address] | {following.get(address, addresses[0])}
    blocks: dict[int, Block] = {}
    for address in addresses:
        if address in starts:
            block = blocks[address] = Block([], set())
        block.instructions.append(code[address])
        block.successors = successors[address]
    return blocks


def _successors(instruction: str, following: int | None) -> set[int]:
    is_predicated = instruction.startswith("@") or re.search(r"\bBRA\S* !?U?P\d|\bBRA\.DIV", instruction)
    target = _TARGET.search(instruction) if re.search(r"\bBRA", instruction) else None
    ends = target is not None or re.search(r"\b(EXIT|RET|BRX)\b", instruction)
    successors = {int(target[1], 16)} if target else set()
    if following is not None and (is_predicated or not ends):
        successors.add(following)
    return successors


def path_length(blocks: dict[int, Block], start: int, end: int) -> float:
    """The number of instructions on the shortest path from a block to another, without
    those of the last block."""
    reached = {start: 0}
    queue = [(0, start)]
    while queue:
        length, address = heapq.heappop(queue)
        if address == end:
            return length
        for successor in blocks[address].successors & blocks.keys():
            there = length + len(blocks[address].instructions)
            if there < reached.get(successor, there + 1):
                reached[successor] = there
                heapq.heappush(queue, (there, successor))
    return float("inf")


def shortest_draw_step(blocks: dict[int, Block]) -> float:
    """The instructions of the shortest loop that reads logits and makes random
    numbers."""

    def blocks_with(pattern: re.Pattern[str]) -> list[int]:
        return [address for address, block in blocks.items() if any(map(pattern.search, block.instructions))]

    return min(
        path_length(blocks, read, draw) + path_length(blocks, draw, read)
        for read in blocks_with(READS_LOGITS)
        for draw in blocks_with(MAKES_RANDOM_NUMBERS)
    )


def nvcc_version() -> str:
    """The compiler that is on PATH, which is the one that setup.py uses."""
    printed = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", printed)
    return release[1] if release else "unknown"


def main() -> None:
    parser = harness.argument_parser("instructions of the loops that stream logits", quick="one architecture")
    arguments = parser.parse_args()
    if not LIBRARY.exists():
        print("the CUDA ops were not built: nothing to count")
        return
    results = harness.ResultsFile("sass", torch.device("cpu"), arguments)
    formats = list(TOKENS_OF_FORMAT)
    nvcc = nvcc_version()
    for architecture in (90,) if arguments.quick else (80, 90, 100):
        for match, blocks in kernels(architecture, _UNFILTERED_DRAW):
            dtype = formats[int(match[2])]
            tokens = TOKENS_OF_FORMAT[dtype] * LANES
            instructions = int(shortest_draw_step(blocks))
            row = {"kernel": f"masked_sample by {match[1]}", "dtype": dtype, "architecture": architecture, "nvcc": nvcc}
            cycles = instructions / SCHEDULERS
            results.add(row | {"tokens": tokens, "instructions": instructions, "cycles": cycles})
            print(f"sm_{architecture} {row['kernel']:25} {dtype:9} {instructions:4} instructions for {tokens} tokens")
    results.close()


if __name__ == "__main__":
    main()
