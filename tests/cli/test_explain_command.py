"""``structout explain`` from its arguments to its output."""

import io
import json
import re
from pathlib import Path

import jsonschema
import pytest

from structout.cli.random_model import load_random_model
from support.locations import ROOT

ORDER = ROOT / "examples" / "order.schema.json"
COLORS = '{"type": "array", "items": {"enum": ["red", 3, null]}}'


def fields_of(output):
    """The fields below the title, by their labels."""
    fields, label = {}, ""
    for line in output.splitlines()[2:]:
        label = line[:12].strip() or label
        fields[label] = f"{fields[label]} {line[14:]}" if label in fields else line[14:]
    return fields


@pytest.fixture
def explain(run):
    return lambda *arguments, status=0: run("explain", *arguments, status=status).out


def test_explain_with_a_schema_prints_a_title_and_aligned_fields(explain):
    output = explain(str(ORDER), "--key-order", "declared", "--compact")
    title, blank, *lines = output.splitlines()
    assert (title, blank) == (f"{ORDER}: JSON schema, draft 2020-12, 18 subschemas", "")
    assert all(re.match(r"(?=.{12}  \S)[a-z ]{12}", line) for line in lines)
    assert max(map(len, lines)) <= 100
    fields = fields_of(output)
    assert list(fields)[:4] == ["engine", "enforced", "descriptive", "ready"]
    assert list(fields)[-4:] == ["visited", "automaton", "needs", "example"]
    assert fields["enforced"].startswith("type 16, pattern 7, properties 4")
    assert re.fullmatch(r"[\d.]+ (ms|µs), with the demo model's 1,000 tokens", fields["ready"])
    assert re.fullmatch(r"[\d,]+ states, [\d,]+ masks, [\d,]+ (kB|bytes) after 16 texts", fields["visited"])
    assert fields["automaton"].endswith(": a device can follow it")
    assert re.fullmatch(r"at least \d+ tokens, the stop token included", fields["needs"])
    jsonschema.validate(json.loads(fields["example"]), json.loads(ORDER.read_text()))


def test_explain_with_closed_objects_needs_no_memory_for_their_keys(explain):
    schema = '{"properties": {"next": {"$ref": "#"}}}'
    reason = "may have to remember keys or items"
    assert reason in fields_of(explain(schema))["automaton"]
    assert reason not in fields_of(explain(schema, "--additional-properties", "closed"))["automaton"]


def test_explain_with_key_order_any_says_that_declared_needs_fewer_states(explain):
    assert (
        "--key-order declared needs fewer states" in fields_of(explain(str(ORDER), "--key-order", "any"))["automaton"]
    )


def test_explain_reads_a_schema_from_standard_input(explain, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"true")))
    output = explain("-")
    assert output.startswith("standard input: JSON schema, draft 2020-12, 0 subschemas\n")
    assert fields_of(output)["enforced"] == "nothing: every JSON text is valid"


@pytest.mark.parametrize(
    ("arguments", "title", "example"),
    [
        (["--regex", "[A-Z]{3}"], "regular expression", "[A-Z]{3}"),
        (["--choice", "yes", "--choice", "no"], "choice", "yes|no"),
        (["--grammar", str(ROOT / "examples" / "sql.ebnf")], f"{ROOT / 'examples' / 'sql.ebnf'}: grammar", "SELECT .*"),
        ([COLORS], "JSON schema, draft 2020-12, 2 subschemas", r"\[.*\]"),
    ],
)
def test_explain_with_any_constraint_prints_an_example(explain, arguments, title, example):
    output = explain(*arguments)
    assert output.splitlines()[0] == title
    assert re.fullmatch(example, fields_of(output)["example"])


def test_explain_with_a_schema_that_does_not_close_says_why(explain):
    fields = fields_of(explain('{"properties": {"a": {"$ref": "#"}}, "uniqueItems": true}'))
    causes = "none: #/uniqueItems, # may have to remember keys or items; #/properties/a/$ref leads back to itself"
    assert fields["automaton"] == causes


def test_explain_with_words_that_count_for_nothing_lists_them(explain):
    schema = '{"type": "string", "format": "password", "title": "T", "minLenght": 3}'
    fields = fields_of(explain(schema))
    assert fields["enforced"] == "type 1"
    assert fields["annotations"] == "#/format (formats that constrain nothing)"
    assert fields["descriptive"] == "title 1"
    assert fields["unknown"] == "#/minLenght (ignored: not in this draft); #/minLenght may be meant as minLength"


def test_explain_with_a_schema_that_is_refused_says_why_and_returns_1(explain):
    fields = fields_of(explain('{"type": "string", "pattern": "(?<=a)b"}', status=1))
    assert fields["refused"] == "#/pattern: lookbehind is not supported (at character 3) (unsupported)"
    assert fields["advice"] == "write what stands in front into the expression, instead of a lookbehind"
    assert fields["keywords"] == "type 1, pattern 1"
    assert {"engine", "example", "ready"}.isdisjoint(fields)


def test_explain_with_too_deep_a_schema_asks_no_engine_and_returns_1(explain):
    output = explain('{"not": ' * 200 + "true" + "}" * 200, status=1)
    assert output.splitlines()[0] == "refused before any engine sees it"
    assert list(fields_of(output)) == ["refused", "advice"]


