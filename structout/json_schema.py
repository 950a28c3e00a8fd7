"""Every walk over a JSON schema.

Schemas may be deep and may refer to themselves, so nothing here recurses.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any
from urllib.parse import unquote

from structout import exact_json
from structout.errors import GrammarError, GrammarErrorKind
from structout.exact_json import ExactNumber

Node = Mapping[str, Any]
Nodes = Sequence[tuple[str, Node]]  # what subschemas yields

_SCHEMA_KEYWORDS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("dependentSchemas", "patternProperties", "properties")
_HOLDS_SCHEMAS = frozenset((*_SCHEMA_KEYWORDS, *_SCHEMA_LIST_KEYWORDS, *_SCHEMA_MAP_KEYWORDS))
_MAPS_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_DATA = {"const", "enum", "default", "examples"}

# The JSON types that some draft gives the value of a keyword, and the elements of
# that value.
_SCHEMA = "object boolean"
_TYPES_OF = (
    dict.fromkeys(_SCHEMA_KEYWORDS, _SCHEMA)
    | dict.fromkeys(_SCHEMA_LIST_KEYWORDS, "array")
    | dict.fromkeys((*_SCHEMA_MAP_KEYWORDS, "$defs", "definitions", "dependencies", "dependentRequired"), "object")
    | dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), "number")
    | dict.fromkeys(("minContains", "maxContains", "minimum", "maximum", "multipleOf"), "number")
    | dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "number boolean")
    | dict.fromkeys(("$schema", "$ref", "format", "pattern"), "string")
    | {"enum": "array", "items": "object boolean array", "required": "array boolean", "type": "string array"}
    | {"uniqueItems": "boolean"}
)
_TYPES_OF_ELEMENTS = dict.fromkeys((*_SCHEMA_LIST_KEYWORDS, *_SCHEMA_MAP_KEYWORDS), _SCHEMA) | {
    "required": "string",
    "type": "string object",
}
_KEYWORDS = frozenset(_TYPES_OF) | {"const", "contains", "$dynamicRef", "$recursiveRef"}
_JSON_TYPES: dict[str, type | UnionType] = {
    "boolean": bool,  # before number: bool is a subclass of int
    "number": int | float,
    "string": str,
    "array": list,
    "object": dict,
    "null": NoneType,
}

_PYTHON_TYPES: dict[str, set[type]] = {
    "boolean": {bool},
    "number": {int, float, ExactNumber},
    "string": {str},
    "array": {list},
    "object": {dict},
    "null": {NoneType},
}


def _python_types(names: Iterable[str]) -> set[type]:
    return {type_ for name in names for type_ in _PYTHON_TYPES[name]}


_ALL_PYTHON_TYPES = _python_types(_PYTHON_TYPES)
_PYTHON_TYPES_OF = {keyword: _python_types(names.split()) for keyword, names in _TYPES_OF.items()}
_PYTHON_TYPES_OF_ELEMENTS = {keyword: _python_types(names.split()) for keyword, names in _TYPES_OF_ELEMENTS.items()}

_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](?:0?(\d)|(20\d\d)-\d\d)/schema#?")
_NEWEST_DRAFT = 2020

# The draft that introduced a keyword, for those that came after draft 4.
DRAFT_OF_KEYWORD = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "$recursiveRef": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "maxContains": 2019,
    "minContains": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "$dynamicRef": 2020,
    "prefixItems": 2020,
}

# The formats that a draft from 4 on defines. Any other value of `format` is an
# annotation: a validator that does not know it ignores it.
STANDARD_FORMATS = frozenset(
    "date-time time date duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference "
    "uuid uri-template json-pointer relative-json-pointer regex".split()
)

# Formats that only draft 3 defines, as far as texts can be checked for them.
FORMATS_OF_DRAFT_3 = frozenset(("host-name", "ip-address", "color"))

# How often allows_finite_text goes over a schema before it gives up and says yes.
# Each pass resolves at least one more step of a cycle.
_MAX_PASSES = 64


def draft_of(schema: Any) -> int:
    """The draft that ``$schema`` names (3, 4, 6, 7, 2019 or 2020), or the newest if it
    names none of these."""
    match = _DRAFT.fullmatch(str(schema.get("$schema"))) if isinstance(schema, dict) else None
    return int(match[1] or match[2]) if match else _NEWEST_DRAFT


# -- all schemas of a document ----------------------------------------------------


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield ``schema``, if it is an object, and every schema written inside it.

    Data that may look like a schema (const, enum, default, examples) is left out.
    """
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if not isinstance(value, dict | list):
                    continue
                if keyword in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                    pending += value.values()
                elif keyword not in _DATA:
                    pending.append(value)


