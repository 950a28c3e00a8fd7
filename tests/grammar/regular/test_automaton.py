"""Automata of structout's own engine: their languages, operations, limits and bytes."""

import json
import random
import re
import subprocess
import sys
import time
import unicodedata
import warnings

import pytest
import regex

from structout.constraints.limits import schemas
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.native.automaton import Automaton, AutomatonLimits
from support import corpus
from support.automaton_texts import drawn_text
from support.locations import CORPUS
from support.random_patterns import HOSTILE, PLAIN, anchored, mutated, random_pattern

SCHEMAS = [line["schema"] for line in corpus.LINES]
SCHEMA_PATTERNS = sorted(
    {
        pattern
        for schema in SCHEMAS
        for node in schemas(schema)
        for pattern in (node.get("pattern"), *node.get("patternProperties", ()))
        if isinstance(pattern, str)
    }
)


# -- the dialect -----------------------------------------------------------------------

LANGUAGES = [
    ("", [""], ["a"]),
    ("ab|cd", ["ab", "cd"], ["abd", "a", ""]),
    ("(ab|)c", ["abc", "c"], ["ab", "ac"]),
    ("a{2,4}b{0}c{2,}d{1}", ["aaccd", "aaaacccd"], ["accd", "aaaaaccd", "aabccd", "aacd"]),
    ("a??b*?c+?", ["c", "abbc", "acc"], ["aac", "ab"]),
    (r"\d\D\w\W\s\S", ["1aa- x"], ["aaa- x", "11a- x", "1aé- x"[:5]]),
    (r"\d", ["0", "9"], ["٣"]),
    (r"\w", ["_", "z"], ["é"]),
    (r"\s", ["\u00a0", "\ufeff", "\u2028", "\t"], ["\u180e", "\u200b"]),
    (".", ["é", "🦊", "\x85"], ["\n", "\r", "\u2028", "\u2029", ""]),
    (r"[a-c\-x]", ["a", "c", "-", "x"], ["d"]),
    (r"[\w-x]", ["-", "x", "_"], ["."]),
    (r"[^a-y]", ["z", "é", "\n"], ["a", ""]),
    (r"[\b]", ["\b"], ["b"]),
    (r"[a&&b~~|]", ["&", "~", "|", "a", "b"], ["c"]),
    (r"\x41\u0042\u{43}\x{44}1", ["ABCD1"], ["ABC"]),
    (r"\x411", ["A1"], ["\u0411"]),
    (r"\ud83e\udd8a", ["🦊"], ["a"]),
    (r"\p{Lu}\P{L}", ["É1", "Я "], ["éa", "1É", "ÉÉ"]),
    (r"[\p{gc=Nd}x]\p{General_Category=Other_Letter}[^\P{Sc}€]", ["٣東$", "xא£"], ["٣東€", "y東$"]),
    (r"\p{ASCII}\p{Any}", ["a🦊"], ["éa"]),
    (r"[\ud83e\udd8a-🦌]", ["🦋"], ["a"]),
    (r"\n\r\t\f\v\0\cA", ["\n\r\t\f\v\0\x01"], ["n"]),
    (r"\.\/\-\"\{\}\]", ['./-"{}]'], ["a"]),
    ("a}]", ["a}]"], ["a"]),
    ("^a$", ["a"], ["^a$"]),
    ("(^|,)a", ["a", ",a"], ["xa", "a,a"]),
    ("(a$|b)c?", ["a", "b", "bc"], ["ac"]),
    ("(?:^^a$$)*", ["", "a"], ["aa"]),
    (r"a(?=b)\w+", ["ab", "abc"], ["ac", "a"]),
    (r"(?!foo)\w+", ["bar", "fo", "fob"], ["foo", "foobar"]),
    (r"(?!foo$)\w+", ["foobar", "bar"], ["foo"]),
    (r"x(?=^a|b).", ["xb"], ["xa"]),
    (r"(?=^a|b).", ["a", "b"], ["c"]),
    (r"(?=.*\d)(?=.*[a-z]).{3,5}", ["a1b", "1ab22"], ["abc", "123", "a1"]),
    (r"(a(?!b)|c)[a-z]", ["aa", "cb"], ["ab"]),
    (r"(?!(?=a)ab).*", ["ac", "b"], ["ab", "abc"]),
    (r"a(?=)b", ["ab"], ["a"]),
    ("(?<year>[0-9]{4})-(?P<month>[0-9]{2})", ["2024-01"], ["2024-1"]),
    ("([a-z]+ ?)*!", ["!", "ab c d!"], ["ab  c!"]),
]


