"""Python types as constraints: their schemas, and texts read back."""

import dataclasses
import enum
import json
import os
from collections import deque
from typing import Annotated, Literal, NamedTuple

import jsonschema
import pydantic
import pytest
from typing_extensions import TypedDict  # Pydantic wants it before Python 3.12

from structout import GrammarError, StructuredOutputOptions, StructuredOutputsParams
from structout.constraints.params import parts
from structout.constraints.tools.definitions import read_tools
from support import fresh_process


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


@dataclasses.dataclass
class Line:
    points: list[Point]
    color: Color | None = None


class Named(TypedDict, total=False):
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class City(pydantic.BaseModel):
    name: str
    center: Point


CASES = [
    (int, 3, "3.5"),
    (float, 2.5, '"two"'),
    (bool, True, "7"),
    (str, "a", "a"),
    (list[int], [1, 2], "[1.5]"),
    (dict[str, list[bool]], {"a": [True]}, '{"a": true}'),
    (tuple[int, str], (1, "a"), "[1]"),
    (set[int], {1, 2}, '["a"]'),
    (deque[int], deque([1]), '["a"]'),
    (int | None, None, '"a"'),
    (int | str, "a", "[]"),
    (Literal["a", 1, None], 1, '"b"'),
    (Color, Color.BLUE, '"green"'),
    (Level, Level.HIGH, "2"),
    (Annotated[int, pydantic.Field(ge=0)], 0, "-1"),
    (Point, Point(1, 2.0), '{"x": "one"}'),
    (Line, Line([Point(1, 2.0)], Color.RED), '{"points": [{}]}'),
    (Named, {"name": "a"}, '{"name": 1}'),
    (Pair, Pair(1, "a"), '[1, 2, "a"]'),
    (City, City(name="a", center=Point(1, 2.0)), "{}"),
]


@pytest.mark.parametrize(("output_type", "value", "other"), CASES, ids=[str(case[0]) for case in CASES])
def test_types_have_a_schema_that_their_values_satisfy_and_are_read_back(output_type, value, other):
    params = StructuredOutputsParams(json=output_type)
    constraint = params.constraint()
    assert constraint.kind is StructuredOutputOptions.JSON
    text = pydantic.TypeAdapter(output_type).dump_json(value).decode()
    jsonschema.validate(json.loads(text), constraint.value)
    assert params.parse(text) == value
    assert type(params.parse(text)) is type(value)
    with pytest.raises(ValueError, match=r"validation error|JSON"):
        params.parse(other)


class Forbidding(pydantic.BaseModel, extra="forbid"):
    name: str


class Silent(pydantic.BaseModel):
    name: str


class Heir(Silent):
    inner: list[Silent] = []
    next: "Heir | None" = None
    either: Forbidding | Point | Annotated[Silent | Named, pydantic.Field(description="a union")] | None = None


class Kind(pydantic.BaseModel):
    kind: Literal["kind"] = "kind"
    city: City


class Other(pydantic.BaseModel):
    kind: Literal["other"]


class Root(pydantic.RootModel[Annotated[Kind | Other, pydantic.Field(discriminator="kind")]]):
    pass


class Empty(pydantic.BaseModel):
    pass


def function(city: City, names: list[Silent]) -> None:
    pass


@pytest.mark.parametrize(
    "output_type",
    [
        *(Point, Named, list[Point], dict[str, Line], Forbidding, Silent, City, Heir, Kind | Other, Root, Empty),
        pydantic.RootModel[list[Kind]],
    ],
)
def test_classes_have_no_other_keys(output_type):
    """Also those inside of other types."""
    schema = StructuredOutputsParams(json=output_type).constraint().value
    assert open_objects(schema) == []
    places = [part for part in parts(schema) if isinstance(part, dict) and part.get("additionalProperties") is False]
    assert all("properties" in place for place in places)
    assert places