def patterns_at(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the regular expressions of a node, each with where it stands there."""
    if isinstance(node.get("pattern"), str):
        yield "pattern", node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from ((f"patternProperties/{escaped(text)}", text) for text in node["patternProperties"])


def patterns_of(node: Node) -> Iterator[str]:
    """Yield the regular expressions of a node."""
    yield from (pattern for _, pattern in patterns_at(node))


def pointer_to(document: object, part: object) -> str:
    """JSON pointer to a part of a JSON value, told by its identity."""
    pending = [("#", document)]
    while pending:
        pointer, found = pending.pop()
        if found is part:
            return pointer
        if isinstance(found, dict):
            pending += [(f"{pointer}/{escaped(name)}", child) for name, child in found.items()]
        elif isinstance(found, list):
            pending += [(f"{pointer}/{i}", child) for i, child in enumerate(found)]
    raise ValueError("the value has no such part")


def parts(value: object) -> Iterator[object]:
    """Yield a JSON value, and all keys and values inside it."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            pending += part


def has_nul(value: object, text: str) -> bool:
    """Whether a string of a JSON value contains NUL.

    Args:
        value: as Python values.
        text: as JSON text.
    """
    may_have_nul = "\0" in text or "\\u0000" in text
    return may_have_nul and any(isinstance(part, str) and "\0" in part for part in parts(value))


def depth(value: object) -> int:
    """How many objects and arrays are nested in a JSON value, the outermost
    included."""
    num_levels = 0
    level = [value]
    while level := [part for part in level if isinstance(part, dict | list)]:
        num_levels += 1
        level = [child for part in level for child in (part.values() if isinstance(part, dict) else part)]
    return num_levels


# -- the schemas that apply to an instance ----------------------------------------


def subschemas(schema: Any, *, with_definitions: bool = False) -> Iterator[tuple[str, Node]]:
    """Yield all object schemas that apply to a part of an instance, each once, with its
    JSON pointer.

    Definitions count only where something refers to them, or ``with_definitions``: for
    a schema that others refer to.
    """
    pending = [("", schema)]
    seen: dict[int, Any] = {}  # keeps the values alive, so that no id is used twice
    while pending:
        pointer, node = pending.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen[id(node)] = node
        yield pointer, node
        children = list(_children(pointer, node))
        if with_definitions:
            children += _definitions(pointer, node)
        if "$ref" in node:
            children += referred(schema, node)
        pending += reversed(children)


def _children(pointer: str, node: Node) -> Iterator[tuple[str, Any]]:
    for keyword, value in node.items():
        if keyword not in _HOLDS_SCHEMAS:
            continue
        if isinstance(value, list) and keyword in _SCHEMA_LIST_KEYWORDS:
            yield from ((f"{pointer}/{keyword}/{i}", child) for i, child in enumerate(value))
        elif isinstance(value, dict) and keyword in _SCHEMA_MAP_KEYWORDS:
            yield from ((f"{pointer}/{keyword}/{escaped(name)}", child) for name, child in value.items())
        elif isinstance(value, dict) and keyword == "propertyNames":
            yield f"{pointer}/{keyword}", {"type": "string"} | value  # every name is a string
        elif isinstance(value, dict) and keyword in _SCHEMA_KEYWORDS:
            yield f"{pointer}/{keyword}", value


def _definitions(pointer: str, node: Node) -> Iterator[tuple[str, Any]]:
    for keyword in ("$defs", "definitions"):
        if isinstance(node.get(keyword), dict):
            yield from ((f"{pointer}/{keyword}/{escaped(name)}", child) for name, child in node[keyword].items())


def referred(schema: Any, node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the target of the node's ``$ref`` with its pointer. The target is None if
    there is nothing there. References that are no pointers lead nowhere."""
    reference = node.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        target = schema
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, dict) else None
        yield reference[1:], target


def escaped(name: str) -> str:
    """``name`` as one part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def keyword_at(pointer: str) -> str | None:
    """The keyword that a JSON pointer names, or the one whose patterns or names it
    points to."""
    parts_ = pointer.split("/")[1:]
    return next((part for part in reversed(parts_[-2:]) if part in _KEYWORDS), None)


# -- checks -------------------------------------------------------------------------


def check_keywords(nodes: Nodes, root: str = "#") -> None:
    """Check that the value of every keyword has a type that some draft gives it.

    After this check, engines and the functions of this module need not expect
    anything else.

    Args:
        nodes: the object schemas of a parsed schema.
        root: JSON pointer to that schema, for the message.

    Raises:
        GrammarError: naming the first keyword whose value has another type.
    """
    for pointer, node in nodes:
        if all(_has_a_known_type(keyword, value) for keyword, value in node.items()):
            continue
        for keyword in node.keys() & _TYPES_OF.keys():
            _check_type(node[keyword], _TYPES_OF[keyword], f"{root}{pointer}/{keyword}", keyword)
        for keyword in node.keys() & _TYPES_OF_ELEMENTS.keys():
            value = node[keyword]
            has_names = isinstance(value, dict) and keyword != "items"
            for name, part in value.items() if has_names else enumerate(value if isinstance(value, list) else ()):
                place = f"{root}{pointer}/{keyword}/{escaped(str(name))}"
                _check_type(part, _TYPES_OF_ELEMENTS[keyword], place, keyword)


def _has_a_known_type(keyword: str, value: Any) -> bool:
    """Whether a value and its elements have types that some draft gives them."""
    if type(value) not in _PYTHON_TYPES_OF.get(keyword, _ALL_PYTHON_TYPES):
        return False
    elements = _PYTHON_TYPES_OF_ELEMENTS.get(keyword)
    if elements is None or isinstance(value, bool) or (keyword == "items" and isinstance(value, dict)):
        return True
    parts_ = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(type(part) in elements for part in parts_)


def _check_type(value: Any, types: str, pointer: str, keyword: str) -> None:
    name = next(name for name, type_ in _JSON_TYPES.items() if isinstance(value, type_))
    if name not in types.split():
        message = f"{pointer} must be {' or '.join(types.split())}, got {name}"
        raise GrammarError(message, pointer=pointer, keyword=keyword)


def check_finite_text(schema: Any, nodes: Nodes, root: str = "#") -> None:
    """Check that some instance of ``schema`` is finite and does not need what a schema
    of ``false`` forbids.

    Args:
        schema: a schema with keywords of the right types.
        nodes: all that ``subschemas(schema)`` yields.
        root: JSON pointer to the schema.

    Raises:
        GrammarError: saying why there is none.
    """
    has_own_root = any(pointer and ("$id" in node or "id" in node) for pointer, node in nodes)
    if has_own_root or _allows_finite_text(schema, nodes, allows_false=False):
        return  # in a part with an own root, pointers begin there
    forbidden = [f"{root}{pointer}" for pointer, value in _required_values(schema, nodes) if value is False]
    pointer = None
    if schema is False:
        pointer, cause = root, "the schema is false"
    elif forbidden and _allows_finite_text(schema, nodes, allows_false=True):
        pointer, cause = forbidden[0], f"{', '.join(forbidden)} is false, which no value satisfies"
    elif mistyped := next((f"{root}{place}" for place, node in nodes if not _has_value_of_its_type(node)), None):
        pointer, cause = mistyped, "no value has all the types that are asked of it"
    elif few := next(((place, cause) for place, node in nodes if (cause := _lack_of_values(node))), None):
        pointer, cause = f"{root}{few[0]}/uniqueItems", few[1]
    else:
        cause = "every instance would have to contain another instance"
    constraint = "the json constraint" if root == "#" else f"the schema at {root}"
    message = f"{constraint} allows no text at all: {cause}"
    keyword = None if pointer is None else keyword_at(pointer)
    raise GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE, pointer=pointer, keyword=keyword)


_MAY_BE_IMPOSSIBLE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "required", "minItems", "const", "enum"})


