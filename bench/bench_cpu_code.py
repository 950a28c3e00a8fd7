"""Counts instructions in the machine code of the CPU kernels, for each instruction set.

    python bench/bench_cpu_code.py [--quick]

Compiles the kernels with the flags of setup.py, those for 64-bit Arm with Debian's
cross compiler if it is installed, and reads the code with objdump. A count is the
length of the shortest turn of a loop that handles so many tokens by vector
instructions, scaled to 64 tokens. It does not depend on the machine, only on the
compiler.
"""

import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import torch
from bench_sass import Blocks, blocks_of, shortest_loop

CSRC = Path(__file__).parent.parent / "csrc"
FLAGS = (
    *("-O3", "-g0", "-std=c++17", "-fvisibility=hidden", "-fPIC"),
    *("-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"),
)
TOKENS = 64  # that the counts are for
BLOCK = 128  # kBlock of csrc/cpu/team.h
WORD = 32  # tokens of a mask word


@dataclass(frozen=True)
class InstructionSet:
    """Where its code is, and how it writes what is looked for."""

    name: str
    namespace: str
    lanes: int
    prefix: str  # of the compiler and of objdump
    largest: str
    multiply: str
    to_integers: str
    blend: str  # a store of some lanes, or what comes before it

    @property
    def is_installed(self) -> bool:
        """Whether a compiler and a disassembler for it are."""
        if not all(shutil.which(f"{self.prefix}{tool}") for tool in ("g++", "objdump")):
            return False
        machine = "aarch64" if self.name == "neon" else "x86_64"
        return _output(f"{self.prefix}g++", "-dumpmachine").startswith(machine)


_X86 = {"prefix": "", "largest": r"v?maxps\b", "multiply": r"v?pmuludq\b", "to_integers": r"v?cvttps2dq\b"}
INSTRUCTION_SETS = (
    InstructionSet("avx512", "avx512", 16, blend=r"vmovdqu\d+ %zmm\d+,.*\{%k", **_X86),
    InstructionSet("avx2", "avx2", 8, blend=r"vp?blendv", **_X86),
    InstructionSet("sse2", "plain", 4, blend=r"pandn ", **_X86),
    InstructionSet(
        "neon",
        "plain",
        4,
        prefix="aarch64-linux-gnu-",
        largest=r"fmaxnm v\d+\.4s",
        multiply=r"umull2? ",
        to_integers=r"fcvtzs v\d+\.4s",
        blend=r"(bsl|bit|bif) v",
    ),
)
# What code would have that takes lanes one by one.
SCALAR_COMPARISON = re.compile(r"^v?u?comis[sd]\b|^fcmpe? s\d")
LANE_EXTRACTION = re.compile(r"^v?(pextr[bwdq]|extractps|pinsr[bwdq]|insertps)\b|^(umov|smov|ins|mov) .*v\d+\.[bhsd]\[")


@dataclass(frozen=True)
class Loop:
    """A loop that streams a row: the function that has it, and what a turn does."""

    name: str
    source: str
    function: str
    landmark: str  # an attribute of InstructionSet
    tokens: int
    landmarks_of_vector: float = 1  # how often a vector of tokens meets it
    bytes_of_token: int = 4
    scalar_comparisons: int = 0  # that a turn may make: for the bound of a whole block

    def landmarks(self, instructions: InstructionSet) -> list[str]:
        vectors = self.tokens * self.bytes_of_token / (4 * instructions.lanes)
        return [getattr(instructions, self.landmark)] * round(vectors * self.landmarks_of_vector)


# A vector of Philox counters serves eight vectors of tokens, in 10 rounds of 4
# multiplications, of which compilers move a few out of the loop.
PHILOX = 36 / 8
LOOPS = (
    Loop("masked_sample: highest logit", "masked_sample", r"Row<float>::scan_blocks\(", "largest", TOKENS),
    Loop("masked_sample: draw", "masked_sample", r"RowSampler<float>::draw\(", "multiply", BLOCK, PHILOX,
         scalar_comparisons=8),
    Loop("masked_sample: masses", "masked_sample", r"total_mass\(", "to_integers", TOKENS, 3),
    Loop("apply_bitmask: float32", "apply_bitmask", r"mask_words<unsigned int>\(", "blend", WORD),
    Loop("apply_bitmask: 16-bit", "apply_bitmask", r"mask_words<unsigned short>\(", "blend", WORD, bytes_of_token=2),
)  # fmt: skip


def compile_kernels(prefix: str, source: str, folder: Path) -> Path:
    """Compile csrc/cpu/``source``.cpp into a folder."""
    compiled = folder / f"{source}.o"
    command = [f"{prefix}g++", *FLAGS, "-c", f"-I{CSRC}", str(CSRC / "cpu" / f"{source}.cpp"), "-o", str(compiled)]
    subprocess.run(command, check=True)
    return compiled


@functools.cache
def functions(source: str, prefix: str) -> dict[str, Blocks]:
    """Return the blocks of each function of csrc/cpu/``source``.cpp, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_kernels(prefix, source, Path(folder))
        text = _output(f"{prefix}objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(compiled))
    _, *parts = re.split(r"^[0-9a-f]+ <(.*)>:$", text, flags=re.MULTILINE)
    found = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        lines = re.findall(r"^ *([0-9a-f]+):\t(.*)$", body, re.MULTILINE)
        code = {int(address, 16): " ".join(instruction.split()) for address, instruction in lines}
        found[name] = blocks_of(code, _successors)
    return found


def _successors(instruction: str, following: int | None) -> set[int]:
    opcode = instruction.split()[0]
    is_jump = re.match(r"j[a-z]+$|b$|b\.[a-z]+$|cbn?z$|tbn?z$", opcode)
    target = re.search(r"\b([0-9a-f]+) <", instruction) if is_jump else None
    successors = {int(target[1], 16)} if target else set()
    ends = opcode in ("jmp", "b", "ret", "br", "repz")
    return successors if ends or following is None else successors | {following}


def turn(loop: Loop, instructions: InstructionSet) -> list[str]:
    """Return the instructions of the shortest turn; empty if the code has no such
    loop."""
    found = functions(loop.source, instructions.prefix)
    names = [name for name in found if f"{instructions.namespace}::" in name and re.search(loop.function, name)]
    turns = [shortest_loop(found[name], loop.landmarks(instructions)) for name in names]
    return min(filter(None, turns), key=len, default=[])


def rows() -> Iterator[dict[str, Any]]:
    for loop in LOOPS:
        for instructions in INSTRUCTION_SETS:
            if instructions.is_installed:
                count = len(turn(loop, instructions)) * TOKENS / loop.tokens
                yield {
                    "loop": loop.name,
                    "instructions": instructions.name,
                    "lanes": instructions.lanes,
                    "count": count,
                }


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    arguments = harness.argument_parser("instructions of the CPU kernels", quick="the same").parse_args()
    results = harness.ResultsFile("cpu_code", torch.device("cpu"), arguments)
    compiler = f"g++ {_output('g++', '-dumpfullversion')}"
    for row in rows():
        results.add(row | {"compiler": compiler})
        print(*(f"{name}={value}" for name, value in row.items()))
    results.close()


if __name__ == "__main__":
    main()
