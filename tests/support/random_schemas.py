"""Random JSON schemas, texts of instances that satisfy or nearly satisfy them, and a
judge.

The judge is ``jsonschema`` with exact decimals, with ECMA-262's regular expressions and
with formats as assertions.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import jsonschema

from support.random_patterns import HOSTILE, Pattern, anchored, mutated, random_pattern

DRAFTS = {
    "": jsonschema.Draft202012Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema.Draft7Validator,
    "http://json-schema.org/draft-06/schema#": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-04/schema#": jsonschema.Draft4Validator,
}
PLAIN_NAMES = ["a", "b", "ab", "abc", "foo", "bar", "x-a", "A", "0", "a b"]
HOSTILE_NAMES = [
    *("", '"', "\\", "\n", "a\n", "é", "e\u0301", "東", "🦊", "__proto__", "a/b", "a~b", "$ref", "type", "\u007f"),
    *("\u00a0", "null", "a\\b", 'a"b', "</a>", "\u2028", "{", "}", ",", ":", "\t", "\b", "%61", "\\u0061"),
]
NUMBERS = [
    *(0, 1, 2, 3, 5, 7, 10, 12, 99, 100, -1, -2, -5, -10, 1000, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**20),
    *map(Decimal, "0.1 0.5 0.25 1.5 2.5 -0.5 -0.1 -1.5 9.99 0.001 1e-7 1e-3 1e21 1.0 -0.0 99.9".split()),
]
NO_OPS: list[dict[str, Any]] = [
    *({"uniqueItems": False}, {"title": "t"}, {"default": 1}, {"not": False}, {"x-custom": {"not": {}}}),
    *({"unevaluatedProperties": True}, {"propertyNames": {}}, {"$comment": "c"}, {"minLength": 0}),
    *({"dependentRequired": {}}, {"deprecated": True}, {"minProperties": 0}, {"minItems": 0}),
]
MULTIPLES = [1, 2, 3, 5, 7, 10, 1001, *map(Decimal, "0.1 0.5 0.25 0.01 1.5 1e-3 2.0".split())]
FORMATS = ["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname", "duration", "uri", "password"]
FORMAT_SAMPLES = {
    "date": ["2024-02-29", "1999-12-31", "2024-13-01", "2024-1-01", "2024-01-32", "20240101"],
    "time": ["12:00:00Z", "23:59:60Z", "12:00:00+01:00", "24:00:00Z", "12:00:00", "12:00Z"],
    "date-time": ["2024-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:00:00", "2024-02-29T25:00:00Z"],
    "ipv4": ["127.0.0.1", "256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"],
    "ipv6": ["::1", "::", "1::2::3", "fe80::1%eth0", "2001:db8::ff00:42:8329", "12345::", "::ffff:1.2.3.4"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42"],
    "email": ["a@b.c", "a@b", "a", "@", "a@@b", "a b@c.d"],
    "hostname": ["a.b", "a..b", "-a.b", "a_b", "a" * 64],
    "duration": ["P1D", "PT1H", "P", "P1H", "PT", "P1Y2M3DT4H5M6S"],
    "uri": ["http://a.b/c", "a", "http://a b", "urn:x", "//a"],
    "password": ["x", ""],
}
_MAY_NEGATE = ["not", "oneOf", "if", "maxContains", "unevaluatedItems", "unevaluatedProperties"]
_MAX_KEY = 24  # characters that patternProperties are matched with
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]


class RandomSchema:
    """A schema drawn at random.

    Attributes:
        schema: with Decimals for numbers with a fraction.
        text: the schema as JSON.
        is_valid: judges the value of a text.
    """

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._patterns: dict[str, Pattern] = {}
        self._names = rng.sample(PLAIN_NAMES, 4) + (rng.sample(HOSTILE_NAMES, 2) if rng.random() < 0.4 else [])
        draft = rng.choice(list(DRAFTS)) if rng.random() < 0.3 else ""
        self._is_old = "draft-0" in draft
        self._is_draft_4 = "draft-04" in draft
        self._has_unevaluated = "2019-09" not in draft  # of which jsonschema judges unevaluated... wrongly
        self._definitions = "definitions" if self._is_old else "$defs"
        self._defined = rng.sample(["n", "m", "a/b", "p%q"], rng.randint(1, 2)) if rng.random() < 0.25 else []
        schema = self._node(rng.choice([1, 2, 2, 3]))
        if isinstance(schema, dict):
            if draft:
                schema["$schema"] = draft
            if self._defined:
                schema[self._definitions] = {name: self._node(1) for name in self._defined}
        self.text = json.dumps(schema, ensure_ascii=rng.random() < 0.5, default=float)
        self.schema = json.loads(self.text, parse_float=Decimal)
        self._validator = _judge(self.schema, draft, self._patterns)
        self._validator_without_formats = self._validator.evolve(format_checker=None)
        unknown = [name for name in FORMATS if name not in _FORMAT_CHECKER.checkers]
        self._misjudges_formats = self._has_one_of(unknown) and self._has_one_of(_MAY_NEGATE)

    def is_valid(self, text: str, checks_formats: bool = True) -> bool | None:
        """Whether ``text`` is JSON, and an instance whichever of the values of a
        repeated key counts.

        None for a schema that refers to itself without end, where ``re`` may backtrack
        for ever, for formats that the judge does not know but that count against a
        value, and for a value that is valid only if formats are asserted.

        Args:
            text: what to judge.
            checks_formats: False where formats are annotations.
        """
        try:
            values = [json.loads(text, parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=dict)]
            first = json.loads(text, parse_float=Decimal, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
        except (ValueError, ArithmeticError, RecursionError):
            return False
        values += [] if first == values[0] else [first]
        if "patternProperties" in self.text and any(map(_has_long_key, values)):
            return None
        if checks_formats and self._misjudges_formats:
            return None
        try:
            is_valid = all(map(self._validator_without_formats.is_valid, values))
            if not checks_formats:
                return is_valid
            return (is_valid or None) if all(map(self._validator.is_valid, values)) else False
        except RecursionError:
            return None

    def _has_one_of(self, words: Iterable[str]) -> bool:
        return any(f'"{word}"' in self.text for word in words)

    def texts(self, count: int) -> Iterator[str]:
        """Draw texts: instances in several spellings, and near misses."""
        rng = self._rng
        for _ in range(count):
            value = self._instance(self.schema, 4)
            for _ in range(rng.choice([0, 0, 1, 1, 2])):
                value = self._mutated(value)
            text = spelled(value, rng)
            yield mutated(text, rng) if rng.random() < 0.1 else text

    def hints(self) -> list[bytes]:
        """What matches the patterns and formats, as it stands in a string, if possible
        without escapes by number."""
        hints = [samples[0].encode() for name, samples in FORMAT_SAMPLES.items() if f'"{name}"' in self.text]
        for pattern in self._patterns.values():
            samples = {pattern.sample(self._rng) for _ in range(20)} - {""}
            written = sorted(json.dumps(sample, ensure_ascii=False)[1:-1].encode() for sample in samples)
            hints += ([hint for hint in written if rb"\u" not in hint] or written)[:4]
        return hints

    # -- schemas ------------------------------------------------------------------

    def _node(self, depth: int) -> Any:
        rng = self._rng
        kind = rng.random()
        if kind < 0.02:
            return True if self._is_draft_4 is False else {}
        if kind < 0.025:
            return {} if self._is_draft_4 else False
        if kind < 0.09 and self._defined:
            target = rng.choice([*(f"#/{self._definitions}/{_in_pointer(name)}" for name in self._defined), "#"])
            node = {"$ref": target}
            return node if rng.random() < 0.8 else node | self._of_type(rng.choice(TYPES), 0)
        if kind < 0.2 and depth:
            return self._combined(depth)
        if kind < 0.28:
            return self._of_values()
        if kind < 0.33:
            node = self._of_type(rng.choice(TYPES), depth) | self._of_type(rng.choice(TYPES), depth)
            node["type"] = rng.sample(TYPES, rng.randint(1, 3))
        else:
            weights = [3, 2, 2, 1, 1, 2 * depth, 5 * depth]
            node = self._of_type(rng.choices(TYPES, weights)[0], depth)
        if rng.random() < 0.08:
            node.pop("type", None)
        if depth and rng.random() < 0.1:
            node |= self._combined(depth)
        if rng.random() < 0.05:
            node |= rng.choice(NO_OPS)
        return node

    def _combined(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        keyword = rng.choices(["anyOf", "oneOf", "allOf", "not", "if"], [5, 5, 4, 2, 0.7])[0]
        if keyword == "not":
            return {"not": self._refutable(depth)}
        if keyword == "if":
            branches = {name: self._node(depth - 1) for name in ("then", "else") if rng.random() < 0.8}
            return {"if": self._node(depth - 1), **branches}
        if keyword == "oneOf" and rng.random() < 0.6:
            return {"oneOf": self._exclusive_branches(depth)}
        return {keyword: [self._node(depth - 1) for _ in range(rng.randint(1, 3))]}

    def _refutable(self, depth: int) -> Any:
        rng = self._rng
        match rng.randrange(5):
            case 0:
                return {"required": rng.sample(self._names, rng.randint(1, 2))}
            case 1:
                return self._of_values()
            case 2:
                return {"type": rng.choice([rng.choice(TYPES), rng.sample(TYPES, 2)])}
            case 3:
                return {"properties": {rng.choice(self._names): self._of_values()}}
        return self._node(depth - 1)

    def _exclusive_branches(self, depth: int) -> list[Any]:
        """Branches that often exclude each other: by type, by a discriminating constant
        or by what they require."""
        rng = self._rng
        count = rng.randint(2, 3)
        match rng.randrange(3):
            case 0:
                return [self._of_type(name, depth - 1) for name in rng.sample(TYPES, count)]
            case 1:
                key = rng.choice(self._names)
                branches = []
                for value in rng.choices(["a", "b", "c", 1, 2, Decimal("1.0"), None, True], k=count):
                    node = self._of_type("object", depth - 1)
                    of_key = {"const": value} if not self._is_draft_4 and rng.random() < 0.7 else {"enum": [value]}
                    node["properties"] = node.get("properties", {}) | {key: of_key}
                    if rng.random() < 0.85:
                        node["required"] = list({*node.get("required", []), key})
                    if rng.random() < 0.15:
                        del node["type"]
                    branches.append(node)
                return branches
        names = rng.sample(self._names, count)
        return [{"required": [name]} | ({"type": "object"} if rng.random() < 0.5 else {}) for name in names]

    def _of_values(self) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.5 and not self._is_draft_4:
            node = {"const": self._any_value(2)}
        else:
            node = {"enum": [self._any_value(1) for _ in range(rng.randint(1, 4))]}
        return node | ({"type": rng.choice(TYPES)} if rng.random() < 0.2 else {})

    def _of_type(self, name: str, depth: int) -> dict[str, Any]:
        node: dict[str, Any] = {"type": name}
        match name:
            case "string":
                node |= self._string_keywords()
            case "integer" | "number":
                node |= self._number_keywords(name)
            case "array":
                node |= self._array_keywords(depth)
            case "object":
                node |= self._object_keywords(depth)
        return node

    def _string_keywords(self) -> Iterator[tuple[str, Any]]:
        rng = self._rng
        kind = rng.random()
        if kind < 0.35:
            yield from self._bounds("minLength", "maxLength", 6)
        elif kind < 0.65:
            yield "pattern", self._pattern()
            if rng.random() < 0.2:
                yield from self._bounds("minLength", "maxLength", 6)
        elif kind < 0.75:
            yield "format", rng.choice(FORMATS)

    def _pattern(self) -> str:
        rng = self._rng
        drawn = anchored(random_pattern(rng, rng.choice([1, 2, 2])), rng.random() < 0.6, rng.random() < 0.6)
        self._patterns[drawn.text] = drawn
        return drawn.text

    def _number_keywords(self, name: str) -> Iterator[tuple[str, Any]]:
        rng = self._rng
        small = rng.random() < 0.7
        numbers = [n for n in NUMBERS if abs(n) < 1000] if small else NUMBERS
        if rng.random() < 0.3:
            numbers = [n for n in numbers if n == int(n)]
        bounds = sorted(rng.choices(numbers, k=2))
        if rng.random() < 0.03:
            bounds.reverse()
        for bound, keyword, exclusive in (
            (bounds[0], "minimum", "exclusiveMinimum"),
            (bounds[1], "maximum", "exclusiveMaximum"),
        ):
            kind = rng.random()
            if kind < 0.35:
                yield keyword, bound
            elif kind < 0.6 and self._is_draft_4:
                yield keyword, bound
                yield exclusive, rng.random() < 0.7
            elif kind < 0.6:
                yield exclusive, bound
            if 0.3 < kind < 0.35 and not self._is_draft_4:
                yield exclusive, rng.choice(numbers)
        if rng.random() < 0.25:
            yield "multipleOf", rng.choice(MULTIPLES)

    def _array_keywords(self, depth: int) -> Iterator[tuple[str, Any]]:
        rng = self._rng
        child = max(0, depth - 1)
        if rng.random() < 0.8:
            yield "items", self._node(child)
        if rng.random() < 0.25:
            first = [self._node(child) for _ in range(rng.randint(1, 3))]
            yield ("items" if self._is_old else "prefixItems"), first
            if rng.random() < 0.5:
                others = rng.choice([False, self._node(child)]) if not self._is_draft_4 else False
                yield ("additionalItems" if self._is_old else "items"), others
        if rng.random() < 0.5:
            yield from self._bounds("minItems", "maxItems", 4)
        if rng.random() < 0.04:
            yield "uniqueItems", True
        if rng.random() < 0.04:
            yield "contains", self._node(child)
            yield from self._bounds("minContains", "maxContains", 3)
        if self._has_unevaluated and rng.random() < 0.04:
            yield "unevaluatedItems", rng.choice([False, self._node(child)])

    def _object_keywords(self, depth: int) -> Iterator[tuple[str, Any]]:
        rng = self._rng
        child = max(0, depth - 1)
        names = rng.sample(self._names, rng.randint(0, 4))
        if names or rng.random() < 0.2:
            yield "properties", {name: self._node(child) for name in names}
        required = [name for name in names if rng.random() < 0.5]
        if rng.random() < 0.1:
            required.append(rng.choice(self._names))
        if required:
            yield "required", list(dict.fromkeys(required))
        if rng.random() < 0.55:
            yield "additionalProperties", rng.choice([False, False, self._node(child), True])
        if rng.random() < 0.12:
            yield "patternProperties", {self._pattern(): self._node(child) for _ in range(rng.randint(1, 2))}
        if rng.random() < 0.05:
            names_of = rng.choice([{"pattern": self._pattern()}, {"enum": names or ["a"]}, {"maxLength": 2}])
            yield "propertyNames", names_of
        if rng.random() < 0.15:
            yield from self._bounds("minProperties", "maxProperties", 3)
        if rng.random() < 0.1:
            pairs = {rng.choice(self._names): rng.sample(self._names, rng.randint(0, 2)) for _ in range(2)}
            yield ("dependencies" if self._is_old else "dependentRequired"), pairs
        if rng.random() < 0.02:
            yield "dependentSchemas", {rng.choice(self._names): self._node(child)}
        if self._has_unevaluated and rng.random() < 0.04:
            yield "unevaluatedProperties", rng.choice([False, self._node(child)])

    def _bounds(self, low: str, high: str, largest: int) -> Iterator[tuple[str, int]]:
        rng = self._rng
        bounds = sorted(rng.choices(range(largest + 1), k=2))
        if rng.random() < 0.6:
            yield low, bounds[0]
        if rng.random() < 0.6:
            yield high, bounds[1]

    # -- instances ----------------------------------------------------------------

    def _instance(self, node: Any, depth: int) -> Any:
        """A value that satisfies most of the keywords of ``node``."""
        rng = self._rng
        node = self._resolved(node)
        if not isinstance(node, dict) or depth < 0:
            return self._any_value(1)
        if "const" in node:
            return node["const"]
        if node.get("enum"):
            return rng.choice(node["enum"])
        types = node.get("type") or [_implied_type(node) or rng.choice(TYPES)]
        name = rng.choice(types) if isinstance(types, list) else types
        match name:
            case "string":
                return self._string(node)
            case "integer" | "number":
                return self._number(node, name)
            case "array":
                return self._array(node, depth)
            case "object":
                return self._object(node, depth)
            case "boolean":
                return rng.random() < 0.5
        return None

    def _resolved(self, node: Any) -> Any:
        """``node`` with a branch of each combination, and what it refers to, merged
        into it."""
        rng = self._rng
        for _ in range(5):
            if not isinstance(node, dict):
                return node
            branches: list[Any] = []
            rest = dict(node)
            if isinstance(rest.get("$ref"), str):  # else it is the name of a property
                branches.append(self._target(rest.pop("$ref")))
            for keyword in ("anyOf", "oneOf"):
                if keyword in rest:
                    branches.append(rng.choice(rest.pop(keyword) or [{}]))
            branches += rest.pop("allOf", [])
            if "if" in rest:
                condition = rest.pop("if")
                branches += [condition, rest.pop("then", {})] if rng.random() < 0.5 else [rest.pop("else", {})]
            if not branches:
                return node
            node = rest
            for branch in branches:
                if isinstance(branch, dict):
                    properties = node.get("properties", {}) | branch.get("properties", {})
                    required = [*node.get("required", []), *branch.get("required", [])]
                    node = node | branch
                    node |= {"properties": properties} if properties else {}
                    node |= {"required": required} if required else {}
        return node

    def _target(self, reference: str) -> Any:
        if reference == "#":
            return self.schema
        name = next(name for name in self._defined if reference.endswith(_in_pointer(name)))
        return self.schema.get(self._definitions, {}).get(name, {}) if isinstance(self.schema, dict) else {}

    def _string(self, node: dict[str, Any]) -> str:
        rng = self._rng
        if isinstance(node.get("pattern"), str):
            pattern = self._patterns[node["pattern"]]
            text = pattern.sample(rng)
            text = "x" + text if not pattern.text.startswith("^") and rng.random() < 0.3 else text
            return text + "x" if not pattern.text.endswith("$") and rng.random() < 0.3 else text
        if "format" in node:
            return rng.choice(FORMAT_SAMPLES[node["format"]])
        length = rng.randint(*self._range_of(node, "minLength", "maxLength"))
        return "".join(rng.choice(HOSTILE if rng.random() < 0.2 else string.ascii_letters) for _ in range(length))

    def _number(self, node: dict[str, Any], name: str) -> Any:
        rng = self._rng
        keywords = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        bounds = [node[key] for key in keywords if key in node and not isinstance(node[key], bool)]
        near = rng.choice(bounds) if bounds and rng.random() < 0.7 else rng.choice(NUMBERS[:15])
        steps = [0, 0, 1, -1, Decimal("0.1"), Decimal("-0.1"), Decimal("1e-9"), Decimal("0.5"), 10]
        value = Decimal(near) + rng.choice(steps)
        multiple = node.get("multipleOf")
        if multiple is not None and rng.random() < 0.8:
            value = (value / multiple).to_integral_value() * multiple
        if (name == "integer" and rng.random() < 0.9) or rng.random() < 0.3:
            return int(value)
        return value

    def _array(self, node: dict[str, Any], depth: int) -> list[Any]:
        rng = self._rng
        first = node.get("prefixItems", [])
        others = node.get("items", True)
        if isinstance(others, list):
            first, others = others, node.get("additionalItems", True)
        length = rng.randint(*self._range_of(node, "minItems", "maxItems"))
        if first and rng.random() < 0.5:
            length = max(length, len(first))
        schemas = [*first, *[others] * length][:length]
        return [self._instance(schema, depth - 1) for schema in schemas]

    def _object(self, node: dict[str, Any], depth: int) -> dict[str, Any]:
        rng = self._rng
        properties = node.get("properties", {})
        others = node.get("additionalProperties", True)
        required = node.get("required", [])
        names = [name for name in properties if name in required or rng.random() < 0.6]
        names += [name for name in required if name not in names]
        if others is not False and rng.random() < 0.3:
            names.append(rng.choice(self._names))
        patterns = node.get("patternProperties", {})
        matching = {}
        for text, schema in patterns.items():
            if rng.random() < 0.7:
                name = self._patterns[text].sample(rng)
                matching[name] = schema
                names.append(name)
        if rng.random() < 0.15:
            rng.shuffle(names)
        return {
            name: self._instance(properties.get(name, matching.get(name, others)), depth - 1)
            for name in dict.fromkeys(names)
        }

    def _range_of(self, node: dict[str, Any], low: str, high: str) -> tuple[int, int]:
        first = int(node.get(low, 0))
        last = int(node.get(high, first + 3))
        return (first, last) if first <= last else (last, first)

    def _any_value(self, depth: int) -> Any:
        rng = self._rng
        kind = rng.randrange(8 if depth else 6)
        match kind:
            case 0:
                return rng.choice(NUMBERS)
            case 1:
                return rng.choice([True, False, None])
            case 2:
                return "".join(rng.choices(HOSTILE, k=rng.randint(0, 3)))
            case 6:
                return [self._any_value(depth - 1) for _ in range(rng.randint(0, 3))]
            case 7:
                names = rng.choices(self._names, k=rng.randint(0, 2))
                return {name: self._any_value(depth - 1) for name in names}
        return rng.choice([0, 1, 2, -1, "a", "b", "ab", "foo", "A"])

    def _mutated(self, value: Any) -> Any:
        """``value`` with one part changed."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.75:
            name = rng.choice(list(value))
            match rng.randrange(5):
                case 0:
                    return {key: part for key, part in value.items() if key != name}
                case 1:
                    return value | {rng.choice(self._names): self._any_value(1)}
                case 2:
                    other = mutated(name, rng)
                    return {other if key == name else key: part for key, part in value.items()}
            return value | {name: self._mutated(value[name])}
        if isinstance(value, list) and value and rng.random() < 0.75:
            at = rng.randrange(len(value))
            match rng.randrange(4):
                case 0:
                    return value[:at] + value[at + 1 :]
                case 1:
                    return [*value, rng.choice(value)]
            return [*value[:at], self._mutated(value[at]), *value[at + 1 :]]
        if isinstance(value, str) and rng.random() < 0.75:
            return mutated(value, rng)
        if isinstance(value, int | Decimal) and not isinstance(value, bool) and rng.random() < 0.75:
            return Decimal(value) + rng.choice([1, -1, Decimal("0.1"), Decimal("0.001"), Decimal("-0.5")])
        return self._any_value(1)