def _allows_finite_text(schema: Any, nodes: Nodes, *, allows_false: bool) -> bool:
    finite: set[int] = set()  # ids of the nodes that are known to have a finite instance

    def is_finite(value: Any) -> bool:
        return id(value) in finite if isinstance(value, dict) else allows_false or value is not False

    for _ in range(_MAX_PASSES):
        num_known = len(finite)
        for _, node in reversed(nodes):  # the targets of references come later in the list
            if id(node) not in finite and _is_finite(schema, node, is_finite):
                finite.add(id(node))
        if is_finite(schema):
            return True
        if len(finite) == num_known:
            return False
    return True


def _is_finite(schema: Any, node: Node, is_finite: Callable[[Any], bool]) -> bool:
    if _MAY_BE_IMPOSSIBLE.isdisjoint(node) and node.get("type") != []:
        return True
    needed = [target for _, target in referred(schema, node)]
    if isinstance(node.get("allOf"), list):
        needed += node["allOf"]
    if not all(map(is_finite, needed)):
        return False
    for keyword in ("anyOf", "oneOf"):
        if isinstance(node.get(keyword), list) and not any(map(is_finite, node[keyword])):
            return False
    types = node.get("type")
    if types is None:
        return True
    names = types if isinstance(types, list) else [types]
    if "const" in node or isinstance(node.get("enum"), list):
        return _has_value_of_its_type(node)
    if names == ["array"] and _lack_of_values(node):
        return False
    return any(all(is_finite(value) for _, value in _contents(name, node)) for name in names)


