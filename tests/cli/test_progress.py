"""Indented JSON, text without control characters, and the live line."""

import io
import json
import random
import sys
import time

import pytest

from structout.cli.progress import LiveLine, indent_json, printable
from structout.grammar.vocabulary import Vocabulary
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


def test_live_line_redraws_at_most_twenty_times_a_second(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    now = 100.0
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    line = LiveLine(Vocabulary((b"", b"\x1b[2J", b"a"), (0,)))
    for step in range(1, 101):
        line.show([[1] + [2] * step], 0)
        now += 0.01
    drawn = terminal.getvalue().split("\r\x1b[K")[1:]
    assert drawn[0] == "[2 tokens]  [2Ja"
    assert 15 <= len(drawn) <= 21
    assert drawn[10].startswith("[52 tokens, 104 tokens/s] ")
    line.clear()
    assert terminal.getvalue().endswith("\r\x1b[K")
