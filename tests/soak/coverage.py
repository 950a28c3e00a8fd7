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

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from soak.hunt import Hunter, Tally
from support.builds import compiled_engine
from support.locations import CORPUS, NATIVE, ROOT

TARGETS = ("schema", "regex", "grammar", "tags", "saved", "schema-parser", "regex-parser")
FOLDER = CORPUS / "fuzz"

_FOUND = ROOT / "build" / "fuzz"
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
        inputs, artifacts = _FOUND / target, _FOUND / "findings"
        for folder in (inputs, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        dictionary = FOLDER / f"{_with_texts(target)}.dict"
        options = [
            f"-seed={seed + 1}",  # 0 is a random one
            f"-max_total_time={self._seconds}",
            f"-timeout={_INPUT_SECONDS}",
            f"-rss_limit_mb={_MAX_MEGABYTES}",
            f"-max_len={_MAX_INPUT_BYTES}",
            f"-artifact_prefix={artifacts}/{target}-",
            "-print_final_stats=1",
            *([f"-dict={dictionary}"] if dictionary.exists() else []),
        ]
        with tempfile.TemporaryDirectory() as folder:
            unpacked(target, Path(folder))
            run = self._run(target, [*options, str(inputs), folder])
        executed = re.findall(r"stat::number_of_executed_units: (\d+)", run.stderr)
        tally.executions[f"inputs of {target}"] += int(executed[-1]) if executed else 0
        edges = re.findall(r"\bcov: (\d+)", run.stderr)
        if edges:
            tally.measures[f"edges covered by {target}"] = int(edges[-1])
        if run.returncode != 0:
            tally.findings.append(_finding(target, run))

    def minimize(self) -> None:
        """Replace the committed inputs."""
        for target in (target for target in TARGETS if target == _with_texts(target)):
            lines = committed(target).read_text().splitlines()
            with tempfile.TemporaryDirectory() as merged, tempfile.TemporaryDirectory() as before:
                unpacked(target, Path(before))
                # Counts of how often an edge is taken would keep far more inputs.
                options = ["-merge=1", "-use_counters=0", f"-max_len={_MAX_INPUT_BYTES}"]
                run = self._run(target, [*options, merged, before, str(_FOUND / target)])
                if run.returncode != 0:
                    raise RuntimeError(_finding(target, run))
                found = sorted(
                    (path.read_bytes() for path in Path(merged).iterdir()), key=lambda each: (len(each), each)
                )
            kept = [line for line in lines if "name" in json.loads(line)]
            kept += [json.dumps({"input": each.decode("latin-1")}) for each in found]
            committed(target).write_text("".join(f"{line}\n" for line in kept))
            print(f"{target}: {len(kept)} inputs, before {len(lines)}")

    def _run(self, target: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FUZZ_TARGET": target}
        return subprocess.run(
            [str(self._program), *arguments], env=environment, capture_output=True, text=True, errors="replace"
        )


def _finding(target: str, run: subprocess.CompletedProcess[str]) -> str:
    """What does not hold, and the input, which need not fail again in the same seed."""
    lines = run.stderr.splitlines()
    causes = [line for line in lines if re.search(r"does not hold|runtime error|ERROR:|SUMMARY:", line)]
    written = re.findall(r"Test unit written to (.+)", run.stderr)
    read = base64.b64encode(Path(written[-1]).read_bytes()).decode() if written else "unknown"
    return "\n".join([f"{target} ended with {run.returncode}", *causes[:4], f"input in base64: {read[:1000]}"])


def make() -> Hunter:
    return Coverage()


if __name__ == "__main__":
    Coverage().minimize()
