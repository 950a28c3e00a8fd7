"""Verdicts on texts near the instances of random schemas, by two judges that are not
ours.

The engine is compared with ``jsonschema`` in both directions; see
``support.json_engine_checks``. Where both judges can be asked, ``jsonschema`` is
compared with ajv, so that a mistake of one judge cannot hide one of ours.

Known differences of the judges, which are left out of the second comparison:

* ajv computes in doubles. Texts and schemas with other numbers are left out, and so is
  ``multipleOf`` with a fraction.
* ajv has the keywords of later drafts: draft 4, and draft 6 with ``if``, are left out.
* Beside ``$ref``, drafts before 2019-09 ignore keywords. ajv does not.
* ajv 8 takes an empty array for one that ``contains`` a value if there are
  ``prefixItems``, and ignores ``"required": [""]``. After ``contains`` it takes all
  items for evaluated.
* What a subschema of ``if``, ``anyOf`` or ``oneOf`` has evaluated counts for ajv in
  some cases where that subschema has failed, and beside ``dependentSchemas`` that do
  not apply, what ``properties`` has evaluated does not.
* Beside ``prefixItems``, ajv compares only items of the types that ``items`` names for
  ``uniqueItems``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from soak.hunt import Hunter, Tally
from soak.node import Node, has_ajv
from structout.grammar.native.extension import core
from support.engine_schemas import EngineSchema
from support.json_engine import JsonEngine, refusal_of
from support.json_engine_checks import count_verdict
from support.soundness import Findings

NUM_SCHEMAS, NUM_TEXTS = 20, 20
_DRAFTS = {"2020-12": "2020", "2019-09": "2019", "draft-07": "07", "draft-06": "07"}


class Schemas(Hunter):
    def __init__(self) -> None:
        self._engine = JsonEngine()
        self._node = Node() if has_ajv() else None

    def hunt(self, seed: int, tally: Tally) -> None:
        rng, found = random.Random(f"soak schemas {seed}"), Findings()
        for _ in range(NUM_SCHEMAS):
            drawn = EngineSchema(rng)
            texts = list(drawn.compact_texts(NUM_TEXTS))
            index = None
            try:
                index = self._engine.compile(drawn.text)
            except ValueError as error:
                if refusal_of(error) != "impossible":
                    tally.executions[f"schemas refused: {refusal_of(error)}"] += 1
                    continue
            try:
                for text in texts:
                    count_verdict(found, seed, drawn, text, index)
            except (core().LimitError, core().SchemaError):
                tally.executions["schemas that met a limit while reading"] += 1
            tally.executions["schemas"] += 1
            if self._node is not None:
                self._compare_judges(self._node, drawn, texts, tally)
        tally.executions["pairs of a schema and a text"] += found.counts.total()
        tally.findings += found.wrong

    def _compare_judges(self, node: Node, drawn: EngineSchema, texts: list[str], tally: Tally) -> None:
        draft = draft_of(drawn.schema)
        if draft is None or not is_for_doubles(drawn.schema):
            return
        texts = [text for text in texts if _has_only_doubles(text)]
        schema = {**drawn.schema} if isinstance(drawn.schema, dict) else drawn.schema
        if isinstance(schema, dict):
            schema.pop("$schema", None)
        answer = node.ask(schema=json.dumps(schema, default=float), draft=draft, texts=texts)
        if "error" in answer:
            tally.executions["schemas that ajv does not take"] += 1
            return
        for text, is_valid in zip(texts, answer["valid"], strict=True):
            expected = drawn.is_valid(text, checks_formats=False)
            if expected is None or (is_valid is None and expected is False):
                continue
            tally.executions["pairs judged by jsonschema and ajv"] += 1
            if is_valid != expected:
                tally.findings.append(f"jsonschema says {expected}, ajv {is_valid}: {drawn.text} {text}")

    def close(self) -> None:
        if self._node is not None:
            self._node.close()


def draft_of(schema: Any) -> str | None:
    """The name of a draft in ``judge.js``. None if ajv reads the schema otherwise."""
    if not isinstance(schema, dict):
        return "2020"
    uri = schema.get("$schema", "2020-12")
    draft = next((name for part, name in _DRAFTS.items() if part in uri), None)
    nodes = list(_nodes(schema))
    words = {word for node in nodes for word in node}
    lists = [node for node in nodes if "prefixItems" in node or isinstance(node.get("items"), list)]
    differs = (
        ("draft-06" in uri and "if" in words)
        or (draft == "07" and any("$ref" in node and len(node) > 1 for node in nodes))
        or any("contains" in node or "uniqueItems" in node for node in lists)
        or {"contains", "unevaluatedItems"} <= words
        or (
            words & {"unevaluatedItems", "unevaluatedProperties"}
            and words & {"if", "anyOf", "oneOf", "dependentSchemas"}
        )
        or '"__proto__"' in json.dumps(schema, default=str)
        or any("" in node["required"] for node in nodes if isinstance(node.get("required"), list))
    )
    return None if differs else draft


def is_for_doubles(schema: Any) -> bool:
    numbers = list(_numbers(schema))
    multiples = [node["multipleOf"] for node in _nodes(schema) if "multipleOf" in node]
    return all(map(_is_double, numbers)) and all(isinstance(multiple, int) for multiple in multiples)


def _has_only_doubles(text: str) -> bool:
    try:
        value = json.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError):
        return True
    return all(map(_is_double, _numbers(value)))


def _is_double(number: int | Decimal) -> bool:
    return abs(number) < 2**53 and Decimal(repr(float(number))) == number


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _nodes(child)


def _numbers(part: Any) -> Iterator[int | Decimal]:
    if isinstance(part, int | Decimal) and not isinstance(part, bool):
        yield part
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _numbers(child)


make = Schemas
