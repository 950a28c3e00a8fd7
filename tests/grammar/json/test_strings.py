"""JSON strings as automata: against json and re."""

import ipaddress
import json
import random
import re
import time
import uuid
from datetime import date

import pytest

from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.formats import FORMATS
from support.automaton_texts import drawn_text
from support.json_strings import json_string_automaton
from support.random_patterns import HOSTILE, PLAIN, anchored, mutated, random_pattern


def spelled(value, rng):
    """A JSON string of a value, each character in one of its spellings."""
    short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    parts = []
    for character in value:
        units = character.encode("utf-16-be")
        digits = "{:04x}" if rng.random() < 0.5 else "{:04X}"
        numbers = [digits.format(int.from_bytes(units[i : i + 2], "big")) for i in range(0, len(units), 2)]
        spellings = ["".join(f"\\u{number}" for number in numbers)]
        if character in short:
            spellings.append(short[character])
        if character >= " " and character not in '"\\':
            spellings += [character, character]
        parts.append(rng.choice(spellings))
    return f'"{"".join(parts)}"'


def random_value(rng):
    return "".join(rng.choices(HOSTILE + PLAIN, k=rng.randint(0, 6)))


def value_of(text):
    """The value of a JSON string, or None if the text is none, or if it has half of a
    surrogate pair."""
    try:
        value = json.loads(text)
        value.encode()
    except (ValueError, AttributeError):
        return None
    return value if text.startswith('"') and text.endswith('"') else None


