"""describe: schemas as short texts."""

import json
import random
from typing import Literal

import pydantic
import pytest

from structout import describe
from support.random_schemas import RandomSchema


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(description="as on the\n bill", max_length=20)
    count: int = pydantic.Field(ge=1, le=9)
    kind: Literal["a", "b"] | None = None
    tags: list[str] = pydantic.Field(max_length=3)


class Order(pydantic.BaseModel):
    items: list[Item]
    more: dict[str, int] = {}


ORDER = """{
  "items": [{
    "name": string (at most 20 characters),  // as on the bill
    "count": integer (1 to 9),
    "kind"?: one of "a", "b" or null,
    "tags": [string, ...] (at most 3 items)
  }, ...],
  "more"?: {
    any key: integer
  }
}"""


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (Order, ORDER),
        (bool, "boolean"),
        (True, "any value"),
        ({"title": "x"}, "any value"),
        (False, "false"),
        ({"type": "object"}, "object"),
        ({"type": "array"}, "array"),
        ({"type": "object", "properties": {}, "additionalProperties": False}, "{}"),
        ({"const": "é"}, '"é"'),
        ({"type": "string", "format": "date"}, "string (date)"),
        ({"type": "string", "pattern": "^a", "minLength": 2}, "string (^a) (at least 2 characters)"),
        ({"type": ["integer", "null"], "minimum": 3}, "integer (at least 3) or null"),
        ({"anyOf": [{"type": "number", "maximum": 2}, {"const": 7}]}, "number (at most 2) or 7"),
        ({"not": {"type": "string"}}, '{"not": {"type": "string"}}'),
        ({"type": "integer", "multipleOf": 3}, '{"type": "integer", "multipleOf": 3}'),
        ({"type": "array", "items": {"$ref": "#"}}, "[as above, ...]"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "as above"),
        ({"$ref": "#/$defs/none"}, '{"$ref": "#/$defs/none"}'),
        ({"$ref": "https://example.com/x"}, '{"$ref": "https://example.com/x"}'),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "null"}}},
         '{\n  "a"?: null\n}'),
    ],
)  # fmt: skip
def test_schema_is_described_by_the_shape_of_its_texts(schema, text):
    assert describe(schema) == text


def test_every_schema_has_a_description(num_cases):
    rng = random.Random(0)
    for _ in range(num_cases(200, long=5_000)):
        schema = json.loads(RandomSchema(rng).text)
        assert describe(schema), json.dumps(schema)
