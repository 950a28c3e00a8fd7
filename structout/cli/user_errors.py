"""Mistakes that the user of a command can correct."""

from pathlib import Path

INSTALL_EXTRA = "from structout's checkout: pip install --no-build-isolation -e '.[generate]'"


class UserError(Exception):
    """A mistake that the user can correct: one line on standard error, exit status
    2."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if there is
    none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def write_file(path: str, text: str) -> None:
    """Raises ``UserError`` if the file cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
