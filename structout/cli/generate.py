"""``structout generate``: from its arguments to its exit status."""

import argparse
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from structout.cli.loading import load_model, with_call_format
from structout.cli.progress import LiveText, Progress, indent_json, interruption, passes_summary, say, summary
from structout.cli.user_errors import UserError, first_line
from structout.cli.validate import independent_check, read_constraint, read_form, replay_check, warnings_of
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError, GrammarTimeoutError
from structout.integrations.transformers.constrained_sampler import DeadEndError
from structout.integrations.transformers.generation import Generation, Usage, generate, max_positions
from structout.scheduler.manager import StructuredOutputManager

_DEFAULT_MESSAGE = "Give me an example."
_SLOW_COMPILE_SECONDS = 0.3
# Only the temperature shapes the draw, whatever the model's generation config says.
_NO_FILTERS = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return its exit status.

    Raises:
        UserError: the user made a mistake.
    """
    params = read_constraint(arguments)
    for warning in warnings_of(params):
        say(f"structout: warning: {warning}")
    check = independent_check(params)  # before the model, which may take long to load
    model, tokenizer, name = load_model(arguments.model, _device(arguments.device))
    say(f"{name} on {model.device}")
    params = with_call_format(params, tokenizer)
    is_indented = params.json is not None and arguments.n == 1 and not arguments.compact
    try:
        width = model.get_output_embeddings().weight.shape[0]
        config = replace(read_form(arguments), any_whitespace=False)
        manager = StructuredOutputManager(tokenizer, width, config)
    except ValueError as error:
        raise UserError(f"cannot use {name}: {error}") from error
    with manager:
        check = check or replay_check(params, manager)
        progress = Progress(LiveText(manager.vocabulary, is_json=is_indented), model.device)
        result = _decode(model, tokenizer, manager, params, arguments, progress)
        problems = [
            check(text) if complete else _incomplete(usage, max_positions(model))
            for text, complete, usage in zip(result.texts, result.is_complete, result.usage, strict=True)
        ]
    if result.weakened:
        say(f"not enforced: {', '.join(result.weakened)}")
    if result.annotations:
        say(f"annotations, which constrain nothing: {', '.join(result.annotations)}")
    for text, problem in zip(result.texts, problems, strict=True):
        if problem is None:
            _print(indent_json(text) if is_indented else text)
        else:
            say(f"structout: {problem}: {text}")
    num_valid = problems.count(None)
    say(summary(result, progress, num_valid))
    if arguments.jump_forward != "off":
        say(f"jump-forward {arguments.jump_forward}: {passes_summary(result, progress.num_passes)}")
    return 0 if num_valid == len(result.texts) else 1


def _decode(
    model: Any,
    tokenizer: Any,
    manager: StructuredOutputManager,
    params: StructuredOutputsParams,
    arguments: argparse.Namespace,
    progress: Progress,
) -> Generation:
    # A temperature below float32's smallest normal number is greedy, as 0 is.
    is_sampled = arguments.temperature >= torch.finfo(torch.float32).tiny
    options: dict[str, Any] = {"temperature": float(arguments.temperature), **_NO_FILTERS} if is_sampled else {}
    if arguments.max_tokens is not None:
        options["max_new_tokens"] = arguments.max_tokens
    try:
        _compile(manager, params, needs_tables=arguments.device_fsm)
        return generate(
            model,
            tokenizer,
            _prompt(arguments, tokenizer),
            params=params,
            manager=manager,
            num_return_sequences=arguments.n,
            do_sample=is_sampled,
            seed=secrets.randbits(64) if arguments.seed is None else arguments.seed,
            jump_forward=arguments.jump_forward,
            device_fsm=arguments.device_fsm,
            monitor=progress,
            **options,
        )
    except GrammarError as error:
        message = str(error).replace("lenient=True", "--lenient").replace("max_tokens", "--max-tokens")
        raise UserError(f"constraint refused ({error.kind.value}): {message}") from error
    except DeadEndError as error:
        raise UserError(error.reason) from error
    except (RuntimeError, ValueError, IndexError) as error:  # out of memory, a model that jump-forward cannot serve
        raise UserError(f"the model failed: {first_line(error).replace('max_new_tokens', '--max-tokens')}") from error
    except KeyboardInterrupt:
        if progress.token_ids:
            progress.live.clear()
            say(interruption(progress))
        raise
    finally:
        progress.live.clear()


def _prompt(arguments: argparse.Namespace, tokenizer: Any) -> Any:
    """A message for the model's chat template, or tokens to continue."""
    if tokenizer.chat_template is not None and arguments.beginning is None:
        return [{"role": "user", "content": _DEFAULT_MESSAGE if arguments.prompt is None else arguments.prompt}]
    return tokenizer(arguments.beginning or arguments.prompt or "")["input_ids"] or [_start_token(tokenizer)]


def _compile(manager: StructuredOutputManager, params: StructuredOutputsParams, *, needs_tables: bool) -> None:
    """Compile the constraint before its time is counted, and say so if that is slow."""
    manager.add_request("constraint", params)
    try:
        _wait(manager)
        if needs_tables and manager.device_tables("constraint") is None:
            engine = manager.compiled("constraint").backend_name
            raise UserError(
                "--device-fsm follows automata: of regular expressions, choices, small schemas and regular grammars; "
                f"this constraint is served by {engine}"
            )
    finally:
        manager.finish_request("constraint")


def _wait(manager: StructuredOutputManager) -> None:
    try:
        manager.wait_ready("constraint", timeout=_SLOW_COMPILE_SECONDS)
    except GrammarTimeoutError:
        say("compiling the constraint ...")
        manager.wait_ready("constraint")


def _incomplete(usage: Usage, limit: int | None) -> str:
    """The message for a text that ran out of tokens before it was complete."""
    is_used_up = limit == usage.total_tokens
    why = f", when the model's {limit:,} positions were used up" if is_used_up else "; raise --max-tokens"
    return f"not complete after {usage.completion_tokens:,} tokens{why}"


def _device(requested: str) -> torch.device:
    try:
        name = requested if requested != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"cannot use device {requested!r}: {first_line(error)}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"cannot use device {requested!r}: structout's ops run on cpu and cuda")
    return device


def _start_token(tokenizer: Any) -> int:
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise UserError("this tokenizer has no token to start from: give a --prompt")
    return int(start)


def _print(text: str) -> None:
    """Print a text. It is written when this returns, whatever becomes of others."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise UserError(
            f"standard output is {error.encoding} and cannot represent {character!r}: set PYTHONIOENCODING=utf-8"
        ) from error
    except BrokenPipeError:  # a reader that has seen enough
        raise
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:  # for what Python writes at its exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise UserError(f"cannot write the texts: {error.strerror or error}") from error
