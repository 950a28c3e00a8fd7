"""Comments assert: the subject is a thing's name, the verb is what it does. One that
begins as an indirect question has to be answered before it tells anything."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 0.03  # of the sentences of a folder
QUESTION = re.compile(r"(What|Whether|Where|Which|How|Those|That|Of|The same|As many|So many)\b")
FOLDERS = [path for parent in ("csrc", "structout") for path in sorted((ROOT / parent).iterdir()) if path.is_dir()]
FOLDERS = [path for path in [*FOLDERS, ROOT / "triton_kernels"] if path.name != "__pycache__"]


def comments_of(path):
    """The docstrings, and blocks of whole-line comments."""
    text = path.read_text()
    if path.suffix == ".py":
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, nodes)]
        yield from re.split(r"\n\s*\n", "\n\n".join(docstrings))
    mark = "#" if path.suffix == ".py" else "//[/!]?"
    lines = [re.match(rf"\s*{mark}\s?(.*)", line) for line in text.splitlines()]
    yield from re.split(r"\n{2,}", "\n".join(line[1] if line else "\n" for line in lines))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_comments_of_a_folder_do_not_ask(folder):
    files = [path for path in folder.rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".py"}]
    blocks = [" ".join(block.split()) for path in files for block in comments_of(path)]
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.:;!?])\s+", block)]
    sentences = [sentence for sentence in sentences if len(sentence.split()) >= 4]
    questions = [sentence for sentence in sentences if QUESTION.match(sentence)]
    assert len(questions) <= MOST * len(sentences), "\n".join(questions)