def _lack_of_values(node: Node) -> str:
    """How an array with ``uniqueItems`` needs more items than there are values, or
    nothing."""
    least, items = node.get("minItems"), node.get("items")
    if node.get("uniqueItems") is not True or not isinstance(least, int) or "prefixItems" in node:
        return ""
    most = _max_values(items) if isinstance(items, dict) else None
    if most is None or most >= least:
        return ""
    values = "1 value" if most == 1 else f"{most:,} values"
    return f"minItems asks for {least:,} different items, and items allows only {values}"


def _max_values(node: Node) -> int | None:
    """A number of values that a node does not exceed, or None if it names none."""
    if "$ref" in node:
        return None
    if "const" in node:
        return 1
    if isinstance(node.get("enum"), list):
        return len({exact_json.dumps(value, sort_keys=True) for value in node["enum"]})
    types = node.get("type")
    if not isinstance(types, str | list):
        return None
    counts = [_max_values_of(name, node) for name in ([types] if isinstance(types, str) else types)]
    return None if None in counts else sum(count for count in counts if count is not None)


def _max_values_of(type_name: object, node: Node) -> int | None:
    if type_name == "integer":
        lowest, highest = node.get("minimum"), node.get("maximum")
        return max(0, highest - lowest + 1) if type(lowest) is int and type(highest) is int else None
    return {"boolean": 2, "null": 1}.get(str(type_name))


def _has_value_of_its_type(node: Node) -> bool:
    """Whether a value that ``const`` or ``enum`` lists may have the node's type."""
    types = node.get("type")
    values = [node["const"]] if "const" in node else node.get("enum")
    if types is None or not isinstance(values, list):
        return True
    return any(_may_have_type(value, types if isinstance(types, list) else [types]) for value in values)


