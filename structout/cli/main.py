"""The `structout` command: constrained text from a transformers model on the screen, and a doctor."""

import argparse
import os
import sys
from pathlib import Path

from structout._version import __version__

_GENERATE_EXAMPLES = """\
examples:
  structout generate --json-schema examples/order.schema.json --seed 7
  structout generate --regex '[A-Z]{3}-[0-9]{4}' -n 5
  structout generate --choice positive --choice negative --prompt 'I loved it.' --temperature 0
  structout generate --grammar examples/sql.ebnf --model ./my-model --device cuda

Texts go to standard output once all of them are complete and checked (one JSON document a line when there are several),
all else to standard error. Where standard error is a terminal, it shows the text while it grows.
Exit status: 0 every text is complete and valid; 1 one is not; 2 bad arguments, a bad constraint or an unusable model.
"""


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="structout", description="Structured output for LLM inference in PyTorch.")
    parser.add_argument("--version", action="version", version=f"structout {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{generate,doctor}")

    generate = commands.add_parser(
        "generate",
        help="write text that satisfies a constraint",
        description="Write text that satisfies a constraint, with any transformers causal language model.",
        epilog=_GENERATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    generate.set_defaults(run=_generate)
    constraint = generate.add_argument_group("constraint (exactly one)").add_mutually_exclusive_group(required=True)
    constraint.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="a JSON Schema file; the text is such JSON"
    )
    constraint.add_argument("--regex", type=_text, help="the whole text matches this regular expression")
    constraint.add_argument(
        "--choice", type=_text, action="append", metavar="TEXT", help="the text is this one; repeat for others"
    )
    constraint.add_argument(
        "--grammar", type=Path, metavar="FILE", help="an EBNF grammar file whose root rule is `root`"
    )
    model = generate.add_argument_group("model")
    model.add_argument(
        "--model",
        metavar="DIR_OR_HUB_ID",
        help="a transformers model. Default: a tiny Llama with random weights, made here in seconds and cached; "
        "its texts have the right form and no meaning",
    )
    model.add_argument("--device", default="auto", help="auto (default: cuda if there is one), cpu, cuda, cuda:1, ...")
    sampling = generate.add_argument_group("sampling")
    sampling.add_argument("--prompt", type=_text, default="", metavar="TEXT", help="text to continue (default: none)")
    sampling.add_argument("-n", type=_count, default=1, metavar="N", help="texts to write, as one batch (default: 1)")
    sampling.add_argument("--temperature", type=_temperature, default=1.0, metavar="T", help="0 is greedy (default: 1)")
    sampling.add_argument("--seed", type=_seed, help="makes the texts repeatable")
    sampling.add_argument("--max-tokens", type=_count, default=512, metavar="N", help="per text (default: 512)")
    sampling.add_argument(
        "--jump-forward",
        choices=["off", "ff_tokens", "retokenize", "draft"],
        default="off",
        help="go over text that the constraint forces without drawing it: append its tokens, append it and tokenize "
        "all again, or have the model judge its tokens in one forward pass, which changes no text (default: off)",
    )

    doctor = commands.add_parser("doctor", help="print versions, which kernels serve each device, and what is missing")
    doctor.set_defaults(run=_doctor)
    return parser


def _count(text: str) -> int:
    return _whole_number(text, least=1)


def _seed(text: str) -> int:
    return _whole_number(text, least=0)


def _whole_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value < 2**63:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least} and below 2**63, got {text[:80]!r}"
        )
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, got {text[:80]!r}")
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
    try:
        from structout.cli import generate
    except ImportError as error:  # of the ops, or of the grammar engine
        print(f"structout: error: {error}", file=sys.stderr)
        return 2
    return generate.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
