"""SchemaStore's schemas, with its own test files as their instances."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

import jsonschema
import tomllib
import yaml
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, specification_with

BASE = "https://json.schemastore.org/"
HOSTS = {"json.schemastore.org", "www.schemastore.org"}
FOLDERS = {"test": True, "negative_test": False}


# YAML 1.2 takes `on`, `off`, `yes` and `no` as strings.
RESOLVERS = {
    first: [resolver for resolver in resolvers if first not in "yYnNoO" or resolver[0] != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    loader.yaml_implicit_resolvers = RESOLVERS
    return loader.get_single_data()


READERS = {".json": json.loads, ".toml": tomllib.loads, ".yaml": read_yaml, ".yml": read_yaml}


def read_schema_store(folder: Path) -> list[dict[str, Any]]:
    """Read a checkout of https://github.com/SchemaStore/schemastore.

    Returns:
        MaskBench's format, with the ``schemas`` that a schema refers to. A schema that
        refers to what the checkout lacks is left out, and so is a test whose verdict is
        not that of ``jsonschema``, which takes formats as annotations.
    """
    sources = {file.stem: file for file in (folder / "src/schemas/json").glob("*.json")}
    cases = []
    num_tests = num_disputed = num_without = 0
    for name, source in sorted(sources.items()):
        tests = list(_tests(folder / "src", name))
        if not tests:
            continue
        num_tests += len(tests)
        try:
            schema = json.loads(source.read_text("utf-8-sig"))
            schema.setdefault("id" if "draft-04" in schema.get("$schema", "") else "$id", f"{BASE}{name}.json")
            schemas = _schemas_for(schema, sources)
        except (KeyError, ValueError):
            num_without += len(tests)
            continue
        validator = _validator(schema, schemas)
        agreed = [test for test in tests if _is_valid(validator, test["data"]) is test["valid"]]
        num_disputed += len(tests) - len(agreed)
        if agreed:
            cases.append({"name": name, "schema": schema, "schemas": schemas, "tests": agreed})
    print(f"{len(cases)} schemas, {num_tests} tests, {num_disputed} disputed, {num_without} without their schema")
    return cases


def _is_valid(validator: Any, instance: Any) -> bool | None:
    """None if the schema has patterns or references that ``jsonschema`` cannot read."""
    try:
        return bool(validator.is_valid(instance))
    except (re.error, Unresolvable):
        return None


def _tests(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for part, is_valid in FOLDERS.items():
        for file in sorted((folder / part / name).glob("*")):
            if file.suffix in READERS:
                data = READERS[file.suffix](file.read_text("utf-8-sig"))
                yield {"data": json.loads(json.dumps(data, default=str)), "valid": is_valid}


def _schemas_for(schema: Any, sources: dict[str, Path]) -> dict[str, Any]:
    """The schemas that a schema refers to, also through others, by their URIs."""
    found: dict[str, Any] = {}
    pending = [(BASE, schema)]
    while pending:
        base, part = pending.pop()
        base = urljoin(base, part.get("$id", part.get("id", "")))
        for reference in _references(part):
            uri = urldefrag(urljoin(base, reference)).url
            if uri in found or uri == urldefrag(base).url or urlsplit(uri).hostname == "json-schema.org":
                continue
            if urlsplit(uri).hostname not in HOSTS:
                raise KeyError(uri)
            found[uri] = json.loads(sources[Path(urlsplit(uri).path).name.removesuffix(".json")].read_text("utf-8-sig"))
            pending.append((uri, found[uri]))
    return found


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            yield reference
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(child)


def _validator(schema: Any, schemas: dict[str, Any]) -> Any:
    resources = [
        (uri, specification_with(other.get("$schema", ""), default=DRAFT7).create_resource(other))
        for uri, other in schemas.items()
    ]
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
    return kind(schema, registry=Registry().with_resources(resources))
