"""``structout check`` from its arguments to its output and its page."""

import io
import json
import re
from pathlib import Path

import pytest

from structout.cli.random_model import load_random_model
from support.locations import ROOT

ORDER = str(ROOT / "examples" / "order.schema.json")
COLORS = '{"type": "array", "items": {"enum": ["red", 3, null]}}'


@pytest.fixture
def check(run):
    return lambda *arguments, status=1: run("check", *arguments, status=status).out


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_check_of_a_forbidden_text_marks_the_place_and_names_the_cause(check):
    output = check(COLORS, '["red", "blue"]', "--compact")
    lines = output.splitlines()
    assert lines[0] == "not allowed from byte 9 on (line 1, column 10)"
    assert lines[2:4] == ['  ["red", "blue"]', "           ^"]
    assert 'because       #/items/enum: enum is ["red", 3, null]' in lines
    assert "value         /1" in lines
    assert 'shortest end  red"]' in lines
    assert re.search(r"^tokens        number \d+ of \d+ \(id \d+\) is not allowed, where \d+ of the demo", output, re.M)


def test_check_prints_the_tokens_that_are_still_needed_after_each_token(check):
    output = check("--choice", "yes", "yes", status=0)
    counts = re.search(r"^needs         at least (\d+) tokens, .*; after each of these still (.*)$", output, re.M)
    assert [int(count) for count in counts[2].split()] == list(range(int(counts[1]) - 1, 0, -1))


def test_check_names_the_options_of_the_command_that_refuse_a_text(check):
    causes = "because       whitespace: --compact allows one space"
    assert causes in check(COLORS, '[\n  "red"\n]', "--compact")
    assert "--key-order any" in " ".join(check(ORDER, '{"status": "paid"}').split())
    schema = '{"properties": {"a": {}}}'
    assert "--additional-properties closed allows no" in check(schema, '{"b": 1}', "--additional-properties", "closed")
    check(schema, '{"b": 1}', status=0)


def test_check_of_a_complete_text_has_status_0(check):
    assert check(COLORS, "[3]", status=0).startswith("complete: the constraint allows this text\n")


def test_check_reads_texts_from_files_and_standard_input_without_the_last_newline(check, monkeypatch, tmp_path):
    (tmp_path / "text").write_text("yes\n")
    check("--choice", "yes", f"@{tmp_path / 'text'}", status=0)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"yes\n")))
    check("--choice", "yes", "-", status=0)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"yes\n\n")))
    check("--choice", "yes", "-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regex", "a", "b", "c"], "expected TEXT alone beside another constraint, got 2 of them"),
        ([ORDER], "expected SCHEMA and TEXT, got 1 of them"),
        (["--json-schema", ORDER, "a", "b"], "expected TEXT alone beside another constraint, got 2 of them"),
        (["--json-schema", "-", "-"], "standard input holds the schema or the text, not both"),
        (["-", "-"], "standard input holds the schema or the text, not both"),
        (["--regex", "(", "a"], "constraint: constraint refused (malformed)"),
        (["--regex", "a", "@missing.txt"], "cannot read missing.txt: No such file or directory"),
        (["--regex", "a", "a", "--html", "missing/page.html"], "cannot write missing/page.html: No such file"),
    ],
)
def test_check_with_wrong_arguments_says_so_with_status_2(run, arguments, message):
    assert message in run("check", *arguments, status=2).err


def test_check_prints_json(check):
    found = json.loads(check("--json", "--grammar", str(ROOT / "examples" / "sql.ebnf"), "SELECT abc FROM"))
    assert (found["status"], found["offset"], found["causes"][0]["kind"]) == ("incomplete", 15, "rule")


def test_check_writes_a_page_that_needs_nothing_else(check, tmp_path):
    path = tmp_path / "page.html"
    check(COLORS, '["red", "</script><b>"]', "--html", str(path))
    page = path.read_text()
    assert not re.search(r"https?:|src=|<link|@import|url\(", page)
    assert page.count("</script>") == 2
    data = data_of(page)
    assert data["title"] == "Not allowed from byte 9 on, line 1, column 10"
    steps = data["steps"]
    assert [step["is_allowed"] for step in steps] == [True] * (len(steps) - 1) + [False]
    assert "".join(step["text"] for step in steps) + data["rest"] == '["red", "</script><b>"]'
    for step in steps:
        shown = {token["token_id"] for token in step["forbidden"]}
        assert step["token_id"] in shown or step["is_allowed"] or len(shown) == 10
        assert len(step["allowed"]) == min(step["num_allowed"], 10)
        assert not shown & {token["token_id"] for token in step["allowed"]}
    assert steps[0]["stack"] == []
    assert steps[-1]["stack"] == ["1"]
    assert all(token["probability"] is None for token in steps[0]["allowed"])
    assert {(step["kept"], step["probability"]) for step in steps} == {(None, None)}


def test_check_with_a_model_ranks_tokens_by_its_probabilities(check, tmp_path):
    model, tokenizer, _ = load_random_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    path = tmp_path / "page.html"
    arguments = ["--model", str(tmp_path / "model"), "--html", str(path)]
    check("--grammar", 'root ::= "a" b\nb ::= [0-9]+', "a1", *arguments, status=0)
    steps = data_of(path.read_text())["steps"]
    assert (steps[-1]["token_id"], steps[-1]["is_allowed"]) == (None, True)
    assert steps[-1]["stack"] == ["root", "b"]
    for step in steps:
        for tokens in (step["allowed"], step["forbidden"]):
            probabilities = [token["probability"] for token in tokens]
            assert probabilities == sorted(probabilities, reverse=True)
            assert 0 <= probabilities[-1] <= probabilities[0] <= 1
        listed = {token["token_id"]: token["probability"] for token in step["allowed"]}
        assert sum(listed.values()) <= step["kept"] * (1 + 1e-6) <= 1 + 1e-6
        if step["token_id"] in listed:
            assert step["probability"] * step["kept"] == pytest.approx(listed[step["token_id"]])
    assert [step["probability"] is None for step in steps] == [False] * (len(steps) - 1) + [True]


def test_page_template_is_installed_with_the_package():
    assert Path(ROOT / "structout" / "cli" / "check_page.html").is_file()
    assert '"cli/*.html"' in (ROOT / "pyproject.toml").read_text()
