r"""``\p{…}`` of patterns: scripts, their extensions and binary properties."""

import json
import random
import shutil
import subprocess

import pytest

from structout import GrammarError
from structout.grammar.native.automaton import Automaton
from support.make_unicode_properties import BINARY_PROPERTIES, SCRIPTS

# Prints, for each pair of a pattern and a list of code points, those that match.
PROGRAM = r"""
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([pattern, codes]) => {
  const expression = new RegExp(`^(?:${pattern})$`, "u");
  return codes.filter((code) => expression.test(String.fromCodePoint(code)));
})));
"""


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"\p{Script=Greek}", "αΩ\u1f00", "aж\u0342"),
        (r"\p{sc=Grek}", "αΩ", "aж"),
        (r"\p{Script_Extensions=Greek}", "αΩ\u0342\u1dc1", "aж"),
        (r"\p{scx=Deva}", "\u0915\u0964\u1cd0", "a\u0980"),
        (r"\p{sc=Deva}", "\u0915", "\u0964\u1cd0"),
        (r"\p{sc=Qaai}", "\u0300\u0342", "a"),
        (r"\p{Script=Unknown}", "\u0378\ue000\U0010ffff", "a"),
        (r"\P{Script=Latin}", "α1 ", "aZé"),
        (r"\p{Alphabetic}", "aé中\u0345", "1 _"),
        (r"\p{Alpha}", "aé中", "1 _"),
        (r"\p{Emoji}", "😀1#", "a"),
        (r"\p{Emoji_Presentation}", "😀", "1#a"),
        (r"\p{ExtPict}", "😀\u00a9", "1#a"),
        (r"\p{ID_Start}", "aé中\u2118", "1_$ "),
        (r"\p{IDC}", "a1_", "$ "),
        (r"\p{White_Space}", " \t\u0085\u3000", "\ufeff\u200b"),
        (r"\p{space}", " ", "a"),
        (r"\p{Uppercase}", "AÉ\u2160", "aé1"),
        (r"\p{Lower}", "aª", "A"),
        (r"\p{AHex}", "09afAF", "g\uff21"),
        (r"\p{Hex}", "09af\uff21", "g"),
        (r"\p{RI}", "\U0001f1e6\U0001f1ff", "A"),
        (r"[\p{sc=Cyrl}\p{Emoji}x]", "ж😀1x", "ya"),
        (r"[^\p{sc=Cyrl}\P{Alphabetic}]", "aα", "ж1"),
    ],
)
def test_property_has_its_characters(pattern, inside, outside):
    automaton = Automaton.from_regex(pattern)
    assert [c for c in inside if not automaton.matches(c)] == []
    assert [c for c in outside if automaton.matches(c)] == []


@pytest.mark.parametrize("names", [*BINARY_PROPERTIES, *SCRIPTS])
def test_all_names_of_a_property_are_the_same_set(names):
    prefixes = ["sc=", "Script=", "scx=", "Script_Extensions="] if names in SCRIPTS else [""]
    for long, short in zip(prefixes[::2] or prefixes, prefixes[1::2] or prefixes, strict=True):
        first, *others = [
            Automaton.from_regex(rf"\p{{{kind}{name}}}") for name in names.split("/") for kind in {long, short}
        ]
        assert first.num_states > 1
        for other in others:
            assert (first - other).num_states == (other - first).num_states == 0


def test_scripts_share_no_character_and_leave_none_out():
    every = "".join(rf"\p{{sc={names.split('/')[0]}}}" for names in SCRIPTS)
    assert Automaton.from_regex(f"[^{every}]").num_states == 0
    known = every.replace(r"\p{sc=Zzzz}", "")
    overlap = Automaton.from_regex(f"[{known}]") & Automaton.from_regex(r"\p{sc=Zzzz}")
    assert overlap.num_states == 0


@pytest.mark.parametrize("name", ["Greek_", "sc=", "sc=greek", "gc=Any", "scx=Alphabetic", "Script", "", "/", "Alpha/"])
def test_unknown_property_is_malformed(name):
    with pytest.raises(GrammarError, match="no Unicode property") as caught:
        Automaton.from_regex(rf"\p{{{name}}}")
    assert caught.value.kind.value == "malformed"


def random_set(rng):
    names = rng.choice(SCRIPTS if rng.random() < 0.6 else BINARY_PROPERTIES)
    name = rng.choice(names.split("/"))
    kind = rng.choice(["sc=", "Script=", "scx=", "Script_Extensions="]) if names in SCRIPTS else ""
    return rf"\{rng.choice('pP')}{{{kind}{name}}}"


def random_code(rng):
    code = rng.randrange(rng.choice([0x100, 0x3000, 0x10000, 0x20000, 0x110000]))
    return code if not 0xD800 <= code < 0xE000 else 0x41


@pytest.mark.skipif(shutil.which("node") is None, reason="node, the judge of Unicode properties, is not installed")
def test_random_classes_have_the_characters_of_node(num_cases):
    rng = random.Random(2)
    cases = []
    for _ in range(num_cases(400, long=10_000)):
        members = "".join(random_set(rng) for _ in range(rng.randint(1, 3)))
        pattern = random_set(rng) if rng.random() < 0.5 else f"[{rng.choice(['', '^'])}{members}]"
        cases.append((pattern, sorted({random_code(rng) for _ in range(200)})))
    run = subprocess.run(["node", "-e", PROGRAM], input=json.dumps(cases), capture_output=True, text=True, check=True)
    num_inside = 0
    for (pattern, codes), expected in zip(cases, json.loads(run.stdout), strict=True):
        automaton = Automaton.from_regex(pattern)
        assert [code for code in codes if automaton.matches(chr(code))] == expected, pattern
        num_inside += len(expected)
    assert num_inside > 1_000
