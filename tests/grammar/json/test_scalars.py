"""Automata over the numbers and the contents of strings in a JSON text: against
fractions, json and re."""

import itertools
import json
import random
import re
import time
from decimal import Context, Decimal
from fractions import Fraction

import pytest

from structout.grammar.native.extension import core
from support.automaton_texts import drawn_text
from support.random_patterns import HOSTILE, PLAIN, anchored, mutated, random_pattern

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", re.ASCII)
SCIENTIFIC = re.compile(
    r"-?[1-9](\.[0-9]{0,15}[1-9])?e(\+(1[6-9]|[2-9]\d|[1-9]\d\d)|-(0[5-9]|[7-9]|[1-9]\d\d?))", re.ASCII
)
SHORT_TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product("-.0123456789", repeat=size)]
SHORT_NUMBERS = [text for text in SHORT_TEXTS if NUMBER.fullmatch(text)]

BOUNDS = ["0", "-0.0", "1", "-1", "10", "0.5", "-0.5", "0.05", "-12.34", "99", "-100", "12.5", "1e2", "-1.50e3", "9.99"]
BOUNDS += ["1E-3", "-0.001", "1e30", "123456789012345678901234567890.125", "1.5e-7", "-2.5e-5", "9.99e299", "1e400"]
BOUNDS += ["12345678901234567e3", "-1e16", "7e-1000"]
STEPS = ["0.01", "0.1", "0.5", "1e-3", "3", "7", "77", "1.5", "1000", "1", "12", "25", "0.25", "250", "1.2", "2.5e1"]
STEPS += ["0.0625", "64", "1e30", "7e3", "0.7"]


def plain_text(value):
    """A ``Fraction`` of finitely many decimals as a JSON number without exponent."""
    return f"{Context(prec=2_000).divide(Decimal(value.numerator), Decimal(value.denominator)):f}"


def random_number(rng, max_digits=30):
    digits = "".join(rng.choices("0123456789", k=rng.randint(1, max_digits)))
    fraction = "." + "".join(rng.choices("0059", k=rng.randint(1, max_digits))) if rng.random() < 0.5 else ""
    return rng.choice(["", "-"]) + (digits.lstrip("0") or "0") + fraction


def random_scientific_number(rng):
    return scientific_text(rng, rng.choice([rng.randint(16, 400), -rng.randint(5, 400)]))


def scientific_text(rng, exponent):
    """A number with this exponent, as Python or JavaScript writes it."""
    fraction = "".join(rng.choices("0059", k=rng.randint(0, 15))).rstrip("0")
    spelled = (
        f"+{exponent}" if exponent > 0 else f"-{-exponent:02}" if exponent > -7 or rng.random() < 0.5 else exponent
    )
    return f"{rng.choice(['', '-'])}{rng.randint(1, 9)}{'.' + fraction if fraction else ''}e{spelled}"


def near_scientific_texts(bound, rng, count):
    """Scientific numbers with exponents and digits near those of a bound."""
    value = Decimal(bound)
    exponents = [exponent for exponent in range(value.adjusted() - 2, value.adjusted() + 3) if abs(exponent) < 1_000]
    exponents = [exponent for exponent in exponents if exponent >= 16 or exponent <= -5] or [16, -5, 999, -999]
    digits = "".join(map(str, value.as_tuple().digits)).lstrip("0")
    texts = [scientific_text(rng, rng.choice(exponents)) for _ in range(count)]
    for exponent in exponents:
        prefixes = {digits[:size].rstrip("0") for size in range(1, 18)} - {""}
        spelled = f"+{exponent}" if exponent > 0 else f"-{-exponent:02}"
        for prefix in prefixes:
            mantissas = [prefix, prefix[:-1] + "9", *([prefix + "1"] if len(prefix) < 17 else [])]
            for mantissa in mantissas:
                number = mantissa[0] + ("." + mantissa[1:] if mantissa[1:] else "") + f"e{spelled}"
                texts += [number, "-" + number]
    return [text for text in texts if SCIENTIFIC.fullmatch(text)]


