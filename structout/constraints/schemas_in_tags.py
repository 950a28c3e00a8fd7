"""The JSON schemas inside a structural tag, in xgrammar's format."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from structout.constraints import exact_json
from structout.constraints.output_types import is_output_type, schema_of
from structout.constraints.schema_walks import Nodes, subschemas, unescaped
from structout.errors import GrammarError

_SCHEMA_KEYS = ("json_schema", "schema")


@dataclass(frozen=True)
class TagSchema:
    """A schema in a structural tag.

    Attributes:
        pointer: JSON pointer to it in the tag.
        schema: the schema, parsed.
        nodes: its object schemas, as ``subschemas`` yields them.
        is_plain: whether the text between the tags is JSON that satisfies the schema.
            There are other styles, such as XML, and an option that ignores
            ``required``.
    """

    pointer: str
    schema: Any
    nodes: Nodes
    is_plain: bool


def tag_schemas(tag: Any) -> list[TagSchema]:
    """Find the schemas of a structural tag. It skips text that does not parse: the
    engine will refuse it."""
    found = []
    for pointer, part in tag_parts(tag):
        for key in _SCHEMA_KEYS:
            schema = _parsed(part.get(key))
            if schema is not None:
                found.append(TagSchema(f"{pointer}/{key}", schema, list(subschemas(schema)), _is_plain(part)))
    return found


def with_schemas(tag: Any, schemas: Mapping[str, Any]) -> Any:
    """Copy a structural tag with other schemas.

    Args:
        tag: does not change itself.
        schemas: the new schemas by JSON pointer, as in :func:`tag_schemas`.
    """
    changed = copy.deepcopy(tag)
    for pointer, part in tag_parts(changed):
        for key in _SCHEMA_KEYS:
            if f"{pointer}/{key}" in schemas:
                part[key] = schemas[f"{pointer}/{key}"]
    return changed


def tag_parts(tag: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a structural tag with their JSON pointers, without its
    schemas."""
    pending = [("#", tag)]
    while pending:
        pointer, part = pending.pop()
        if isinstance(part, list):
            pending += [(f"{pointer}/{i}", child) for i, child in enumerate(part)]
        elif isinstance(part, dict):
            yield pointer, part
            pending += [(f"{pointer}/{key}", child) for key, child in part.items() if key not in _SCHEMA_KEYS]


def with_types_described(tag: Any) -> Any:
    """Copy a structural tag with the JSON schemas of Python types in their place.

    Args:
        tag: does not change itself. Schemas may be Pydantic model classes, and other
            types that :func:`structout.constraints.output_types.schema_of` describes.

    Raises:
        GrammarError: a type has no JSON schema.
    """
    types = {f"{pointer}/{key}": part[key] for pointer, part in tag_parts(tag) for key in _SCHEMA_KEYS if key in part}
    described = {place: schema_of(given) for place, given in types.items() if is_output_type(given)}
    return with_schemas(tag, described) if described else tag


def tag_around(tag: Any, pointer: str) -> str | None:
    """The text that begins the innermost tag around a place, such as ``<think>``.

    Args:
        tag: a structural tag.
        pointer: JSON pointer to the place, from ``#``.

    Returns:
        None if there is no tag around it that begins with a text.
    """
    begin, part = None, tag
    for name in pointer.split("/")[1:]:
        if isinstance(part, dict):
            found = part.get("begin")
            begin = found if isinstance(found, str) else begin
            part = part.get(unescaped(name))
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            break
    return begin


@contextmanager
def errors_in_tags(tag: Any) -> Iterator[None]:
    """Give errors with a pointer the text that begins the tag around it, which names
    the tool."""
    try:
        yield
    except GrammarError as error:
        begin = None if error.pointer is None else tag_around(tag, error.pointer)
        raise (error if begin is None else error.inside(f"the tag {begin!r}")) from None


def _is_plain(part: dict[str, Any]) -> bool:
    is_json = part.get("type", "json_schema") == "json_schema" and part.get("style", "json") == "json"
    return is_json and not part.get("any_order")


def _parsed(schema: Any) -> Any:
    """A schema that may be given as text, or None."""
    try:
        return exact_json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        return None
