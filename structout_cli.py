"""The ``structout`` command: its arguments, and nothing that is slow to import.

This module lies outside the package because ``import structout`` imports torch and
registers the ops, which takes seconds. ``--help``, ``--version`` and wrong arguments
are answered without it.
"""

import argparse
import gc
import importlib.util
import os
import runpy
import sys
from pathlib import Path

_GENERATE_EXAMPLES = """\
examples:
  structout generate --prompt 'Maria Lopez is 34 years old and lives in Madrid.' --temperature 0 --json-schema '
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
     "required": ["name", "age"], "additionalProperties": false}'
  structout generate --json-schema examples/order.schema.json -n 8
  structout generate --choice Paris --choice Tokyo --prompt 'What is the capital of Japan?' --temperature 0
  structout generate --regex '[0-9]{4}' --continue 'The first man stood on the moon in' --temperature 0
  structout generate --grammar examples/sql.ebnf --model ./my-model --device cuda
  structout generate --grammar 'root ::= "a" | "(" root ")"'
  structout generate --tools tools.json --tool-choice required

Standard output receives the texts, after all of them are complete and checked: one per line if there are several.
Standard error receives everything else. If it is a terminal, the texts grow there, token by token.

exit status:
  0  every text is complete and valid
  1  a text is incomplete or invalid
  2  wrong arguments, a bad constraint, an unusable model, or an output that cannot be written
  130  interrupted with Ctrl-C, which prints the texts so far to standard error
"""

_EXPLAIN_EXAMPLES = """\
examples:
  structout explain examples/order.schema.json
  structout explain examples/order.schema.json --key-order any --compact
  structout explain '{"type": "array", "items": {"enum": ["red", 3, null]}}' --plot automaton.svg
  structout explain --regex '[A-Z]{3}-[0-9]{4}' --tokenizer ./my-model

exit status:
  0  an engine serves the constraint
  1  the constraint is refused
  2  wrong arguments, or something that cannot be read or written
"""

