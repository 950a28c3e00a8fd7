"""`structout generate` and `structout doctor`, as a person runs them, with the real demo model."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import torch
import transformers
from locations import ROOT
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import structout
from structout import StructuredOutputManager, StructuredOutputsParams
from structout.cli.demo_model import load_demo_model
from structout.cli.main import main
from structout.cli.validate import replay_check

EXAMPLES = ROOT / "examples"
ORDER = EXAMPLES / "order.schema.json"


DEEP = '{"type": "object", "properties": {"a": ' * 400 + "true" + "}}" * 400


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(cache))


@pytest.fixture
def folder(tmp_path):
    """A copy of the demo model, to be changed."""
    model, tokenizer, _ = load_demo_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_nested_json_document(capsys):
    assert main(["generate", "--json-schema", str(ORDER), "--seed", "7"]) == 0
    screen = capsys.readouterr()
    jsonschema.validate(json.loads(screen.out), json.loads(ORDER.read_text()))
    assert "1 of 1 valid" in screen.err
    assert re.search(r"\d tokens/s\)\nmedian step: forward .*, mask fill .*, mask copy .*, mask and draw ", screen.err)


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


@pytest.mark.parametrize("mode", ["ff_tokens", "retokenize", "draft"])
def test_jump_forward_says_how_many_passes_it_saves(capsys, mode):
    def run(mode):
        assert main(["generate", "--json-schema", str(ORDER), "--seed", "7", "--jump-forward", mode]) == 0
        return capsys.readouterr()

    screen = run(mode)
    jsonschema.validate(json.loads(screen.out), json.loads(ORDER.read_text()))
    tokens, passes, saved = map(
        int,
        re.search(rf"\njump-forward {mode}: (\d+) tokens in (\d+) forward passes, (\d+) saved\n", screen.err).groups(),
    )
    assert tokens + 1 == passes + saved
    assert saved > passes  # the schema's names are most of its tokens
    off = run("off")
    assert "jump-forward" not in off.err
    assert (off.out == screen.out) == (mode == "draft")


def test_a_model_from_a_directory(capsys, folder):
    assert main(["generate", "--model", str(folder), "--choice", "yes", "--prompt", "Ready?"]) == 0
    screen = capsys.readouterr()
    assert screen.out == "yes\n"
    assert f"{folder} on cpu" in screen.err


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
        (None, ["--choice", "a", "--device", "meta"], "cannot use device 'meta': structout's ops run on cpu and cuda"),
        (DEEP, ["--json-schema", "FILE"], "FILE: nesting is limited to 64, got 800"),
        (
            '{"$ref": "https://example.invalid/x.json"}',
            ["--json-schema", "FILE"],
            "FILE: a $ref must be # or start with",
        ),
        ('{"$schema": []}', ["--json-schema", "FILE"], "jsonschema cannot check this schema"),
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
        (["generate", "--regex", "a", "-n", "0"], "-n: must be a whole number of at least 1 and below 2**63, got '0'"),
        (["generate", "--regex", "a", "--max-tokens", "1.5"], "--max-tokens: must be a whole number of at least 1"),
        (["generate", "--regex", "a", "--seed", "1" * 5000], "--seed: must be a whole number of at least 0"),
        (
            ["generate", "--regex", "a", "--seed", str(2**63)],
            "--seed: must be a whole number of at least 0 and below 2**63",
        ),
        (["generate", "--regex", "a", "--temperature", "nan"], "must be a number, 0 or more, got 'nan'"),
        (["generate", "--regex", "a", "--temperature", "warm"], "must be a number, 0 or more, got 'warm'"),
        (["generate", "--regex", "a", "--jump-forward", "far"], "--jump-forward: invalid choice: 'far'"),
        (["generate", "--regex", "a", "--prompt", "\udcff"], "--prompt: must be UTF-8, got '\\udcff'"),
        (["generate", "--choice", "\udcff"], "--choice: must be UTF-8"),
        ([], "required"),
    ],
)
def test_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def check_that_a_line_says(capsys, arguments, message):
    assert main(["generate", *arguments]) == 2
    screen = capsys.readouterr()
    assert screen.out == ""
    assert screen.err.splitlines()[-1].startswith("structout: error: ")
    assert message in screen.err.splitlines()[-1]


def test_a_model_narrower_than_its_tokenizer(capsys, folder):
    model, _, _ = load_demo_model()
    model.resize_token_embeddings(500)
    model.save_pretrained(folder)
    message = f"cannot use {folder}: vocab_size is 500, but the tokenizer has a token of id 999"
    check_that_a_line_says(capsys, ["--choice", "a", "--model", str(folder)], message)


def test_a_tokenizer_without_an_end(capsys, folder):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["eos_token"]
    path.write_text(json.dumps(config))
    check_that_a_line_says(capsys, ["--choice", "a", "--model", str(folder)], "the tokenizer has no eos_token")


def test_a_damaged_model(capsys, folder):
    (folder / "model.safetensors").write_bytes(b"damaged")
    check_that_a_line_says(capsys, ["--choice", "a", "--model", str(folder)], f"cannot load the model {folder}: ")


def test_a_model_that_computes_nothing_but_nan(capsys, folder):
    model, _, _ = load_demo_model()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    model.save_pretrained(folder)
    check_that_a_line_says(capsys, ["--regex", "[ab]", "--model", str(folder)], "the model gave NaN")


def test_a_dead_end(capsys, folder):
    """The vocabulary cannot spell what must follow, which shows only on the way."""
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "a": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)  # noqa: S106 - no password
    check_that_a_line_says(capsys, ["--regex", "ac", "--model", str(folder)], "the grammar allows no token here")


def test_a_cache_that_is_a_file(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path / "file"))
    check_that_a_line_says(capsys, ["--choice", "a"], "(STRUCTOUT_CACHE_DIR moves it): [Errno 17] File exists")


def test_the_tiniest_temperature_is_greedy(capsys):
    texts = []
    for temperature in ("0", "1e-40", "1e-37"):
        assert main(["generate", "--regex", "[a-z]{20}", "--temperature", temperature, "--seed", "1"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(("encoding", "status"), [("ascii", 2), ("utf-8", 0)])
def test_characters_that_the_output_cannot_hold(encoding, status):
    run = in_a_process("--choice", "é🦊", PYTHONIOENCODING=encoding)
    assert run.returncode == status
    if status == 0:
        assert run.stdout.decode() == "é🦊\n"
    else:
        assert run.stdout == b""
        last = run.stderr.decode().splitlines()[-1]
        assert last == r"structout: error: standard output is ascii and cannot hold '\xe9': set PYTHONIOENCODING=utf-8"


def in_a_process(*arguments, **environment):
    command = [sys.executable, "-m", "structout.cli.main", "generate", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=120)


def test_a_single_json_document_is_shown_as_it_was_generated(capsys, tmp_path):
    (tmp_path / "schema").write_text(r'{"enum": [{"a": [1.10, "\u00e9 \ud83e\udd8a", []]}]}')
    assert main(["generate", "--json-schema", str(tmp_path / "schema")]) == 0
    assert capsys.readouterr().out == '{\n  "a": [\n    1.1,\n    "é 🦊",\n    []\n  ]\n}\n'


def test_a_grammars_texts_are_replayed():
    params = StructuredOutputsParams(grammar='root ::= "a" root | "b" ["é🦊]')
    _, tokenizer, _ = load_demo_model()
    with StructuredOutputManager(tokenizer, 1024) as manager:
        check = replay_check(params, manager)
        assert check("aab🦊") is None
        assert check('b"') is None
        for wrong in ("", "aab", "aab🦊a", "x", "<|end_of_text|>"):
            assert check(wrong) == "does not match the grammar"
        stats = manager.stats()
        assert (stats.waiting, stats.ready, stats.failed) == (0, 0, 0)


def test_ctrl_c_ends_a_long_compilation_and_says_what_it_waits_for():
    script = """
import time
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.cli.main import main
XgrammarBackend.compile_grammar = lambda *arguments: time.sleep(60)
raise SystemExit(main(["generate", "--choice", "a"]))
"""
    run = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert "compiling the constraint ...\n" in iter(run.stderr.readline, "")
    started = time.perf_counter()
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=50) == 130
    assert time.perf_counter() - started < 20  # a second, and what the interpreter itself needs on a busy machine
    assert run.stderr.read() == ""
    run.stderr.close()


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["generate", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "structout generate --json-schema examples/order.schema.json" in text
    assert "Texts go to standard output once all of them are complete and checked" in text


def test_progress_on_a_terminal_and_clean_output_in_a_pipe():
    """The process itself: standard error is a terminal, standard output a pipe."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "structout.cli.main", "generate", "--regex", "[a-z]{40}", "--seed", "1"]
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
