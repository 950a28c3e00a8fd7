"""Structural tags as rules: xgrammar's format, with tags, free text and schemas."""

import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from structout.constraints import exact_json
from structout.constraints.grammar_texts import is_gbnf
from structout.constraints.schema_walks import keyword_at
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native import gbnf, lark
from structout.grammar.native.automaton import Automaton, AutomatonLimits
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.grammar_context import NO_CONTEXT, GrammarContext
from structout.grammar.native.rules import RuleSet, Way, texts_without

START = "text"
_MAX_NESTING = 200
_ANY = r"[\s\S]"
_ESCAPABLE = frozenset(string.punctuation) - frozenset('"\\')  # in JSON strings

# The spellings of a marker that is the name of a token: as a special token, as any
# added token, as text, or as a special token or text. Special tokens have no text of
# their own; added ones may have one.
_AS_SPECIAL, _AS_ADDED, _AS_TEXT, _AS_EITHER = _SPELLINGS = ("special", "added", "text", "either")


@dataclass(frozen=True)
class SchemaFormat:
    """A part of a tag whose text is described by a schema.

    Attributes:
        schema: the schema.
        pointer: JSON pointer to it in the tag.
        style: "json", or another notation of arguments, as ``style_of`` takes it.
        key_order: "any" or None, which leaves it to the configuration.
        max_whitespace: the most characters of whitespace in a row, or None, which
            leaves it to the configuration.
        whitespace_pattern: regular expression of the whitespace between two tokens of
            JSON, where the configuration allows any, or None.
        excluded: texts that string values and keys must not contain.
        ends: texts that end the tag around it.
    """

    schema: Any
    pointer: str
    style: str | Mapping[str, Any]
    key_order: str | None
    max_whitespace: int | None
    whitespace_pattern: str | None
    excluded: tuple[str, ...]
    ends: tuple[str, ...]


# Adds the texts that a schema describes to rules.
AddSchema = Callable[[RuleSet, SchemaFormat], int]
Part = tuple[object, str]  # a format, and its JSON pointer
Mark = str | int  # a text that marks the begin or the end of a tag, or the id of a token


def structural_tag_rules(
    tag: Mapping[str, Any],
    limits: AutomatonLimits,
    add_schema: AddSchema,
    context: GrammarContext = NO_CONTEXT,
    stop_token_ids: Collection[int] = (),
) -> RuleSet:
    """Translate a structural tag.

    Args:
        tag: as xgrammar documents it. docs/structural_tags.md has its formats.
        limits: what the rules may cost.
        add_schema: called for each ``json_schema``.
        context: what grammars inside may refer to, and the tokens that the tag may
            name.
        stop_token_ids: tokens that end the text. A marker that is one of them adds
            nothing to the rules: the end of the text is the marker.

    Raises:
        GrammarError: the tag is malformed or uses what is not supported. Its pointer is
            the pointer in the tag.
    """
    rules = RuleSet(START, limits, is_labelled=context.is_labelled)
    fields = _Fields(tag, "#", "structural_tag")
    spelling = fields.take("markers", str, _AS_SPECIAL)
    if spelling not in _SPELLINGS:
        raise malformed("#/markers", f"markers must be one of {', '.join(_SPELLINGS)}, got {spelling!r}")
    translator = _Translator(rules, limits, context, add_schema, stop_token_ids, spelling)
    body = translator.add(fields.part("format"), _OUTSIDE)
    fields.finish()
    rules.define(START, [[body]])
    return rules


@dataclass(frozen=True)
class _Around:
    """The tag around a format.

    Attributes:
        ends: what ends the tag: texts, and ids of tokens. Free text does not contain
            them.
        closes: whether the format is the last one in the tag, so that one of ``ends``
            follows it: free text ends where one of them first occurs.
    """

    ends: tuple["Mark", ...] = ()
    closes: bool = False

    @property
    def inner(self) -> "_Around":
        """The tag around a format that others follow: it has the same ends."""
        return _Around(self.ends)


_OUTSIDE = _Around()