_CHECK_EXAMPLES = """\
examples:
  structout check examples/order.schema.json '{"id": 7}'
  structout check examples/order.schema.json @answer.json --html answer.html
  structout check --regex '[A-Z]{3}-[0-9]{4}' ABC-12
  structout check --grammar examples/sql.ebnf 'SELECT name FROM' --model ./my-model --html query.html

TEXT is the text itself, @FILE, or - for standard input. A newline that ends the file or the input does not count.

exit status:
  0  the constraint allows the whole text
  1  it forbids the text, or asks for more
  2  wrong arguments, a bad constraint, or something that cannot be read or written
"""


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    # What the imports of torch and transformers create stays. By default the collector
    # walks it again and again, which takes 0.5 of 4.7 CPU seconds.
    gc.set_threshold(100_000)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="structout", description="Structured output for LLM inference in PyTorch.")
    parser.add_argument("--version", action="version", version=f"structout {_version()}")
    commands = parser.add_subparsers(required=True, metavar="{generate,explain,check,doctor}")

    generate = commands.add_parser(
        "generate",
        help="write text that satisfies a constraint",
        description="Write text that satisfies a constraint, with any transformers causal language model.",
        epilog=_GENERATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    generate.set_defaults(run=_generate, backend="auto")
    constraint = generate.add_argument_group("constraint (exactly one)").add_mutually_exclusive_group(required=True)
    _add_constraints(constraint)
    _add_tools(generate, constraint)
    _add_schemas(generate)
    generate.add_argument(
        "--lenient",
        action="store_true",
        help="accept a constraint that no grammar engine enforces in full, and print what is not enforced; texts are "
        "still checked against all of it",
    )
    _add_json_options(generate)
    generate.add_argument("--compact", action="store_true", help="print a single JSON text on one line")
    model = generate.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="DIR_OR_HUB_ID",
        help="a transformers model. Default: the demo model, SmolLM2-135M-Instruct",
    )
    model.add_argument(
        "--device", default="auto", help="auto (default: cuda if it is available), cpu, cuda, cuda:1, ..."
    )
    sampling = generate.add_argument_group("sampling")
    prompt = sampling.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        type=_text,
        metavar="TEXT",
        help="what the user says, in the model's chat template (default: Give me an example.). A model without a "
        "template continues it",
    )
    prompt.add_argument(
        "--continue",
        type=_text,
        dest="beginning",
        metavar="TEXT",
        help="instead of a prompt: text to continue, without the chat template",
    )
    sampling.add_argument(
        "-n", type=_count, default=1, metavar="N", help="number of texts, written as one batch (default: 1)"
    )
    sampling.add_argument("--temperature", type=_temperature, default=1.0, metavar="T", help="0 is greedy (default: 1)")
    sampling.add_argument("--seed", type=_seed, help="makes the texts repeatable")
    sampling.add_argument(
        "--max-tokens",
        type=_count,
        metavar="N",
        help="limit on each text (default: 512, or fewer where the model has no more positions)",
    )
    forced_text = sampling.add_mutually_exclusive_group()
    forced_text.add_argument(
        "--jump-forward",
        choices=["off", "ff_tokens", "retokenize", "draft"],
        default="off",
        help="how text without a choice is handled. off (default): drawn like other text; ff_tokens: its tokens are "
        "appended; retokenize: it is appended and the whole text is tokenized again; draft: the model verifies its "
        "tokens in one forward pass, which changes no text",
    )

    forced_text.add_argument(
        "--device-fsm",
        action="store_true",
        help="follow the constraint on the model's device, without waiting for the CPU in each step. For regular "
        "expressions, choices and grammars without recursion",
    )

    explain = commands.add_parser(
        "explain",
        help="say what a constraint enforces and costs",
        description="Say which grammar engine enforces a constraint, what it ignores or refuses, and what it costs.",
        epilog=_EXPLAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.set_defaults(run=_explain)
    constraint = explain.add_argument_group("constraint (exactly one)").add_mutually_exclusive_group(required=True)
    constraint.add_argument("schema", nargs="?", type=_text, metavar="SCHEMA", help="short for --json-schema SCHEMA")
    _add_constraints(constraint)
    _add_tools(explain, constraint)
    _add_schemas(explain)
    explain.add_argument("--backend", default="auto", metavar="NAME", help="auto (default), native or xgrammar")
    explain.add_argument("--lenient", action="store_true", help="accept what no engine enforces in full")
    explain.add_argument(
        "--tokenizer", "--model", metavar="DIR_OR_HUB_ID", help="a transformers tokenizer. Default: the demo model's"
    )
    _add_form(explain)
    explain.add_argument("--seed", type=_seed, default=0, help="of the texts that are drawn (default: 0)")
    explain.add_argument(
        "--plot",
        type=_text,
        metavar="FILE",
        help="draw a small automaton, or else the states that the drawn texts visit: SVG, or graphviz's language if "
        "FILE ends with .dot",
    )

    check = commands.add_parser(
        "check",
        help="say where a text leaves its constraint, and why",
        description="Say where a text leaves its constraint, to the byte and the token, what forbids it, what may "
        "follow instead, and the shortest way to a complete text.",
        usage="structout check (SCHEMA | --json-schema ... | --regex ... | ...) TEXT [options]",
        epilog=_CHECK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.set_defaults(run=_check, backend="auto", parser=check)
    check.add_argument(
        "inputs",
        nargs="+",
        type=_text,
        metavar="[SCHEMA] TEXT",
        help="the text, behind a JSON Schema if no option gives a constraint: SCHEMA is short for --json-schema SCHEMA",
    )
    constraint = check.add_argument_group("constraint (at most one)").add_mutually_exclusive_group()
    _add_constraints(constraint)
    _add_tools(check, constraint)
    _add_schemas(check)
    check.add_argument("--lenient", action="store_true", help="accept what no engine enforces in full")
    tokens = check.add_mutually_exclusive_group()
    tokens.add_argument(
        "--tokenizer", metavar="DIR_OR_HUB_ID", help="a transformers tokenizer. Default: the demo model's"
    )
    tokens.add_argument(
        "--model",
        metavar="DIR_OR_HUB_ID",
        help="a transformers model, with its tokenizer, that tells the likeliest tokens on the page",
    )
    _add_form(check)
    check.add_argument("--json", action="store_true", help="print the result as JSON")
    check.add_argument(
        "--html",
        type=_text,
        metavar="FILE",
        help="write a page that steps through the tokens: the state, what is open, how many tokens are allowed, and "
        "the likeliest that are not",
    )

    doctor = commands.add_parser("doctor", help="print versions, the kernels for each device, and what is missing")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_tools(command: argparse.ArgumentParser, constraint: argparse._MutuallyExclusiveGroup) -> None:
    constraint.add_argument(
        "--tools",
        type=_text,
        metavar="SOURCE",
        help="calls of tools: a list of OpenAI's tool objects. SOURCE is a file, - for standard input, or the JSON",
    )
    command.add_argument(
        "--tool-format", metavar="NAME", help="how calls are written (default: as the model's chat template does)"
    )
    command.add_argument(
        "--tool-choice",
        default="auto",
        metavar="CHOICE",
        help="auto (default: with text between calls), required (calls alone), or the name of the tool that is called",
    )


def _add_json_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--key-order",
        choices=("any", "declared"),
        default="declared",
        help="the order of keys in JSON: as the schema declares them (default), or any",
    )
    command.add_argument(
        "--additional-properties",
        choices=("schema", "closed"),
        default="schema",
        help="the keys of objects: all that the schema allows (default), or only those that it names",
    )
    command.add_argument(
        "--formats",
        choices=("annotate", "strict"),
        default="annotate",
        help="what becomes of a format that the engine does not enforce: it is listed (default), or refused",
    )


def _add_form(command: argparse.ArgumentParser) -> None:
    """Add the options of how JSON is written and read."""
    _add_json_options(command)
    command.add_argument("--compact", action="store_true", help="JSON has one space after , and : and no other")


def _add_schemas(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--schema-for",
        action="append",
        default=[],
        type=_text,
        metavar="URI=FILE",
        help="another schema that the JSON Schema refers to by its URI; as often as needed",
    )


def _add_constraints(constraint: argparse._MutuallyExclusiveGroup) -> None:
    constraint.add_argument(
        "--json-schema",
        type=_text,
        metavar="SOURCE",
        help="the text is JSON that satisfies this JSON Schema. SOURCE is a file, - for standard input, or the JSON "
        "itself: true, false, or an object that starts with {",
    )
    constraint.add_argument("--regex", type=_text, help="the whole text matches this regular expression")
    constraint.add_argument(
        "--choice", type=_text, action="append", metavar="TEXT", help="the text is TEXT; repeat for alternatives"
    )
    constraint.add_argument(
        "--grammar",
        type=_text,
        metavar="SOURCE",
        help="the text matches this grammar: EBNF with the root rule `root`, or Lark with the start rule `start`. "
        "SOURCE is a file, - for standard input, or the grammar itself",
    )
    constraint.add_argument(
        "--structural-tag",
        type=_text,
        metavar="SOURCE",
        help="free text with constrained parts, in xgrammar's structural tag format. SOURCE is a file, - for standard "
        "input, or the JSON itself",
    )


def _version() -> str:
    """``structout.__version__``, without importing the package."""
    package = importlib.util.find_spec("structout")
    assert package is not None
    assert package.origin is not None
    return str(runpy.run_path(str(Path(package.origin).with_name("_version.py")))["__version__"])


def _count(text: str) -> int:
    return _integer(text, minimum=1)


def _seed(text: str) -> int:
    return _integer(text, minimum=0)


def _integer(text: str, minimum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not minimum <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from {minimum} to 2**63 - 1, got {text[:80]!r}")
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text[:80]!r}")
    return value


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"must be UTF-8, got {text[:80]!r}") from error
    return text


