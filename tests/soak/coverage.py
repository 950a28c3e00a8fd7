"""Coverage-guided fuzzing of what reads bytes, with libFuzzer, ASan and UBSan.

The targets are those of ``tests/native/fuzz.cpp``. A seed fuzzes one of them for some
seconds. It begins with the inputs of ``tests/corpus/fuzz`` and with those that earlier
seeds have left in ``build/fuzz``, which are kept for the next one. An input that ends
the process is a finding. Once it is mended the input belongs, with a "name" that tells
what it is, in ``tests/corpus/fuzz``, which every test run with ``--long`` reads again.

    PYTHONPATH=tests python -m soak.coverage

replaces the inputs there, but for those with a name, by a small set that covers the
edges of all. Each line there is an input, with a character for each byte.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from soak.hunt import Hunter, Tally
from soak.libfuzzer import FOUND, finding, fuzz
from support.builds import compiled_engine
from support.locations import CORPUS, NATIVE

TARGETS = ("schema", "regex", "grammar", "tags", "saved", "schema-parser", "regex-parser")
FOLDER = CORPUS / "fuzz"

_FLAGS = [
    *("-std=c++17", "-g1", "-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
    "-DSTRUCTOUT_LIBFUZZER",
]
_SECONDS = 60  # of a seed, beside those of reading the inputs that are there
_INPUT_SECONDS = 60  # after which an input hangs
_MAX_INPUT_BYTES = 600
_MAX_MEGABYTES = 3000


def clang() -> str | None:
    """Return the newest clang++ of this machine, or None."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    names = [path.name for folder in folders for path in folder.glob("clang++*")]
    versions = [re.fullmatch(r"clang\+\+(?:-(\d+))?", name) for name in names]
    found = [(int(each[1] or sys.maxsize), each[0]) for each in versions if each]
    return max(found)[1] if found else None


def committed(target: str) -> Path:
    """Return the file with the committed inputs of a target, one a line. A parser alone
    reads those of the target that also reads texts."""
    return FOLDER / f"{_with_texts(target)}.jsonl"


def _with_texts(target: str) -> str:
    return target.removesuffix("-parser")


def unpacked(target: str, folder: Path) -> list[Path]:
    """Write each committed input of a target to a file of ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, line in enumerate(committed(target).read_text().splitlines()):
        paths.append(folder / f"{i:04d}")
        paths[-1].write_bytes(json.loads(line)["input"].encode("latin-1"))
    return paths


class Coverage(Hunter):
    """A hunter that runs libFuzzer.

    Args:
        seconds: how long a seed fuzzes its target.
    """

    def __init__(self, seconds: int = _SECONDS) -> None:
        compiler = clang()
        if compiler is None:
            raise RuntimeError("expected clang++ with libFuzzer on the PATH: Debian has clang and libclang-rt-dev")
        self._seconds = seconds
        self._program = compiled_engine("fuzz", NATIVE / "fuzz.cpp", _FLAGS, compiler=[compiler])

    def hunt(self, seed: int, tally: Tally) -> None:
        target = TARGETS[seed % len(TARGETS)]
        dictionary = FOLDER / f"{_with_texts(target)}.dict"
        options = [f"-rss_limit_mb={_MAX_MEGABYTES}", *([f"-dict={dictionary}"] if dictionary.exists() else [])]
        with tempfile.TemporaryDirectory() as inputs:
            unpacked(target, Path(inputs))
            fuzz(
                target,
                [str(self._program)],
                inputs,
                seed,
                tally,
                seconds=self._seconds,
                input_seconds=_INPUT_SECONDS,
                max_bytes=_MAX_INPUT_BYTES,
                options=options,
                environment={"FUZZ_TARGET": target},
            )

    def minimize(self) -> None:
        """Replace the committed inputs."""
        for target in (target for target in TARGETS if target == _with_texts(target)):
            lines = committed(target).read_text().splitlines()
            with tempfile.TemporaryDirectory() as merged, tempfile.TemporaryDirectory() as before:
                unpacked(target, Path(before))
                # Counts of how often an edge is taken would keep far more inputs.
                options = ["-merge=1", "-use_counters=0", f"-max_len={_MAX_INPUT_BYTES}"]
                command = [str(self._program), *options, merged, before, str(FOUND / target)]
                environment = {**os.environ, "FUZZ_TARGET": target}
                run = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
                if run.returncode != 0:
                    raise RuntimeError(finding(target, run.returncode, run.stderr))
                found = sorted(
                    (path.read_bytes() for path in Path(merged).iterdir()), key=lambda each: (len(each), each)
                )
            kept = [line for line in lines if "name" in json.loads(line)]
            kept += [json.dumps({"input": each.decode("latin-1")}) for each in found]
            committed(target).write_text("".join(f"{line}\n" for line in kept))
            print(f"{target}: {len(kept)} inputs, before {len(lines)}")


make = Coverage


if __name__ == "__main__":
    Coverage().minimize()
