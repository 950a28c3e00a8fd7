"""Coverage-guided fuzzing of the parsers that are written in Python, with Atheris
(https://github.com/google/atheris).

A seed fuzzes one of them for some seconds. It begins with the grammars of
``tests/corpus`` or random tags, and with the inputs that earlier seeds have left in
``build/fuzz``. What is malformed is a ``GrammarError``: any other exception is a
finding, as is an input that takes long. Nothing at the top of this module imports
structout, whose code is instrumented when it is imported.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from soak import libfuzzer
from soak.hunt import Hunter, Tally
from support.locations import CORPUS, TESTS

TARGETS = ("gbnf", "lark", "tags")

_SECONDS = 30  # of a seed
_INPUT_SECONDS = 20  # after which an input hangs
_MAX_INPUT_BYTES = 2000
_NUM_TAGS = 60


def reader(target: str) -> Callable[[bytes], None]:
    """Return what reads an input. It raises whatever is a finding."""
    from structout.constraints.config import StructuredOutputsConfig
    from structout.constraints.params import StructuredOutputsParams
    from structout.errors import GrammarError
    from structout.grammar.native.backend import NativeBackend
    from structout.grammar.vocabulary import BYTES

    backend, config = NativeBackend(BYTES), StructuredOutputsConfig()
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
        with tempfile.TemporaryDirectory() as begun:
            for i, text in enumerate(inputs(target)):
                Path(begun, f"{i:04d}").write_text(text)
            libfuzzer.fuzz(
                target,
                [sys.executable, "-m", "soak.parsers", target],
                begun,
                seed,
                tally,
                seconds=_SECONDS,
                input_seconds=_INPUT_SECONDS,
                max_bytes=_MAX_INPUT_BYTES,
                environment={"PYTHONPATH": str(TESTS)},
            )


make = Parsers


def fuzz(target: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["structout.grammar.native", "structout.constraints"]):
        read = reader(target)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], read)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1])