def _may_have_type(value: Any, names: list[Any]) -> bool:
    """Whether a JSON value may be of one of the types. An integer counts as any
    number."""
    name = next(name for name, type_ in _JSON_TYPES.items() if isinstance(value, type_))
    return name in names or (name == "number" and "integer" in names)


def _required_values(schema: Any, nodes: Nodes) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that must hold for a part of some instance, each with its JSON
    pointer."""
    for pointer, node in nodes:
        yield from referred(schema, node)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if isinstance(node.get(keyword), list):
                yield from ((f"{pointer}/{keyword}/{i}", child) for i, child in enumerate(node[keyword]))
        for type_name in ("object", "array"):
            yield from ((f"{pointer}/{below}", value) for below, value in _contents(type_name, node))


def _contents(type_name: object, node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the schemas of what every object or array of ``node`` contains, each with
    its pointer from there."""
    if type_name == "object" and isinstance(node.get("required"), list):
        properties = node.get("properties")
        others = True if "patternProperties" in node else node.get("additionalProperties", True)
        for name in node["required"]:
            if isinstance(properties, dict) and name in properties:
                yield f"properties/{escaped(name)}", properties[name]
            else:
                yield "additionalProperties", others
    elif type_name == "array" and isinstance(node.get("minItems"), int):
        items = node.get("items", True)
        first_keyword = "items" if isinstance(items, list) else "prefixItems"
        first = node.get(first_keyword, [])
        others_keyword = "additionalItems" if isinstance(items, list) else "items"
        if isinstance(first, list):
            yield from ((f"{first_keyword}/{i}", value) for i, value in enumerate(first[: node["minItems"]]))
            if node["minItems"] > len(first):
                yield others_keyword, node.get(others_keyword, True)


# -- formats ------------------------------------------------------------------------


def standard_format(node: Node) -> str | None:
    """The node's ``format`` if a draft defines it. Any other value constrains
    nothing."""
    name = node.get("format")
    return name if isinstance(name, str) and name in STANDARD_FORMATS else None


def formats_of_draft_3(nodes: Nodes) -> frozenset[str]:
    """The formats that the schema may name because it is of draft 3."""
    return FORMATS_OF_DRAFT_3 if nodes and draft_of(nodes[0][1]) == 3 else frozenset()


def unknown_formats(nodes: Nodes, root: str = "#") -> Iterator[str]:
    """Yield JSON pointers to the ``format`` keywords whose value no draft defines."""
    older = formats_of_draft_3(nodes)
    for pointer, node in nodes:
        if "format" in node and standard_format(node) is None and node["format"] not in older:
            yield f"{root}{pointer}/format"


# -- keywords that constrain nothing ------------------------------------------------

# Values of keywords that every instance satisfies.
_NO_OPS: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}


_MAY_BE_DROPPED = frozenset(_NO_OPS) | {"format"}


def is_no_op(keyword: str, node: Node) -> bool:
    """Whether every instance satisfies a keyword of ``node``, because of its value."""
    if keyword == "format":
        return isinstance(node[keyword], str) and standard_format(node) is None
    return node[keyword] in _NO_OPS.get(keyword, ())


def without_no_ops(schema: Any, nodes: Nodes, formats: Container[str]) -> Any:
    """``schema`` without keywords that constrain nothing, and without ``format`` unless
    its value is one of ``formats``.

    Engines refuse some of them, or read the rest of the schema in another way. A copy
    if there are any among ``nodes``, which ``subschemas(schema)`` yields.
    """

    def dropped(node: Node) -> list[str]:
        keywords = () if _MAY_BE_DROPPED.isdisjoint(node) else _MAY_BE_DROPPED & node.keys()
        return [key for key in keywords if is_no_op(key, node) or (key == "format" and node[key] not in formats)]

    if not any(dropped(node) for _, node in nodes):
        return schema
    changed = copied(schema)
    for node in schemas(changed):
        for keyword in dropped(node):
            del node[keyword]
    return changed


def copied(value: Any) -> Any:
    """A copy of a JSON value. Six times as fast as ``copy.deepcopy``."""
    return exact_json.loads(exact_json.dumps(value))
