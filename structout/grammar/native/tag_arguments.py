"""Arguments of a call in a notation other than JSON, as rules."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import count

from structout.constraints.tools.schema_kinds import Node, below, branches_of, kinds_of, property_pointer, resolved
from structout.constraints.tools.styles import LOOKS_LIKE_JSON, STRING, STYLES, ArgumentStyle, style_of
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.rules import RuleSet
from structout.grammar.native.structural_tags import SchemaFormat
from structout.grammar.native.tag_schemas import TagSchema, TagSchemas, TagStrings

# Keywords of an object that hold for every text, since only known keys are written.
_READ_OF_OBJECTS = frozenset(
    ("type", "properties", "required", "additionalProperties", "unevaluatedProperties", "dependentRequired")
) | {"minProperties", "maxProperties"}
_READ_OF_ARRAYS = frozenset(("type", "items", "minItems", "maxItems"))
_OF_OBJECTS = frozenset(("patternProperties", "propertyNames", "dependentSchemas", "dependencies", *_READ_OF_OBJECTS))
_OF_ARRAYS = (
    frozenset(
        ("prefixItems", "contains", "minContains", "maxContains", "uniqueItems", "additionalItems", "unevaluatedItems")
    )
    | _READ_OF_ARRAYS
)
_OF_ALL = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "enum"))

_ENDS_WITH_LINE_BREAK = r"\n[\s\S]*|[\s\S]*\n"


def add_schema(shared: TagSchemas, rules: RuleSet, given: SchemaFormat) -> int:
    """Add the texts of a schema to the rules of a tag.

    Raises:
        GrammarError: the schema is refused. Its pointer is that in the tag.
    """
    schema = TagSchema(shared, given)
    if given.style == "json":
        index = schema.index("", excluded=given.excluded)
        assert index is not None
        return rules.json(index)
    try:
        style = style_of(given.style)
    except ValueError as error:
        raise GrammarError(str(error)).at(given.pointer, "style") from None
    if style is None:
        message = f"there is no style {given.style!r}, only json, {', '.join(STYLES)}"
        raise GrammarError(message).at(given.pointer, "style")
    excluded = (*style.markers, *given.excluded)
    if not style.quotes:
        excluded += tuple(end.strip() for end in given.ends if end.strip())
    return ArgumentRules(rules, schema, style, tuple(dict.fromkeys(excluded))).add_arguments()


class ArgumentRules:
    """Adds the arguments that a schema describes to rules.

    The keys are those that the schema names, in their order.

    Args:
        rules: where they are added.
        schema: the schema.
        style: the notation.
        excluded: texts that no value contains.
    """

    def __init__(self, rules: RuleSet, schema: TagSchema, style: ArgumentStyle, excluded: tuple[str, ...]):
        # Names of rules are of this schema alone.
        self._rules = RuleSet("arguments", rules.limits, shared=rules)
        self._schema = schema
        self._style = style
        self._excluded = excluded
        self._nothing = rules.add_text("")
        self._names = (f"entries {number}" for number in count())
        self._separator = rules.add_text(style.separator) if style.separator else None

    def add_arguments(self) -> int:
        pointer, node = resolved(self._schema.root, "")
        if "object" not in kinds_of(node):
            message = "the arguments of a call are an object, which the schema does not allow"
            raise self._schema.error("", message, GrammarErrorKind.IMPOSSIBLE)
        self._rules.define("arguments", [[self._object(pointer, node)]])  # of its own, so that many tools fit
        return self._rules.reference("arguments")

    @cached_property
    def _line_break(self) -> int:
        if self._separator is not None:
            return self._nothing
        return self._rules.add_repetition(self._rules.add_text("\n"), 0, 1)

    # -- objects and arrays ---------------------------------------------------------

    def _object(self, pointer: str | None, node: Node) -> int:
        """The entries of an object."""
        at = pointer or ""
        for keyword in sorted(node.keys() & (_OF_OBJECTS | _OF_ALL | {"$ref"}) - _READ_OF_OBJECTS):
            self._schema.refuse(at, keyword, f"cannot enforce {keyword} of an object")
        properties = node.get("properties", {})
        required = list(dict.fromkeys(node.get("required", ())))
        others = node.get("additionalProperties", node.get("unevaluatedProperties"))
        is_empty = others is False or (self._schema.closes_objects and "properties" in node and others is None)
        if not properties and not required and not is_empty:
            return self._free_entries(node, below(pointer, node, "additionalProperties"))
        entries: dict[str, int] = {}
        for name in dict.fromkeys([*properties, *required]):
            value_pointer = property_pointer(pointer, node, name)
            if name not in properties and others is False:
                message = f"the key {name!r} is required, and no property has it"
                raise self._schema.error(f"{at}/required", message, GrammarErrorKind.IMPOSSIBLE)
            entry = self._entry(name, value_pointer)
            if entry is not None:
                entries[name] = entry
            elif name in required:
                message = f"no value is allowed for the key {name!r}, which is required"
                raise self._schema.error(value_pointer or at, message, GrammarErrorKind.IMPOSSIBLE)
        presence = _Presence(self._rules, self._names, entries, node, self._separator)
        body = presence.add()
        if body is None:
            message = "no choice of keys satisfies minProperties, maxProperties, required and dependentRequired"
            raise self._schema.error(at, message, GrammarErrorKind.IMPOSSIBLE)
        return self._ended(body)

    def _free_entries(self, node: Node, values: str | None) -> int:
        """Entries whose keys the schema does not name."""
        if "\0" in self._style.closing("\0"):  # the key again, which no rule can compare
            if node.get("minProperties", 0) > 0:
                message = f"{self._style.closing('key')} cannot close keys that the schema does not name"
                raise self._schema.error("", message, GrammarErrorKind.UNSUPPORTED)
            return self._nothing
        key = self._rules.add_regex(self._style.key_pattern)
        entry = self._value_between(lambda kind: self._opening_of(key, kind), None, values)
        if entry is None:
            return self._nothing
        minimum, maximum = node.get("minProperties", 0), node.get("maxProperties")
        return self._ended(self._listed(self._rules.add_sequence([self._line_break, entry]), minimum, maximum))

    def _array(self, pointer: str | None, node: Node) -> int:
        at = pointer or ""
        for keyword in sorted(node.keys() & (_OF_ARRAYS | _OF_ALL | {"$ref"}) - _READ_OF_ARRAYS):
            self._schema.refuse(at, keyword, f"cannot enforce {keyword} of an array")
        item = self._entry(None, below(pointer, node, "items"))
        minimum, maximum = node.get("minItems", 0), node.get("maxItems")
        if item is None:
            return self._nothing
        return self._ended(self._listed(item, minimum, maximum))

    def _listed(self, entry: int, minimum: int, maximum: int | None) -> int:
        """A number of entries, with the separator between them."""
        if self._separator is None:
            return self._rules.add_repetition(entry, minimum, maximum)
        if maximum == 0:
            return self._nothing
        following = self._rules.add_sequence([self._separator, entry])
        least, most = max(minimum - 1, 0), None if maximum is None else maximum - 1
        entries = self._rules.add_sequence([entry, self._rules.add_repetition(following, least, most)])
        return entries if minimum else self._rules.add_repetition(entries, 0, 1)

    def _ended(self, entries: int) -> int:
        """Entries and a line break that may follow them, except where they lie inside
        each other."""
        return entries if self._style.is_recursive else self._rules.add_sequence([entries, self._line_break])

    # -- values ---------------------------------------------------------------------

    def _entry(self, key: str | None, pointer: str | None) -> int | None:
        """A value with what stands around it. None if no value is allowed."""
        if key is not None and not _texts_of(self._style.key_pattern).matches(key):
            message = f"the key {key!r} cannot be written between tags"
            raise self._schema.error(pointer or "", message, GrammarErrorKind.UNSUPPORTED)

        value = self._value_between(lambda kind: self._rules.add_text(self._style.opening(key, kind)), key, pointer)
        return None if value is None else self._rules.add_sequence([self._line_break, value])

    def _opening_of(self, key: int, kind: str) -> int:
        """The expression of the text in front of a value whose key is an expression."""
        before, after = self._style.opening("\0", kind).split("\0")
        return self._rules.add_sequence([self._rules.add_text(before), key, self._rules.add_text(after)])

    def _value_between(self, opening: Callable[[str], int], key: str | None, pointer: str | None) -> int | None:
        values = self._values(self._style.closing(key), pointer, is_alone=True)
        choices = [[opening(kind), value] for kind, value in values]
        return self._rules.add_alternatives(choices) if choices else None

    def _values(self, closing: str, pointer: str | None, *, is_alone: bool) -> Iterator[tuple[str, int]]:
        """The kinds of values that a part allows, and how they are written.

        Args:
            closing: what comes after them.
            pointer: the part.
            is_alone: whether the values of no other part may stand in the same place.
        """
        at, node = resolved(self._schema.root, pointer)
        if self._style.is_recursive and (branches := branches_of(at, node)):
            for branch in branches:
                yield from self._values(closing, branch, is_alone=False)
            return
        kinds = kinds_of(node)
        others = []
        end = self._rules.add_text(closing)
        for group in self._style.kinds:
            types = [kind for kind in group if kind in kinds]
            if not types:
                continue
            if self._style.is_recursive and group[0] in ("object", "array"):
                if node and "type" not in node and self._schema.index(at, types) is None:
                    continue
                container = self._container(group[0], at, node)
                others.append((group[0], self._rules.add_sequence([container, end])))
                continue
            if group[0] in ("boolean", "null") and self._style.constants:
                written = [self._style.constants[text] for text in self._schema.constants(at, group[0])]
                others += [(group[0], self._rules.add_text(text)) for text in written]
                continue
            index = self._schema.index(at, types, self._excluded)
            if index is not None:
                others.append((group[0], self._rules.add_sequence([self._wrapped(self._rules.json(index)), end])))
        if STRING in kinds:
            is_mixed = (len(kinds) > 1 or not is_alone) and not self._style.tells_strings  # as the reader decides it
            string = self._quoted(at) if self._style.quotes else self._string(at, closing, is_mixed=is_mixed)
            if string is not None:
                yield STRING, string
        yield from others

    def _container(self, kind: str, pointer: str | None, node: Node) -> int:
        name = f"{kind} {pointer}"
        is_new = not self._rules.is_defined(name) and name not in self._rules.undefined_names
        reference = self._rules.reference(name)
        if is_new:
            body = self._object(pointer, node) if kind == "object" else self._array(pointer, node)
            brackets = ("{}" if kind == "object" else "[]") if self._separator is not None else ("", "")
            self._rules.define(name, [[self._rules.add_text(brackets[0]), body, self._rules.add_text(brackets[1])]])
        return reference

    def _string(self, pointer: str | None, closing: str, *, is_mixed: bool) -> int | None:
        """A rule for strings, one for all values of the tag that are written alike.
        None if there is no string.

        Args:
            pointer: the part that they are of.
            closing: what comes after them.
            is_mixed: whether other values may stand in their place.
        """
        strings = self._schema.strings(pointer, self._excluded)
        if strings is None:
            return None
        key = (closing, is_mixed, strings)
        known = self._schema.string_rules
        if key not in known:
            if is_mixed:
                strings = replace(strings, automaton=_without(strings.automaton, LOOKS_LIKE_JSON))
            known[key] = self._string_rule(pointer, strings, closing, f"string {len(known)}")
        return known[key]

    def _quoted(self, pointer: str | None) -> int | None:
        """Strings between quotes. None if there is no string."""
        assert self._style.quotes is not None
        if self._style.is_escaped:
            index = self._schema.index(pointer, (STRING,), self._excluded)
            return None if index is None else self._rules.json(index)
        strings = self._schema.strings(pointer, self._excluded)
        begin, end = self._style.quotes
        string = None if strings is None else self._ended_string(pointer, strings, end)
        return None if string is None else self._rules.add_sequence([self._rules.add_text(begin), string])

    def _string_rule(self, pointer: str | None, strings: TagStrings, closing: str, name: str) -> int | None:
        choices = []
        bare = strings
        if self._style.is_wrapped:
            alone = self._ended_string(pointer, strings, f"\n{closing}")
            choices += [] if alone is None else [[self._rules.add_text("\n"), alone]]
            bare = replace(strings, automaton=_without(strings.automaton, _ENDS_WITH_LINE_BREAK))
        ended = self._ended_string(pointer, bare, closing)
        choices += [] if ended is None else [[ended]]
        if not choices:
            return None
        self._rules.define(name, choices)
        return self._rules.reference(name)

    def _ended_string(self, pointer: str | None, strings: TagStrings, end: str) -> int | None:
        """Strings and what ends them. None if there is no string."""
        if strings.automaton.is_empty:
            return None
        if not strings.is_bounded:
            return self._rules.add_sequence([self._rules.add_automaton(strings.automaton), self._rules.add_text(end)])
        automaton = self._schema.bounded(pointer, strings.automaton, end)
        minimum = strings.minimum + len(end)
        maximum = None if strings.maximum is None else strings.maximum + len(end)
        return self._rules.add_bounded(automaton, minimum, maximum) if automaton.has_text(minimum, maximum) else None

    def _wrapped(self, value: int) -> int:
        if not self._style.is_wrapped:
            return value
        line_break = self._rules.add_text("\n")
        return self._rules.add_alternatives([[line_break, value, line_break], [value]])


@lru_cache
def _texts_of(pattern: str) -> Automaton:
    return Automaton.from_regex(pattern)


@lru_cache(1 << 8)
def _without(strings: Automaton, pattern: str) -> Automaton:
    """The strings that do not match a pattern."""
    return strings - _texts_of(pattern)


class _Presence:
    """The choices of entries that an object may have, in their order.

    A rule for each choice so far would grow exponentially: choices that allow the same
    rest share one.

    Args:
        rules: where the choices are added.
        names: of rules, each new.
        entries: the expression of each entry, by its key.
        node: the schema of the object.
        separator: the expression of what stands between two entries, if anything does.
    """

    def __init__(
        self, rules: RuleSet, names: Iterator[str], entries: Mapping[str, int], node: Node, separator: int | None
    ):
        self._rules = rules
        self._names = names
        self._separator = separator
        self._entries = list(entries.items())
        self._required = frozenset(node.get("required", ()))
        self._minimum = node.get("minProperties", 0)
        self._maximum = node.get("maxProperties", len(entries))
        self._needs = {name: frozenset(needed) for name, needed in node.get("dependentRequired", {}).items()}
        self._needed_by_some = frozenset().union(*self._needs.values())
        self._counts = self._minimum > len(self._required) or self._maximum < len(entries)
        self._rests: dict[object, int | None] = {}

    def add(self) -> int | None:
        """The expression of all choices. None if there is none."""
        if self._counts or self._needs or self._separator is not None:
            return self._rest(0, 0, frozenset(), frozenset(), is_first=True)
        parts = [
            entry if name in self._required else self._rules.add_repetition(entry, 0, 1)
            for name, entry in self._entries
        ]
        return self._rules.add_sequence(parts) if parts else self._rules.add_text("")

    def _rest(self, i: int, count: int, taken: frozenset[str], needed: frozenset[str], *, is_first: bool) -> int | None:
        """The expression of the entries from ``i`` on. None if no choice is allowed.

        Args:
            i: the next entry.
            count: how many have been taken, if they are counted.
            taken: those of them that another one may need.
            needed: those that one of them needs, of the rest.
            is_first: whether none has been taken.
        """
        if i == len(self._entries):
            return self._rules.add_text("") if not needed and count >= self._minimum * self._counts else None
        key = (i, count, taken, needed, is_first and self._separator is not None)
        if key not in self._rests:
            name, entry = self._entries[i]
            choices = []
            needs = self._needs.get(name, frozenset()) - {name} - taken
            comes_later = {later for later, _ in self._entries[i + 1 :]}
            if needs <= comes_later and count < self._maximum:
                rest = self._rest(
                    i + 1,
                    count + self._counts,
                    taken | ({name} & self._needed_by_some),
                    (needed - {name}) | needs,
                    is_first=False,
                )
                begun = [entry] if is_first or self._separator is None else [self._separator, entry]
                choices += [] if rest is None else [[*begun, rest]]
            if name not in self._required | needed:
                rest = self._rest(i + 1, count, taken, needed, is_first=is_first)
                choices += [] if rest is None else [[rest]]
            self._rests[key] = self._named(choices) if choices else None
        return self._rests[key]

    def _named(self, choices: list[list[int]]) -> int:
        """A rule, which others share."""
        name = next(self._names)
        self._rules.define(name, choices)
        return self._rules.reference(name)