def spelled(value: Any, rng: random.Random) -> str:
    """A JSON text of ``value``: with other whitespace, escapes and number forms than
    usual, and rarely with a key twice."""
    style = rng.random()
    if style < 0.5:
        return json.dumps(value, ensure_ascii=style < 0.1, default=float)
    if style < 0.6:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    return "".join(_spelled(value, rng))


def _spelled(value: Any, rng: random.Random) -> Iterator[str]:
    def space() -> str:
        return rng.choice(["", "", " ", "\n", "  ", "\t", "\r\n"])

    if isinstance(value, dict):
        pairs = list(value.items())
        if pairs and rng.random() < 0.1:
            pairs.insert(rng.randrange(len(pairs) + 1), (rng.choice(pairs)[0], rng.choice(pairs)[1]))
        parts = [f"{_quoted(key, rng)}{space()}:{space()}{''.join(_spelled(part, rng))}" for key, part in pairs]
        yield "{" + space() + f"{space()},{space()}".join(parts) + space() + "}"
    elif isinstance(value, list):
        parts = ["".join(_spelled(part, rng)) for part in value]
        yield "[" + space() + f"{space()},{space()}".join(parts) + space() + "]"
    elif isinstance(value, str):
        yield _quoted(value, rng)
    elif isinstance(value, int | Decimal) and not isinstance(value, bool) and rng.random() < 0.3:
        yield rng.choice(["{}.0", "{}e0", "{}E+0", "{}0e-1", "-{}", "0{}", "{}."]).format(value)
    else:
        yield json.dumps(value, ensure_ascii=False, default=float)


