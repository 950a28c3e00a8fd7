"""Lays out the labelled fields that commands print, in two columns."""

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator

NO_BREAK = "\0"  # a space at which no line ends
_LABEL_WIDTH = 12
_MAX_WIDTH = 120

Field = tuple[str, str]  # a label, and what stands beside it


def laid_out(fields: Iterable[Field]) -> str:
    """Lay fields out in two columns, as wide as the terminal, up to 120 characters."""
    width = max(min(shutil.get_terminal_size((_MAX_WIDTH, 0)).columns, _MAX_WIDTH), 40)
    return "\n".join(_lines(fields, width - _LABEL_WIDTH - 2))


def _lines(fields: Iterable[Field], width: int) -> Iterator[str]:
    for label, text in fields:
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
        yield f"{label:{_LABEL_WIDTH}}  {lines[0]}".replace(NO_BREAK, " ")
        yield from (f"{'':{_LABEL_WIDTH}}  {line}".replace(NO_BREAK, " ") for line in lines[1:])


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def one_line(text: str | None) -> str:
    """A text on one line, as it is if that is unambiguous."""
    if text is None:
        return "none was found"
    return text if text.isprintable() and text.strip() == text and text else json.dumps(text, ensure_ascii=False)
