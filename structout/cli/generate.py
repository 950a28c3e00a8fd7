"""`structout generate`, from its arguments to its exit status: one boundary for the errors of each stage."""

import argparse
from typing import Any

import torch

from structout import envs
from structout.cli.demo_model import load_demo_model
from structout.cli.progress import Screen, readable_json, say, summary
from structout.cli.validate import UserError, early_check, one_line, read_constraint, replay_check
from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.integrations.transformers.constrained_sampler import DeadEndError
from structout.integrations.transformers.decode import Generation, generate
from structout.jump_forward import JumpForward
from structout.params import StructuredOutputsParams
from structout.scheduler.manager import StructuredOutputManager


def run(arguments: argparse.Namespace) -> int:
    try:
        return _generate(arguments)
    except UserError as error:
        say(f"structout: error: {error}")
        return 2


def _generate(arguments: argparse.Namespace) -> int:
    params = read_constraint(arguments)
    early = early_check(params)  # before the model is loaded, which may take long
    model, tokenizer, name = _load_model(arguments.model, _device(arguments.device))
    say(f"{name} on {model.device}")
    try:
        width = model.get_output_embeddings().weight.shape[0]
        manager = StructuredOutputManager(tokenizer, width, StructuredOutputsConfig(any_whitespace=False))
    except ValueError as error:
        raise UserError(f"cannot use {name}: {error}") from error
    with manager:
        check = early or replay_check(params, manager)
        result = _write(model, tokenizer, manager, params, arguments)
        texts = [manager.vocabulary.text_of(ids) for ids in result.token_ids]
        problems = [
            check(text) if complete else f"not complete after {arguments.max_tokens} tokens; raise --max-tokens"
            for text, complete in zip(texts, result.is_complete, strict=True)
        ]
    for text, problem in zip(texts, problems, strict=True):
        if problem is None:
            _print(text, is_single_json=params.json is not None and arguments.n == 1)
        else:
            say(f"structout: {problem}: {text}")
    num_valid = problems.count(None)
    say(summary(result, num_valid))
    if arguments.jump_forward != "off":
        passes = f"{result.num_passes:,} forward passes, {result.num_passes_saved:,} saved"
        say(f"jump-forward {arguments.jump_forward}: {result.num_tokens:,} tokens in {passes}")
    return 0 if num_valid == len(texts) else 1


def _write(
    model: Any,
    tokenizer: Any,
    manager: StructuredOutputManager,
    params: StructuredOutputsParams,
    arguments: argparse.Namespace,
) -> Generation:
    screen = Screen(manager.vocabulary)
    jump_forward = JumpForward(arguments.jump_forward)
    needs_tokenizer = jump_forward is not JumpForward.OFF
    try:
        return generate(
            model,
            manager,
            params,
            tokenizer(arguments.prompt)["input_ids"] or [_start_token(tokenizer)],
            n=arguments.n,
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            seed=arguments.seed,
            jump_forward=jump_forward,
            canonical_tokenizer=manager.canonical_tokenizer() if needs_tokenizer else None,
            on_slow_compile=lambda: say("compiling the constraint ..."),
            on_step=screen.show,
        )
    except (GrammarError, DeadEndError) as error:
        raise UserError(str(error)) from error
    except (RuntimeError, ValueError, IndexError) as error:  # of the model: out of memory, NaN, a prompt out of range
        raise UserError(f"the model failed: {one_line(error)}") from error
    finally:
        screen.clear()


def _device(wish: str) -> torch.device:
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if wish == "auto" else torch.device(wish)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"cannot use device {wish!r}: {one_line(error)}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"cannot use device {wish!r}: structout's ops run on cpu and cuda")
    return device


def _load_model(source: str | None, device: Any) -> tuple[Any, Any, str]:
    try:
        import transformers
    except ImportError as error:
        fix = "from structout's checkout: pip install --no-build-isolation '.[generate]'"
        raise UserError(f"structout generate needs transformers; {fix}") from error
    transformers.utils.logging.disable_progress_bar()
    try:
        if source is None:
            model, tokenizer, _ = load_demo_model(on_build=lambda: say("making the demo model, once ..."))
            return model.to(device), tokenizer, "demo model (2 layers, random weights)"
        say(f"loading {source} ...")
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
        return model.eval().to(device), tokenizer, source
    except Exception as error:  # damaged files make it raise all sorts of things
        where = source or f"demo model in {envs.cache_dir()} (STRUCTOUT_CACHE_DIR moves it)"
        raise UserError(f"cannot load the model {where}: {one_line(error)}") from error


def _start_token(tokenizer: Any) -> int:
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise UserError("this tokenizer has no token to start from: give a --prompt")
    return int(start)


def _print(text: str, is_single_json: bool) -> None:
    try:
        print(readable_json(text) if is_single_json else text)
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise UserError(
            f"standard output is {error.encoding} and cannot hold {character!r}: set PYTHONIOENCODING=utf-8"
        ) from error
