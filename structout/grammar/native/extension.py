"""The C++ core of the engine (csrc/bindings/engine), and its errors as ours."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from structout.constraints.schema_walks import keyword_at
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError


@cache
def core() -> Any:
    """The extension module.

    Raises:
        ImportError: it was not built for this version of Python.
    """
    try:
        return importlib.import_module("structout._fsm")
    except ImportError as error:
        raise ImportError(
            f"structout's own grammar engine cannot be loaded ({error}): "
            "reinstall structout with the Python that runs it"
        ) from error


def is_available() -> bool:
    """True if the extension module can be imported."""
    try:
        core()
    except ImportError:
        return False
    return True


@contextmanager
def grammar_errors(subject: str = "a regular expression") -> Iterator[None]:
    """Turn errors of the core into ``GrammarError``.

    Args:
        subject: what is at fault, for the message.
    """
    try:
        yield
    except core().LimitError as error:
        *found, pointer = error.args
        limit_error = GrammarLimitError(*found)
        raise limit_error.at(pointer, keyword_at(pointer)) if pointer else limit_error from None
    except core().PatternError as error:
        message, is_malformed = error.args
        if is_malformed:
            raise GrammarError(f"{subject} does not parse: {message}") from None
        message = f"{subject} cannot be compiled: {message}"
        raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED) from None
    except core().SchemaError as error:
        raise _schema_error(*error.args) from None


def _schema_error(message: str, kind_name: str, pointer: str) -> GrammarError:
    kind = GrammarErrorKind(kind_name)
    if kind is GrammarErrorKind.IMPOSSIBLE:
        message = f"the json constraint allows no text at all: {message}"
    if pointer in ("", "#"):  # no single part is at fault
        return GrammarError(message, kind=kind)
    return GrammarError(f"{pointer}: {message}", kind=kind, pointer=pointer, keyword=keyword_at(pointer))
