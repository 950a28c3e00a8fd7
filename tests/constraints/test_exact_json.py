"""Numbers of schemas that no double has: from the text of a schema to the masks."""

import json
import math
import random
from fractions import Fraction

import pytest

from structout.cli.validate import independent_check
from structout.constraints import exact_json
from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.exact_json import ExactNumber
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.tokenizers_on_the_spot import byte_level

TOKENIZER = byte_level()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER, len(TOKENIZER))
PLAIN = ["0.1", "1.0", "-0.0", "1e+16", "1E5", "0.30", "123456789012345678901234567890", "5e-324"]
EXACT = ["9007199254740993.25", "1e400", "-1E400", "1e-400", "0.1000000000000000000001", "9007199254740993.0"]


@pytest.mark.parametrize("text", PLAIN)
def test_number_that_a_double_has_is_the_same_as_with_json(text):
    value = exact_json.loads(text)
    assert type(value) is type(json.loads(text))
    assert exact_json.dumps(value) == json.dumps(json.loads(text))
    assert not exact_json.has_exact_numbers([{"a": value}])


@pytest.mark.parametrize("text", EXACT)
def test_number_that_no_double_has_keeps_its_text(text):
    value = exact_json.loads(f'{{"a": [1, {text}, 0.5], "b": "{text}"}}')
    assert isinstance(value["a"][1], ExactNumber)
    assert exact_json.has_exact_numbers(value)
    assert exact_json.dumps(value) == f'{{"a": [1, {text}, 0.5], "b": "{text}"}}'


def test_exact_numbers_compare_by_value():
    rng = random.Random(0)
    texts = [*EXACT, "1e399", "10e399", "0.1", "9007199254740993", "9007199254740994.0", "0", "-1", "1e-401"]
    for first, second in [(rng.choice(texts), rng.choice(texts)) for _ in range(300)]:
        a, b = exact_json.loads(first), exact_json.loads(second)
        left, right = Fraction(first), Fraction(second)
        assert (a < b, a <= b, a == b, a != b, a > b, a >= b) == (
            *(left < right, left <= right, left == right, left != right, left > right, left >= right),
        )
        assert a != b or hash(a) == hash(b)
        assert bool(a) is (left != 0)


def test_exact_number_is_an_integer_if_it_has_no_fraction():
    integers = ["1e400", "9007199254740993.0", "-1E400"]
    assert [text for text in EXACT if exact_json.loads(text).is_integer()] == sorted(integers, key=EXACT.index)
    assert int(exact_json.loads("9007199254740993.0")) == 2**53 + 1
    with pytest.raises(OverflowError, match="1e999999999 has too many digits"):
        int(exact_json.loads("1e999999999"))


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[Infinity]", "1e99999999999999999999", "01", "1.", "[1e400"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ValueError, match=r"is not JSON|too large|Extra data|Expecting"):
        exact_json.loads(text)


def test_value_that_is_not_json_is_not_written():
    cyclic = []
    cyclic.append(cyclic)
    for value in (math.nan, math.inf, cyclic, [cyclic, ExactNumber("1e400")]):
        with pytest.raises((ValueError, RecursionError)):
            exact_json.dumps(value)
    with pytest.raises(TypeError):
        exact_json.dumps({1, 2})


# -- schemas ---------------------------------------------------------------------------


def takes(schema, text, **params):
    constraint = StructuredOutputsParams(json=schema, **params).constraint()
    compiled = BackendSet(VOCABULARY, StructuredOutputsConfig()).compile(constraint)
    tokens = [*TOKENIZER(text, add_special_tokens=False)["input_ids"], VOCABULARY.stop_token_ids[0]]
    return compiled.grammar.accept_tokens("", tokens)


def test_schema_given_as_text_reaches_the_engine_with_its_numbers():
    assert [takes('{"minimum": 9007199254740993.25}', text) for text in ("9007199254740993", "9007199254740994")] == [
        False,
        True,
    ]
    assert takes('{"minimum": 9007199254740993.25}', "9007199254740993.25")
    assert [takes('{"const": 1e400}', text) for text in ("1e+400", "1e+307")] == [True, False]
    assert [takes('{"maximum": 1e-400, "minimum": 0}', text) for text in ("0", "1e-300")] == [True, False]
    assert takes('{"enum": [0.1000000000000000000001, "1e400"]}', "0.1000000000000000000001")
    assert not takes('{"enum": [0.1000000000000000000001, "1e400"]}', "0.1")


def test_text_is_checked_with_exact_numbers_on_the_command_line():
    schema = '{"type": ["number", "integer"], "minimum": 9007199254740993.25, "multipleOf": 0.25}'
    check = independent_check(StructuredOutputsParams(json=schema))
    assert check("9007199254740993.25") is None
    assert "less than the minimum" in check("9007199254740993.0")
    assert "not a multiple" in check("9007199254740993.3")
    assert independent_check(StructuredOutputsParams(json='{"type": "integer"}'))("1.0") is None
    assert independent_check(StructuredOutputsParams(json='{"const": 1e400}'))("1e+400") is None


def test_constraints_whose_numbers_differ_beyond_doubles_differ():
    texts = ['{"minimum": 9007199254740993.25}', '{"minimum": 9007199254740993.75}']
    first, second = (StructuredOutputsParams(json=text).constraint() for text in texts)
    assert first != second
    assert first.rewritten(first.value).spec == first.spec


def test_numbers_that_are_no_json_are_refused_in_schemas():
    huge = '{"minimum": 1e99999999999999999999}'
    for schema in ('{"minimum": NaN}', '{"minimum": Infinity}', {"minimum": math.inf}, huge):
        with pytest.raises(GrammarError, match="the JSON schema is not JSON"):
            StructuredOutputsParams(json=schema).validate()
