"""Coverage-guided fuzzing of the parsers that are written in Python, with Atheris
(https://github.com/google/atheris).

A seed fuzzes one of them for some seconds. It begins with the grammars of
``tests/corpus`` or random tags, and with the inputs that earlier seeds have left in
``build/fuzz``. What is malformed is a ``GrammarError``: any other exception is a
finding, as is an input that takes long. Nothing at the top of this module imports
structout, whose code is instrumented when it is imported.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from soak.hunt import Hunter, Tally
from support.locations import CORPUS, ROOT

TARGETS = ("gbnf", "lark", "tags")

_FOUND = ROOT / "build" / "fuzz"
_SECONDS = 30  # of a seed
_INPUT_SECONDS = 20  # after which an input hangs
_MAX_INPUT_BYTES = 2000
_NUM_TAGS = 60


def reader(target: str) -> Callable[[bytes], None]:
    """Return what reads an input. It raises whatever is a finding."""
    from structout.constraints.config import StructuredOutputsConfig
    from structout.constraints.params import StructuredOutputsParams
    from structout.errors import GrammarError
    from structout.grammar.native.backend import FsmBackend
    from structout.grammar.vocabulary import BYTES

    backend, config = FsmBackend(BYTES), StructuredOutputsConfig()
    name = "structural_tag" if target == "tags" else "grammar"

    def read(data: bytes) -> None:
        try:
            backend.check(StructuredOutputsParams(**{name: data.decode("utf-8", "replace")}).constraint(config))
        except GrammarError as error:
            str(error)

    return read


def inputs(target: str) -> list[str]:
    """Return the inputs that a hunt begins with."""
    if target == "tags":
        from support.random_tags import random_format

        formats = [random_format(random.Random(i), 2) for i in range(_NUM_TAGS)]
        return [json.dumps({"type": "structural_tag", "format": each}) for each in formats]
    cases = json.loads((CORPUS / f"{target}_cases.json").read_text())
    files = sorted((CORPUS / "grammars").glob(f"*.{target}"))
    return ["\n".join(case["grammar"]) for case in cases] + [file.read_text() for file in files]


class Parsers(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        target = TARGETS[seed % len(TARGETS)]
        found, artifacts = _FOUND / target, _FOUND / "findings"
        for folder in (found, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as begun:
            for i, text in enumerate(inputs(target)):
                Path(begun, f"{i:04d}").write_text(text)
            options = [
                f"-seed={seed + 1}",  # 0 is a random one
                f"-max_total_time={_SECONDS}",
                f"-timeout={_INPUT_SECONDS}",
                f"-max_len={_MAX_INPUT_BYTES}",
                f"-artifact_prefix={artifacts}/{target}-",
                "-print_final_stats=1",
            ]
            command = [sys.executable, "-m", "soak.parsers", target, *options, str(found), begun]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
            run = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        printed = run.stdout + run.stderr
        executed = re.findall(r"stat::number_of_executed_units: (\d+)", printed)
        tally.executions[f"inputs of {target}"] += int(executed[-1]) if executed else 0
        edges = re.findall(r"\bcov: (\d+)", printed)
        if edges:
            tally.measures[f"edges covered by {target}"] = int(edges[-1])
        if run.returncode != 0:
            written = re.findall(r"Test unit written to (.+)", printed)
            read = base64.b64encode(Path(written[-1]).read_bytes()).decode() if written else "unknown"
            cause = printed.partition("Uncaught Python exception")[2][:1500] or printed[-1500:]
            tally.findings.append(f"{target} ended with {run.returncode}: {cause}\ninput in base64: {read[:1000]}")


def make() -> Hunter:
    return Parsers()


def fuzz(target: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["structout.grammar.native", "structout.constraints"]):
        read = reader(target)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], read)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1])
