"""Hosted CI and pre-commit run what the Makefile runs."""

import re

import tomllib
import yaml

from support.locations import ROOT


def documented_targets() -> set[str]:
    """The targets that `make help` lists."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_phony_target_is_listed_by_make_help():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(phony.split()) == documented_targets()


def test_hosted_ci_runs_targets_of_the_makefile_only():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {"make lint", "make demo", "make test", "make test-all"} <= set(commands)
    assert {command.removeprefix("make ") for command in commands} <= documented_targets()


def test_a_release_builds_wheels_for_both_processors_and_publishes_checked_ones():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs["wheels"]["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert set(jobs["publish"]["needs"]) == {"tag", "sdist", "wheels"}
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert (
        {command.removeprefix("make ") for command in commands} == {"wheels", "release-check"} <= documented_targets()
    )


def test_wheels_are_built_for_every_python_that_is_supported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    wheels = project["tool"]["cibuildwheel"]
    assert wheels["build"].split() == [f"cp{version.replace('.', '')}-*" for version in named]
    assert wheels["test-command"] == "python {project}/tests/check_wheels.py --demo"


def test_pre_commit_runs_the_linters_of_make_lint():
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    linters = set(re.findall(r"\$\(BIN\)/(\S+)", lint))
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert {entry.split()[0].removeprefix(".venv/bin/") for entry in entries} == linters
