"""Loads the model and the tokenizer that the command line names."""

import warnings
from pathlib import Path
from typing import Any

import torch

from structout import envs
from structout.cli import demo_model, random_model
from structout.cli.demo_model import load_demo_model
from structout.cli.progress import say
from structout.cli.user_errors import INSTALL_EXTRA, UserError, first_line
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError

DEMO_NAMES = {
    demo_model.NAME: "SmolLM2-135M-Instruct",
    random_model.NAME: "random model (valid form, no meaning)",
}


def load_model(source: str | None, device: torch.device) -> tuple[Any, Any, str]:
    """Load a model.

    Args:
        source: a directory or an id of the Hugging Face Hub. None is the demo model.
        device: where the model goes.

    Returns:
        the model, its tokenizer, and its name for messages.

    Raises:
        UserError: it cannot be loaded.
    """
    transformers = _transformers()
    try:
        if source is None:
            model, tokenizer, directory = load_demo_model(say)
            return model.to(device), tokenizer, DEMO_NAMES[directory.name]
        say(f"loading {source} ...")
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
        return model.eval().to(device), tokenizer, source
    except Exception as error:  # transformers raises many types of errors for damaged files
        raise UserError(_failure(source, error, "model", "config.json")) from error


def load_tokenizer(source: str | None) -> tuple[Any, str]:
    """Load a tokenizer alone, as ``load_model`` does.

    Returns:
        the tokenizer, and its name for messages.

    Raises:
        UserError: it cannot be loaded.
    """
    transformers = _transformers()
    try:
        if source is None:
            _, tokenizer, _ = load_demo_model(say)
            return tokenizer, f"the demo model's {len(tokenizer):,} tokens"
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        return tokenizer, f"the {len(tokenizer):,} tokens of {source}"
    except Exception as error:  # transformers raises many types of errors for damaged files
        raise UserError(_failure(source, error, "tokenizer", "tokenizer_config.json")) from error


def with_call_format(params: StructuredOutputsParams, tokenizer: Any) -> StructuredOutputsParams:
    """The params with the format of calls of a model, if they have tools and name none.

    Raises:
        UserError: the format is not found.
    """
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        try:
            params = params.for_tokenizer(tokenizer)
        except GrammarError as error:
            raise UserError(f"--tools: {str(error).replace('tool_format', '--tool-format')}") from error
    for notice in notices:
        say(f"structout: {notice.message}")
    return params


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"this command needs transformers; {INSTALL_EXTRA}") from error
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _failure(source: str | None, error: Exception, what: str, needed_file: str) -> str:
    reason = first_line(error)
    if source is None:
        return f"cannot load the demo model from {envs.cache_dir()} (STRUCTOUT_CACHE_DIR moves it): {reason}"
    if Path(source).is_file():
        reason = f"it is a file; give the directory that holds {needed_file}"
    elif Path(source).is_dir() and not (Path(source) / needed_file).exists():
        reason = f"the directory has no {needed_file}"
    elif not Path(source).exists() and isinstance(error, OSError):
        reason = f"it is no directory, and it cannot be loaded from the Hugging Face Hub: {reason}"
    return f"cannot load the {what} {source}: {reason}"
