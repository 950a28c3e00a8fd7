"""Random schemas of objects: few names that begin alike, every keyword about keys."""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = ["a", "ab", "abc", "b", "ba", "x"]
# Parts of texts that end keys, begin others, and open and close objects.
_PARTS = [
    *('"a"', '"ab"', '"abc"', '"b"', '"a":1', '"a":1,"b', '"ab":1,', '":1', '":1,"', '1,"', "},", "}},", '{"', "{}"),
    *('{"a', '},"a', 'ab":', 'b":1,"a', "null", '{"a":{', '":{"a":1}', "}}}", '"x":', 'x"', ":1}", "1}", ", "),
    '{"a":1,"ab":1}',
]
TOKENS = [bytes([byte]) for byte in range(256)] + [part.encode() for part in _PARTS] + [b""]


class ObjectSchema:
    """A schema of an object, and instances near those that it allows.

    Args:
        rng: source of randomness.
    """

    def __init__(self, rng: random.Random):
        self._rng = rng
        self.schema = self._object(is_nested=False)

    def texts(self, count: int, *, declared: bool) -> list[str]:
        """Draw compact texts, with keys in random or in the declared order."""
        order = {name: position for position, name in enumerate(self.schema["properties"])}
        texts = []
        for _ in range(count):
            names = self._rng.sample(NAMES, self._rng.randint(0, 5))
            if declared:
                names.sort(key=lambda name: order.get(name, len(order)))
            value = {name: self._rng.choice([1, 1, None, {"a": 1}]) for name in names}
            texts.append(json.dumps(value, separators=(",", ":")))
        return texts

    def _value(self, is_nested: bool) -> Any:
        kind = self._rng.random()
        if kind < 0.2 and not is_nested:
            return self._object(is_nested=True)
        if kind < 0.3:
            return kind < 0.25
        return self._rng.choice([{"const": 1}, {"const": 1}, {"enum": [1, None]}, {"type": "null"}])

    def _name(self) -> str:
        return self._rng.choice(NAMES)

    def _object(self, *, is_nested: bool) -> dict[str, Any]:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(1, 5))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self._value(is_nested) for name in names}}
        others = {
            "required": (0.5, lambda: rng.sample(names, rng.randint(0, min(3, len(names))))),
            "additionalProperties": (0.65, lambda: rng.choice([False, False, {"const": 1}])),
            "maxProperties": (0.2, lambda: rng.randint(0, 4)),
            "minProperties": (0.2, lambda: rng.randint(0, 3)),
            "patternProperties": (0.2, lambda: {rng.choice(["^a", "b$", "^.$"]): {"enum": [1, None]}}),
            "dependentRequired": (0.25, lambda: {self._name(): rng.sample(NAMES, rng.randint(1, 2)) for _ in range(2)}),
            "anyOf": (0.2, lambda: [{"required": [self._name()]} for _ in range(2)]),
            "not": (0.1, lambda: {"required": [rng.choice(names)]}),
            "propertyNames": (0.05, lambda: {"maxLength": rng.randint(1, 2)}),
            "oneOf": (
                0.1,
                lambda: [
                    {"properties": {rng.choice(names): {"const": 1}}},
                    {"properties": {rng.choice(names): {"type": "null"}}, "required": [rng.choice(names)]},
                ],
            ),
        }
        schema |= {keyword: draw() for keyword, (share, draw) in others.items() if rng.random() < share}
        if rng.random() < 0.15:
            schema["if"] = {"properties": {rng.choice(names): {"const": 1}}, "required": [rng.choice(names)]}
            schema["then"] = {"required": [self._name()]}
        return schema
