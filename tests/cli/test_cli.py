"""The ``structout`` command from its arguments to its output, with the random
model."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

import structout
from structout import StructuredOutputManager, StructuredOutputsParams
from structout.cli.progress import Progress
from structout.cli.random_model import load_random_model
from structout.cli.validate import replay_check
from structout_cli import main
from support import fresh_process
from support.locations import ROOT

EXAMPLES = ROOT / "examples"
ORDER = EXAMPLES / "order.schema.json"
DEEP = '{"type": "object", "properties": {"a": ' * 400 + "true" + "}}" * 400


TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[0-9]{3}"}, "end": "</a>"},
    }
)
# No engine looks behind.
UNENFORCED = '{"type": "object", "properties": {"a": {"enum": ["xy"], "pattern": "(?<=x)y"}}, '
UNENFORCED += '"required": ["a"], "additionalProperties": false}'


@pytest.fixture
def model_dir(tmp_path):
    """A copy of the random model, to be changed."""
    model, tokenizer, _ = load_random_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_generate_with_json_schema_prints_a_valid_document(run):
    output = run("generate", "--json-schema", str(ORDER), "--seed", "7")
    jsonschema.validate(json.loads(output.out), json.loads(ORDER.read_text()))
    assert "1 of 1 text valid" in output.err
    assert re.search(r"\d tokens/s\)\nmedian step: mask fill .*, forward .*, mask copy .*, mask and draw ", output.err)


def test_generate_and_explain_read_the_schemas_that_a_schema_refers_to(run, tmp_path):
    (tmp_path / "small.json").write_text('{"$defs": {"small": {"enum": [5, 6]}}}')
    schema = '{"type": "array", "items": {"$ref": "https://example.com/?a=b#/$defs/small"}, "maxItems": 3}'
    other = ["--schema-for", f"https://example.com/?a=b={tmp_path / 'small.json'}"]
    assert {*json.loads(run("generate", "--json-schema", schema, *other, "--seed", "7").out)} <= {5, 6}
    assert "engine        native" in run("explain", schema, *other).out
    assert "or give it with --schema-for URI=FILE" in " ".join(run("explain", schema, status=1).out.split())
    assert (
        "--schema-for must be URI=FILE, got small.json"
        in run("generate", "--json-schema", schema, "--schema-for", "small.json", status=2).err
    )


def test_generate_with_64_samples_prints_valid_and_different_lines(run):
    lines = run("generate", "--json-schema", str(ORDER), "--seed", "1", "-n", "64").out.splitlines()
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
        (["--structural-tag", TAG], r"<a>[0-9]{3}</a>"),
        (["--grammar", 'root ::= "a" | "(" root ")"'], r"\(*a\)*"),
        (["--grammar", 'start: "a" | "(" start ")"'], r"\(*a\)*"),
        (["--regex", r"\p{L}{3}"], r"[^\W\d_]{3}"),  # as structout's own engine reads it
    ],
)
def test_generate_with_other_constraints_prints_one_text_per_line(run, arguments, pattern):
    lines = run("generate", *arguments, "-n", "4", "--seed", "3").out.splitlines()
    assert len(lines) == 4
    assert all(re.fullmatch(pattern, line) for line in lines)


def test_generate_repeats_with_the_same_seed_or_greedily(run):
    def generate(*extra):
        return run("generate", "--regex", "[a-z ]{20,30}", *extra).out

    assert generate("--seed", "5") == generate("--seed", "5") != generate("--seed", "6")
    assert generate("--temperature", "0", "--seed", "5") == generate("--temperature", "0", "--seed", "6")


@pytest.mark.parametrize("mode", ["ff_tokens", "retokenize", "draft"])
def test_generate_with_jump_forward_prints_the_number_of_saved_passes(run, mode):
    def generate(mode):
        return run("generate", "--json-schema", str(ORDER), "--seed", "7", "--jump-forward", mode)

    output = generate(mode)
    jsonschema.validate(json.loads(output.out), json.loads(ORDER.read_text()))
    tokens, passes, saved = map(
        int,
        re.search(rf"\njump-forward {mode}: (\d+) tokens in (\d+) forward passes, (\d+) saved\n", output.err).groups(),
    )
    assert tokens == passes + saved
    assert saved > passes  # the schema's names are most of its tokens
    off = generate("off")
    assert "jump-forward" not in off.err
    assert (off.out == output.out) == (mode == "draft")


def test_generate_with_a_device_fsm_prints_the_texts_of_the_managers_masks(run):
    def generate(*extra):
        return run("generate", "--choice", "one of six", "--choice", "two", "-n", "4", "--seed", "3", *extra)

    output = generate("--device-fsm")
    assert output.out == generate().out
    assert re.search(r"\nmedian step: prefill .*, step ", output.err)


def test_generate_with_a_model_directory_uses_that_model(run, model_dir):
    output = run("generate", "--model", str(model_dir), "--choice", "yes", "--prompt", "Ready?")
    assert output.out == "yes\n"
    assert f"{model_dir} on cpu" in output.err


def test_generate_with_fewer_tokens_than_a_text_needs_is_refused_with_the_number(run):
    error = r"constraint refused \(limit\): the text needs at least \d+ tokens, --max-tokens is 3"
    assert re.search(error, run("generate", "--regex", "[a-z]{50}", "--max-tokens", "3", status=2).err)


@pytest.fixture
def unlimited(monkeypatch):
    """Constraints that leave the limit out, like those whose ends are not known."""
    monkeypatch.setattr(StructuredOutputManager, "end_within", lambda *_: None)


@pytest.mark.usefixtures("unlimited")
def test_generate_with_too_few_tokens_reports_the_text_and_returns_1(run):
    output = run("generate", "--regex", "[a-z]{50}", "--max-tokens", "3", "--seed", "0", status=1)
    assert output.out == ""
    assert "structout: not complete after 3 tokens; raise --max-tokens: " in output.err
    assert "0 of 1 text valid" in output.err


def check_last_line(run, arguments, message):
    output = run("generate", *arguments, status=2)
    assert output.out == ""
    *others, last = output.err.splitlines()
    assert last.startswith("structout: error: ")
    assert message in last
    assert not [line for line in others if line.startswith("structout: error: ")]


@pytest.mark.parametrize(
    ("file_text", "arguments", "message"),
    [
        (None, ["--json-schema", "absent.json"], "cannot read absent.json: No such file or directory"),
        (None, ["--grammar", "."], "cannot read .: Is a directory"),
        ("{", ["--json-schema", "FILE"], "FILE: the JSON schema is not JSON: Expecting property name"),
        ('{"type": "strin"}', ["--json-schema", "FILE"], "not a valid JSON Schema: 'strin' is not valid"),
        ('{"$ref": "#"}', ["--json-schema", "FILE"], "refers to itself for the same value"),
        ("root ::= root", ["--grammar", "FILE"], "allows no text at all"),
        (
            "root ::= (",
            ["--grammar", "FILE"],
            "constraint refused (malformed): line 1, column 11: the grammar does not parse",
        ),
        (
            None,
            ["--regex", "("],
            "constraint refused (malformed): a regular expression does not parse: a ( is not closed",
        ),
        (
            None,
            ["--regex", "(?<=a)b"],
            "constraint refused (unsupported): a regular expression cannot be compiled: lookbehind is not supported",
        ),
        (None, ["--choice", ""], "every choice must be a non-empty string"),
        (None, ["--json-schema", "false"], "allows no"),
        (
            None,
            ["--choice", "a", "--model", "such/model"],
            "cannot load the model such/model: it is no directory, and it cannot be loaded from the Hugging Face Hub: ",
        ),
        (None, ["--choice", "a", "--model", "."], "cannot load the model .: the directory has no config.json"),
        ("", ["--choice", "a", "--model", "FILE"], "it is a file; give the directory that holds config.json"),
        (None, ["--json-schema", "order"], "cannot read order: No such file or directory (JSON on the command line"),
        (None, ["--json-schema", "{"], "--json-schema: the JSON schema is not JSON: Expecting property name"),
        (None, ["--structural-tag", "{"], "--structural-tag: the structural tag is not JSON: Expecting property"),
        (
            None,
            ["--choice", "a", "--max-tokens", "4096"],
            "a prompt of 1 tokens and --max-tokens=4,096 need 4,097 positions, but the model has 4,096: ",
        ),
        (
            None,
            ["--choice", "a", "--prompt", "order " * 5000],
            "a prompt of 5,002 tokens and --max-tokens=1 need 5,003 positions, but the model has 4,096: ",
        ),
        (None, ["--choice", "a", "--device", "abacus"], "cannot use device 'abacus'"),
        (None, ["--choice", "a", "--device", "meta"], "cannot use device 'meta': structout's ops run on cpu and cuda"),
        (DEEP, ["--json-schema", "FILE"], "FILE: nesting is limited to 64, got 800"),
        (
            '{"$ref": "https://example.invalid/x.json"}',
            ["--json-schema", "FILE"],
            "#/$ref: cannot follow the reference https://example.invalid/x.json: it leaves the document",
        ),
        (
            'root ::= "(" root ")" | "a"',
            ["--grammar", "FILE", "--device-fsm"],
            "small schemas and regular grammars; this constraint is served by native",
        ),
        ('{"$schema": []}', ["--json-schema", "FILE"], "jsonschema cannot check this schema"),
    ],
)
def test_generate_with_a_mistake_prints_one_line_and_returns_2(
    run, tmp_path, monkeypatch, file_text, arguments, message
):
    monkeypatch.chdir(tmp_path)
    # HF_HUB_OFFLINE itself was read at import. Online, the Hub is tried for a minute.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if file_text is not None:
        Path("FILE").write_text(file_text)
    check_last_line(run, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate"],
            "one of the arguments --json-schema --regex --choice --grammar --structural-tag --tools is required",
        ),
        (["generate", "--regex", "a", "--choice", "a"], "not allowed with argument"),
        (["generate", "--regex", "a", "-n", "0"], "-n: must be an integer from 1 to 2**63 - 1, got '0'"),
        (["generate", "--regex", "a", "--max-tokens", "1.5"], "--max-tokens: must be an integer from 1 to"),
        (["generate", "--regex", "a", "--seed", "1" * 5000], "--seed: must be an integer from 0 to"),
        (
            ["generate", "--regex", "a", "--seed", str(2**63)],
            "--seed: must be an integer from 0 to 2**63 - 1",
        ),
        (["generate", "--regex", "a", "--temperature", "nan"], "must be a number of at least 0, got 'nan'"),
        (["generate", "--regex", "a", "--temperature", "warm"], "must be a number of at least 0, got 'warm'"),
        (["generate", "--regex", "a", "--jump-forward", "far"], "--jump-forward: invalid choice: 'far'"),
        (["generate", "--regex", "a", "--prompt", "a", "--continue", "b"], "not allowed with argument"),
        (["generate", "--choice", "a", "--device-fsm", "--jump-forward", "draft"], "not allowed with argument"),
        (["generate", "--regex", "a", "--prompt", "\udcff"], "--prompt: must be UTF-8, got '\\udcff'"),
        (["generate", "--choice", "\udcff"], "--choice: must be UTF-8"),
        ([], "required"),
    ],
)
def test_main_with_wrong_arguments_exits_with_2(run, arguments, message):
    assert message in run(*arguments, status=2).err


def test_generate_with_a_model_narrower_than_its_tokenizer_names_both(run, model_dir):
    model, _, _ = load_random_model()
    model.resize_token_embeddings(500)
    model.save_pretrained(model_dir)
    message = f"cannot use {model_dir}: vocab_size is 500, but the tokenizer has a token of id 999"
    check_last_line(run, ["--choice", "a", "--model", str(model_dir)], message)


def test_generate_with_a_tokenizer_without_eos_token_names_the_cause(run, model_dir):
    path = model_dir / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["eos_token"]
    path.write_text(json.dumps(config))
    check_last_line(run, ["--choice", "a", "--model", str(model_dir)], "the tokenizer has no eos_token")


def test_generate_with_a_damaged_model_names_it(run, model_dir):
    (model_dir / "model.safetensors").write_bytes(b"damaged")
    check_last_line(run, ["--choice", "a", "--model", str(model_dir)], f"cannot load the model {model_dir}: ")


def test_generate_with_nan_logits_names_the_cause(run, model_dir):
    model, _, _ = load_random_model()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    model.save_pretrained(model_dir)
    check_last_line(
        run,
        ["--regex", "[ab]", "--model", str(model_dir)],
        "structout: error: nothing can be drawn: the model gave NaN",
    )


def test_generate_with_a_file_as_cache_directory_names_the_variable(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path / "file"))
    check_last_line(run, ["--choice", "a"], "(STRUCTOUT_CACHE_DIR moves it): [Errno 17] File exists")


def test_generate_with_a_temperature_below_float32_is_greedy(run):
    texts = []
    for temperature in ("0", "1e-40", "1e-37"):
        texts.append(run("generate", "--regex", "[a-z]{20}", "--temperature", temperature, "--seed", "1").out)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(("encoding", "status"), [("ascii", 2), ("utf-8", 0)])
def test_generate_with_characters_outside_the_output_encoding_fails(encoding, status):
    run = run_generate("--choice", "é🦊", PYTHONIOENCODING=encoding)
    assert run.returncode == status
    if status == 0:
        assert run.stdout == "é🦊\n"
    else:
        assert run.stdout == ""
        last = run.stderr.splitlines()[-1]
        assert (
            last
            == r"structout: error: standard output is ascii and cannot represent '\xe9': set PYTHONIOENCODING=utf-8"
        )


def run_generate(*arguments, stderr=None, **environment):
    environment = {**os.environ, **environment}
    return fresh_process.run("-P", "-m", "structout", "generate", *arguments, env=environment, stderr=stderr)


CONSTANT = r'{"enum": [{"a": [true, "\u00e9 \ud83e\udd8a", []]}]}'
INDENTED = '{\n  "a": [\n    true,\n    "é 🦊",\n    []\n  ]\n}\n'


def test_generate_with_one_json_text_indents_it(run):
    assert run("generate", "--json-schema", CONSTANT).out == INDENTED


@pytest.mark.parametrize("extra", [["--compact"], ["-n", "2"], ["-n", "2", "--compact"]])
def test_generate_with_compact_or_several_texts_prints_one_line_per_text(run, extra):
    assert run("generate", "--json-schema", CONSTANT, *extra).out == '{"a": [true, "é 🦊", []]}\n' * (
        2 if "-n" in extra else 1
    )


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--json-schema", CONSTANT, INDENTED),
        ("--grammar", 'root ::= "é" | "🦊" "é"', None),
        ("--grammar", 'start: "é" | "🦊" "é"', None),
        ("--structural-tag", TAG, None),
    ],
)
def test_generate_with_a_dash_reads_the_constraint_from_standard_input(run, monkeypatch, option, text, expected):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="ascii"))
    out = run("generate", option, "-").out
    assert out == expected if expected else re.fullmatch("é\n|🦊é\n|<a>[0-9]{3}</a>\n", out)


def test_generate_with_a_bad_constraint_on_standard_input_names_it(run, monkeypatch):
    for data, message in ((b"\xff", "cannot read standard input: "), (b"[]", "standard input: a JSON schema must be ")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        check_last_line(run, ["--json-schema", "-"], message)


def test_generate_with_an_unenforced_keyword_needs_lenient(run):
    check_last_line(
        run, ["--json-schema", UNENFORCED], "#/properties/a/pattern: lookbehind is not supported (at character 3)"
    )
    output = run("generate", "--json-schema", UNENFORCED, "--lenient", "--compact", "--seed", "1")
    assert output.out == '{"a": "xy"}\n'
    assert "\nnot enforced: #/properties/a/pattern\n" in output.err


def test_generate_with_an_unknown_format_names_it_as_an_annotation(run):
    schema = '{"enum": ["a"], "type": "string", "format": "path"}'
    output = run("generate", "--json-schema", schema)
    assert output.out == '"a"\n'
    assert "\nannotations, which constrain nothing: #/format\n" in output.err


def test_generate_with_strict_formats_refuses_an_unknown_one(run):
    schema = '{"enum": ["a"], "type": "string", "format": "path"}'
    output = run("generate", "--json-schema", schema, "--formats", "strict", status=2)
    assert 'does not enforce #/format, and formats="strict" asks for it' in output.err


def test_generate_with_lenient_still_rejects_a_text_that_breaks_the_schema(run):
    schema = '{"enum": ["b"], "pattern": "^(?<=x)b$"}'  # no engine looks behind
    output = run("generate", "--json-schema", schema, "--lenient", status=1)
    assert output.out == ""
    assert re.search(r"\nstructout: does not satisfy the schema \(.* at \$\): \"b\"\n", output.err)


@pytest.fixture
def gpt2_dir(model_dir):
    """A model with 25 learned positions: one more raises IndexError."""
    config = GPT2Config(vocab_size=1024, n_positions=25, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(model_dir)
    return model_dir


@pytest.mark.parametrize("mode", ["off", "draft"])
def test_generate_up_to_the_last_position_of_the_model(capsys, run, request, gpt2_dir, mode):
    arguments = ["--model", str(gpt2_dir), "--prompt", "order", "--seed", "2", "-n", "3", "--jump-forward", mode]
    schema = '{"enum": [{"status": "created", "total": 10}, {"status": "paid", "total": 10}, 7]}'
    assert main(["generate", *arguments, "--json-schema", schema]) in (0, 1)  # 2 if the model fails
    assert "7\n" in capsys.readouterr().out
    request.getfixturevalue("unlimited")
    assert (
        "tokens, when the model's 25 positions were used up: abc"
        in run("generate", *arguments, "--regex", "abc[a-z]{60}", status=1).err
    )


def test_replay_check_accepts_exactly_the_texts_of_the_grammar():
    params = StructuredOutputsParams(grammar='root ::= "a" root | "b" ["é🦊]')
    _, tokenizer, _ = load_random_model()
    with StructuredOutputManager(tokenizer, 1024) as manager:
        check = replay_check(params, manager)
        assert check("aab🦊") is None
        assert check('b"') is None
        for wrong in ("", "aab", "aab🦊a", "x", "<|end_of_text|>"):
            assert check(wrong) == "does not match the grammar"
        stats = manager.stats()
        assert (stats.waiting, stats.ready, stats.failed) == (0, 0, 0)


def test_generate_with_a_long_compilation_says_so_and_ends_with_ctrl_c():
    """A thread reads standard error and does what Ctrl-C does."""
    script = """