def near_texts(text, rng, count):
    """Numbers whose texts differ little from a number's."""
    texts = {text, "-" + text.removeprefix("-"), text.removeprefix("-")}
    while len(texts) < count:
        other = rng.choice(list(texts))
        at = rng.randint(0, len(other))
        other = other[:at] + rng.choice(["0", "00", "9", "1", ".", ".0", "", "-"]) + other[at + rng.randint(0, 1) :]
        if NUMBER.fullmatch(other):
            texts.add(other)
    return list(texts)


def assert_accepts_where(automaton, texts, is_member):
    """Check that the automaton accepts only numbers, and of ``texts`` exactly those
    whose value is a member. Returns how many are."""
    assert core().difference(automaton, core().any_number(), core().Limits()).num_states == 0
    members = [text for text in texts if is_member(Fraction(text))]
    assert [text for text in texts if automaton.matches(text.encode())] == members
    return len(members)


# -- numbers ---------------------------------------------------------------------------


def scientific_numbers():
    limits, form = core().Limits(), core().Exponents
    return core().difference(core().numbers_of(1, 1, form.all), core().numbers_of(1, 1, form.none), limits)


def is_number(text):
    return bool(NUMBER.fullmatch(text) or SCIENTIFIC.fullmatch(text))


def test_any_number_accepts_plain_numbers_and_scientific_ones_of_large_and_small_magnitude():
    rng = random.Random(1)
    texts = SHORT_TEXTS + [random_number(rng) for _ in range(1_000)]
    texts += [mutated(random_number(rng), rng) for _ in range(1_000)] + ["1e5", "1E5", "٣", "1.٣", "1.2.3"]
    scientific = [random_scientific_number(rng) for _ in range(500)]
    texts += scientific + [mutated(text, rng) for text in scientific]
    texts += [f"{mantissa}e{exponent}" for mantissa in ("1", "1.5", "1.50", "10", "0") for exponent in range(-20, 20)]
    texts += [f"1e+{exponent}" for exponent in range(1_100)] + [f"1e-0{exponent}" for exponent in range(1_100)]
    any_number = core().any_number()
    assert [text for text in texts if any_number.matches(text.encode())] == list(filter(is_number, texts))
    assert all(map(any_number.matches, map(str.encode, scientific)))


@pytest.mark.parametrize("allows_fraction", [False, True])
def test_integers_may_have_zeros_after_the_point_and_exponents_only_if_allowed(allows_fraction):
    rng = random.Random(2)
    texts = SHORT_NUMBERS + [random_number(rng) for _ in range(500)] + ["1.000000", "-0.000", "1.0000001"]
    texts += [random_scientific_number(rng) for _ in range(300)] + ["1.234567890123456e+16", "1e-05"]
    integers = core().integers(allows_fraction)
    assert [text for text in texts if integers.matches(text.encode())] == [
        text for text in texts if (text.lstrip("-").isdigit() or allows_fraction) and Fraction(text).denominator == 1
    ]


# -- how they are written --------------------------------------------------------------


@pytest.mark.parametrize(("num_digits", "num_zeros"), [(1, 1), (2, 3), (17, 5), (4, 1)])
def test_numbers_of_a_form_have_so_many_digits_and_no_needless_zeros(num_digits, num_zeros):
    def is_of_form(text):
        whole, point, fraction = text.removeprefix("-").partition(".")
        digits, rest = (whole + fraction).lstrip("0"), fraction.lstrip("0")
        zeros = len(fraction) - len(rest) if whole == "0" else 0
        ends_well = not point or fraction == "0" or not fraction.endswith("0")
        return ends_well and len(digits) <= num_digits and zeros <= num_zeros

    rng = random.Random(num_digits)
    texts = SHORT_NUMBERS + [random_number(rng, rng.choice([4, 12])) for _ in range(3_000)]
    texts += ["1" * 17, "1" * 18, "1." + "1" * 16, "1." + "1" * 17, "0.0000011", "0.00000011", "1" * 16 + ".0"]
    automaton = core().numbers_of(num_digits, num_zeros, core().Exponents.none)
    assert [text for text in texts if automaton.matches(text.encode())] == list(filter(is_of_form, texts))


