"""The output of ``structout generate``: texts that grow on a terminal, indented JSON, a
summary."""

import re
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from structout.cli.fields import counted
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.transformers.decode import Monitor, Text
from structout.integrations.transformers.generation import Generation

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_OPENING = ("[", "{")
_CLOSING = ("]", "}")
_REDRAW_SECONDS = 0.05


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def indent_json(text: str) -> str:
    """Lay JSON out with one value per line.

    Only whitespace between tokens changes: numbers and strings stay as they are. The
    text may end anywhere.
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
    lines = [f"{num_valid} of {num_texts} {texts} valid · {num_tokens:,} tokens"]
    if progress.seconds:  # without a choice the model was not asked
        lines[0] += f" in {progress.seconds:.2f} s ({num_tokens / progress.seconds:,.0f} tokens/s)"
    stages = [f"{stage} {duration(statistics.median(times))}" for stage, times in progress.stages.items()]
    if stages:
        lines.append(f"median step: {', '.join(stages)}")
    return "\n".join(lines)


def passes_summary(result: Generation, num_passes: int) -> str:
    """Say how many forward passes jump-forward has saved: the tokens of the longest
    text minus the passes."""
    num_tokens = sum(len(ids) for ids in result.token_ids)
    longest = max(map(len, result.token_ids))
    return f"{num_tokens:,} tokens in {num_passes:,} forward passes, {longest - num_passes:,} saved"


def interruption(progress: "Progress") -> str:
    """Say what is lost when the user stops the loop: the tokens, and the texts so
    far."""
    texts = [progress.live.vocabulary.text_of(ids, with_names=True) for ids in progress.token_ids]
    num_tokens = sum(map(len, progress.token_ids))
    lost = f"{counted(num_tokens, 'token')} of {counted(len(texts), 'text')}"
    complete = f", {progress.num_complete:,} of them complete" if len(texts) > 1 else ""
    return "\n".join([f"structout: interrupted, which loses {lost}{complete}:", *map(printable, texts)])


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


class LiveText:
    """The texts so far on a terminal, redrawn in place, with their number of tokens
    below.

    Nothing is drawn unless standard error is a terminal.

    Args:
        vocabulary: of the tokens.
        is_json: whether the texts are JSON, of which a single one is laid out.
    """

    def __init__(self, vocabulary: Vocabulary, *, is_json: bool):
        self.vocabulary = vocabulary
        self.is_json = is_json
        self.is_live = sys.stderr.isatty()
        self._drawn_at = 0.0
        self._begun_at = 0.0
        self._num_lines = 0  # above the last one, which has the cursor

    def show(self, token_ids: list[list[int]], num_complete: int) -> None:
        """Redraw the texts, at most twenty times a second."""
        now = time.perf_counter()
        if not self.is_live or now - self._drawn_at < _REDRAW_SECONDS:
            return
        self._drawn_at = now
        self._begun_at = self._begun_at or now
        num_tokens = sum(map(len, token_ids))
        status = [counted(num_tokens, "token")]
        if now > self._begun_at:
            status.append(f"{num_tokens / (now - self._begun_at):,.0f} tokens/s")
        if len(token_ids) > 1:
            status.append(f"{num_complete} of {len(token_ids)} done")
        columns, rows = shutil.get_terminal_size()
        lines = self._lines([self.vocabulary.text_of(ids) for ids in token_ids], columns - 1)[-max(rows - 2, 1) :]
        self.clear()
        self._num_lines = len(lines)
        sys.stderr.write("\n".join([*lines, f"\033[2m{' · '.join(status)}\033[0m"]))  # dim
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase what was drawn."""
        if self.is_live:
            sys.stderr.write("\033[A" * self._num_lines + "\r\033[J")
            sys.stderr.flush()
            self._num_lines = 0

    def _lines(self, texts: list[str], columns: int) -> list[str]:
        if len(texts) > 1:
            return [printable(text)[-_width(text, columns) :] for text in texts]
        text = indent_json(texts[0]) if self.is_json else texts[0]
        lines = [printable(line) for line in text.splitlines()]
        return [part for line in lines for part in textwrap.wrap(line, _width(line, columns), drop_whitespace=False)]


def _width(text: str, columns: int) -> int:
    """The number of characters that surely fit: one beyond ASCII may take two
    columns."""
    return columns if text.isascii() else columns // 2


class Progress(Monitor):
    """Times the steps of a decoding loop, and shows its texts.

    On a GPU each stage is waited for, so that its time is not counted to the next one.

    Args:
        live: shows the texts.
        device: the model's.

    Attributes:
        live: the same.
        token_ids: of each text so far.
        num_complete: how many texts are complete.
        stages: the seconds of each step, by stage.
        num_passes: how many steps, that is forward passes, there were.
        seconds: from the first step to the last.
    """

    def __init__(self, live: LiveText, device: torch.device):
        self._device = device
        self._start = 0.0
        self.live = live
        self.token_ids: list[list[int]] = []
        self.num_complete = 0
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
        self.token_ids = [text.content for text in texts]
        self.num_complete = sum(text.is_complete for text in texts)
        self.live.show(self.token_ids, self.num_complete)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
