"""Instances in the form in which masked models write them."""

import json
from typing import Any

from engines_alone import Engine, Refused

_MAX_DIGITS = 17


def is_accepted_in_its_form(
    engine: Engine, matcher: Any, instance: Any, schema: Any, tokenizer: Any, schemas: dict[str, Any] | None = None
) -> bool:
    """Whether an engine accepts an instance with keys in another order, and with
    shorter numbers. ``schemas``: those that the schema may refer to."""
    instance = with_short_numbers(instance)
    try:
        if engine.any_order is None:
            return engine.accepts(matcher, tokens_of(ordered(instance, schema), tokenizer))
        return engine.any_order.accepts(engine.any_order.compile(schema, schemas), tokens_of(instance, tokenizer))
    except Refused:
        return False


def with_short_numbers(value: Any) -> Any:
    """``value`` with integers instead of floats without a fraction, and of at most 17
    digits."""
    if isinstance(value, list):
        return [with_short_numbers(part) for part in value]
    if isinstance(value, dict):
        return {key: with_short_numbers(part) for key, part in value.items()}
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) >= 10**_MAX_DIGITS:
        value = int(str(value)[: _MAX_DIGITS + (value < 0)])
    return value


def ordered(instance: Any, schema: Any) -> Any:
    """``instance`` with the keys of each object in the order of those properties in the
    schema that name most of them."""
    known = list(_property_lists(schema))

    def sort(value: Any) -> Any:
        if isinstance(value, list):
            return [sort(part) for part in value]
        if not isinstance(value, dict):
            return value
        names = max(known, key=lambda names: len(value.keys() & set(names)), default=[])
        keys = [name for name in names if name in value]
        return {key: sort(value[key]) for key in (*keys, *(key for key in value if key not in keys))}

    return sort(instance)


def _property_lists(schema: Any) -> list[list[str]]:
    found, pending = [], [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("properties"), dict):
                found.append(list(part["properties"]))
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return found


def tokens_of(instance: Any, tokenizer: Any) -> list[int]:
    tokens: list[int] = tokenizer.encode(json.dumps(instance, ensure_ascii=False), add_special_tokens=False)
    return tokens
