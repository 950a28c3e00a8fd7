"""The `structout` command: constrained text from a transformers model on the screen, and a doctor."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structout._version import __version__

_GENERATE_EXAMPLES = """\
examples:
  structout generate --json-schema examples/order.schema.json --seed 7
  structout generate --regex '[A-Z]{3}-[0-9]{4}' -n 5
  structout generate --choice positive --choice negative --prompt 'I loved it.' --temperature 0
  structout generate --grammar examples/sql.ebnf --model ./my-model --device cuda

Texts go to standard output (one JSON document a line when there are several), all else to standard error.
Exit status: 0 every text is complete and valid; 1 one is not; 2 bad arguments or a bad constraint.
"""


Check = Callable[[str], str | None]  # what is wrong with a text, or None


class _UserError(Exception):
    """Something the person at the keyboard can mend: one line, exit status 2."""


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except _UserError as error:
        print(f"structout: error: {error}", file=sys.stderr)
        return 2
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
    constraint.add_argument("--regex", help="the whole text matches this regular expression")
    constraint.add_argument("--choice", action="append", metavar="TEXT", help="the text is this one; repeat for others")
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
    sampling.add_argument("--prompt", default="", metavar="TEXT", help="text to continue (default: none)")
    sampling.add_argument(
        "-n", type=_positive, default=1, metavar="N", help="texts to write, as one batch (default: 1)"
    )
    sampling.add_argument("--temperature", type=_temperature, default=1.0, metavar="T", help="0 is greedy (default: 1)")
    sampling.add_argument("--seed", type=int, help="makes the texts repeatable")
    sampling.add_argument("--max-tokens", type=_positive, default=512, metavar="N", help="per text (default: 512)")

    doctor = commands.add_parser("doctor", help="print versions, which kernels serve each device, and what is missing")
    doctor.set_defaults(run=_doctor)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _temperature(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return value


def _doctor(_: argparse.Namespace) -> int:
    from structout.doctor import report

    print(report())
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    params, check = _constraint(arguments)  # before the slow imports: a typo should not wait for torch
    from structout import StructuredOutputManager, StructuredOutputsConfig
    from structout.errors import GrammarError
    from structout.generate import DeadEndError, generate

    model, tokenizer, name = _load_model(arguments.model, _device(arguments.device))
    _say(f"{name} on {model.device}")
    width = model.get_output_embeddings().weight.shape[0]
    prompt_ids = tokenizer(arguments.prompt)["input_ids"] or [_start_token(tokenizer)]
    screen = _Screen(tokenizer)
    with StructuredOutputManager(tokenizer, width, StructuredOutputsConfig(any_whitespace=False)) as manager:
        try:
            result = generate(
                model,
                manager,
                params,
                prompt_ids,
                n=arguments.n,
                max_tokens=arguments.max_tokens,
                temperature=arguments.temperature,
                seed=arguments.seed,
                on_step=screen.show,
            )
        except (GrammarError, DeadEndError) as error:
            raise _UserError(str(error)) from error
        finally:
            screen.clear()
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in result.token_ids]
    problems = [
        check(text) if complete else f"not complete after {arguments.max_tokens} tokens; raise --max-tokens"
        for text, complete in zip(texts, result.is_complete, strict=True)
    ]
    for text, problem in zip(texts, problems, strict=True):
        if problem is None:
            print(_display(text, arguments))
        else:
            print(f"structout: {problem}: {text}", file=sys.stderr)
    _say(_summary(result, num_valid=problems.count(None)))
    return 0 if problems.count(None) == len(texts) else 1


def _constraint(arguments: argparse.Namespace) -> tuple[Any, Check]:
    from structout.errors import GrammarError
    from structout.params import StructuredOutputsParams

    check: Callable[[Any], Check]
    if arguments.json_schema is not None:
        params = StructuredOutputsParams(json=_read(arguments.json_schema))
        check = _json_check
    elif arguments.regex is not None:
        params = StructuredOutputsParams(regex=arguments.regex)
        check = _regex_check
    elif arguments.choice is not None:
        params = StructuredOutputsParams(choice=arguments.choice)
        check = _choice_check
    else:
        params = StructuredOutputsParams(grammar=_read(arguments.grammar))
        check = _no_further_check
    try:
        params.validate()
        return params, check(params)
    except GrammarError as error:
        raise _UserError(f"{arguments.json_schema or arguments.grammar or 'constraint'}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _json_check(params: Any) -> Check:
    import json

    try:
        import jsonschema
    except ImportError as error:
        raise _UserError("checking JSON needs jsonschema: pip install 'structout[generate]'") from error
    schema = json.loads(params.constraint()[1])
    validator = jsonschema.validators.validator_for(schema)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise _UserError(f"not a valid JSON Schema: {error.message} (at {error.json_path})") from error

    def check(text: str) -> str | None:
        try:
            error = jsonschema.exceptions.best_match(validator(schema).iter_errors(json.loads(text)))
        except json.JSONDecodeError as problem:
            return f"not JSON ({problem})"
        return None if error is None else f"does not satisfy the schema ({error.message} at {error.json_path})"

    return check


def _regex_check(params: Any) -> Check:
    import re

    try:
        pattern = re.compile(params.regex)
    except re.error as error:
        raise _UserError(f"not a regular expression: {error}") from error
    return lambda text: None if pattern.fullmatch(text) else "does not match the regular expression"


def _choice_check(params: Any) -> Check:
    return lambda text: None if text in params.choice else "is none of the choices"


def _no_further_check(_: Any) -> Check:
    """A grammar is checked by the parser that masked it: every token was accepted, and it says the text is complete."""
    return lambda text: None


def _device(wish: str) -> Any:
    import torch

    if wish == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wish)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise _UserError(f"cannot use device {wish!r}: {str(error).splitlines()[0]}") from error
    return device


def _load_model(source: str | None, device: Any) -> tuple[Any, Any, str]:
    try:
        import transformers
    except ImportError as error:
        raise _UserError("structout generate needs transformers: pip install 'structout[generate]'") from error
    transformers.utils.logging.disable_progress_bar()
    if source is None:
        from structout.default_model import is_cached, load_default_model

        if not is_cached():
            _say("making the default model, once ...")
        model, tokenizer, _ = load_default_model()
        return model.to(device), tokenizer, "default model (2 layers, random weights)"
    _say(f"loading {source} ...")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    except (OSError, ValueError) as error:
        raise _UserError(f"cannot load the model {source}: {str(error).splitlines()[0]}") from error
    return model.eval().to(device), tokenizer, source


def _start_token(tokenizer: Any) -> int:
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise _UserError("this tokenizer has no token to start from: give a --prompt")
    return int(start)


def _display(text: str, arguments: argparse.Namespace) -> str:
    if arguments.json_schema is None or arguments.n > 1:
        return text
    import json

    return json.dumps(json.loads(text), indent=2, ensure_ascii=False)


def _summary(result: Any, num_valid: int) -> str:
    stages = result.times.stages
    per_step = ", ".join(f"{stage} {_duration(result.times.median(stage))}" for stage in stages)
    return (
        f"{num_valid} of {len(result.token_ids)} valid · {result.num_tokens} tokens in {result.seconds:.2f} s "
        f"({result.num_tokens / result.seconds:,.0f} tokens/s)\nmedian step: {per_step}"
    )


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Screen:
    """On a terminal, shows a single text as it grows, or how far several are. Erased when done."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.is_live = sys.stderr.isatty()

    def show(self, token_ids: list[list[int]], num_complete: int) -> None:
        if not self.is_live:
            return
        steps = max(len(ids) for ids in token_ids)
        progress = (
            f"[{steps} tokens] "
            if len(token_ids) == 1
            else f"[{steps} tokens, {num_complete} of {len(token_ids)} done] "
        )
        columns = shutil.get_terminal_size().columns
        width = max(columns - len(progress) - 1, 1)
        tail = self.tokenizer.decode(token_ids[0][-width:], skip_special_tokens=True).replace("\n", " ")
        sys.stderr.write(f"\r\033[K{progress}{tail[-width:]}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self.is_live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
