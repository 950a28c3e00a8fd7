"""Python types as constraints: their JSON schemas, their choices, and texts read back.

Pydantic describes and reads every type, so it must be installed where types are used.
"""

import enum
import typing
from typing import Any

from structout.errors import GrammarError


def is_output_type(given: object) -> bool:
    """True if ``given`` is a class, or a type such as ``list[int]``, ``Literal["a"]``
    or ``int | None``."""
    return isinstance(given, type) or typing.get_origin(given) is not None


def schema_of(output_type: Any) -> object:
    """The JSON Schema of a type.

    The objects of classes have no other keys than their fields, unless the class allows
    them (``extra="allow"``).

    Args:
        output_type: a Pydantic model class, a dataclass, a TypedDict, an Enum,
            ``Literal``, ``list[int]``, ``int | None``, or what else Pydantic can
            describe.

    Raises:
        GrammarError: the type has no JSON schema, or Pydantic is not installed.
    """
    describe = getattr(output_type, "model_json_schema", None)
    try:
        if describe is not None:
            return describe(schema_generator=_schema_generator())
        return _adapter(output_type).json_schema(schema_generator=_schema_generator())
    except GrammarError:
        raise
    except Exception as error:  # Pydantic's errors, and whatever hooks of the type raise
        reason = str(error).strip().split("\n")[0]
        raise GrammarError(f"the type {name_of(output_type)} has no JSON schema: {reason}") from error


def options_of(output_type: Any) -> list[object] | None:
    """The values of an Enum or of a ``Literal``; None for anything else."""
    if isinstance(output_type, type) and issubclass(output_type, enum.Enum):
        return [member.value for member in output_type]
    if typing.get_origin(output_type) is typing.Literal:
        return list(typing.get_args(output_type))
    return None


def read_json(output_type: Any, text: str) -> Any:
    """The value of a type that a JSON text stands for.

    Raises:
        ValueError: the text is not such a value. Pydantic's ValidationError is one.
        GrammarError: Pydantic is not installed.
    """
    read = getattr(output_type, "model_validate_json", None)
    return read(text) if read is not None else _adapter(output_type).validate_json(text)


def name_of(output_type: Any) -> str:
    """The type's name, for messages."""
    return output_type.__name__ if isinstance(output_type, type) else str(output_type)


def _adapter(output_type: Any) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise GrammarError(
            f"the type {name_of(output_type)} needs pydantic, which is not installed: pip install pydantic, or give "
            "a JSON schema"
        ) from error
    return TypeAdapter(output_type)


def _schema_generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema

    class ClosedClasses(GenerateJsonSchema):
        """Pydantic drops other keys than the fields of a class, so no text needs
        them."""

        def model_schema(self, schema: Any) -> dict[str, Any]:
            return _closed(super().model_schema(schema))

        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            return _closed(super().dataclass_schema(schema))

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            return _closed(super().typed_dict_schema(schema))

    return ClosedClasses


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a class, closed unless it speaks of other keys. That of a
    ``RootModel`` is the schema of its root, which may be no object."""
    speaks = "additionalProperties" in schema or "unevaluatedProperties" in schema
    return schema if speaks or "properties" not in schema else {"additionalProperties": False} | schema