def test_any_string_accepts_every_spelling_of_every_value():
    rng = random.Random(1)
    automaton = json_string_automaton()
    for _ in range(500):
        value = random_value(rng)
        for text in (spelled(value, rng), json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert automaton.matches(text), text
            other = mutated(text, rng)
            assert automaton.matches(other) == (value_of(other) is not None), other


@pytest.mark.parametrize(
    "text",
    [
        '"',
        '""x',
        "a",
        '"\\ud83e"',
        '"\\udd8a"',
        '"\\udd8a\\ud83e"',
        '"\\ud83ex"',
        '"\\ud83e\\u0041"',
        '"\\x41"',
        '"\n"',
        '"\\u00e"',
        '"\\"',
        '"""',
        '"\\\'"',
        '"\x1f"',
        ' "a"',
    ],
)
def test_any_string_refuses_what_is_no_string(text):
    assert not json_string_automaton().matches(text)


def test_surrogate_pair_is_one_character():
    automaton = json_string_automaton("^[🦊-🦌]$", max_length=1)
    assert automaton.matches('"🦋"')
    assert automaton.matches('"\\ud83e\\uDD8B"')
    assert not automaton.matches('"\\ud83e\\udd8d"')
    assert not automaton.matches('"🦋🦋"')


def test_random_patterns_and_lengths_have_the_values_of_re(num_cases):
    rng = random.Random(16)
    num_accepted = 0
    for _ in range(num_cases(150, long=3_000)):
        pattern = anchored(random_pattern(rng, 2), rng.random() < 0.5, rng.random() < 0.5)
        shortest = rng.choice([None, None, 0, 2])
        longest = rng.choice([None, None, 3, 8])
        automaton = json_string_automaton(pattern.text, shortest, longest)
        values = [pattern.sample(rng) for _ in range(3)] + [random_value(rng)]
        values += [mutated(value, rng) for value in values]
        drawn = [text for text in (drawn_text(automaton, rng) for _ in range(3)) if text is not None]
        texts = [spelled(value, rng) for value in values] + drawn
        texts += [json.dumps(value) for value in values] + [json.dumps(value, ensure_ascii=False) for value in values]
        for text in texts + [mutated(text, rng) for text in texts]:
            value = value_of(text)
            is_member = (
                value is not None
                and pattern.is_found_in(value)
                and (shortest or 0) <= len(value) <= (10**9 if longest is None else longest)
            )
            assert automaton.matches(text) == is_member, (pattern.text, shortest, longest, text)
            num_accepted += is_member
    assert num_accepted > 500


def test_lookahead_and_anchors_concern_the_value():
    automaton = json_string_automaton("^(?!foo$)(?=.*\\d|f)\\w+$")
    assert automaton.matches('"foo1"')
    assert automaton.matches('"\\u0066oo\\u0031"')
    assert not automaton.matches('"foo"')
    assert not automaton.matches('"\\u0066oo"')
    assert not automaton.matches('"bar"')


def test_automaton_of_many_characters_is_ready_in_milliseconds():
    json_string_automaton(max_length=200)
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        json_string_automaton(max_length=200)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.03


def test_bounds_out_of_order_accept_nothing():
    assert json_string_automaton(min_length=5, max_length=3).num_states == 0
    assert json_string_automaton(min_length=0, max_length=0) == Automaton.from_choices(['""'])


def test_errors_name_the_cause():
    with pytest.raises(GrammarError, match="does not parse: a \\( is not closed, at character 2"):
        json_string_automaton("(")
    with pytest.raises(GrammarError, match="there is a \\) without a \\("):
        json_string_automaton("a)(b")
    with pytest.raises(GrammarError, match="the format colour is not supported, only date, ") as caught:
        json_string_automaton(format="colour")
    assert caught.value.kind is GrammarErrorKind.UNSUPPORTED
    with pytest.raises(GrammarLimitError, match="pattern_"):
        json_string_automaton(max_length=10**9)


# -- formats ---------------------------------------------------------------------------

SAMPLES = {
    "date": (
        ["2024-02-29", "2000-02-29", "2023-12-31", "2023-04-30"],
        ["2023-02-29", "1900-02-29", "2023-04-31", "2024-1-1"],
    ),
    "time": (
        ["00:00:00Z", "23:59:59.123+05:30", "23:59:60Z", "12:00:00z", "23:59:60.5-00:00"],
        ["24:00:00Z", "12:00:00", "12:60:00Z", "12:00:60Z", "12:00:00+24:00", "12:00:00.Z", "1:00:00Z"],
    ),
    "date-time": (
        ["2024-02-29T12:00:00Z", "2024-02-29t12:00:00.1z", "2023-01-01T00:00:00-01:00"],
        ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:00Z", "2024-02-29"],
    ),
    "duration": (
        ["P1Y2M3DT4H5M6S", "P1W", "PT1H", "PT1M", "P4Y", "PT36H", "P1M3D", "PT1H2M"],
        ["P", "PT", "P1", "P1H", "PT1D", "P1Y1D", "PT1H1S", "P1Y2W", "P1WT1H", "1D", "P1D2H"],
    ),
    "email": (
        ["a@b.c", "a.b+c@d", '"a b\\""@c', "a@[127.0.0.1]", "a@[IPv6:::1]", "{x}@y-z.w"],
        ["a", "@", "a@", "@b", "a b@c", ".a@b", "a.@b", "a..b@c", "a@b..c", "a@-b", "a@b@c", "a@[1.2.3]", "a@ö.de"],
    ),
    "hostname": (
        [
            "a",
            "a.b",
            "a-b.c9",
            "a" * 63,
            "1.2",
            "abc",
            "a--b",
            "ab-c--d",
            "abc--d",
        ],
        [
            "",
            "a..b",
            "-a",
            "a-",
            "a_b",
            "a" * 64,
            ".a",
            "a.",
            "é",
            "ab--cd",
            "a.ab--c",
            "a---b",
            "xn--X",
            "xn--4gbwdl.xn--wgbh1c",
            "xn--ab1",
            "xn--",
        ],
    ),
    "idn-email": (
        ["a@b.c", "é@b", "δοκιμή@例え.jp", '"é é"@c', "\U0001d54f.a@[::]".replace("[::]", "[IPv6:::]")],
        ["a", "é@", "@é", "é＠b", "é é@b", ".é@b", "é@-b", "é@b-", "é@b@c"],
    ),
    "idn-hostname": (
        ["a", "Example.com", "실례.테스트", "例え。jp", "bücher.example", "ab-c--d", "בדיקה.com", "مثال.إختبار", "ß"],
        [
            "",
            "é.",
            "-é",
            "é-",
            "É",
            "ab--é",
            "e\u0301",
            "〮실례",
            "aא",
            "0a.א",
            "א0",
            "xn--X",
            "a..b",
            "é" * 60,
            "l·a",
        ],
    ),
    "regex": (
        [
            "",
            "a|b",
            "([abc])+\\s+$",
            "^[a-zA-Z0-9._%+-]+@[^@]+\\.[a-z]{2,}$",
            "(?:a(b(c)?)*){1,9}",
            "(?=a)(?<!b)\\b.",
            "[]",
            "[^]",
            "\\p{L}\\P{Script=Latin}",
            "\\u{1F600}\\x41\\cA",
            "[\\u0000-\\u001f\\-]",
            "a/b\\/",
            "é{3}?",
        ],
        [
            "(",
            "^(abc]",
            "a)",
            "[a",
            "a**",
            "(?=a)*",
            "\\a",
            "a{2,1}",
            "[z-a]",
            "[\\w-a]",
            "{",
            "]",
            "(?i)a",
            "\\1",
            "^*",
            "\\",
        ],
    ),
    "ipv4": (
        ["0.0.0.1", "255.255.255.255", "1.20.130.249"],
        ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5", "1.2.3.4 "],
    ),
    "ipv6": (
        [
            "::",
            "::1",
            "1::",
            "2001:db8::ff00:42:8329",
            "1:2:3:4:5:6:7:8",
            "::ffff:1.2.3.4",
            "1:2:3:4:5:6:1.2.3.4",
            "1::3:4:5:6:7:8",
            "1:2::4:5:6:7:8",
            "1:2:3:4:5:6:7::",
            "::2:3:4:5:6:7:8",
            "1:2:3:4::1.2.3.4",
        ],
        [
            "1::2::3",
            "12345::",
            ":1",
            "1:",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7:8:9",
            "fe80::1%eth0",
            "::1.2.3",
            "1:2:3:4:5:6:7:1.2.3.4",
            ":::",
        ],
    ),
    "uuid": (
        ["123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000"],
        [
            "123e4567e89b12d3a456426614174000",
            "123e4567-e89b-12d3-a456-42661417400g",
            "123e4567-e89b-12d3-a456-42661417400",
        ],
    ),
    "uri": (
        [
            "http://a.b/c",
            "urn:x",
            "http://a:1/?b=c&d#e/f",
            "mailto:a@b",
            "http://[::1]:80/",
            "x:",
            "a+b.c-d:/e//f",
            "http://u:p@h/%41",
            "file:///a",
        ],
        [
            "a",
            "//a",
            "http://a b",
            "http://a/%4",
            "http://[1]/",
            "1a:b",
            "",
            "http://é",
            ":a",
            "a:b^c",
            "http://a/#b#c",
        ],
    ),
    "uri-reference": (
        ["", "a", "//a/b", "/a?b#c", "../a", "a:b", "#a", "?", "./a:b"],
        ["\\a", "a b", "%zz", "1a:b", "é"],
    ),
    "iri": (["http://é.東/🦊?q=\ue000#ä", "http://a/b", "urn:é"], ["é", "http://a/\ue000", "http://a/\ufffe", "é:x"]),
    "iri-reference": (["é", "//東/", "?\ue000", ""], ["#\ue000", "a b", "<"]),
    "uri-template": (
        ["a/{b}", "{?x,y}", "{+path:6}/here", "{var*}", "{a.b}", "é%20", "{%41}", "it's", ""],
        ["{", "a}", "{}", "{a b}", "{a:0}", "{a:12345}", "a b", "%4", "{.}", "{a.}", "{'}", "<"],
    ),
    "json-pointer": (["", "/", "/a/0", "/~0~1", "//é", "/ "], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "1/a", "10#", "0#", "2/"], ["", "/a", "01", "-1/a", "1a", "0##", "1#/a"]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_format_has_exactly_its_values(name):
    automaton = json_string_automaton(format=name)
    members, others = SAMPLES[name]
    for dumps in (json.dumps, lambda value: json.dumps(value, ensure_ascii=False)):
        assert [value for value in members if not automaton.matches(dumps(value))] == []
        assert [value for value in others if automaton.matches(dumps(value))] == []


def is_date(value):
    has_shape = bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII))
    return has_shape and bool(date.fromisoformat(value.replace("0000-", "2000-", 1)))  # Python has no year 0


