"""Counts instructions in the machine code of the CUDA library, and estimates times from
the counts. Needs no GPU.

    python bench/bench_sass.py [--before LIBRARY]

``--before`` names another build of ``_C_cuda.so``, whose counts are written beside
those of the installed one.

A count is the length of the shortest path through a kernel that passes given landmarks
in order: instructions of the kinds that the work needs, such as a load of 16 bytes. So
code for rare cases is left out, and loops whose landmarks are given once run once.

A step is a turn of a loop that streams a row: what a warp needs for 16 bytes of logits
per thread. ``cycles`` is the time in which a multiprocessor issues it: it has four
schedulers, each of which issues one instruction per cycle.

An estimate is that of ``Model``, for an H200 and rows of 151,936 tokens:

* a launch takes a fixed time, and so do each wait for loads on the path, whatever was
  loaded, and barriers of blocks and of clusters;
* the instructions on the path are issued by all warps of the block;
* a stream over the row takes the larger of the time in which memory moves its bytes and
  the time in which the multiprocessor issues its steps; passes over what is kept in
  shared memory move no bytes.

It leaves out stalls, how well loads overlap, bank conflicts, waves of blocks and L2.
Only a GPU can tell.
"""

import heapq
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import torch

import structout

LIBRARY = Path(structout.__file__).parent / "_C_cuda.so"
SCHEDULERS = 4
LANES = 32
VOCAB = 151_936
FORMATS = ("float32", "float16", "bfloat16")  # FloatFormat's order

_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_TARGET = re.compile(r"(0x[0-9a-f]+)$")


# -- reading machine code


@dataclass
class Block:
    """Instructions without a jump into or out of their middle."""

    instructions: list[str]
    successors: set[int]


Blocks = dict[int, Block]


def cuobjdump(library: Path, *arguments: str) -> str:
    """Run NVIDIA's disassembler, which comes with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, *arguments, library], capture_output=True, text=True, check=True).stdout


def kernels(library: Path, architecture: int) -> dict[str, Blocks]:
    """Return the blocks of each kernel, by address."""
    text = cuobjdump(library, "-sass", "-arch", f"sm_{architecture}")
    _, *parts = _FUNCTION.split(text)
    if not parts:
        fix = "STRUCTOUT_BUILD_CUDA=1 python setup.py build_ext -i"
        raise SystemExit(f"{library} has no code for sm_{architecture}: {fix}")
    return {
        name: blocks_of({int(address, 16): instruction for address, instruction in _INSTRUCTION.findall(body)})
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def resources(library: Path) -> dict[str, tuple[int, int]]:
    """Return each kernel's registers per thread and bytes of shared memory."""
    usage = cuobjdump(library, "--dump-resource-usage", "-arch", "sm_90")
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+)", usage)
    return {name: (int(registers), int(shared)) for name, registers, shared in found}


def blocks_of(code: dict[int, str], successors_of: Callable[[str, int | None], set[int]] | None = None) -> Blocks:
    """Split instructions, given by address, into blocks.

    ``successors_of`` gets an instruction and the address of the next one, and returns
    the addresses that may follow.
    """
    addresses = sorted(code)
    following = dict(itertools.pairwise(addresses))
    find = successors_of or _successors
    successors = {address: find(code[address], following.get(address)) for address in addresses}
    starts = {addresses[0]}
    for address in addresses:
        if successors[address] != {following.get(address)}:
            starts |= successors[address] | {following.get(address, addresses[0])}
    blocks: Blocks = {}
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


# -- paths


def landmark_after(instructions: list[str], landmarks: list[str], reached: int) -> int:
    """How many landmarks are reached after these instructions. Each instruction reaches
    one at most."""
    for instruction in instructions:
        if reached < len(landmarks) and re.search(landmarks[reached], instruction):
            reached += 1
    return reached


def shortest_path(blocks: Blocks, start: int, landmarks: list[str], end: int | None) -> list[str]:
    """The instructions of the shortest path from a block that reaches the landmarks in
    order and then comes to block ``end``, or to the end of a block if that is None.
    Empty if there is none."""
    lengths = {(start, 0): 0}
    previous: dict[tuple[int, int], tuple[int, int]] = {}
    queue = [(0, start, 0)]
    while queue:
        length, address, reached = heapq.heappop(queue)
        state = (address, reached)
        if lengths[state] < length:
            continue
        block = blocks[address]
        reached = landmark_after(block.instructions, landmarks, reached)
        is_done = reached == len(landmarks) and (end is None or end in block.successors)
        if is_done:
            path = [state]
            while path[-1] in previous:
                path.append(previous[path[-1]])
            return [instruction for at, _ in reversed(path) for instruction in blocks[at].instructions]
        length += len(block.instructions)
        for successor in block.successors & blocks.keys():
            there = (successor, reached)
            if length < lengths.get(there, length + 1):
                lengths[there] = length
                previous[there] = state
                heapq.heappush(queue, (length, *there))
    return []