def _doctor(_: argparse.Namespace) -> int:
    from structout import doctor

    return doctor.main()


def _generate(arguments: argparse.Namespace) -> int:
    return _run_command("structout.cli.generate", arguments)


def _explain(arguments: argparse.Namespace) -> int:
    arguments.json_schema = arguments.json_schema or arguments.schema
    return _run_command("structout.cli.explain", arguments)


def _check(arguments: argparse.Namespace) -> int:
    names = ("json_schema", "regex", "choice", "grammar", "structural_tag", "tools")
    num_inputs = 2 if all(getattr(arguments, name) is None for name in names) else 1
    if len(arguments.inputs) != num_inputs:
        expected = "SCHEMA and TEXT" if num_inputs == 2 else "TEXT alone beside another constraint"
        arguments.parser.error(f"expected {expected}, got {len(arguments.inputs)} of them")
    *schema, arguments.text = arguments.inputs
    if schema:
        (arguments.json_schema,) = schema
    if arguments.text == arguments.json_schema == "-":
        arguments.parser.error("standard input holds the schema or the text, not both")
    return _run_command("structout.cli.check", arguments)


def _run_command(module: str, arguments: argparse.Namespace) -> int:
    if sys.stderr.isatty():
        print("loading torch and transformers ...", file=sys.stderr, flush=True)
    try:
        command = importlib.import_module(module)
        from structout.cli.user_errors import UserError
    except ImportError as error:  # the ops or a grammar engine cannot be loaded
        return _fail(error)
    try:
        return int(command.run(arguments))
    except UserError as error:
        return _fail(error)


def _fail(error: Exception) -> int:
    print(f"structout: error: {error}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