import os, pathlib, signal, threading, time
from structout.grammar.native.backend import NativeBackend
from structout_cli import main

def interrupt():
    while "compiling the constraint ...\\n" not in pathlib.Path("/proc/self/fd/2").read_text():
        time.sleep(0.05)
    print(time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)

NativeBackend.compile = lambda *arguments: time.sleep(60)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start pytest with SIGINT ignored
threading.Thread(target=interrupt).start()
raise SystemExit(main(["generate", "--choice", "a"]))
"""
    run = fresh_process.run("-c", script, env=dict(os.environ), timeout=110, finalizes=True)
    assert run.returncode == 130
    interrupted = float(run.stdout)
    assert time.monotonic() - interrupted < 20  # a second, and what the interpreter itself needs on a busy machine
    assert run.stderr.endswith("compiling the constraint ...\n")


def test_generate_that_is_interrupted_says_what_is_lost(run, monkeypatch):
    class Interrupted(Progress):
        def after_step(self, texts):
            super().after_step(texts)
            if self.num_passes == 5:
                raise KeyboardInterrupt

    monkeypatch.setattr("structout.cli.generate.Progress", Interrupted)
    output = run("generate", "--regex", "abc|[0-9]{50}", "-n", "3", "--seed", "1", status=130)
    assert output.out == ""
    *_, lost, first, second, third = output.err.splitlines()
    num_tokens, num_complete = re.fullmatch(
        r"structout: interrupted, which loses (\d+) tokens of 3 texts, (\d) of them complete:", lost
    ).groups()
    assert 5 <= int(num_tokens) <= 15
    assert int(num_complete) == [first, second, third].count("abc")
    assert all(re.fullmatch("abc?|[0-9]+", text) for text in (first, second, third))


def test_generate_puts_the_prompt_into_the_chat_template(run, model_dir, monkeypatch):
    def see(model, tokenizer, prompt, **options):
        seen.append(prompt)
        raise ValueError

    def prompt_of(*arguments):
        run("generate", "--choice", "a", "--model", model_dir, *arguments, status=2)
        return seen.pop()

    seen = []
    monkeypatch.setattr("structout.cli.generate.generate", see)
    assert prompt_of("--prompt", "order") == prompt_of("--continue", "order")
    (model_dir / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert prompt_of("--prompt", "order") == [{"role": "user", "content": "order"}]
    assert prompt_of() == [{"role": "user", "content": "Give me an example."}]
    assert isinstance(prompt_of("--continue", "order")[0], int)
    assert len(prompt_of("--continue", "")) == 1


def test_generate_with_the_demo_model_reads_the_prompt(demo, run, monkeypatch):
    monkeypatch.delenv("STRUCTOUT_CACHE_DIR")
    monkeypatch.delenv("STRUCTOUT_DEMO_MODEL")
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["name", "age", "city"],
        "additionalProperties": False,
    }
    prompt = "Maria Lopez is 34 years old and lives in Madrid."
    output = run("generate", "--json-schema", json.dumps(schema), "--prompt", prompt, "--temperature", "0")
    assert json.loads(output.out) == {"name": "Maria Lopez", "age": 34, "city": "Madrid"}
    assert output.err.startswith("SmolLM2-135M-Instruct on cpu\n")
    arguments = ["--regex", "[0-9]{4}", "--continue", "The first man stood on the moon in", "--temperature", "0"]
    assert run("generate", *arguments).out == "1969\n"


@pytest.mark.parametrize("command", ["explain", "check"])
def test_every_command_takes_a_schema_by_the_same_option(run, command):
    text = ["[3]"] if command == "check" else []
    schema = '{"type": "array", "items": {"enum": ["red", 3, null]}}'
    output = run(command, "--json-schema", schema, *text).out
    without_times = [re.sub(r"[\d.]+ (ms|µs)", "", each) for each in (output, run(command, schema, *text).out)]
    assert without_times[0] == without_times[1]
    run(command, "--json-schema", schema, schema, *text, status=2)


def test_generate_help_shows_examples_and_both_grammar_formats(run):
    text = run("generate", "--help").out
    assert "structout generate --json-schema examples/order.schema.json" in text
    assert "Standard output receives the texts, after all of them are complete and checked" in text
    assert "EBNF with the root rule `root`, or Lark with the start rule `start`" in " ".join(text.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["generate", "--help"], ["doctor", "--help"], ["generate"], []]
)
def test_main_answers_help_version_and_usage_errors_without_importing_torch(arguments):
    script = f"""