def shortest_loop(blocks: Blocks, landmarks: list[str]) -> list[str]:
    """The shortest loop that reaches the landmarks in order, from the block of the
    first."""
    starts = [a for a, block in blocks.items() if any(re.search(landmarks[0], i) for i in block.instructions)]
    loops = [shortest_path(blocks, start, landmarks, start) for start in starts]
    return min(filter(None, loops), key=len, default=[])


_REGISTER = re.compile(r"\b(U?R|U?P)(\d+)\b")


def dependent_loads(path: list[str]) -> int:
    """How often a warp waits for loads from global memory on a path.

    Instructions start in order. So at the first use of a loaded value the warp waits
    for it, and for everything that was loaded before; later loads start after that.
    """
    waits = 0
    loaded: dict[str, int] = {}  # registers that are loaded, with the waits so far
    for instruction in path:
        body = re.sub(r"^@!?U?P\d+ ", "", instruction)
        opcode, _, operands = body.partition(" ")
        names = ["".join(match) for match in _REGISTER.findall(instruction)]
        if any(loaded.get(name) == waits for name in names):
            waits += 1
        if opcode.startswith("LDG"):
            kind, number = _REGISTER.findall(operands)[0]
            width = 4 if ".128" in opcode else 2 if ".64" in opcode else 1
            loaded |= {f"{kind}{int(number) + i}": waits for i in range(width)}
    return waits


# -- what is counted

PHILOX = r"0x2daee0ad|0xd2511f53"  # a multiplier, or its negative
LOAD_16 = r"LDG\.E\.128"
STORED_16 = r"LDS\.128"
EXCHANGES = [rf"SHFL\.BFLY PT, R\d+, R\d+, 0x{distance:x}," for distance in (16, 8, 4, 2, 1)]  # in a warp
BARRIER = r"BAR\.SYNC"
CLUSTER_BARRIER = r"UCGABAR_WAIT"
# Row ids may have 32 bits instead. So may top_k, loaded after seed and position.
ROW_ID, SEED = r"@!?P\d+ LDG\.E\.64", [r"LDG\.E\.64", r"LDG\.E\.64", r"@!?P\d+ LDG\.E\.64"]
LOAD_MASK = [ROW_ID, LOAD_16, *SEED, BARRIER, "POPC", "ATOMS"]
LOAD_MASK_LAST = [*SEED, BARRIER, ROW_ID, LOAD_16, "POPC", "ATOMS"]
LISTED = [r"STS \[", BARRIER]
GATHER = [r"LDG\.E\.U16", "STS"]
DRAW_LISTED = [PHILOX, PHILOX]
STORE_ID = [r"STG\.E\.64"]