def test_explain_with_lenient_names_what_is_not_enforced(explain):
    fields = fields_of(explain('{"type": "string", "pattern": "(?<=a)b"}', "--lenient"))
    assert (fields["enforced"], fields["not enforced"]) == ("type 1", "#/pattern")


def test_explain_with_plot_draws_an_automaton_in_the_language_of_the_file(explain, tmp_path):
    for name, beginning, label in (("a.svg", "<svg ", ">ull<"), ("a.dot", "digraph {", '[label="ull"]')):
        path = tmp_path / name
        fields = fields_of(explain(COLORS, "--compact", "--plot", str(path)))
        assert fields["picture"].startswith(f"{path}, the automaton")
        assert path.read_text().startswith(beginning)
        assert label in path.read_text()


def test_explain_with_plot_and_no_small_automaton_draws_visited_states(explain, tmp_path):
    path = tmp_path / "visited.svg"
    fields = fields_of(explain("--grammar", 'root ::= "(" root ")" | "a"', "--plot", str(path)))
    assert fields["picture"] == f"{path}, the states that the texts have visited"
    assert path.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["--regex", "(ab?){100}"], 0, "there are more than 64 states to show"),
        (["--regex", "("], 1, "the constraint is refused"),
        (["--regex", "a", "--backend", "xgrammar"], 0, "another engine serves the constraint"),
    ],
)
def test_explain_with_plot_and_no_picture_says_why(explain, tmp_path, arguments, status, why):
    path = tmp_path / "automaton.svg"
    assert why in fields_of(explain(*arguments, "--plot", str(path), status=status))["picture"]
    assert not path.exists()


def test_explain_with_a_tokenizer_uses_it(explain, tmp_path):
    from structout.cli.random_model import load_random_model

    load_random_model()[1].save_pretrained(tmp_path)
    assert fields_of(explain("true", "--tokenizer", str(tmp_path)))["ready"].endswith(
        f"with the 1,000 tokens of {tmp_path}"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.json"], "cannot read absent.json: No such file or directory"),
        ([COLORS, "--plot", "absent/a.svg"], "cannot write absent/a.svg: No such file or directory"),
        ([COLORS, "--tokenizer", "."], "cannot load the tokenizer .: the directory has no tokenizer_config.json"),
        ([COLORS, "--tokenizer", "FILE"], "it is a file; give the directory that holds tokenizer_config.json"),
    ],
)
def test_explain_with_a_mistake_prints_one_line_and_returns_2(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("")
    output = run("explain", *arguments, status=2)
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("structout: error: ")
    assert message in output.err.splitlines()[-1]


@pytest.mark.parametrize("arguments", [[], [COLORS, "--regex", "a"], [COLORS, "--key-order", "random"]])
def test_explain_with_wrong_arguments_exits_with_2(run, arguments):
    assert "usage: structout explain" in run("explain", *arguments, status=2).err


TOOLS = [
    {"type": "function", "function": {"name": "find", "parameters": {
        "type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"],
        "additionalProperties": False,
    }}},
]  # fmt: skip


def test_explain_with_tools_prints_what_their_schemas_enforce_and_a_call(explain, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": TOOLS}))
    output = explain("--tools", str(path), "--tool-choice", "required", "--tool-format", "qwen_3_coder")
    assert output.splitlines()[0] == f"{path}: structural tag"
    fields = fields_of(output)
    assert fields["engine"] == "native"
    assert "format 1" in fields["enforced"]
    assert fields["automaton"] == "none: parts lie inside each other"
    assert re.search(r"<function=find>.*parameter=day>.*\d{4}-\d\d-\d\d", fields["example"])


def test_explain_with_tools_prints_the_format_of_the_model(explain, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    call = "<do>{{ c.function.name }} with {{ c.function.arguments | tojson }}</do>"
    calls = f"{{% for c in m.tool_calls %}}{call}{{% endfor %}}"
    _, tokenizer, _ = load_random_model()
    tokenizer.chat_template = f"{{% for m in messages %}}<turn>{{{{ m.content }}}}{calls}{{% endfor %}}"
    tokenizer.save_pretrained(tmp_path)
    fields = fields_of(explain("--tools", str(path), "--model", str(tmp_path)))
    assert fields["call"] == '<do>NAME with {"KEY": "VALUE"}</do>'
    assert fields["calls"] == "any number"


def test_explain_with_tools_prints_what_stands_around_reasoning_and_content(explain, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    fields = fields_of(explain("--tools", str(path), "--tool-format", "harmony"))
    assert fields["reasoning"] == "<|channel|>analysis<|message|>TEXT<|end|><|start|>assistant"
    assert fields["content"] == "<|channel|>final<|message|>TEXT"
    assert "content" not in fields_of(explain("--tools", str(path), "--tool-format", "hermes"))


def test_explain_with_a_bad_tool_names_it(explain, tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([*TOOLS, {"name": "g", "parameters": {"properties": {"a": {"pattern": "("}}}}]))
    fields = fields_of(explain("--tools", str(path), status=1))
    assert fields["refused"].startswith("#/format/tags/1/content/json_schema/properties/a/pattern: ")