def test_exponents_of_a_form_are_all_or_those_of_doubles_or_none():
    rng = random.Random(5)
    texts = [random_scientific_number(rng) for _ in range(1_000)]
    texts += [f"9e{sign}{exponent}" for sign in "+-" for exponent in range(300, 999)]
    exponents = core().Exponents
    for kind, limit in ((exponents.none, 0), (exponents.of_doubles, 307), (exponents.all, 999)):
        automaton = core().numbers_of(17, 5, kind)
        assert [text for text in texts if automaton.matches(text.encode())] == [
            text for text in texts if abs(int(text.partition("e")[2])) <= limit
        ]


def test_floats_are_of_the_usual_form_as_python_writes_them():
    rng = random.Random(6)
    automaton = core().numbers_of(17, 5, core().Exponents.of_doubles)
    values = [rng.random() * 10 ** rng.randint(-300, 300) for _ in range(2_000)]
    values += [rng.randint(-(10**16), 10**16) / 10 ** rng.randint(0, 16) for _ in range(2_000)]
    values += [0.0, -0.0, 0.1 + 0.2, 1e16, 9007199254740993.0, 1e-5, 123456789012345.6, 5e-300]
    assert [value for value in values if not automaton.matches(repr(value).encode())] == []


def test_integers_without_zero_fraction_have_one_spelling_but_for_exponents():
    automaton = core().without_zero_fraction()
    texts = [*SHORT_NUMBERS, "1e+16", "1.5e-05", "12345.000"]
    assert [text for text in texts if automaton.matches(text.encode())] == [
        text for text in texts if not re.fullmatch(r"-?\d+\.0+", text)
    ]


# -- bounds and multiples --------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_accept_numbers_by_exact_value(bound):
    rng = random.Random(bound)
    limit, native = Fraction(bound), core().Decimal(bound)
    plain = plain_text(limit)
    texts = SHORT_NUMBERS[::4] + near_texts(plain, rng, 400) + [random_number(rng) for _ in range(200)]
    texts += [plain + zeros for zeros in (["0", "00", "000"] if "." in plain else [".0", ".00", ".000"])]
    texts += [random_scientific_number(rng) for _ in range(200)] + near_scientific_texts(bound, rng, 200)
    counts = [
        assert_accepts_where(core().numbers_from(native, False), texts, lambda value: value >= limit),
        assert_accepts_where(core().numbers_from(native, True), texts, lambda value: value > limit),
        assert_accepts_where(core().numbers_to(native, False), texts, lambda value: value <= limit),
        assert_accepts_where(core().numbers_to(native, True), texts, lambda value: value < limit),
        assert_accepts_where(core().numbers_equal(native), texts, lambda value: value == limit),
    ]
    assert counts[0] + counts[3] == counts[1] + counts[2] == len(texts)
    assert counts[4] >= 4


def test_random_bounds_divide_the_numbers():
    rng = random.Random(3)
    limits, any_number = core().Limits(), core().any_number()
    for _ in range(60):
        text = random_number(rng, rng.choice([2, 12]))
        bound, value = core().Decimal(text), Fraction(text)
        at_least, less = core().numbers_from(bound, False), core().numbers_to(bound, True)
        assert core().union(at_least, less, limits) == any_number
        assert core().intersection(at_least, less, limits).num_states == 0
        at_most = core().numbers_to(bound, False)
        assert core().intersection(at_least, at_most, limits) == core().numbers_equal(bound)
        assert core().difference(at_most, less, limits) == core().numbers_equal(bound)
        texts = near_texts(text, rng, 60) + near_scientific_texts(text, rng, 20)
        assert_accepts_where(at_least, texts, lambda other, value=value: other >= value)


def test_bounds_of_thousands_of_digits_have_few_states_each():
    rng = random.Random(4)
    digits = "7" + "".join(rng.choices("0123456789", k=3_998)) + "3"
    for text in (digits, "-" + digits, f"{digits[:2000]}.{digits[2000:]}"):
        start = time.thread_time()
        automata = [core().numbers_from(core().Decimal(text), True), core().numbers_to(core().Decimal(text), False)]
        assert time.thread_time() - start < 1
        for automaton, is_member in zip(automata, (False, True), strict=True):
            assert automaton.num_states <= 3 * len(digits) + 10
            assert automaton.matches(text.encode()) is is_member