def sort(count: int) -> list[str]:
    """The exchanges of a bitonic sort of ``count`` keys: one per thread of the warps,
    then of the block."""
    landmarks = [exchange for first in (4, 3, 2, 1, 0) for exchange in EXCHANGES[first:]]
    size = 2 * LANES
    while size < 2 * count:
        for _ in range((size // LANES).bit_length() - 1):
            landmarks += ["STS", BARRIER]
        landmarks += EXCHANGES
        size *= 2
    return landmarks


RADIX_DIGIT = ["ATOMS", BARRIER, r"SHFL\.UP", BARRIER, BARRIER]
CLUSTER_DIGIT = ["ATOMS", CLUSTER_BARRIER, r"SHFL\.UP", CLUSTER_BARRIER]


@dataclass
class Loop:
    """A loop of masked_sample over a row. Of several shapes, the library has one."""

    name: str
    shapes: list[tuple[list[str], int]]  # landmarks, and how many steps a turn makes
    is_filtered: bool = False
    # Executed instructions for one on the shortest path, in random rows, as PTX counts:
    # what the bound lets through, and the row's end. See docs/testing_without_a_gpu.md.
    executed: float = 1.0

    def step(self, blocks: Blocks) -> float:
        for landmarks, steps in self.shapes:
            if loop := shortest_loop(blocks, landmarks):
                return len(loop) / steps
        return float("nan")


DRAW = Loop(
    "draw",
    [([r"VOTE\.ALL", PHILOX, LOAD_16, LOAD_16, PHILOX, LOAD_16, LOAD_16], 4), ([LOAD_16, PHILOX], 1)],
    executed=2.0,
)
HIGHEST = Loop(
    "highest logit, kept",
    [
        ([r"VOTE\.ALL", *[r"STS\.128", r"STS\.128", "HMNMX2|FMNMX", "HMNMX2|FMNMX", LOAD_16, LOAD_16] * 2], 4),
        ([LOAD_16, r"STS\.128", *["FMNMX"] * 4], 1),
    ],
    is_filtered=True,
)
HISTOGRAM = Loop("histogram of all", [([STORED_16, *["ATOMS"] * 8], 1)], is_filtered=True)
LIST = Loop("list", [([STORED_16, r"VOTE\.ANY"], 1), ([STORED_16, *["ISETP"] * 8], 1)], is_filtered=True)


@dataclass
class Model:
    """Times of an H200, in microseconds."""

    launch: float = 3.0  # and the end of the grid, in a graph
    load: float = 0.7  # DRAM, with the translation of the address
    barrier: float = 0.025
    cluster_barrier: float = 0.5  # it carries a fence of the whole GPU
    cycles: float = 1755.0  # per microsecond
    bytes: float = 4.8e6  # per microsecond, by the datasheet
    multiprocessors: int = 132

    def path(self, path: list[str], warps: int) -> float:
        barriers = sum("BAR.SYNC" in instruction for instruction in path)
        cluster_barriers = sum("UCGABAR_WAIT" in instruction for instruction in path)
        issue = len(path) * warps / SCHEDULERS / self.cycles
        waits = dependent_loads(path) * self.load + barriers * self.barrier + cluster_barriers * self.cluster_barrier
        return self.launch + issue + waits

    def memory(self, num_bytes: float) -> float:
        return num_bytes / self.bytes

    def issue(self, instructions: float, num_warps: float) -> float:
        """Instructions of each of so many warps, spread over all multiprocessors."""
        return instructions * num_warps / self.multiprocessors / SCHEDULERS / self.cycles


@dataclass
class Case:
    """A call of masked_sample whose time is estimated.

    Of several shapes, the library has one: landmarks from the kernel's entry on, and
    the passes over the whole row. The first pass reads memory.
    """

    name: str
    kernel: str
    rows: int
    shapes: list[tuple[list[str], list[Loop]]]

    def estimate(self, model: Model, blocks: Blocks) -> dict[str, float]:
        paths = ((shortest_path(blocks, min(blocks), marks, None), passes) for marks, passes in self.shapes)
        path, passes = next((path, passes) for path, passes in paths if path)
        us = model.path(path, warps=16)
        issue = [model.issue(loop.step(blocks) * loop.executed, self.rows * VOCAB / (LANES * 8)) for loop in passes]
        if passes:
            us += max(model.memory(self.rows * VOCAB * 2), issue[0]) + sum(issue[1:])
        return {
            "path_instructions": len(path),
            "dependent_loads": dependent_loads(path),
            "barriers": sum("BAR.SYNC" in instruction for instruction in path),
            "cluster_barriers": sum("UCGABAR_WAIT" in instruction for instruction in path),
            "us": round(us, 1),
        }


KERNEL = r"sample_by_(blocks|clusters)"
BLOCKS, CLUSTERS = (f"sample_by_{team}ILNS_11FloatFormatE2ELb{{}}" for team in ("blocks", "clusters"))
ONE_REDUCTION = [BARRIER, BARRIER]
FEW, ALL = "16 allowed", "all allowed"
FILTERS = "top_k 50, top_p 0.9"
CASES = [
    Case(
        FEW,
        CLUSTERS.format(0),
        64,
        [
            ([*mask, *LISTED, *GATHER, *DRAW_LISTED, *ONE_REDUCTION, *STORE_ID], [])
            for mask in (LOAD_MASK, LOAD_MASK_LAST)
        ],
    ),
    Case(
        f"{FEW}, {FILTERS}",
        CLUSTERS.format(1),
        64,
        [
            (
                [
                    *[*LOAD_MASK, *LISTED, *GATHER, *ONE_REDUCTION, *sort(16), BARRIER, r"SHFL\.UP", BARRIER],
                    *[*DRAW_LISTED, *ONE_REDUCTION, *STORE_ID],
                ],
                [],
            ),
            (
                [
                    *[*LOAD_MASK_LAST, *LISTED, *GATHER, *ONE_REDUCTION, *RADIX_DIGIT * 6],
                    *[*DRAW_LISTED, *ONE_REDUCTION, *STORE_ID],
                ],
                [],
            ),
        ],
    ),
    Case(
        ALL,
        BLOCKS.format(0),
        128,
        [
            ([*mask, BARRIER, LOAD_16, PHILOX, *ONE_REDUCTION, *STORE_ID], [DRAW])
            for mask in (LOAD_MASK, LOAD_MASK_LAST)
        ],
    ),
    Case(
        f"{ALL}, {FILTERS}",
        CLUSTERS.format(1),
        64,
        [
            (
                [
                    *[*LOAD_MASK, BARRIER, r"VOTE\.ALL", BARRIER, CLUSTER_BARRIER, *sort(512), CLUSTER_BARRIER],
                    *[CLUSTER_BARRIER, STORED_16, "ATOM", CLUSTER_BARRIER, *sort(64), BARRIER, r"SHFL\.UP", BARRIER],
                    *[*DRAW_LISTED, *ONE_REDUCTION, *STORE_ID],
                ],
                [HIGHEST, LIST],
            ),
            (
                [
                    *[
                        *LOAD_MASK_LAST,
                        BARRIER,
                        LOAD_16,
                        CLUSTER_BARRIER,
                        *CLUSTER_DIGIT,
                        STORED_16,
                        "ATOMS",
                        CLUSTER_BARRIER,
                    ],
                    *[*CLUSTER_DIGIT * 5, *DRAW_LISTED, CLUSTER_BARRIER, *STORE_ID],
                ],
                [HIGHEST, HISTOGRAM, LIST],
            ),
        ],
    ),
]


def nvcc_version() -> str:
    """The compiler that is on PATH, which is the one that setup.py uses."""
    printed = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", printed)
    return release[1] if release else "unknown"


def steps(library: Path, architectures: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The loops of masked_sample, with the kernels that have them."""
    for architecture in architectures:
        found = kernels(library, architecture)
        for loop, (kernel, blocks) in itertools.product((DRAW, HIGHEST, HISTOGRAM, LIST), found.items()):
            match = re.search(rf"{KERNEL}ILNS_11FloatFormatE(\d)ELb{int(loop.is_filtered)}", kernel)
            step = loop.step(blocks) if match else float("nan")
            if match and step == step:
                dtype = FORMATS[int(match[2])]
                row: dict[str, Any] = {"loop": loop.name, "kernel": f"masked_sample by {match[1]}", "dtype": dtype}
                row |= {"architecture": architecture, "tokens": LANES * (4 if dtype == "float32" else 8)}
                yield row | {"instructions": step, "cycles": step / SCHEDULERS}


def estimates(library: Path) -> Iterator[dict[str, Any]]:
    """The cases, in bfloat16 on sm_90."""
    found, used = kernels(library, 90), resources(library)
    for case in CASES:
        kernel = next(name for name in found if re.search(case.kernel, name))
        registers, shared_bytes = used[kernel]
        row: dict[str, Any] = {"case": case.name, "rows": case.rows}
        row |= {"registers": registers, "shared_bytes": shared_bytes}
        yield row | case.estimate(Model(), found[kernel])


def main() -> None:
    parser = harness.argument_parser("instructions of the CUDA kernels", quick="one architecture")
    parser.add_argument("--before", type=Path, metavar="LIBRARY", help="another build, to compare")
    arguments = parser.parse_args()
    if not LIBRARY.exists():
        print("the CUDA ops were not built: nothing to count")
        return
    results = harness.ResultsFile("sass", torch.device("cpu"), arguments)
    libraries = {"before": arguments.before, "now": LIBRARY}
    for label, library in libraries.items():
        if library is None:
            continue
        architectures = (90,) if arguments.quick else (80, 90, 100)
        for row in itertools.chain(steps(library, architectures), estimates(library)):
            results.add({"library": label, "nvcc": nvcc_version()} | row)
            print(label, *(f"{name}={value}" for name, value in row.items()))
    results.close()


if __name__ == "__main__":
    main()
