"""The documents say what is true: their tables come from committed results, their links lead somewhere."""

import os
import re
import subprocess
import sys

import pytest
from locations import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def test_tables_agree_with_the_results():
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}  # it imports a neighbour
    command = [sys.executable, "bench/report.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_layout_in_the_readme_is_the_layout():
    readme = (ROOT / "README.md").read_text()
    layout = readme[readme.index("## Layout") :].split("```")[1]
    for name in re.findall(r"^ *([\w/]+(?:\.py|/)(?: [\w/]+(?:\.py|/))*)", layout, re.MULTILINE):
        for part in name.split():
            places = [ROOT / part, ROOT / "structout" / part, ROOT / "csrc" / part, ROOT / "tests" / part]
            assert any(place.exists() for place in places), part


def test_the_readme_equivalence_is_the_op():
    """The lines of PyTorch in the README, run beside the op."""
    import torch

    import structout

    readme = (ROOT / "README.md").read_text()
    lines = readme[readme.index("Equivalent to:") :].split("```python\n")[1].split("```")[0]
    bitmask = structout.pack_bitmask(torch.rand(3, 70) < 0.5)
    rows = torch.tensor([2, -1, 0, 0])
    ours = torch.randn(4, 70)
    theirs = ours.clone()
    structout.apply_bitmask(ours, bitmask, rows)
    exec(lines, {"structout": structout, "V": 70, "bitmask": bitmask, "rows": rows, "logits": theirs})  # noqa: S102 - our own README
    assert torch.equal(ours, theirs)
