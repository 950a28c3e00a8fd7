"""A cache of transformers models on disk, which processes share.

A model is built once, in a temporary directory that is renamed when it is complete.
Each load verifies a checksum of its weights, and builds a damaged model again.
"""

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash

_CHECKSUM = "model.xxh3"
_CHUNK_BYTES = 1 << 24


def load_or_build(directory: Path, build: Callable[[Path], None]) -> tuple[Any, Any]:
    """Load a model from its directory. Build it first if it is missing or damaged.

    Args:
        directory: where the model is, or will be.
        build: saves the model and its tokenizer in an empty directory.

    Returns:
        the model (float32, in eval mode) and its tokenizer.

    Raises:
        OSError: the directory cannot be read or written.
    """
    with _no_progress_bars():
        loaded = _load(directory)
        if loaded is None:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with _lock(directory.with_name(f"{directory.name}.lock")):
                loaded = _load(directory)  # another process may have built it in the meantime
                if loaded is None:
                    _build(directory, build)
                    loaded = _load(directory)
    if loaded is None:
        raise OSError(f"the model in {directory} cannot be loaded, though it has just been built: is the disk full?")
    return loaded


def _load(directory: Path) -> tuple[Any, Any] | None:
    """The model and its tokenizer, None if they are missing or damaged."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not directory.exists():
        return None
    try:
        if (directory / _CHECKSUM).read_text() != _checksum(directory):
            return None
        model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=torch.float32)
        return model.eval(), AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception:  # transformers raises many types of errors for damaged files
        return None


def _checksum(directory: Path) -> str:
    digest = xxhash.xxh3_128()
    with (directory / "model.safetensors").open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _build(directory: Path, build: Callable[[Path], None]) -> None:
    """The caller holds the lock."""
    scratch = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a build that was killed
    scratch.mkdir()
    try:
        build(scratch)
        (scratch / _CHECKSUM).write_text(_checksum(scratch))
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)  # where the disk is full, it has the rest
        raise
    if directory.is_dir():
        shutil.rmtree(directory)
    scratch.rename(directory)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes. The system releases it when its process ends, even
    if killed."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
