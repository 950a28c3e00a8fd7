"""Run the grammar tests on the oldest and the newest supported version of each engine.

The engines are installed into a folder of their own, which comes before the packages of
the environment that runs this script. `make test` has already tested the versions of
that environment, so they are not tested again.
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "engines"
ENGINES = ("llguidance", "xgrammar")
# The tests that ask the engines themselves.
TESTS = (
    "llguidance_backend",
    "support",
    "engine_versions",
    "whitespace",
    "differential",
    "router",
    "drafts",
    "soundness",
    "fuzzed",
    "schema_rewrites",
)


def supported_ranges() -> dict[str, str]:
    """The engines' version ranges in pyproject.toml: {"xgrammar": ">=0.2.7,<0.3"}."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"].get("manager", [])]
    return {
        engine: requirement.removeprefix(engine).replace(" ", "")
        for requirement in requirements
        for engine in ENGINES
        if requirement.startswith(engine)
    }


def check(name: str, requirements: list[str]) -> None:
    """Install the requirements and run the tests on them. Raises CalledProcessError if
    one fails."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-deps"]
    subprocess.run([*pip, "--target", folder, *requirements], check=True)
    installed = {found.metadata["Name"]: found.version for found in distributions(path=[str(folder)])}
    print(f"{name}: {', '.join(f'{engine} {installed[engine]}' for engine in ENGINES)}", flush=True)
    if all(installed[engine] == version(engine) for engine in ENGINES):
        print("  these are the versions that `make test` tests", flush=True)
        return
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    files = [f"tests/grammar/test_{test}.py" for test in TESTS]
    workers = ["--numprocesses", "auto", "--maxprocesses", "8"]
    command = [sys.executable, "-m", "pytest", "--quiet", *workers, *files]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def main() -> None:
    ranges = supported_ranges()
    oldest = [f"{engine}=={ranges[engine].split(',')[0].removeprefix('>=')}" for engine in ENGINES]
    try:
        check("oldest", oldest)
        check("newest", [engine + ranges[engine] for engine in ENGINES])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