@pytest.mark.parametrize(("pattern", "members", "others"), LANGUAGES)
def test_regex_matches_exactly_its_language(pattern, members, others):
    automaton = Automaton.from_regex(pattern)
    assert [text for text in members if not automaton.matches(text)] == []
    assert [text for text in others if automaton.matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "kind", "message"),
    [
        ("(", "malformed", r"a \( is not closed, at character 2"),
        (")", "malformed", r"there is a \) without a \("),
        ("[a", "malformed", r"a \[ is not closed"),
        ("a\\", "malformed", "stands at the end"),
        ("*", "malformed", "nothing to repeat"),
        ("{", "malformed", r"a literal \{ must be written"),
        ("a{x}", "malformed", r"a \{ must begin"),
        ("a{3,2}", "malformed", "out of order"),
        ("[z-a]", "malformed", "out of order"),
        (r"\xZZ", "malformed", "needs 2 hexadecimal digits"),
        (r"\u{110000}", "malformed", "number of a character"),
        ("^*", "malformed", "an anchor cannot be repeated"),
        ("(?<1>a)", "malformed", "no valid name"),
        ("\ud800", "malformed", "must be UTF-8"),
        ("(?<=a)b", "unsupported", "lookbehind"),
        ("(?<!a)b", "unsupported", "lookbehind"),
        (r"(a)\1", "unsupported", "backreferences"),
        (r"(?<n>a)\k<n>", "unsupported", "backreferences"),
        (r"\bx", "unsupported", "word boundaries"),
        (r"\p{Greek}", "unsupported", "must be written"),
        (r"\p{Script=Grek_}", "malformed", "no Unicode property"),
        (r"[\P{alphabetic}]", "malformed", "no Unicode property"),
        (r"\p{gc=Any}", "malformed", "no Unicode property"),
        (r"\p{Script=}", "malformed", "no Unicode property"),
        (r"\p{L", "unsupported", r"must be written \\p\{"),
        (r"[\pL]", "unsupported", r"must be written \\p\{"),
        ("(?i)a", "unsupported", "inline flags"),
        ("(?>a)", "unsupported", "special groups"),
        ("a*+", "unsupported", "possessive"),
        ("a{2}{3}", "unsupported", "double repetitions"),
        ("a{,3}", "unsupported", "lower bound"),
        ("(a(?=b))*", "unsupported", "lookahead inside a repetition"),
        ("[]a]", "unsupported", "begins with"),
        ("[^]a]", "unsupported", "begins with"),
        (r"\ud800", "unsupported", "surrogate"),
        (r"\A", "unsupported", r"use \^ and \$"),
        (r"\q", "unsupported", "unknown escape"),
        (r"\07", "unsupported", "octal"),
    ],
)
def test_regex_outside_the_dialect_raises_with_the_cause(pattern, kind, message):
    with pytest.raises(GrammarError, match=message) as caught:
        Automaton.from_regex(pattern)
    assert caught.value.kind is GrammarErrorKind(kind)


def code_points(automaton):
    """The characters that an automaton of single characters accepts."""
    found, pending = set(), [(0, b"")]
    while pending:
        state, start = pending.pop()
        for first, last, target in automaton.edges(state):
            for byte in range(first, last + 1):
                data = start + bytes([byte])
                if automaton.accepts(target):
                    found.add(ord(data.decode()))
                else:
                    pending.append((target, data))
    return found


