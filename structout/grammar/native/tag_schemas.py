"""The schemas inside a structural tag, as rules."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from structout.constraints import exact_json
from structout.constraints.schema_walks import keyword_at, part_at
from structout.constraints.tools.schema_kinds import ANNOTATIONS
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.automaton import Automaton, AutomatonLimits
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.json_schema import CompiledSchema, TextForm
from structout.grammar.native.rules import RuleSet, texts_without
from structout.grammar.native.structural_tags import SchemaFormat
from structout.grammar.vocabulary import Vocabulary

_DOCUMENT, _CLEAN = "structout:schema", "structout:clean"
_REFERS = ('"$ref"', '"$id"', '"$dynamicRef"', '"$recursiveRef"', '"$schema"')
_STRING_LIMITS = AutomatonLimits(states=50_000, seconds=0.1)
_LARGEST_LENGTH = 1 << 30
_MOST_COPIED = 4  # lengths up to this have states of their own, longer ones are counted


@dataclass(frozen=True)
class TagStrings:
    """Strings without quotes and escapes.

    Attributes:
        automaton: of the strings, whatever their length.
        minimum: characters that they have at least.
        maximum: characters that they have at most, or None.
    """

    automaton: Automaton
    minimum: int
    maximum: int | None

    @property
    def is_bounded(self) -> bool:
        return self.minimum > 0 or self.maximum is not None

    def within(self, minimum: int, maximum: int | None) -> "TagStrings":
        """The strings whose lengths are also within other bounds."""
        maxima = [each for each in (self.maximum, maximum) if each is not None]
        return TagStrings(self.automaton, max(self.minimum, minimum), min(maxima, default=None))


@dataclass
class TagSchemas:
    """What the schemas of one tag share. Equal ones are compiled once.

    Args:
        vocabulary: the token ids of the model.
        form: how JSON is written, where the tag does not say.
        limits: what each schema may cost.
        ignored_formats: as in :class:`CompiledSchema`.
        is_lenient: whether to go without keywords that a style of arguments cannot
            enforce, instead of refusing them.

    Attributes:
        annotations: JSON pointers to each ``format`` that constrains nothing.
        weakened: JSON pointers to what is not enforced.
    """

    vocabulary: Vocabulary
    form: TextForm
    limits: AutomatonLimits
    ignored_formats: Collection[str] = ()
    is_lenient: bool = False
    annotations: list[str] = field(default_factory=list)
    weakened: list[str] = field(default_factory=list)
    _indices: dict[object, CompiledSchema | None] = field(default_factory=dict)
    _strings: dict[object, TagStrings] = field(default_factory=dict)
    _bounded: dict[object, Any] = field(default_factory=dict)
    _string_rules: dict[object, int | None] = field(default_factory=dict)


class TagSchema:
    """One schema of a tag, whose parts are compiled alone.

    Args:
        shared: what the schemas of the tag share.
        given: the schema.

    Attributes:
        root: the schema as a Python value.
        closes_objects: whether objects have only the keys that it names.
        string_rules: the rules of strings, for all schemas of the tag.
    """

    def __init__(self, shared: TagSchemas, given: SchemaFormat):
        self.root = given.schema
        self.closes_objects = shared.form.additional_properties == "closed"
        self.string_rules = shared._string_rules
        self._shared = shared
        self._given = given
        self._text = exact_json.dumps(given.schema, ensure_ascii=False)
        self._has_references = any(keyword in self._text for keyword in _REFERS)
        self._form = replace(
            shared.form,
            key_order=given.key_order or shared.form.key_order,
            max_whitespace=shared.form.max_whitespace if given.max_whitespace is None else given.max_whitespace,
            whitespace_pattern=given.whitespace_pattern if shared.form.any_whitespace else None,
        )

    def index(
        self,
        pointer: str | None,
        types: Collection[str] = (),
        excluded: Collection[str] = (),
        *,
        has_lengths: bool = True,
    ) -> CompiledSchema | None:
        """A part of the schema, compiled.

        Args:
            pointer: JSON pointer to it, without ``#``. None stands for any value.
            types: JSON types of the values. Default: all.
            excluded: texts that no string and no key contains.
            has_lengths: whether its own ``minLength`` and ``maxLength`` hold.

        Returns:
            None if the part allows no value of ``types``.
        """
        schema, documents = self._part(pointer, types, excluded, has_lengths)
        key = (schema, tuple(documents.items()), self._form)
        known = self._shared._indices
        if key not in known:
            known[key] = None
            try:
                with self._located(pointer or ""):
                    known[key] = CompiledSchema(
                        schema,
                        self._shared.vocabulary,
                        self._form,
                        self._shared.limits,
                        self._shared.ignored_formats,
                        documents,
                    )
            except GrammarError as error:
                if not types or error.kind is not GrammarErrorKind.IMPOSSIBLE:
                    del known[key]
                    raise
        index = known[key]
        if index is not None:
            found = (self._in_tag(pointer or "", own) for own in index.annotations)
            self._shared.annotations += [each for each in found if each not in self._shared.annotations]
        return index

    def strings(self, pointer: str | None, excluded: Collection[str]) -> TagStrings | None:
        """The strings of a part. None if it has none.

        Args:
            pointer: as in ``index``.
            excluded: texts that they do not contain.
        """
        bounds = self._own_bounds(pointer)
        index = self.index(pointer, ("string",), has_lengths=bounds is None)
        if index is None:
            return None
        key = (index, tuple(excluded))
        known = self._shared._strings
        if key not in known:
            strings = self._raw_strings(index, pointer)
            without = texts_without(tuple(excluded), self._shared.limits)
            known[key] = replace(strings, automaton=strings.automaton & without)
        return known[key] if bounds is None else known[key].within(*bounds)

    def bounded(self, pointer: str | None, automaton: Automaton, end: str) -> Any:
        """A ``BoundedAutomaton`` of the core, of the texts of an automaton with ``end``
        after them."""
        key = (automaton, end)
        known = self._shared._bounded
        if key not in known:
            rules = RuleSet("text", self._shared.limits)
            rules.define("text", [[rules.add_automaton(automaton), rules.add_text(end)]])
            limits = _STRING_LIMITS.native
            with self._located(pointer or ""), grammar_errors("the strings"):
                ended = rules.native.compile(rules.reference("text"), limits)
                known[key] = core().BoundedAutomaton(ended, self._shared.vocabulary.trie, limits)
        return known[key]

    def constants(self, pointer: str | None, kind: str) -> list[str]:
        """The JSON texts of the booleans, or of null, that a part allows."""
        index = self.index(pointer, (kind,))
        texts = ["null"] if kind == "null" else ["true", "false"]
        return [text for text in texts if index is not None and index.matches(text)]

    def refuse(self, pointer: str, keyword: str, reason: str) -> None:
        """Refuse a keyword, or leave it out if the constraint is lenient."""
        in_tag = f"{self._given.pointer}{pointer}/{keyword}"
        if not self._shared.is_lenient:
            style = self._given.style if isinstance(self._given.style, str) else "tagged"
            message = f"{style} arguments {reason}: {_ALTERNATIVE}"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED).at(in_tag, keyword)
        if in_tag not in self._shared.weakened:
            self._shared.weakened.append(in_tag)

    def error(self, pointer: str, message: str, kind: GrammarErrorKind) -> GrammarError:
        in_tag = self._given.pointer + pointer
        return GrammarError(message, kind=kind).at(in_tag, keyword_at(in_tag))

    def _own_bounds(self, pointer: str | None) -> tuple[int, int | None] | None:
        """The lengths that a part gives by its own keywords, if they are counted and
        the part can be compiled without them, once for all lengths."""
        part = None if pointer is None or self._has_references else part_at(self.root, pointer)
        if not isinstance(part, Mapping):
            return None
        minimum = part.get("minLength", 0)
        maximum = part.get("maxLength", minimum)
        if type(minimum) is not int or type(maximum) is not int or not 0 <= minimum <= maximum:
            return None
        if not _MOST_COPIED < maximum <= _LARGEST_LENGTH:
            return None
        return minimum, part.get("maxLength")

    def _raw_strings(self, index: CompiledSchema, pointer: str | None) -> TagStrings:
        limits = _STRING_LIMITS.native
        found = index.native.strings(_MOST_COPIED, limits)
        if found is None:
            message = (
                f"the strings have no automaton with at most {_STRING_LIMITS.states:,} states: lower the bounds of"
                " lengths in alternatives and patterns"
            )
            raise self.error(pointer or "", message, GrammarErrorKind.UNSUPPORTED)
        automaton, minimum, maximum = found
        maximum = None if maximum is None or maximum > _LARGEST_LENGTH else maximum
        with grammar_errors():
            raw = Automaton(core().raw_strings(automaton, limits))
        return TagStrings(raw, min(minimum, _LARGEST_LENGTH), maximum)

    def _part(
        self, pointer: str | None, types: Collection[str], excluded: Collection[str], has_lengths: bool
    ) -> tuple[str, dict[str, str]]:
        """A schema for the engine, and the documents that it refers to."""
        documents: dict[str, str] = {}
        if pointer is None:
            part: Any = True
        elif pointer == "" and not types and not excluded:
            return self._text, documents
        else:
            part = part_at(self.root, pointer)
            if isinstance(part, Mapping):  # so that tools with other descriptions share what is compiled
                left_out = ANNOTATIONS if has_lengths else ANNOTATIONS | {"minLength", "maxLength"}
                part = {key: value for key, value in part.items() if key not in left_out}
            if self._has_references:
                part = {"$ref": f"{_DOCUMENT}#{quote(pointer, safe='/~')}"}
                documents[_DOCUMENT] = self._text
        parts = [part]
        if types:
            parts.append({"type": list(types)})
        if excluded:
            # Under `not`, it names no keys of the objects.
            parts.append({"not": {"not": {"$ref": f"{_CLEAN}#/$defs/value"}}})
            documents[_CLEAN] = _clean_values(tuple(excluded))
        return exact_json.dumps({"allOf": parts}, ensure_ascii=False), documents

    @contextmanager
    def _located(self, pointer: str) -> Iterator[None]:
        """Give errors of a part their pointer in the tag."""
        try:
            yield
        except GrammarError as error:
            own = error.pointer or "#"
            error.args = (str(error).removeprefix(f"{own}: "),)
            in_tag = self._in_tag(pointer, own)
            raise error.at(in_tag, keyword_at(in_tag)) from None

    def _in_tag(self, pointer: str, own: str) -> str:
        """The pointer in the tag of what has the pointer ``own`` in a compiled part."""
        document, _, inside = own.partition("#")
        if document == _DOCUMENT:
            return self._given.pointer + inside
        inside = inside.removeprefix("/allOf/0") if inside.startswith("/allOf/0") else inside
        return self._given.pointer + pointer + inside


_ALTERNATIVE = "use the style json, or pass lenient=True to leave it out"


@lru_cache(1 << 8)
def _clean_values(excluded: tuple[str, ...]) -> str:
    """A schema document whose ``#/$defs/value`` is any value without the texts in its
    strings and keys. JSON is written canonically, so that a text that needs no escapes
    is in the written string where it is in the value."""
    pattern = "|".join(_escaped_pattern(json.dumps(text, ensure_ascii=False)[1:-1]) for text in excluded)
    value = {"$ref": "#/$defs/value"}
    clean: Mapping[str, Any] = {
        "not": {"type": "string", "pattern": pattern},
        "items": value,
        "additionalProperties": value,
        "propertyNames": {"not": {"pattern": pattern}},
    }
    return exact_json.dumps({"$defs": {"value": clean}}, ensure_ascii=False)


def _escaped_pattern(text: str) -> str:
    return "".join(f"\\{character}" if character in r"^$\.*+?()[]{}|/" else character for character in text)
