"""Indented JSON, text without control characters, and the texts on a terminal."""

import io
import json
import random
import sys
import time

import pytest

from structout.cli.progress import LiveText, indent_json, printable
from structout.grammar.vocabulary import BYTES
from support.seeds import for_each_seed


def random_value(rng, depth=0):
    leaves = [1, -2.5, True, None, "", 'q"\\', "a, [b]: {}", "é🦊"]
    match rng.randint(0, 3 if depth < 4 else 1):
        case 2:
            return [random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        case 3:
            return {rng.choice(leaves[4:]): random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(leaves)


@for_each_seed(100)
def test_indent_json_lays_out_as_json_dumps(seed):
    value = random_value(random.Random(seed))
    expected = json.dumps(value, indent=2, ensure_ascii=False)
    for separators in ((",", ":"), (", ", ": "), (" ,\n", " :\t")):
        assert indent_json(json.dumps(value, ensure_ascii=False, separators=separators)) == expected


@pytest.mark.parametrize("text", ["1e999", "1.10", r'"\ud800"', "-0", "12345678901234567890123", r'"\u00e9"'])
def test_indent_json_keeps_numbers_and_strings_unchanged(text):
    assert indent_json(text) == text
    assert indent_json(f"[{text}]") == f"[\n  {text}\n]"


def test_printable_replaces_control_characters():
    assert printable("a\x1b[2Jb\r\nc\x07\u009b é東") == "a [2Jb  c   é東"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1, "x y", {"b', '{\n  "a": [\n    1,\n    "x y",\n    {\n      "b'),
        ('{"a\\', '{\n  "a\\'),
        ("", ""),
    ],
)
def test_indent_json_lays_out_the_beginning_of_a_text(text, expected):
    assert indent_json(text) == expected


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """A function that shows texts on a terminal of 20 columns and 6 rows, and returns
    what it has written."""
    now, terminal, live = 100.0, Terminal(), None
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "6")
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    def show(*texts, seconds=1.0):
        nonlocal now, live
        monkeypatch.setattr(sys, "stderr", terminal)
        live = live or LiveText(BYTES, is_json=True)
        begin = len(terminal.getvalue())
        live.show([list(text.encode()) for text in texts], 0)
        now += seconds
        return terminal.getvalue()[begin:]

    return show


def test_live_text_redraws_its_lines_in_place_at_most_twenty_times_a_second(shown):
    assert shown('{"a') == '\r\x1b[J{\n  "a\n\x1b[2m3 tokens\x1b[0m'
    up = "\x1b[A" * 2
    assert shown('{"a\x1b[2J') == f'{up}\r\x1b[J{{\n  "a [2J\n\x1b[2m7 tokens · 7 tokens/s\x1b[0m'
    assert sum(bool(shown("{", seconds=0.01)) for _ in range(100)) == 20


def test_live_text_fits_into_the_terminal(shown):
    assert shown(f'["{"word " * 6}')[4:].splitlines()[:3] == ["[", '  "word word word ', "word word word "]
    assert "東" * 9 + "\n" in shown(f'["{"東" * 30}')
    assert shown("[1,2,3,4,5").split("\n")[1:] == ["  3,", "  4,", "  5", "\x1b[2m10 tokens · 5 tokens/s\x1b[0m"]
    assert "a b\n" + "c" * 19 + "\n" in shown("a\nb", "c" * 30)