@pytest.mark.parametrize(
    "name", ["L", "LC", "Lu", "Lm", "Lo", "M", "Mc", "N", "Nd", "Nl", "P", "Pi", "S", "Sc", "Zs", "C", "Cf"]
)
def test_unicode_categories_are_those_of_regex(name):
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assigned = {ord(c) for c in characters if unicodedata.category(c) != "Cn"}  # as far as all versions know them
    expected = {ord(c) for c in regex.findall(rf"\p{{{name}}}", "".join(characters))}
    automaton = Automaton.from_regex(rf"\p{{{name}}}")
    assert code_points(automaton) & assigned == expected & assigned
    assert (Automaton.from_regex(rf"\P{{{name}}}") & automaton).num_states == 0


def test_random_patterns_have_the_language_of_python(num_cases):
    rng = random.Random(16)
    num_accepted = 0
    for _ in range(num_cases(500, long=10_000)):
        pattern = anchored(random_pattern(rng), rng.random() < 0.3, rng.random() < 0.3)
        automaton = Automaton.from_regex(pattern.text)
        samples = [pattern.sample(rng) for _ in range(3)]
        samples += [text for text in (drawn_text(automaton, rng) for _ in range(2)) if text is not None]
        for text in [*samples, *(mutated(text, rng) for text in samples), "".join(rng.choices(HOSTILE + PLAIN, k=4))]:
            is_member = pattern.matches(text)
            assert automaton.matches(text) == is_member, (pattern.text, text)
            num_accepted += is_member
    assert num_accepted > 1_000