@pytest.mark.parametrize("step", STEPS)
def test_multiples_are_exact(step):
    rng = random.Random(step)
    size = Fraction(step)
    multiples = [plain_text(rng.randint(-(10 ** rng.randint(1, 12)), 10**5) * size) for _ in range(150)]
    near = [other for text in multiples for other in near_texts(text, rng, 5)]
    texts = SHORT_NUMBERS + multiples + near + ["0.000", "-0", "0"]
    automaton = core().multiples_of(core().Decimal(step), core().Limits())
    count = assert_accepts_where(automaton, texts, lambda value: (value / size).denominator == 1)
    assert 150 < count < len(texts)


def test_multiples_are_minimal():
    limits = core().Limits()

    def multiples(step):
        return core().multiples_of(core().Decimal(step), limits)

    assert multiples("1") == core().difference(core().integers(True), scientific_numbers(), limits)
    assert core().intersection(multiples("3"), multiples("7"), limits) == multiples("21")
    assert core().intersection(multiples("0.5"), multiples("0.2"), limits) == multiples("1")
    assert core().intersection(multiples("20"), multiples("50"), limits) == multiples("100")
    assert multiples("1e30").num_states < 50
    assert multiples("1e-300").num_states < 320


def test_step_beyond_the_limit_on_states_is_refused():
    limits = core().Limits()
    limits.states = 1_000
    assert core().multiples_of(core().Decimal("999"), limits).matches(b"1998.0")
    for step, got in [("1001", 1001), ("50.1", 1002), ("11e99", 1100), ("1e-1000", 1001), ("9" * 40, 9999)]:
        with pytest.raises(core().LimitError) as caught:
            core().multiples_of(core().Decimal(step), limits)
        assert caught.value.args == ("multiple_of_states", got, 1_000, "")


@pytest.mark.parametrize("step", ["0", "-0.0", "-1", "-0.5"])
def test_step_that_is_not_positive_is_refused(step):
    with pytest.raises(ValueError, match=r"expected a positive step, got -?[0-9]"):
        core().multiples_of(core().Decimal(step), core().Limits())


def test_largest_multiple_of_the_default_limits_is_ready_in_a_second():
    start = time.thread_time()
    automaton = core().multiples_of(core().Decimal("9999"), core().Limits())
    assert time.thread_time() - start < 1
    assert automaton.matches(str(9999 * 123456789).encode())


# -- decimals --------------------------------------------------------------------------


def test_decimals_have_the_value_and_order_of_fractions():
    rng = random.Random(5)
    texts = ["0", "-0", "0.0", "-0e5", "1", "1.0", "10e-1", "0.1e1", "-1", "100", "1e2", "1E+2"]
    for _ in range(150):
        exponent = rng.choice(["", "e", "E+", "e-"])
        texts.append(random_number(rng, 5) + (exponent and f"{exponent}{rng.randint(0, 12)}"))
    decimals = [(core().Decimal(text), Fraction(text)) for text in texts]
    for decimal, value in decimals:
        assert Fraction(decimal.text) == value
        assert decimal.text == plain_text(value)
        assert decimal.is_zero == (value == 0)
        assert decimal.is_integer == (value.denominator == 1)
    for (decimal, value), (other, other_value) in itertools.product(decimals, repeat=2):
        assert (decimal < other) == (value < other_value)
        assert (decimal == other) == (value == other_value)


def test_decimals_with_many_digits_are_exact_or_refused():
    assert core().Decimal("1e400").text == "1" + "0" * 400
    assert core().Decimal("-1e-400").text == "-0." + "0" * 399 + "1"
    assert core().Decimal("1" + "0" * 5_000 + "e-5000").text == "1"
    assert core().Decimal("0." + "0" * 5_000 + "1e5001").text == "1"
    assert core().Decimal("0e99999999999999999999").is_zero
    assert len(core().Decimal("1e3999").text) == 4_000
    assert len(core().Decimal("1e-4000").text) == 4_002
    for text, got in [("1e4000", 4_001), ("1e-4001", 4_001), ("1." + "1" * 4_000, 4_001)]:
        with pytest.raises(core().LimitError) as caught:
            core().Decimal(text)
        assert caught.value.args == ("number_digits", got, 4_000, "")
    for text in ("1e99999999999999999999", "1e-99999999999999999999"):
        with pytest.raises(core().LimitError, match="number_digits"):
            core().Decimal(text)


