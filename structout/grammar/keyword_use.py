"""Counts the keywords of a JSON schema, and finds its parts that may need more than a
finite automaton."""

import difflib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from structout.constraints.schema_walks import CONSTRAINING_KEYWORDS, DRAFT_OF_KEYWORD, Node, Nodes

_ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment contentEncoding contentMediaType "
    "contentSchema".split()
)
_DOCUMENT = frozenset("$schema $id id $anchor $dynamicAnchor $recursiveAnchor $vocabulary $defs definitions".split())
_NEAR = 0.8  # of difflib: two letters of ten may differ
_LAST_DRAFT_WITHOUT_SIBLINGS = 7  # up to here, nothing beside $ref counts


@dataclass(frozen=True)
class KeywordUse:
    """The keywords of a schema, and where they are.

    Attributes:
        constraints: how often each keyword occurs that constrains an instance.
        annotations: how often each keyword occurs that describes one.
        unknown: JSON pointers to what the schema's draft does not define: words of
            other tools, misspelled keywords, keywords of later drafts.
        beside_ref: JSON pointers to what counts for nothing because it stands beside
            ``$ref``, in drafts up to 7.
    """

    constraints: dict[str, int]
    annotations: dict[str, int]
    unknown: tuple[str, ...]
    beside_ref: tuple[str, ...]


def keyword_use(nodes: Nodes, draft: int, not_enforced: Collection[str] = ()) -> KeywordUse:
    """Count the keywords of a schema.

    Args:
        nodes: its object schemas.
        draft: its draft.
        not_enforced: JSON pointers to keywords that are not counted.
    """
    constraints: Counter[str] = Counter()
    annotations: Counter[str] = Counter()
    unknown, beside_ref = [], []
    for pointer, node in nodes:
        has_only_ref = draft <= _LAST_DRAFT_WITHOUT_SIBLINGS and "$ref" in node
        for keyword in node:
            place = f"#{pointer}/{keyword}"
            if place in not_enforced or keyword in _DOCUMENT:
                continue
            if keyword in _ANNOTATIONS:
                annotations[keyword] += 1
            elif has_only_ref and keyword != "$ref":
                beside_ref.append(place)
            elif keyword in CONSTRAINING_KEYWORDS and DRAFT_OF_KEYWORD.get(keyword, 0) <= draft:
                constraints[keyword] += 1
            else:
                unknown.append(place)
    return KeywordUse(
        dict(constraints.most_common()), dict(annotations.most_common()), tuple(unknown), tuple(beside_ref)
    )


def nearest_keyword(word: str) -> str | None:
    """The keyword of JSON Schema that a word is almost, or None."""
    found = difflib.get_close_matches(word, sorted(CONSTRAINING_KEYWORDS), n=1, cutoff=_NEAR)
    return found[0] if found and found[0] != word else None


def property_names(nodes: Nodes) -> list[str]:
    """The names of objects' properties that a schema mentions."""
    names = (name for _, node in nodes for keyword in ("properties", "required") for name in _strings(node, keyword))
    return list(dict.fromkeys(names))


def _strings(node: Node, keyword: str) -> Iterator[str]:
    value = node.get(keyword)
    yield from (name for name in value if isinstance(name, str)) if isinstance(value, dict | list) else ()


def memory_places(nodes: Nodes, *, is_closed: bool = False) -> list[str]:
    """JSON pointers to the parts that may have to remember earlier parts of a text.

    These are objects with keys that the schema does not name, none of which may come
    twice, and arrays with ``uniqueItems``. A finite automaton has no such memory.

    Args:
        nodes: the object schemas of the schema.
        is_closed: whether objects have only keys that the schema names.
    """
    closes_elsewhere = any(node.get("unevaluatedProperties") is False for _, node in nodes)
    places = []
    for pointer, node in nodes:
        if node.get("uniqueItems") is True:
            places.append(f"#{pointer}/uniqueItems")
        names_keys = "properties" in node or "patternProperties" in node
        is_object = names_keys or node.get("type") == "object"
        allows_others = node.get("additionalProperties", not (is_closed and names_keys)) is not False
        if is_object and (allows_others or "patternProperties" in node) and not closes_elsewhere:
            places.append(f"#{pointer}")
    return places


def recursive_references(nodes: Nodes) -> list[str]:
    """JSON pointers to each ``$ref`` that leads back to itself. No finite automaton
    follows it, since values may lie inside each other without bound."""
    targets = {
        pointer: node["$ref"][1:]
        for pointer, node in nodes
        if isinstance(node.get("$ref"), str) and node["$ref"].startswith("#")
    }

    def inside(place: str) -> list[str]:
        return [pointer for pointer in targets if pointer == place or pointer.startswith(place + "/")]

    found = []
    for start, target in targets.items():
        pending, seen = [target], {target}
        while pending and start not in found:
            for pointer in inside(pending.pop()):
                if pointer == start:
                    found.append(start)
                elif targets[pointer] not in seen:
                    seen.add(targets[pointer])
                    pending.append(targets[pointer])
    return [f"#{pointer}/$ref" for pointer in found]
