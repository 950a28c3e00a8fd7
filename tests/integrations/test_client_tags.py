"""Structural tags of engines' clients, in xgrammar's present format."""

import json

import pytest

from structout import StructuredOutputsParams, check_params
from structout.integrations.client_tags import current_structural_tag

SCHEMA = {"type": "integer"}
OLDER = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
PRESENT = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
        ],
    },
}


@pytest.mark.parametrize("tag", [OLDER, PRESENT])
@pytest.mark.parametrize("as_given", [json.dumps, lambda tag: tag])
def test_current_structural_tag_is_one_that_the_manager_accepts(tag, as_given):
    current = current_structural_tag(as_given(tag))
    assert current == PRESENT
    assert check_params(StructuredOutputsParams(structural_tag=current)) == ()


def test_current_structural_tag_without_a_schema_takes_any_json():
    tag = {"structures": [{"begin": "<f>", "end": "</f>"}], "triggers": ["<f"]}
    content = current_structural_tag(tag)["format"]["tags"][0]["content"]
    assert content["json_schema"] == {}
    assert "schema" not in tag["structures"][0]
    dispatch = {"type": "dispatch", "rules": [["<f>", {"type": "json_schema"}]]}
    current = current_structural_tag({"type": "structural_tag", "format": {"type": "sequence", "elements": [dispatch]}})
    assert current["format"]["elements"][0]["rules"][0][1]["json_schema"] == {}


@pytest.mark.parametrize("tag", ["{", "3", 3, None, {"structures": 5}, {"structures": [5]}, b"{}"])
def test_current_structural_tag_with_no_tag_returns_it_for_the_manager_to_refuse(tag):
    assert current_structural_tag(tag) is tag