def is_uuid(value):
    return str(uuid.UUID(value)) == value.lower()


def is_ipv6(value):
    return "%" not in value and bool(ipaddress.IPv6Address(value))


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [("date", is_date), ("uuid", is_uuid), ("ipv4", ipaddress.IPv4Address), ("ipv6", is_ipv6)],
)
def test_format_agrees_with_the_standard_library(name, is_valid, num_cases):
    automaton = json_string_automaton(format=name)
    rng = random.Random(name)
    alphabet = {"date": "0123456789-", "uuid": "0189afAF-g", "ipv4": "0125.", "ipv6": "01fF:."}[name]
    members = list(SAMPLES[name][0])
    num_accepted = 0
    for _ in range(num_cases(3_000, long=50_000)):
        value = rng.choice(members)
        at = rng.randrange(len(value))
        value = value[:at] + "".join(rng.choices(alphabet, k=rng.randint(0, 2))) + value[at + rng.randint(0, 2) :]
        try:
            is_member = bool(is_valid(value))
        except ValueError:
            is_member = False
        assert automaton.matches(json.dumps(value)) == is_member, value
        num_accepted += is_member
        if is_member:
            members.append(value)
    assert num_accepted > 100


def test_format_pattern_and_length_all_hold():
    automaton = json_string_automaton("^a", max_length=3, format="hostname")
    assert automaton.matches('"a.b"')
    assert not automaton.matches('"b.a"')
    assert not automaton.matches('"a.bc"')
    assert not automaton.matches('"a.."')