MALFORMED = ["", "-", "01", "-01", "00", "1.", ".5", "+1", "1e", "1e+", "1e1.0", "0x1", " 1", "1 ", "--1", "1\0"]


@pytest.mark.parametrize("text", MALFORMED)
def test_decimal_refuses_what_is_no_json_number(text):
    with pytest.raises(ValueError, match=f"expected a JSON number, got {re.escape(text[:-1])}"):
        core().Decimal(text)


# -- strings ---------------------------------------------------------------------------


def canonical(value):
    return json.dumps(value, ensure_ascii=False)[1:-1]


def is_canonical(content):
    try:
        return canonical(json.loads(f'"{content}"')) == content
    except ValueError:
        return False


def random_value(rng):
    codes = [rng.randrange(0x110000) for _ in range(rng.randint(0, 2))]
    characters = [chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF]
    characters += rng.choices(HOSTILE + PLAIN, k=rng.randint(0, 5))
    return "".join(rng.sample(characters, k=len(characters)))


def test_canonical_spelling_of_every_character_is_that_of_json():
    characters = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)
    content = canonical(characters).encode()
    assert core().spelled_canonically(characters.encode()) == content
    assert core().any_string_content().matches(content)


def test_any_string_content_accepts_exactly_canonical_strings():
    rng = random.Random(6)
    automaton = core().any_string_content()
    contents = [canonical("".join(rng.choices(HOSTILE + PLAIN, k=rng.randint(0, 6)))) for _ in range(500)]
    contents += [mutated(content, rng) for content in contents]
    contents += [r"\/", r"\u0041", r"\u001F", r"\u000a", r"\u0022", r"\u007f", r"\u0000", r"\u0020", r"\u001f", r"\v"]
    contents += [r"\ud83e\udd8a", r"\ud83e", "\n", "\x7f", "\x80", '"', "\\", r"\'", "/", r"\x41", r"\u00"]
    assert [content for content in contents if automaton.matches(content.encode())] == [
        content for content in contents if is_canonical(content)
    ]
    for content in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\x80"):
        assert not automaton.matches(content)


def test_only_the_start_of_any_string_content_is_accepting():
    automaton = core().any_string_content()
    assert [state for state in range(automaton.num_states) if automaton.accepts(state)] == [0]


def test_random_patterns_have_the_values_of_re(num_cases):
    rng = random.Random(7)
    num_accepted = 0
    for _ in range(num_cases(150, long=3_000)):
        pattern = anchored(random_pattern(rng, 2), rng.random() < 0.5, rng.random() < 0.5)
        automaton = core().compile_string_content(pattern.text.encode(), core().Limits())
        values = [pattern.sample(rng) for _ in range(3)] + [random_value(rng)]
        values += [mutated(value, rng) for value in values]
        for value in values:
            is_member = pattern.is_found_in(value)
            assert automaton.matches(canonical(value).encode()) == is_member, (pattern.text, value)
            num_accepted += is_member
        drawn = [text for text in (drawn_text(automaton, rng) for _ in range(3)) if text is not None]
        for content in drawn + [mutated(canonical(value), rng) for value in values]:
            is_member = is_canonical(content) and pattern.is_found_in(json.loads(f'"{content}"'))
            assert automaton.matches(content.encode()) == is_member, (pattern.text, content)
    assert num_accepted > 400


def test_string_content_of_a_pattern_is_minimal():
    limits = core().Limits()
    assert core().compile_string_content(b"", limits) == core().any_string_content()
    assert core().compile_string_content(b"^[\\s\\S]*$", limits) == core().any_string_content()
    assert core().compile_string_content(b'^["\\\\\\n\\x1b/]$', limits) == core().compile_choices(
        [r"\"", r"\\", r"\n", r"\u001b", "/"]
    )


def test_exact_string_contents_are_the_canonical_choices():
    rng = random.Random(8)
    values = [random_value(rng) for _ in range(200)] + ["", "\0", '"\\/\x7f', "🦊"]
    expected = core().compile_choices([canonical(value) for value in values])
    assert core().exact_string_contents([value.encode() for value in values]) == expected
    assert core().exact_string_contents([]).num_states == 0
    with pytest.raises(ValueError, match="expected a text in UTF-8"):
        core().exact_string_contents([b"\xed\xa0\x80"])