def test_patterns_of_schemas_have_the_language_of_re(num_cases):
    """A thousand patterns of the schemas of JSONSchemaBench, and those of the tests'
    own schemas."""
    patterns = {*SCHEMA_PATTERNS, *(CORPUS / "schema_patterns.txt").read_text().splitlines()}
    num_accepted = 0
    for pattern in sorted(patterns):
        rng = random.Random(pattern)
        automaton = Automaton.from_regex(pattern)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of [ in a class
            judge = re.compile(pattern, re.ASCII)
        for _ in range(num_cases(8, long=60)):
            text = drawn_text(automaton, rng) or ""
            for each in (text, mutated(text, rng), mutated(mutated(text, rng), rng)):
                if each.isascii() and each.isprintable():  # where ECMA-262 and re agree
                    is_member = judge.fullmatch(each) is not None
                    assert automaton.matches(each) == is_member, (pattern, each)
                    num_accepted += is_member
    assert len(patterns) > 1_000
    assert num_accepted > 5 * len(patterns)


def test_choices_are_exactly_the_given_texts(num_cases):
    rng = random.Random(5)
    texts = ["".join(rng.choices("abcé", k=rng.randint(0, 7))) for _ in range(num_cases(2_000, long=100_000))]
    automaton = Automaton.from_choices(texts)
    others = {mutated(text, rng) for text in texts[:2_000]} - set(texts)
    assert all(map(automaton.matches, texts))
    assert not any(map(automaton.matches, others))
    assert automaton == Automaton.from_choices(reversed(texts))


def test_a_hundred_thousand_choices_compile_in_seconds():
    texts = [f"choice {i * 7919 % 100_003:06} of {i}" for i in range(100_000)]
    start = time.thread_time()
    automaton = Automaton.from_choices(texts)
    assert time.thread_time() - start < 5
    assert automaton.matches(texts[77])
    assert not automaton.matches("choice")


def test_choices_and_regex_of_one_language_are_equal():
    assert Automaton.from_choices(["cat", "catnip", "hat"]) == Automaton.from_regex("[ch]at|catnip")
    assert Automaton.from_choices([]).num_states == Automaton.from_regex("[^\\s\\S]").num_states == 0


# -- operations ------------------------------------------------------------------------


def test_boolean_operations_have_their_languages(num_cases):
    rng = random.Random(7)
    for _ in range(num_cases(60, long=500)):
        patterns = [random_pattern(rng, 2) for _ in range(2)]
        a, b = (Automaton.from_regex(pattern.text) for pattern in patterns)
        texts = [pattern.sample(rng) for pattern in patterns for _ in range(3)]
        for text in [*texts, *(mutated(text, rng) for text in texts)]:
            in_a, in_b = (pattern.matches(text) for pattern in patterns)
            assert (a & b).matches(text) == (in_a and in_b)
            assert (a | b).matches(text) == (in_a or in_b)
            assert (a - b).matches(text) == (in_a and not in_b)
            assert (~a).matches(text) == (not in_a)
        assert ~~a == a
        assert (a - b) | (a & b) == a
        assert a & b == ~(~a | ~b)


@pytest.mark.parametrize(
    ("pattern", "num_states"),
    [
        ("([a-z]+ ?)*!", 3),
        ("(x+x+)+y", 4),
        ("(a*)*" * 50, 1),
        ("[a-z]{1,1000}", 1_001),
        ("[a-z]{0,10000}x", 20_002),
        (".{0,5000}", 50_001),
    ],
)
def test_automaton_of_a_linear_pattern_is_small(pattern, num_states):
    assert Automaton.from_regex(pattern).num_states == num_states


# -- bytes -----------------------------------------------------------------------------


def test_serialized_automaton_is_restored_and_equal_ones_have_equal_bytes():
    for pattern in ("", "a|b", '"[^"]{0,40}"', "[^\\s\\S]"):
        automaton = Automaton.from_regex(pattern)
        assert Automaton.deserialize(automaton.serialize()) == automaton
        assert Automaton.from_regex(f"(?:{pattern})").serialize() == automaton.serialize()


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_are_refused(seed):
    rng = random.Random(seed)
    data = Automaton.from_regex("(ab|cd)*[0-9]{2,4}").serialize()
    for _ in range(200):
        damaged = bytearray(data)
        at = rng.randrange(len(damaged))
        damaged[at] ^= 1 << rng.randrange(8)
        for bad in (bytes(damaged), data[:at], data + bytes([at & 0xFF])):
            with pytest.raises(ValueError, match="a serialized automaton"):
                Automaton.deserialize(bad)


# -- limits ----------------------------------------------------------------------------

HOSTILE_PATTERNS = {
    "(a|b)*a(a|b){22}": "pattern_states",
    "((a{1,1000}){1,1000}){1,1000}": "pattern_nodes",
    "a{1,100000}": "pattern_states",
    "a{99999999999999}": "pattern_nodes",
    "(.{1,500}){1,500}": "pattern_nodes",
    "(((){1000}){1000}){1000}": "cpu_milliseconds",
    "[\\p{L}a]" * 30_000: "pattern_ranges",
    "[\\s\\S]*(a|b)[\\s\\S]{20}": "pattern_states",
    "(" * 5_000: "nesting",
    "(?=.*a.{8}b)(?=.*c.{9}d)(?=.*e.{9}f).*": "pattern_",
    "|".join(f"x{i * 7919 % 100_003}y{i}" for i in range(20_000)): "pattern_states",
}


def test_hostile_pattern_fails_at_a_limit_in_time_and_memory():
    """In a process of its own, which shows its peak of memory."""
    script = """
import json, resource, sys, time
from structout.errors import GrammarLimitError
from structout.grammar.native.automaton import Automaton
Automaton.from_regex("a")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = []
for pattern in json.load(sys.stdin):
    start = time.thread_time()
    try:
        Automaton.from_regex(pattern)
    except GrammarLimitError as error:
        found.append((error.limit, time.thread_time() - start))
    else:
        found.append(("none", 0))
print(json.dumps([found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(list(HOSTILE_PATTERNS)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found, kilobytes = json.loads(run.stdout)
    for (limit, seconds), expected in zip(found, HOSTILE_PATTERNS.values(), strict=True):
        assert limit.startswith(expected)
        assert seconds < 1.2
    assert kilobytes < 256 << 10


def test_limits_are_those_that_were_given():
    with pytest.raises(GrammarLimitError, match="pattern_states is limited to 10, got 11"):
        Automaton.from_regex("a{20}", AutomatonLimits(states=10))
    with pytest.raises(GrammarLimitError, match="pattern_nodes is limited to 5"):
        Automaton.from_regex("a{20}", AutomatonLimits(nodes=5))
