"""`structout generate` and `structout doctor`, as a person runs them, with the real default model."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import transformers

import structout
from structout.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples"
ORDER = EXAMPLES / "order.schema.json"


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(cache))


def test_a_nested_json_document(capsys):
    assert main(["generate", "--json-schema", str(ORDER), "--seed", "7"]) == 0
    screen = capsys.readouterr()
    jsonschema.validate(json.loads(screen.out), json.loads(ORDER.read_text()))
    assert "1 of 1 valid" in screen.err
    assert re.search(
        r"\d tokens/s\)\nmedian step: forward .*, mask fill .*, mask copy .*, mask apply .*, draw ", screen.err
    )


def test_many_seeds_are_all_valid(capsys):
    assert main(["generate", "--json-schema", str(ORDER), "--seed", "1", "-n", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 64
    for line in lines:
        jsonschema.validate(json.loads(line), json.loads(ORDER.read_text()))
    assert len(set(lines)) > 60


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--regex", "[A-Z]{3}-[0-9]{4}"], r"[A-Z]{3}-[0-9]{4}"),
        (["--choice", "positive", "--choice", "negative"], "positive|negative"),
        (["--grammar", str(EXAMPLES / "sql.ebnf")], r"SELECT .+ FROM [a-z_]+( WHERE .+)?;"),
    ],
)
def test_other_constraints_several_at_once(capsys, arguments, pattern):
    assert main(["generate", *arguments, "-n", "4", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(re.fullmatch(pattern, line) for line in lines)


def test_a_seed_repeats_and_greedy_needs_none(capsys):
    def run(*extra):
        assert main(["generate", "--regex", "[a-z ]{20,30}", *extra]) == 0
        return capsys.readouterr().out

    assert run("--seed", "5") == run("--seed", "5") != run("--seed", "6")
    assert run("--temperature", "0", "--seed", "5") == run("--temperature", "0", "--seed", "6")


def test_a_model_from_a_directory(capsys, tmp_path):
    from structout.default_model import load_default_model

    model, tokenizer, _ = load_default_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert main(["generate", "--model", str(tmp_path), "--choice", "yes", "--prompt", "Ready?"]) == 0
    screen = capsys.readouterr()
    assert screen.out == "yes\n"
    assert f"{tmp_path} on cpu" in screen.err


def test_a_text_that_runs_out_of_tokens_is_said_and_fails(capsys):
    assert main(["generate", "--regex", "[a-z]{50}", "--max-tokens", "3", "--seed", "0"]) == 1
    screen = capsys.readouterr()
    assert screen.out == ""
    assert "structout: not complete after 3 tokens; raise --max-tokens: " in screen.err
    assert "0 of 1 valid" in screen.err


@pytest.mark.parametrize(
    ("file_text", "arguments", "message"),
    [
        (None, ["--json-schema", "absent.json"], "cannot read absent.json: No such file or directory"),
        (None, ["--grammar", "."], "cannot read .: Is a directory"),
        ("{", ["--json-schema", "FILE"], "FILE: the JSON schema is not JSON: Expecting property name"),
        ('{"type": "strin"}', ["--json-schema", "FILE"], "not a valid JSON Schema: 'strin' is not valid"),
        ('{"$ref": "#"}', ["--json-schema", "FILE"], "allows no text at all"),
        ("root ::= root", ["--grammar", "FILE"], "allows no text at all"),
        ("root ::= (", ["--grammar", "FILE"], "invalid grammar constraint"),
        (None, ["--regex", "("], "not a regular expression: missing )"),
        (None, ["--regex", "(?=a)b"], "invalid regex constraint"),
        (None, ["--choice", ""], "every choice must be a non-empty string"),
        (None, ["--choice", "a", "--model", "no/such/model"], "cannot load the model no/such/model"),
        (None, ["--choice", "a", "--device", "abacus"], "cannot use device 'abacus'"),
    ],
)
def test_mistakes_get_one_clear_line_and_status_2(capsys, tmp_path, monkeypatch, file_text, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if file_text is not None:
        Path("FILE").write_text(file_text)
    assert main(["generate", *arguments]) == 2
    screen = capsys.readouterr()
    assert screen.out == ""
    errors = [line for line in screen.err.splitlines() if line.startswith("structout: error: ")]
    assert len(errors) == 1
    assert screen.err.splitlines()[-1] == errors[0]
    assert message in errors[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate"], "one of the arguments --json-schema --regex --choice --grammar is required"),
        (["generate", "--regex", "a", "--choice", "a"], "not allowed with argument"),
        (["generate", "--regex", "a", "-n", "0"], "must be at least 1, got 0"),
        (["generate", "--regex", "a", "--temperature", "nan"], "must be 0 or more, got nan"),
        ([], "required"),
    ],
)
def test_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["generate", "--help"])
    assert exit_.value.code == 0
    assert "structout generate --json-schema examples/order.schema.json" in capsys.readouterr().out


def test_progress_on_a_terminal_and_clean_output_in_a_pipe():
    """The process itself: standard error is a terminal, standard output a pipe."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "structout.cli", "generate", "--regex", "[a-z]{40}", "--seed", "1"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, timeout=120)
    os.close(terminal)
    seen = os.read(controller, 100_000).decode()
    os.close(controller)
    assert run.returncode == 0
    assert re.fullmatch(rb"[a-z]{40}\n", run.stdout)
    assert re.search(r"\r\x1b\[K\[\d+ tokens\] [a-z]+", seen)


def test_doctor_says_what_serves_what(capsys):
    assert main(["doctor"]) == 0
    report = capsys.readouterr().out
    assert f"structout {structout.__version__}" in report
    assert transformers.__version__ in report
    assert re.search(r"cpu +C\+\+, (avx512|avx2|default), \d+ threads", report)
    module = subprocess.run([sys.executable, "-m", "structout.doctor"], capture_output=True, text=True, timeout=120)
    assert module.stdout == report