def test_parameters_of_functions_have_no_other_keys():
    (tool,) = read_tools([function])
    assert open_objects(tool.parameters) == []


def open_objects(schema):
    """The objects of a schema that may have keys which it does not name."""
    found = [part for part in parts(schema) if isinstance(part, dict) and isinstance(part.get("properties"), dict)]
    return [part for part in found if part.get("additionalProperties") is not False]


class Allowing(pydantic.BaseModel, extra="allow"):
    name: str
    inner: Silent


class Typed(pydantic.BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, int]


@pydantic.with_config(pydantic.ConfigDict(extra="allow"))
class AllowingDict(TypedDict):
    name: str


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(extra="allow"))
class AllowingPoint:
    x: int


class OwnSchema(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(json_schema_extra={"additionalProperties": {"type": "integer"}})
    name: str


@pytest.mark.parametrize(
    ("output_type", "others"),
    [
        *((Allowing, True), (Typed, {"type": "integer"}), (AllowingDict, True), (AllowingPoint, True)),
        *((OwnSchema, {"type": "integer"}), (dict[str, Silent], {"$ref": "#/$defs/Silent"})),
        (pydantic.RootModel[dict[str, int]], {"type": "integer"}),
    ],
)
def test_classes_that_allow_other_keys_have_them(output_type, others):
    schema = StructuredOutputsParams(json=output_type).constraint().value
    assert schema["additionalProperties"] == others
    assert open_objects(schema.get("$defs", {})) == []


@pytest.mark.parametrize(
    ("choice", "options", "value"),
    [
        (Color, ["red", "blue"], Color.RED),
        (Literal["red", "green"], ["red", "green"], "red"),
        (["red"], ["red"], "red"),
    ],
)
def test_choice_takes_an_enum_and_literals(choice, options, value):
    params = StructuredOutputsParams(choice=choice)
    constraint = params.constraint()
    assert (constraint.kind, constraint.value) == (StructuredOutputOptions.CHOICE, options)
    assert params.parse("red") == value
    assert type(params.parse("red")) is type(value)


def test_parse_without_a_type_gives_json_or_the_text():
    assert StructuredOutputsParams(json={"type": "object"}).parse('{"a": 1}') == {"a": 1}
    assert StructuredOutputsParams(json=True).parse("1") == 1
    assert StructuredOutputsParams(json_object=True).parse("[]") == []
    assert StructuredOutputsParams(regex="[0-9]").parse("1") == "1"
    assert StructuredOutputsParams(grammar='root ::= "1"').parse("1") == "1"


class Indescribable:
    pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"json": Indescribable}, "the type Indescribable has no JSON schema: Unable to generate pydantic-core schema"),
        ({"json": list[Indescribable]}, r"the type list\[.*Indescribable\] has no JSON schema"),
        ({"choice": Level}, "every choice must be a non-empty string"),
        ({"choice": Literal["a", 1]}, "every choice must be a non-empty string"),
        ({"choice": int}, "choice must be a non-empty list of strings, got <class 'int'>"),
        ({"choice": enum.Enum}, "choice must be a non-empty list of strings"),
    ],
)
def test_types_that_are_no_constraint_are_refused_by_message(arguments, message):
    with pytest.raises(GrammarError, match=message):
        StructuredOutputsParams(**arguments).validate()


WITHOUT_PYDANTIC = """
import sys
sys.modules["pydantic"] = None
from structout import GrammarError, StructuredOutputsParams
StructuredOutputsParams(json={"type": "string"}).validate()
try:
    StructuredOutputsParams(json=list[int]).validate()
except GrammarError as error:
    print(error)
"""


def test_types_without_pydantic_say_what_to_install():
    run = fresh_process.run("-c", WITHOUT_PYDANTIC, env=dict(os.environ))
    message = "the type list[int] needs pydantic, which is not installed: pip install pydantic, or give a JSON schema\n"
    assert run.stdout == message, run.stderr
