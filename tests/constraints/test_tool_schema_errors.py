"""A schema that is refused inside of tools is named by its tool, a JSON pointer and a
keyword."""

import pytest

from structout import GrammarError, GrammarErrorKind, StructuredOutputsParams, check_params


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def value(**schema):
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


BAD = [
    (value(type="strin"), "/properties/x/type"),
    (value(type="string", minLength=-1), "/properties/x/minLength"),
    (value(type="string", minLength=10_000_000), "/properties/x/minLength"),
    (value(type="string", pattern="(a"), "/properties/x/pattern"),
    (value(type="string", pattern="a" * 2_000), "/properties/x/pattern"),
    (value(minimum="3"), "/properties/x/minimum"),
    (value(multipleOf=0), "/properties/x/multipleOf"),
    (value(items=3), "/properties/x/items"),
    (value(unevaluatedItems=3), "/properties/x/unevaluatedItems"),
    (value(patternProperties={"(": {}}), "/properties/x/patternProperties"),
    (value(**{"$ref": "#/$defs/missing"}), "/properties/x/$ref"),
    (value(**{"$ref": "http://example.com/x"}), "/properties/x/$ref"),
    (value(**{"if": 4}), "/properties/x/if"),
    (value(anyOf=[{"type": "string"}] * 1_000), "/properties/x/anyOf"),
    ({"type": "object", "properties": [1]}, "/properties"),
    ({"type": "object", "required": "x"}, "/required"),
]


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
@pytest.mark.parametrize(("schema", "pointer"), BAD, ids=[pointer for _, pointer in BAD])
def test_refusal_names_tool_pointer_and_keyword(schema, pointer, tool_choice):
    tools = [tool("good", value(type="string")), tool("bad", schema)]
    with pytest.raises(GrammarError) as refused:
        check_params(StructuredOutputsParams(tools=tools, tool_choice=tool_choice))
    error = refused.value
    assert error.pointer == f"#/format/tags/1/content/json_schema{pointer}"
    assert error.keyword == pointer.rpartition("/")[2]
    assert error.kind in (GrammarErrorKind.MALFORMED, GrammarErrorKind.UNSUPPORTED, GrammarErrorKind.LIMIT)
    assert str(error).startswith(f"{error.pointer}: ")
    assert '"name": "bad"' in str(error)


def test_schema_that_no_value_satisfies_names_its_tool():
    tools = [tool("bad", {"type": "object", "minProperties": 3, "additionalProperties": False})]
    with pytest.raises(GrammarError, match="no value satisfies the schema") as refused:
        check_params(StructuredOutputsParams(tools=tools))
    assert refused.value.kind is GrammarErrorKind.IMPOSSIBLE
    assert '"name": "bad"' in str(refused.value)


def test_limit_of_a_schema_outside_of_tags_names_no_tag():
    schema = value(type="string", minLength=-1) | {"begin": "<t>"}
    with pytest.raises(GrammarError, match=r"#/properties/x/minLength: must not be negative, got -1$"):
        StructuredOutputsParams(json=schema).validate()