def _quoted(text: str, rng: random.Random) -> str:
    if rng.random() < 0.7:
        return json.dumps(text, ensure_ascii=False)
    written = []
    for character in text:
        kind = rng.random()
        if kind < 0.3 and ord(character) <= 0xFFFF:
            written.append(f"\\u{ord(character):04x}")
        elif kind < 0.33:
            written.append(character)  # which may be a quote or a control character
        elif kind < 0.36:
            written.append("\\" + character)
        else:
            written.append(json.dumps(character, ensure_ascii=False)[1:-1])
    return '"' + "".join(written) + '"'


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _implied_type(node: dict[str, Any]) -> str | None:
    implied = {
        "object": ("properties", "required", "additionalProperties", "patternProperties"),
        "array": ("items", "prefixItems", "minItems", "maxItems"),
        "string": ("pattern", "minLength", "maxLength", "format"),
        "number": ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"),
    }
    return next((name for name, keywords in implied.items() if any(key in node for key in keywords)), None)


def _in_pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


# -- the judge ---------------------------------------------------------------------


def _judge(schema: Any, draft: str, patterns: dict[str, Pattern]) -> Any:
    def pattern(_: Any, text: str, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
        if isinstance(instance, str) and not patterns[text].is_found_in(instance):
            yield jsonschema.ValidationError("does not match")

    validator = jsonschema.validators.extend(_validator(DRAFTS[draft]), {"pattern": pattern})
    judged = _with_names_for_python(schema, patterns)
    if isinstance(judged, dict):
        judged.pop("$schema", None)  # after a reference, jsonschema would choose its own validator
    return validator(judged, format_checker=_FORMAT_CHECKER)


@cache
def _validator(draft: Any) -> Any:
    types = draft.TYPE_CHECKER.redefine("integer", _is_integer(draft))
    return jsonschema.validators.extend(draft, {"multipleOf": _multiple_of}, type_checker=types)


def _multiple_of(validator: Any, divisor: Any, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "number") and (Fraction(instance) / Fraction(divisor)).denominator != 1:
        yield jsonschema.ValidationError("not a multiple")


def _is_integer(validator: Any) -> Callable[[Any, Any], bool]:
    takes_fractions_of_zero = validator is not jsonschema.Draft4Validator  # 1.0 is no integer in draft 4

    def is_integer(_: Any, value: Any) -> bool:
        if isinstance(value, Decimal):
            return takes_fractions_of_zero and value == value.to_integral_value()
        return isinstance(value, int) and not isinstance(value, bool)

    return is_integer


def _has_long_key(part: Any) -> bool:
    if isinstance(part, dict) and any(len(key) > _MAX_KEY for key in part):
        return True
    return isinstance(part, dict | list) and any(map(_has_long_key, part.values() if isinstance(part, dict) else part))


def _with_names_for_python(part: Any, patterns: dict[str, Pattern]) -> Any:
    if isinstance(part, list):
        return [_with_names_for_python(child, patterns) for child in part]
    if not isinstance(part, dict):
        return part
    changed = {key: _with_names_for_python(child, patterns) for key, child in part.items()}
    if isinstance(part.get("patternProperties"), dict):
        children = changed["patternProperties"]
        changed["patternProperties"] = {patterns[text].python: child for text, child in children.items()}
    return changed


# Formats that can be judged in a line or by the standard library.
_FORMAT_CHECKER = jsonschema.FormatChecker(("ipv4", "ipv6", "uuid", "email"))


@_FORMAT_CHECKER.checks("date", ValueError)
def _is_date(value: object) -> bool:
    """Whether a text is a date of some leap year: only the shape is enforced."""
    if not isinstance(value, str):
        return True
    return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII) and date.fromisoformat("2024" + value[4:]))