class _Fields:
    """The fields of one format. Each can be taken once, and ``finish`` refuses those
    that nobody took."""

    def __init__(self, value: object, pointer: str, default_type: str | None = None):
        self.pointer = pointer
        if not isinstance(value, Mapping):
            raise malformed(pointer, f"expected an object, got {_named(value)}")
        self._left = {key: each for key, each in value.items() if each is not None}
        self.type = self._left.pop("type", default_type)
        if not isinstance(self.type, str):
            raise malformed(pointer, f'expected an object with a "type", got {sorted(value)}')

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        """The value of a field, which must be of one of ``kinds``."""
        if key not in self._left:
            if default is ...:
                raise malformed(self.pointer, f"{self.type} needs {key}")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
            raise malformed(self.pointer_to(key), f"{key} of {self.type} cannot be {_named(value)}")
        return value

    def flag(self, key: str) -> bool:
        return self.take(key, bool, False)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts that are not empty."""
        texts = self.take(key, list, [])
        for i, text in enumerate(texts):
            if not isinstance(text, str) or not text:
                raise malformed(f"{self.pointer_to(key)}/{i}", f"expected a text that is not empty, got {text!r}")
        return tuple(texts)

    def part(self, key: str) -> tuple[object, str]:
        """A format inside this one, with its pointer."""
        return self.take(key, (dict, Mapping)), self.pointer_to(key)

    def parts(self, key: str) -> list[tuple[object, str]]:
        return [(part, f"{self.pointer_to(key)}/{i}") for i, part in enumerate(self.take(key, list))]

    def pointer_to(self, key: str) -> str:
        return f"{self.pointer}/{key}"

    def finish(self) -> None:
        if self._left:
            raise malformed(self.pointer, f"{self.type} has no field {min(self._left)}")


def _parsed(schema: Any, pointer: str) -> Any:
    """A schema that may be given as text."""
    if not isinstance(schema, str):
        return schema
    try:
        value = exact_json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise malformed(pointer, f"the JSON schema is not JSON: {error}") from None
    if not isinstance(value, bool | dict):
        raise malformed(pointer, f"a JSON schema must be an object or a boolean, got {_named(value)}")
    return value


class _Translator:
    """Adds formats to rules. Each method that adds one returns its expression, with the
    end of the tag around it if it closes that."""

    def __init__(
        self,
        rules: RuleSet,
        limits: AutomatonLimits,
        context: GrammarContext,
        add_schema: AddSchema,
        stop_token_ids: Collection[int],
        spelling: str,
    ):
        self._rules = rules
        self._limits = limits
        self._context = context
        self._stop_token_ids = stop_token_ids
        self._allows_text = spelling in (_AS_TEXT, _AS_EITHER)
        self._tokens_by_name = {} if spelling == _AS_TEXT else context.markers
        if spelling == _AS_ADDED:
            self._tokens_by_name = context.added_tokens
        names = sorted(self._tokens_by_name, key=len, reverse=True)
        self._names = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None
        self._add_schema = add_schema
        self._depth = 0
        self._nothing = rules.add_text("")

    def add(self, part: Part, around: _Around) -> int:
        fields = _Fields(*part)
        adder = _ADDERS.get(fields.type)
        if adder is None:
            raise malformed(fields.pointer, f"there is no format {fields.type}")
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise malformed(fields.pointer, f"formats are nested more than {_MAX_NESTING} deep")
        added = adder(self, fields, around)
        self._depth -= 1
        fields.finish()
        return self._rules.label(fields.pointer, added)

    def _closed(self, part: int, around: _Around) -> int:
        return self._rules.add_sequence([part, self._any_of(around.ends)]) if around.closes else part

    def _any_of(self, marks: Iterable[Mark]) -> int:
        return self._rules.add_alternatives([[self._marker(mark)] for mark in marks])

    def _marker(self, mark: Mark) -> int:
        """A text in which the names of special tokens stand for these, or a token."""
        if isinstance(mark, int):
            return self._nothing if mark in self._stop_token_ids else self._rules.token([mark])
        if self._is_spelled(mark):
            return self._rules.add_text(mark)
        assert self._names is not None
        return self._rules.add_sequence([self._piece(piece) for piece in self._names.split(mark) if piece])

    def _piece(self, piece: str) -> int:
        token = self._tokens_by_name.get(piece)
        if token is None:
            return self._rules.add_text(piece)
        marker = self._marker(token)
        return self._rules.add_alternatives([[marker], [self._rules.add_text(piece)]]) if self._allows_text else marker

    def _is_spelled(self, mark: Mark) -> bool:
        """True if a mark is a text without names of tokens."""
        return isinstance(mark, str) and (self._names is None or self._names.search(mark) is None)

    def _may_be_spelled(self, mark: Mark) -> bool:
        """True if a mark may be written as text, without tokens."""
        return isinstance(mark, str) and (self._allows_text or self._is_spelled(mark))

    def _token(self, fields: _Fields, token: object) -> int:
        with errors_at(fields.pointer):
            if isinstance(token, bool) or not isinstance(token, int | str):
                raise malformed(fields.pointer, f"expected the id or the name of a token, got {_named(token)}")
            return self._context.token_of(token)

    def _tokens(self, fields: _Fields, key: str) -> list[int]:
        return [self._token(fields, token) for token in fields.take(key, list, [])]

    def _add_const_string(self, fields: _Fields, around: _Around) -> int:
        return self._closed(self._marker(fields.take("value", str)), around)

    def _add_regex(self, fields: _Fields, around: _Around) -> int:
        pattern, pointer = fields.take("pattern", str), fields.pointer_to("pattern")
        with errors_at(pointer):
            automaton = Automaton.from_regex(pattern, self._limits)
        if automaton.is_empty:
            raise GrammarError("the pattern allows no text", kind=GrammarErrorKind.IMPOSSIBLE).at(pointer, "pattern")
        return self._closed(self._rules.add_automaton(automaton), around)

    def _add_grammar(self, fields: _Fields, around: _Around) -> int:
        text, excluded = fields.take("grammar", str), fields.texts("excludes")
        in_json_string = fields.flag("in_json_string")
        with errors_at(fields.pointer_to("grammar")):
            if not is_gbnf(text):
                return self._closed(self._add_lark(text, excluded, in_json_string), around)
            if excluded or in_json_string:
                message = "excludes and in_json_string are for Lark grammars"
                raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
            return self._closed(self._gbnf(text), around)

    def _gbnf(self, grammar: str) -> int:
        return gbnf.parse_gbnf(grammar, self._limits, self._context, self._rules).reference(gbnf.START)

    def _add_lark(self, grammar: str, excluded: Sequence[str], in_json_string: bool) -> int:
        """Add the texts of a Lark grammar that contain none of some.

        Args:
            in_json_string: whether the texts stand in a JSON string, as JSON spells
                them. If the grammar has recursion, the first character of each excluded
                text is always written as an escape there.
        """
        rules = lark.parse_lark(grammar, self._limits, self._context)
        automaton = rules.automaton()
        if automaton is None:
            if in_json_string:
                escaped = "".join(dict.fromkeys(text[0] for text in excluded))
                if any(character not in _ESCAPABLE for character in escaped):
                    raise _no_exclusion(excluded)
                rules = lark.parse_lark(grammar, self._limits, self._context, escaped=escaped)
            elif excluded:
                raise _no_exclusion(excluded)
            return self._context.add_grammar(self._rules, rules)
        if excluded:
            automaton &= texts_without(tuple(excluded), self._limits)
        if automaton.is_empty:
            raise GrammarError("the grammar inside allows no text", kind=GrammarErrorKind.IMPOSSIBLE)
        if in_json_string:
            with grammar_errors("the grammar"):
                automaton = Automaton(core().string_contents(automaton.native, self._limits.native))
        return self._rules.add_automaton(automaton)

    def _add_json_schema(self, fields: _Fields, around: _Around) -> int:
        default_style = "qwen_xml" if fields.type == "qwen_xml_parameter" else "json"
        schema = SchemaFormat(
            schema=_parsed(fields.take("json_schema", (bool, Mapping, str)), fields.pointer_to("json_schema")),
            pointer=fields.pointer_to("json_schema"),
            style=fields.take("style", (str, Mapping), default_style),
            key_order="any" if fields.flag("any_order") else None,
            max_whitespace=fields.take("max_whitespace_cnt", int, None),
            whitespace_pattern=fields.take("whitespace_pattern", str, None),
            excluded=fields.texts("excludes"),
            ends=tuple(end for end in around.ends if isinstance(end, str)),
        )
        return self._closed(self._add_schema(self._rules, schema), around)

    def _add_any_text(self, fields: _Fields, around: _Around) -> int:
        excluded = fields.texts("excludes")
        if fields.take("max_tokens", int, None) is not None:
            raise unsupported(
                fields.pointer_to("max_tokens"), "max_tokens is not supported: a text may have many tokenizations"
            )
        max_chars = fields.take("max_chars", int, None)
        text = self._add_free_text({}, excluded, around)
        if max_chars is None:
            return text
        with errors_at(fields.pointer_to("max_chars")):
            bounded = self._rules.add_regex(f"{_ANY}{{0,{max_chars}}}")
        return self._rules.native.add_intersection([text, self._closed(bounded, around)])

    def _add_free_text(
        self, stops: dict[str, Way], excluded: tuple[str, ...], around: _Around, tokens: Sequence[Way] = ()
    ) -> int:
        """Any text up to a stop, to one of ``tokens``, which begin with a special
        token, or to the end of the tag around it."""
        ways = [Way(self._nothing)]
        texts = [end for end in around.ends if isinstance(end, str)]  # what looks like a special token is none
        if around.closes:
            closing = [end for end in texts if self._may_be_spelled(end)]
            texts = [end for end in texts if end not in closing]
            stops = {end: Way(self._nothing) for end in closing} | stops
            ways = [Way(self._marker(end)) for end in around.ends if not self._is_spelled(end)]
        return self._rules.add_free_text(stops, (*excluded, *texts), [*ways, *tokens])

    def _add_sequence(self, fields: _Fields, around: _Around) -> int:
        parts = fields.parts("elements")
        if not parts:
            return self._closed(self._nothing, around)
        added = [self.add(part, around.inner) for part in parts[:-1]]
        return self._rules.add_sequence([*added, self.add(parts[-1], around)])

    def _add_or(self, fields: _Fields, around: _Around) -> int:
        parts = fields.parts("elements")
        if not parts:
            raise malformed(fields.pointer_to("elements"), "or needs an element")
        return self._rules.add_alternatives([[self.add(part, around)] for part in parts])

    def _add_optional(self, fields: _Fields, around: _Around) -> int:
        content = self.add(fields.part("content"), around)
        return self._rules.add_alternatives([[content], [self._closed(self._nothing, around)]])

    def _add_plus(self, fields: _Fields, around: _Around) -> int:
        return self._repeated(fields, around, 1, None)

    def _add_star(self, fields: _Fields, around: _Around) -> int:
        return self._repeated(fields, around, 0, None)

    def _add_repeat(self, fields: _Fields, around: _Around) -> int:
        minimum, maximum = fields.take("min", int), fields.take("max", int)
        if minimum < 0 or maximum < -1 or -1 < maximum < minimum:
            raise malformed(fields.pointer, f"repeat cannot have min {minimum} and max {maximum}")
        return self._repeated(fields, around, minimum, None if maximum == -1 else maximum)

    def _repeated(self, fields: _Fields, around: _Around, minimum: int, maximum: int | None) -> int:
        content = self.add(fields.part("content"), around.inner)
        return self._closed(self._rules.add_repetition(content, minimum, maximum), around)

    def _add_tag(self, fields: _Fields, around: _Around) -> int:
        begin, rest = self._tag(fields)
        return self._closed(self._rules.add_sequence([self._marker(begin), rest]), around)

    def _tag(self, fields: _Fields) -> tuple[Mark, int]:
        """The beginning of a tag, and what follows it."""
        begin = self._mark(fields.take("begin", (str, Mapping)), fields.pointer_to("begin"))
        given = fields.take("end", (str, list, Mapping))
        ends = [self._mark(end, fields.pointer_to("end")) for end in (given if isinstance(given, list) else [given])]
        if not ends:
            raise malformed(fields.pointer_to("end"), "a tag needs an end, got an empty list")
        marks = tuple(dict.fromkeys(end for end in ends if end != ""))
        if len(marks) == len(set(ends)):
            return begin, self.add(fields.part("content"), _Around(marks, closes=True))
        content = self.add(fields.part("content"), _Around(marks))  # it may also end with nothing
        return begin, self._rules.add_sequence([content, self._any_of(ends)])

    def _mark(self, given: object, pointer: str) -> Mark:
        if isinstance(given, str):
            return given
        fields = _Fields(given, pointer)
        if fields.type != "token":
            raise malformed(pointer, f"a tag begins and ends with a text or a token, got the format {fields.type}")
        token = self._token(fields, fields.take("token", (int, str)))
        fields.finish()
        return token

    def _tags(self, fields: _Fields) -> dict[Mark, int]:
        """The tags of a format: what follows each beginning."""
        following: dict[Mark, list[int]] = {}
        for part, pointer in fields.parts("tags"):
            tag = _Fields(part, pointer, "tag")
            if tag.type != "tag":
                raise malformed(pointer, f"expected a tag, got the format {tag.type}")
            begin, rest = self._tag(tag)
            tag.finish()
            following.setdefault(begin, []).append(rest)
        if not following:
            raise malformed(fields.pointer_to("tags"), f"{fields.type} needs a tag")
        return {begin: self._rules.add_alternatives([[rest] for rest in rests]) for begin, rests in following.items()}

    def _any_tag(self, tags: Mapping[Mark, int], num_read: int = 0) -> int:
        """Any of the tags, the first characters of whose beginnings have been read."""
        return self._rules.add_alternatives(
            [
                [self._marker(begin[num_read:] if isinstance(begin, str) else begin), rest]
                for begin, rest in tags.items()
            ]
        )

    def _add_triggered_tags(self, fields: _Fields, around: _Around) -> int:
        triggers, excluded = fields.texts("triggers"), [*fields.texts("excludes")]
        tags = self._tags(fields)
        for begin in tags:
            if not isinstance(begin, str) or not begin.startswith(triggers):
                raise malformed(fields.pointer_to("triggers"), f"no trigger begins the tag {begin!r}")
        is_last = fields.flag("stop_after_first")

        def way_after(tag: int) -> Way:
            return Way(self._closed(tag, around)) if is_last else Way(tag, returns=True)

        stops, tokens = {}, []
        for trigger in triggers:
            begun = {begin: rest for begin, rest in tags.items() if str(begin).startswith(trigger)}
            if begun and self._may_be_spelled(trigger):
                stops[trigger] = way_after(self._any_tag(begun, len(trigger)))
            else:
                excluded.append(trigger)
            if begun and not self._is_spelled(trigger):
                tokens.append(way_after(self._any_tag(begun)))
        at_least_one = fields.flag("at_least_one")
        if at_least_one and is_last:
            return self._closed(self._any_tag(tags), around)
        text = self._add_free_text(stops, tuple(excluded), around, tokens)
        return self._rules.add_sequence([self._any_tag(tags), text]) if at_least_one else text

    def _add_tags_with_separator(self, fields: _Fields, around: _Around) -> int:
        tag = self._any_tag(self._tags(fields))
        separator = self._marker(fields.take("separator", str))
        if not fields.flag("stop_after_first"):
            others = self._rules.add_repetition(self._rules.add_sequence([separator, tag]), 0, None)
            tag = self._rules.add_sequence([tag, others])
        if not fields.flag("at_least_one"):
            tag = self._rules.add_repetition(tag, 0, 1)
        return self._closed(tag, around)

    def _add_dispatch(self, fields: _Fields, around: _Around) -> int:
        excluded, returns = fields.texts("excludes"), fields.take("loop", bool, True)
        stops, tokens = {}, []
        for i, rule in enumerate(fields.take("rules", list)):
            pointer = f"{fields.pointer_to('rules')}/{i}"
            if not isinstance(rule, Sequence) or len(rule) != 2 or not isinstance(rule[0], str) or not rule[0]:
                raise malformed(pointer, f"expected a pattern that is not empty and a format, got {_named(rule)}")
            part = self.add((rule[1], f"{pointer}/1"), around.inner)
            if self._may_be_spelled(rule[0]):
                stops[rule[0]] = Way(part, returns=True) if returns else Way(self._closed(part, around))
            else:
                excluded = (*excluded, rule[0])
            if not self._is_spelled(rule[0]):
                part = self._rules.add_sequence([self._marker(rule[0]), part])
                tokens.append(Way(part, returns=True) if returns else Way(self._closed(part, around)))
        return self._add_free_text(stops, excluded, around, tokens)

    # -- formats that count tokens ---------------------------------------------------

    def _add_token(self, fields: _Fields, around: _Around) -> int:
        token = self._token(fields, fields.take("token", (int, str)))
        return self._closed(self._rules.token([token]), around)

    def _add_exclude_token(self, fields: _Fields, around: _Around) -> int:
        return self._closed(self._other_token(self._tokens(fields, "exclude_tokens")), around)

    def _add_any_tokens(self, fields: _Fields, around: _Around) -> int:
        excluded = [*self._tokens(fields, "exclude_tokens"), *self._end_tokens(around)]
        maximum = fields.take("max_tokens", int, None)
        return self._closed(self._rules.add_repetition(self._other_token(excluded), 0, maximum), around)

    def _other_token(self, excluded: Iterable[int]) -> int:
        """Any token that does not end the text, but some."""
        return self._rules.token(self._context.other_tokens(dict.fromkeys([*excluded, *self._stop_token_ids])))

    def _end_tokens(self, around: _Around) -> list[int]:
        marks = [self._tokens_by_name.get(end) if isinstance(end, str) else end for end in around.ends]
        return [mark for mark in marks if mark is not None]

    def _add_token_triggered_tags(self, fields: _Fields, around: _Around) -> int:
        triggers, excluded = self._tokens(fields, "trigger_tokens"), self._tokens(fields, "exclude_tokens")
        tags = self._tags(fields)
        for begin in tags:
            if begin not in triggers:
                raise malformed(fields.pointer_to("trigger_tokens"), f"no trigger begins the tag {begin!r}")
        is_last, at_least_one = fields.flag("stop_after_first"), fields.flag("at_least_one")
        return self._between_tokens(self._any_tag(tags), [*triggers, *excluded], around, is_last, at_least_one)

    def _add_token_dispatch(self, fields: _Fields, around: _Around) -> int:
        excluded = self._tokens(fields, "exclude_tokens")
        loops = fields.take("loop", bool, True)
        choices, triggers = [], []
        for i, rule in enumerate(fields.take("rules", list)):
            pointer = f"{fields.pointer_to('rules')}/{i}"
            if not isinstance(rule, Sequence) or len(rule) != 2:
                raise malformed(pointer, f"expected a token and a format, got {_named(rule)}")
            triggers.append(self._token(fields, rule[0]))
            part = self.add((rule[1], f"{pointer}/1"), around.inner)
            choices.append([self._rules.token([triggers[-1]]), part])
        if not choices:
            raise malformed(fields.pointer_to("rules"), "token_dispatch needs a rule")
        dispatched = self._rules.add_alternatives(choices)
        return self._between_tokens(dispatched, [*triggers, *excluded], around, not loops, False)

    def _between_tokens(self, tag: int, excluded: list[int], around: _Around, is_last: bool, at_least_one: bool) -> int:
        """Any tokens, and tags between them."""
        free = self._rules.add_repetition(self._other_token([*excluded, *self._end_tokens(around)]), 0, None)
        if is_last:
            parts = [tag] if at_least_one else [free, self._rules.add_repetition(tag, 0, 1)]
        else:
            others = self._rules.add_repetition(self._rules.add_sequence([tag, free]), 0, None)
            parts = [tag, free, others] if at_least_one else [free, others]
        return self._closed(self._rules.add_sequence(parts), around)


_ADDERS: dict[str, Callable[[_Translator, _Fields, _Around], int]] = {
    "const_string": _Translator._add_const_string,
    "regex": _Translator._add_regex,
    "grammar": _Translator._add_grammar,
    "json_schema": _Translator._add_json_schema,
    "qwen_xml_parameter": _Translator._add_json_schema,
    "any_text": _Translator._add_any_text,
    "sequence": _Translator._add_sequence,
    "or": _Translator._add_or,
    "optional": _Translator._add_optional,
    "plus": _Translator._add_plus,
    "star": _Translator._add_star,
    "repeat": _Translator._add_repeat,
    "tag": _Translator._add_tag,
    "triggered_tags": _Translator._add_triggered_tags,
    "tags_with_separator": _Translator._add_tags_with_separator,
    "dispatch": _Translator._add_dispatch,
    "token": _Translator._add_token,
    "exclude_token": _Translator._add_exclude_token,
    "any_tokens": _Translator._add_any_tokens,
    "token_triggered_tags": _Translator._add_token_triggered_tags,
    "token_dispatch": _Translator._add_token_dispatch,
}


def malformed(pointer: str, problem: str) -> GrammarError:
    return GrammarError(problem).at(pointer, None)


def _no_exclusion(excluded: Sequence[str]) -> GrammarError:
    shown = " and ".join(map(repr, excluded))
    message = f"a grammar with recursion, or a large one, cannot be kept free of {shown} here"
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)


def unsupported(pointer: str, problem: str) -> GrammarError:
    return GrammarError(problem, kind=GrammarErrorKind.UNSUPPORTED).at(pointer, None)


@contextmanager
def errors_at(pointer: str) -> Iterator[None]:
    """Give errors without a pointer that of a part of the tag."""
    try:
        yield
    except GrammarError as error:
        if error.pointer is None:
            raise error.at(pointer, keyword_at(pointer)) from None
        raise


def _named(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