import sys
from structout_cli import main
try:
    main({arguments})
except SystemExit:
    print(*(name for name in ("torch", "numpy", "structout") if name in sys.modules), file=sys.stderr)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert run.stderr.splitlines()[-1:] == [""] or run.stderr == "\n"
    if "--version" in arguments:
        assert run.stdout == f"structout {structout.__version__}\n"


def test_console_script_starts_in_the_module_without_imports():
    assert '\nstructout = "structout_cli:main"\n' in (ROOT / "pyproject.toml").read_text()


def test_python_m_structout_is_the_command():
    run = fresh_process.run("-m", "structout", "--version", env=dict(os.environ))
    assert run.stdout == f"structout {structout.__version__}\n"


def test_generate_shows_progress_on_a_terminal_and_only_texts_in_a_pipe():
    """Standard error is a terminal, standard output is a file."""
    controller, terminal = pty.openpty()
    run = run_generate("--regex", "[a-z]{40}", "--seed", "1", stderr=os.ttyname(terminal))
    os.close(terminal)
    seen = os.read(controller, 100_000).decode()
    os.close(controller)
    assert run.returncode == 0
    assert re.fullmatch(r"[a-z]{40}\n", run.stdout)
    assert seen.startswith("loading torch and transformers ...")
    assert re.search(r"\r\x1b\[J[a-z]+\r\n\x1b\[2m\d+ tokens?( · [\d,]+ tokens/s)?\x1b\[0m", seen)


