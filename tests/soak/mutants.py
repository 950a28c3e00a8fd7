"""Mutation testing of the kernels of correctness: which small changes do tests notice?

A seed is one change of one place: another operator, a constant that is off by one, a
statement that is gone. The file is compiled with it, and a narrow test runs. A mutant
that survives may be equivalent to the original; otherwise a test is missing. Survivors
are noted and are no findings. What does not compile does not count.

    PYTHONPATH=tests python -m soak.mutants 17

shows mutant 17.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from soak.hunt import Hunter, Tally
from support import builds, corpus
from support.locations import NATIVE, ROOT

_SECONDS = 120  # for a narrow test; a mutant may run for ever
_KIBIBYTES = 2 << 20  # for a narrow test of the engine; a mutant may grow for ever
_SWAPS = [
    *((" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == ")),
    *(
        (" && ", " || "),
        (" || ", " && "),
        (" + ", " - "),
        (" - ", " + "),
        (" * ", " + "),
        (" & ", " | "),
        (" | ", " & "),
    ),
    *(("++", "--"), ("true", "false"), ("false", "true"), ("std::min", "std::max"), ("std::max", "std::min")),
    *((" += ", " -= "), (" >> ", " << "), (" << ", " >> "), ("if (!", "if ("), ("~", "")),
]
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_STATEMENT = re.compile(r"^\s+(?!return|using|break|continue|const |auto |static|case|default|#)[\w\[\]().>:*-]+.*;$")


@dataclass(frozen=True)
class Mutant:
    target: str
    file: str  # below csrc
    line: int  # from 0
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.target}: {self.file}:{self.line + 1}: {self.old.strip()!r} becomes {self.new.strip()!r}"


# -- narrow tests: each returns whether it has noticed ---------------------------------


def _notices_sampling(csrc: Path) -> bool:
    builds.compiled(
        "masked_sample_cpu", _sampling_command(), [NATIVE / "masked_sample_cpu.cpp"], suffix=".so", csrc=csrc
    )
    judge = [sys.executable, "-m", "soak.mutants", "judge sampling", str(csrc)]
    return any(_fails(judge, {"STRUCTOUT_CPU_CAPABILITY": name}) for name in ("avx512", "avx2", "default"))


def _sampling_command() -> list[str]:
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"]
    return [*builds.cxx(), *flags]


def judge_sampling(csrc: Path) -> None:
    """Compare the CPU kernel with the reference, as the tests of masked_sample do."""
    import torch

    from support import masked_sample_cases
    from support.masked_sample_builds import CpuKernel

    torch.set_num_threads(1)
    kernel = CpuKernel(csrc)
    for case in masked_sample_cases.random_cases(1, count=300):
        masked_sample_cases.check(kernel.logprobs, case)
    for case in masked_sample_cases.turning_cases():
        masked_sample_cases.check(kernel.logprobs, case)
    for case in masked_sample_cases.random_cases(2, count=6, max_vocab=150_000, max_rows=3):
        masked_sample_cases.check(partial(kernel.logprobs, num_threads=3), case)
    rng = random.Random(3)
    for case in masked_sample_cases.random_cases(3, count=100):
        begin, end = masked_sample_cases.random_part(rng, case.logits.shape[1])
        masked_sample_cases.check_part(kernel.logprobs, case, begin, end)


def _notices_formulas(csrc: Path) -> bool:
    sources = [NATIVE / "formulas.cpp", csrc / "json" / "formulas" / "formula.cpp"]
    command = [*builds.cxx(), "-std=c++17", "-O1"]
    return _fails([str(builds.compiled("formulas", command, sources, csrc=csrc, follows_includes=True))])


def _notices_unit(name: str) -> Callable[[Path], bool]:
    def notices(csrc: Path) -> bool:
        program = builds.compiled_engine(name, NATIVE / f"{name}.cpp", ["-std=c++17", "-O1", "-pthread"], csrc=csrc)
        return _fails(["sh", "-c", f'ulimit -v {_KIBIBYTES}; exec "$@"', "unit", str(program), str(_schemas())])

    return notices


@cache
def _schemas() -> Path:
    path = Path(tempfile.mkdtemp()) / "schemas"
    lines = [f"{int(line['group'] != 'impossible')} {json.dumps(line['schema'])}\n" for line in corpus.LINES]
    path.write_text("".join(lines))
    return path


def _fails(command: list[str], environment: Mapping[str, str] | None = None) -> bool:
    settings = {**os.environ, **(environment or {})}
    try:
        run = subprocess.run(command, capture_output=True, timeout=_SECONDS, cwd=ROOT / "tests", env=settings)
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


@dataclass(frozen=True)
class Target:
    files: tuple[str, ...]
    notices: Callable[[Path], bool]


TARGETS = {
    "sampling": Target(
        (
            *("common/sampling_math.h", "common/bitmask.h", "cpu/masked_sample_row.inc", "cpu/row.inc"),
            *("cpu/row_noise.inc", "cpu/masked_sample.cpp"),
        ),
        _notices_sampling,
    ),
    "formulas": Target(("json/formulas/formula.cpp",), _notices_formulas),
    "stacks": Target(("grammar/gss/stacks.cpp",), _notices_unit("stacks")),
    "texts": Target(("json/scalars/texts_search.cpp", "json/scalars/texts_count.cpp"), _notices_unit("texts")),
    "liveness": Target(
        (
            "json/satisfiability/liveness.cpp",
            "json/satisfiability/liveness_arrays.cpp",
            "json/satisfiability/liveness_objects.cpp",
        ),
        _notices_unit("liveness"),
    ),
}


def mutants_of(target: str) -> Iterator[Mutant]:
    for file in TARGETS[target].files:
        for number, line in enumerate((builds.CSRC / file).read_text().splitlines()):
            code = line.partition("//")[0]
            if not code.strip() or code.lstrip().startswith("#"):
                continue
            for new in _changes(code):
                yield Mutant(target, file, number, line, new)


def _changes(code: str) -> Iterator[str]:
    for old, new in _SWAPS:
        for match in re.finditer(re.escape(old), code):
            yield code[: match.start()] + new + code[match.end() :]
    for match in _NUMBER.finditer(code):
        yield code[: match.start()] + str(int(match[0]) + 1) + code[match.end() :]
    if _STATEMENT.match(code) and "{" not in code:
        yield ""


@cache
def shuffled(target: str) -> list[Mutant]:
    mutants = list(mutants_of(target))
    random.Random(target).shuffle(mutants)
    return mutants


def mutant(seed: int) -> Mutant:
    of_target = shuffled([*TARGETS][seed % len(TARGETS)])
    return of_target[seed // len(TARGETS) % len(of_target)]


class Mutants(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        chosen = mutant(seed)
        outcome = tried(chosen)
        tally.executions[f"mutants of {chosen.target} {outcome}"] += 1
        if outcome == "survived":
            tally.notes.append(str(chosen))


def tried(chosen: Mutant) -> str:
    """ "killed", "survived" or "not compiled"."""
    with tempfile.TemporaryDirectory() as folder:
        csrc = Path(folder) / "csrc"
        shutil.copytree(builds.CSRC, csrc)
        path = csrc / chosen.file
        lines = path.read_text().splitlines()
        lines[chosen.line] = chosen.new
        path.write_text("\n".join(lines) + "\n")
        try:
            is_noticed = TARGETS[chosen.target].notices(csrc)
        except RuntimeError:  # of the compiler
            return "not compiled"
        return "killed" if is_noticed else "survived"


make = Mutants


def main() -> None:
    if sys.argv[1] == "judge sampling":
        judge_sampling(Path(sys.argv[2]))
    else:
        chosen = mutant(int(sys.argv[1]))
        print(chosen, tried(chosen))


if __name__ == "__main__":
    main()
