"""Judges in another language: ajv and JavaScript's regular expressions, in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from support.builds import BUILD
from support.locations import TESTS

PACKAGES = ("ajv@8.17.1",)
_FOLDER = BUILD / "node"


class Node:
    """A process that answers questions of ``judge.js``."""

    def __init__(self) -> None:
        script = Path(TESTS) / "soak" / "judge.js"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(["node", str(script), str(_FOLDER)], stdin=pipe, stdout=pipe, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "node has ended"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


def is_here() -> bool:
    """Whether node runs here."""
    return shutil.which("node") is not None


def has_ajv() -> bool:
    return is_here() and (_FOLDER / "node_modules" / "ajv").is_dir()


def install_ajv() -> None:
    """Install ajv into ``build/tests``, once. Needs npm and a network."""
    if is_here() and shutil.which("npm") and not has_ajv():
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(_FOLDER), *PACKAGES]
        subprocess.run(command, check=True)