def test_generate_with_tools_writes_calls_that_are_checked(run, tmp_path):
    function = {"name": "get", "parameters": {"properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}}
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"type": "function", "function": function}]))
    output = run("generate", "--tools", str(path), "--tool-choice", "get", "--seed", "1")
    call = json.loads(output.out.strip().removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call["name"] == "get"
    assert "1 of 1 text valid" in output.err


def test_generate_warns_of_a_word_that_is_almost_a_keyword(run):
    schema = '{"type": "integer", "minimun": 5, "x-minimun": 1, "maximum": 9}'
    warnings = [
        line for line in run("generate", "--json-schema", schema, "--seed", "1").err.splitlines() if "warning" in line
    ]
    assert warnings == [
        "structout: warning: #/minimun is not a keyword of JSON Schema, so that it constrains nothing: minimum is one"
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_generate_with_an_output_that_cannot_be_written_says_so():
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "structout", "generate", "--choice", "a"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == "structout: error: cannot write the texts: No space left on device"


def test_generate_keeps_the_texts_that_were_written_before_an_error(run, monkeypatch):
    class FullDisk(io.StringIO):
        def flush(self):
            if self.getvalue().count("\n") == 3:
                raise OSError(28, "No space left on device")

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    output = FullDisk()
    monkeypatch.setattr(sys, "stdout", output)
    run("generate", "--regex", "[a-z]{3}", "-n", "5", "--seed", "1", status=2)
    assert len(output.getvalue().splitlines()) == 3


def test_generate_without_a_terminal_shows_no_progress():
    run = run_generate("--choice", "a")
    assert run.stdout == "a\n"
    assert "loading torch" not in run.stderr
    assert "\x1b" not in run.stderr


def test_doctor_prints_versions_and_kernels(run):
    report = run("doctor").out
    assert f"structout {structout.__version__}" in report
    assert transformers.__version__ in report
    assert re.search(r"cpu +C\+\+, (avx512|avx2|default), \d+ threads", report)
    module = fresh_process.run("-P", "-m", "structout.doctor", env=dict(os.environ))
    assert module.stdout == report


@pytest.mark.parametrize("mode", ["off", "ff_tokens", "retokenize", "draft"])
def test_generate_of_text_without_a_choice_may_ask_no_model(mode):
    run = run_generate("--choice", "Paris", "--jump-forward", mode)
    assert (run.returncode, run.stdout) == (0, "Paris\n")
    assert "1 of 1 text valid" in run.stderr
