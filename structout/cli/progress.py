"""The output of ``structout generate``: a live line on a terminal, indented JSON, a
summary."""

import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from structout.grammar.vocabulary import Vocabulary
from structout.integrations.transformers.decode import Monitor, Text
from structout.integrations.transformers.generation import Generation

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_OPENING = ("[", "{")
_CLOSING = ("]", "}")
_REDRAW_SECONDS = 0.05


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def indent_json(text: str) -> str:
    """Lay JSON out with one value per line.

    Only whitespace between tokens changes: numbers and strings stay as they are.
    """
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
    """Replace characters that would move a terminal's cursor or change its colors."""
    return "".join(character if character.isprintable() else " " for character in text)


def summary(result: Generation, progress: "Progress", num_valid: int) -> str:
    """Say how many texts are valid and how long they took."""
    num_texts = len(result.texts)
    num_tokens = sum(len(ids) for ids in result.token_ids)
    texts = "text" if num_texts == 1 else "texts"
    lines = [
        f"{num_valid} of {num_texts} {texts} valid · {num_tokens:,} tokens in {progress.seconds:.2f} s "
        f"({num_tokens / progress.seconds:,.0f} tokens/s)"
    ]
    stages = [f"{stage} {duration(statistics.median(times))}" for stage, times in progress.stages.items()]
    if stages:
        lines.append(f"median step: {', '.join(stages)}")
    return "\n".join(lines)


def passes_summary(result: Generation, num_passes: int) -> str:
    """Say how many forward passes jump-forward has saved: the tokens of the longest
    text, its stop token included, minus the passes."""
    num_tokens = sum(len(ids) for ids in result.token_ids)
    longest = max(len(ids) + ended for ids, ended in zip(result.token_ids, result.is_complete, strict=True))
    return f"{num_tokens:,} tokens in {num_passes:,} forward passes, {longest - num_passes:,} saved"


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


class LiveLine:
    """A line on the terminal with the text so far, or with the progress of several
    texts.

    Where standard error is no terminal, nothing is drawn.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.is_live = sys.stderr.isatty()
        self.drawn_at = 0.0
        self._begun_at = 0.0

    def show(self, token_ids: list[list[int]], num_complete: int) -> None:
        """Redraw the line, at most twenty times a second."""
        now = time.perf_counter()
        if not self.is_live or now - self.drawn_at < _REDRAW_SECONDS:
            return
        self.drawn_at = now
        self._begun_at = self._begun_at or now
        num_tokens = max(len(ids) for ids in token_ids)
        parts = [f"{num_tokens} tokens"]
        if now > self._begun_at:
            parts.append(f"{sum(map(len, token_ids)) / (now - self._begun_at):,.0f} tokens/s")
        if len(token_ids) > 1:
            parts.append(f"{num_complete} of {len(token_ids)} done")
        progress = f"[{', '.join(parts)}] "
        width = max(shutil.get_terminal_size().columns - len(progress) - 1, 1)
        tail = printable(self.vocabulary.text_of(token_ids[0][-width:]))
        sys.stderr.write(f"\r\033[K{progress}{tail[-width:]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line."""
        if self.is_live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class Progress(Monitor):
    """Times the steps of a decoding loop, and shows its texts on a line.

    On a GPU each stage is waited for, so that its time is not counted to the next one.

    Args:
        vocabulary: of the tokens.
        device: the model's.

    Attributes:
        line: the line.
        stages: the seconds of each step, by stage.
        num_passes: how many steps, that is forward passes, there were.
        seconds: from the first step to the last.
    """

    def __init__(self, vocabulary: Vocabulary, device: torch.device):
        self._device = device
        self._start = 0.0
        self.line = LiveLine(vocabulary)
        self.stages: dict[str, list[float]] = {}
        self.num_passes = 0
        self.seconds = 0.0

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        start = self._now()
        self._start = self._start or start
        yield
        self.stages.setdefault(stage, []).append(self._now() - start)

    def after_step(self, texts: Sequence[Text]) -> None:
        self.num_passes += 1
        self.seconds = time.perf_counter() - self._start
        self.line.show([text.content for text in texts], sum(text.is_complete for text in texts))

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
