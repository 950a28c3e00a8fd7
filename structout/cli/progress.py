"""What `structout generate` shows: progress on a terminal, JSON made readable, a summary."""

import re
import shutil
import sys
import time

from structout.grammar.vocabulary import Vocabulary
from structout.integrations.transformers.decode import Generation

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_OPENING = ("[", "{")
_CLOSING = ("]", "}")
_SECONDS_BETWEEN_REDRAWS = 0.05


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def readable_json(text: str) -> str:
    """One value a line. Only whitespace between tokens changes: numbers and strings stay as they were written."""
    parts: list[str] = []
    depth = 0
    last = ""
    for part in _JSON_TOKEN.findall(text):
        closes = part in _CLOSING
        depth -= closes
        if (last == "," or last in _OPENING) != closes and (last not in _OPENING or not closes):
            parts.append("\n" + "  " * depth)
        parts.append(": " if part == ":" else part)
        depth += part in _OPENING
        last = part
    return "".join(parts)


def printable(text: str) -> str:
    """Without what would move a terminal's cursor or change its colours."""
    return "".join(character if character.isprintable() else " " for character in text)


def summary(result: Generation, num_valid: int) -> str:
    stages = result.times.stages
    per_step = ", ".join(f"{stage} {_duration(result.times.median(stage))}" for stage in stages)
    return (
        f"{num_valid} of {len(result.token_ids)} valid · {result.num_tokens} tokens in {result.seconds:.2f} s "
        f"({result.num_tokens / result.seconds:,.0f} tokens/s)\nmedian step: {per_step}"
    )


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


class Screen:
    """On a terminal, shows a single text as it grows, or how far several are. Erased when done."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.is_live = sys.stderr.isatty()
        self.drawn_at = 0.0

    def show(self, token_ids: list[list[int]], num_complete: int) -> None:
        now = time.perf_counter()
        if not self.is_live or now - self.drawn_at < _SECONDS_BETWEEN_REDRAWS:
            return
        self.drawn_at = now
        steps = max(len(ids) for ids in token_ids)
        progress = (
            f"[{steps} tokens] "
            if len(token_ids) == 1
            else f"[{steps} tokens, {num_complete} of {len(token_ids)} done] "
        )
        width = max(shutil.get_terminal_size().columns - len(progress) - 1, 1)
        tail = printable(self.vocabulary.text_of(token_ids[0][-width:]))
        sys.stderr.write(f"\r\033[K{progress}{tail[-width:]}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self.is_live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
