"""Decides slowly and plainly what a grammar allows: a judge of engines.

A grammar is written down as Python values, not as text, so that the judge shares no
parser with an engine. It only knows the bytes of a small alphabet.

* ``Scannerless`` reads GBNF: Earley's algorithm over bytes.
* ``Lexed`` reads Lark as llguidance does. A lexer cuts the text into terminals. It only
  looks for those that the parser allows at this place, and what ``%ignore`` names. A
  terminal ends where no byte could extend any of those; all that match the text up to
  there are taken at once, but something ignored excludes the others. The rules are read
  by Earley's algorithm over sets of terminals.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    text: str


@dataclass(frozen=True)
class Characters:
    members: str
    is_negated: bool = False


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Choice:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Repetition:
    part: Expression
    low: int
    high: int | None


@dataclass(frozen=True)
class Reference:
    """A rule, or in rules of Lark a terminal, by its name."""

    name: str


@dataclass(frozen=True)
class Both:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Other:
    """Every sequence of bytes but those of a part."""

    part: Expression


Expression = Literal | Characters | Sequence | Choice | Repetition | Reference | Both | Other


@functools.cache
def characters_over(alphabet: bytes) -> tuple[str, ...]:
    """All characters whose UTF-8 form has bytes of the alphabet only."""
    found = []
    for length in range(1, 5):
        for form in itertools.product(alphabet, repeat=length):
            try:
                text = bytes(form).decode()
            except UnicodeDecodeError:
                continue
            found += [text] * (len(text) == 1)
    return tuple(found)


def spellings(part: Literal | Characters, alphabet: bytes) -> list[bytes]:
    """The texts of a part that has no parts."""
    if isinstance(part, Literal):
        return [part.text.encode()]
    return [c.encode() for c in characters_over(alphabet) if (c in part.members) != part.is_negated]


# -- Earley's algorithm ----------------------------------------------------------------

# A production is (rule, symbols). Symbols are numbers of rules or Terminal.
Production = tuple[int, tuple[Hashable, ...]]
Item = tuple[Production, int, "ParserState | None"]


@dataclass(frozen=True)
class Terminal:
    value: Hashable


class ParserState:
    """The items after a text: a production, how much of it has been read, and the
    state where it began (None: this one). Equal states are one object.

    Attributes:
        waiting: the items by the symbol that they wait for.
    """

    def __init__(self, items: frozenset[Item]):
        self.items = items
        self.waiting: dict[Hashable, list[Item]] = {}
        for item in items:
            if item[1] < len(item[0][1]):
                self.waiting.setdefault(item[0][1][item[1]], []).append(item)
        self.following: dict[frozenset[Hashable], ParserState | None] = {}

    def allowed(self) -> set[Hashable]:
        """The terminals that may come next."""
        return {symbol.value for symbol in self.waiting if isinstance(symbol, Terminal)}


class Parser:
    """Earley's algorithm.

    Rules without a text are removed first, if the parser prunes. So each text that it
    has read up to some place goes on to the end of one.
    """

    def __init__(self, productions: list[Production], start: int, *, prunes: bool):
        productive = _productive(productions)
        self._productions: dict[Hashable, list[Production]] = {}
        for production in productive if prunes else productions:
            self._productions.setdefault(production[0], []).append(production)
        self._states: dict[frozenset[object], ParserState] = {}
        self._start = start
        self.has_texts = any(rule == start for rule, _ in productive)
        self.has_dead_rules = len(productive) < len(productions)
        self.start = self._closed([(production, 0, None) for production in self._productions.get(start, ())])

    def step(self, state: ParserState, terminals: frozenset[Hashable]) -> ParserState | None:
        """The state after one of the terminals. None if there is none."""
        if terminals not in state.following:
            kernel = {
                (production, read + 1, origin or state)
                for terminal in terminals
                for production, read, origin in state.waiting.get(Terminal(terminal), ())
            }
            state.following[terminals] = self._closed(kernel) if kernel else None
        return state.following[terminals]

    def accepts(self, state: ParserState) -> bool:
        """Whether the text may end here."""
        return any(
            production[0] == self._start and read == len(production[1]) and (origin or state) is self.start
            for production, read, origin in state.items
        )

    def _closed(self, kernel: Iterable[Item]) -> ParserState:
        items, todo = set(kernel), list(kernel)
        without_text: set[int] = set()  # rules that have been read from here to here
        waiting_here: dict[Hashable, list[Item]] = {}

        def add(new: Item) -> None:
            if new not in items:
                items.add(new)
                todo.append(new)

        while todo:
            production, read, origin = item = todo.pop()
            if read < len(production[1]):
                symbol = production[1][read]
                if symbol not in waiting_here:
                    for predicted in self._productions.get(symbol, ()):
                        add((predicted, 0, None))
                waiting_here.setdefault(symbol, []).append(item)
                if symbol in without_text:
                    add((production, read + 1, origin))
            elif origin is None:
                without_text.add(production[0])
                for waiting, waited, began in list(waiting_here.get(production[0], ())):
                    add((waiting, waited + 1, began))
            else:
                for waiting, waited, began in origin.waiting.get(production[0], ()):
                    add((waiting, waited + 1, began or origin))
        key = frozenset(items)
        return self._states.setdefault(key, ParserState(key))


def _productive(productions: list[Production]) -> list[Production]:
    has_text: set[Hashable] = set()
    while True:
        kept = [p for p in productions if all(isinstance(s, Terminal) or s in has_text for s in p[1])]
        if {rule for rule, _ in kept} == has_text:
            return kept
        has_text = {rule for rule, _ in kept}


class _Productions:
    """Writes expressions as productions."""

    def __init__(self, rules: Mapping[str, Expression], terminals: Iterable[str], alphabet: bytes | None):
        self.productions: list[Production] = []
        self._terminals, self._alphabet = set(terminals), alphabet
        self._numbers = {name: i for i, name in enumerate(rules)}
        self._new = itertools.count(len(rules))
        for name, body in rules.items():
            self._add(self._numbers[name], self._symbol(body))

    def _add(self, rule: int, *symbols: Hashable) -> None:
        self.productions.append((rule, symbols))

    def _symbol(self, part: Expression) -> Hashable:
        match part:
            case Reference(name) if name in self._terminals:
                return Terminal(name)
            case Reference(name):
                return self._numbers[name]
        rule = next(self._new)
        match part:
            case Literal() | Characters() if self._alphabet is None:
                return Terminal(part)
            case Literal() | Characters():
                for text in spellings(part, self._alphabet):
                    self._add(rule, *map(Terminal, text))
            case Sequence(parts):
                self._add(rule, *map(self._symbol, parts))
            case Choice(parts):
                for alternative in parts:
                    self._add(rule, self._symbol(alternative))
            case Repetition(inside, low, high):
                symbol = self._symbol(inside)
                for count in range(low, low + 1 if high is None else high + 1):
                    self._add(rule, *[symbol] * count)
                if high is None:
                    self._add(rule, rule, symbol)
        return rule


# -- GBNF ------------------------------------------------------------------------------


class Scannerless:
    """Reads the bytes of a text as terminals. A state is one of the parser.

    Args:
        rules: by name. The first one is the start.
        alphabet: the bytes of texts.
    """

    def __init__(self, rules: Mapping[str, Expression], alphabet: bytes):
        self._parser = Parser(_Productions(rules, (), alphabet).productions, 0, prunes=True)
        self.has_dead_rules = self._parser.has_dead_rules
        self.start: ParserState | None = self._parser.start if self._parser.has_texts else None

    def step(self, state: ParserState, byte: int) -> ParserState | None:
        return self._parser.step(state, frozenset([byte]))

    def accepts(self, state: ParserState) -> bool:
        return self._parser.accepts(state)

    def is_finishable(self, state: ParserState) -> bool:
        """Whether the text may go on to the end of one: always, see ``Parser``."""
        return True


# -- terminals, by derivatives ---------------------------------------------------------

# A language is a tuple: ("none",), ("empty",), ("byte", b), ("sequence", a, b),
# ("or", frozenset), ("and", frozenset), ("not", a), ("star", a).
Language = tuple
NONE: Language = ("none",)
EMPTY: Language = ("empty",)


def sequence(a: Language, b: Language) -> Language:
    if NONE in (a, b):
        return NONE
    if a == EMPTY:
        return b
    return a if b == EMPTY else ("sequence", a, b)


def union(parts: Iterable[Language]) -> Language:
    flat = frozenset(x for p in parts for x in (p[1] if p[0] == "or" else [p])) - {NONE}
    return next(iter(flat), NONE) if len(flat) <= 1 else ("or", flat)


def intersection(parts: Iterable[Language]) -> Language:
    flat = frozenset(x for p in parts for x in (p[1] if p[0] == "and" else [p]))
    if NONE in flat:
        return NONE
    return next(iter(flat)) if len(flat) == 1 else ("and", flat)


def has_empty_text(a: Language) -> bool:
    match a[0]:
        case "empty" | "star":
            return True
        case "sequence":
            return has_empty_text(a[1]) and has_empty_text(a[2])
        case "or":
            return any(map(has_empty_text, a[1]))
        case "and":
            return all(map(has_empty_text, a[1]))
        case "not":
            return not has_empty_text(a[1])
    return False


@functools.lru_cache(1 << 16)
def derivative(a: Language, byte: int) -> Language:
    """The rests of the texts that begin with a byte."""
    match a[0]:
        case "byte":
            return EMPTY if a[1] == byte else NONE
        case "sequence":
            first = sequence(derivative(a[1], byte), a[2])
            return union([first, derivative(a[2], byte)]) if has_empty_text(a[1]) else first
        case "or":
            return union(derivative(x, byte) for x in a[1])
        case "and":
            return intersection(derivative(x, byte) for x in a[1])
        case "not":
            return ("not", derivative(a[1], byte))
        case "star":
            return sequence(derivative(a[1], byte), a)
    return NONE


@functools.lru_cache(1 << 14)
def has_texts(a: Language, alphabet: bytes) -> bool:
    seen, todo = {a}, [a]
    while todo:
        other = todo.pop()
        if has_empty_text(other):
            return True
        new = {derivative(other, byte) for byte in alphabet} - seen
        seen |= new
        todo += new
    return False


def language(part: Expression, terminals: Mapping[str, Expression], alphabet: bytes) -> Language:
    def of(other: Expression) -> Language:
        return language(other, terminals, alphabet)

    match part:
        case Literal() | Characters():
            return union(
                functools.reduce(sequence, [("byte", b) for b in text], EMPTY) for text in spellings(part, alphabet)
            )
        case Sequence(parts):
            return functools.reduce(sequence, map(of, parts), EMPTY)
        case Choice(parts):
            return union(map(of, parts))
        case Both(parts):
            return intersection(map(of, parts))
        case Other(inside):
            return ("not", of(inside))
        case Repetition(inside, low, high):
            one = of(inside)
            rest = ("star", one) if high is None else EMPTY
            for _ in range(0 if high is None else high - low):
                rest = union([EMPTY, sequence(one, rest)])
            return functools.reduce(lambda tail, _: sequence(one, tail), range(low), rest)
        case Reference(name):
            return of(terminals[name])
    raise TypeError(part)


# -- Lark ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LexedState:
    """What has been parsed, and what the text since then is the beginning of.

    Attributes:
        parsed: the state of the parser after the last terminal.
        begun: each terminal that the text since then begins, with the rests of it.
        is_started: whether there is a text since then.
        may_ignore: whether something ignored may come before the next terminal.
    """

    parsed: ParserState
    begun: frozenset[tuple[Hashable, Language]]
    is_started: bool
    may_ignore: bool


IGNORED = "%ignore"


class Lexed:
    """Reads a text by terminals.

    Args:
        rules: by name. The first one is the start. Their texts and classes are
            terminals too.
        terminals: by name.
        ignored: what may stand between two terminals, or None.
        alphabet: all bytes that there are for the lexer.
        available: the bytes of texts, some of the alphabet. The lexer follows terminals
            also where they go on with other bytes.
        prunes: whether rules and terminals without a text are removed. llguidance keeps
            them.
    """

    def __init__(
        self,
        rules: Mapping[str, Expression],
        terminals: Mapping[str, Expression],
        ignored: Expression | None,
        alphabet: bytes,
        available: bytes,
        *,
        prunes: bool = True,
    ):
        productions = _Productions(rules, terminals, None).productions
        values = {s.value for _, symbols in productions for s in symbols if isinstance(s, Terminal)}
        self._languages = {
            value: language(Reference(value) if isinstance(value, str) else value, terminals, alphabet)
            for value in values
        }
        for value, texts in self._languages.items():
            if has_empty_text(texts):  # may be left out
                productions = list(_with_optional(productions, Terminal(value)))
        if prunes:
            without = {Terminal(v) for v, texts in self._languages.items() if not has_texts(texts, alphabet)}
            productions = [p for p in productions if without.isdisjoint(p[1])]
        if ignored is not None:
            self._languages[IGNORED] = language(ignored, terminals, alphabet)
        self._alphabet, self._available = alphabet, available
        self._parser = Parser(productions, 0, prunes=prunes)
        self.start = self._after(self._parser.start, may_ignore=False) if self._parser.has_texts else None
        self._finishable: dict[LexedState, bool | None] = {}

    def step(self, state: LexedState, byte: int) -> LexedState | None:
        begun = self._rests(state.begun, byte)
        if begun:
            return LexedState(state.parsed, begun, True, state.may_ignore)
        after = self._ended(state)
        if after is None:
            return None
        begun = self._rests(after.begun, byte)
        return LexedState(after.parsed, begun, True, after.may_ignore) if begun else None

    def accepts(self, state: LexedState) -> bool:
        """Whether the text may end here."""
        after = self._ended(state) if state.is_started else state
        return after is not None and self._parser.accepts(after.parsed)

    def is_finishable(self, state: LexedState, max_states: int = 300) -> bool | None:
        """Whether the text may go on to the end of one. None if a search of
        ``max_states`` states does not tell."""
        if state not in self._finishable:
            self._finishable[state] = self._search(state, max_states)
        return self._finishable[state]

    def _search(self, state: LexedState, max_states: int) -> bool | None:
        seen, todo = {state}, [state]
        for other in todo:
            if self.accepts(other):
                return True
            for byte in self._available:
                new = self.step(other, byte)
                if new is not None and new not in seen:
                    if self._finishable.get(new):
                        return True
                    seen.add(new)
                    todo.append(new)
            if len(seen) > max_states:
                return None
        return False

    def _after(self, parsed: ParserState, *, may_ignore: bool) -> LexedState:
        allowed = parsed.allowed()
        if may_ignore and allowed and IGNORED in self._languages:
            allowed.add(IGNORED)
        return LexedState(parsed, frozenset((t, self._languages[t]) for t in allowed), False, may_ignore)

    def _rests(self, begun: Iterable[tuple[Hashable, Language]], byte: int) -> frozenset[tuple[Hashable, Language]]:
        rests = ((terminal, derivative(texts, byte)) for terminal, texts in begun)
        return frozenset((terminal, rest) for terminal, rest in rests if has_texts(rest, self._alphabet))

    def _ended(self, state: LexedState) -> LexedState | None:
        """The state after the terminals that have the text up to here."""
        terminals = frozenset(terminal for terminal, rest in state.begun if has_empty_text(rest))
        if IGNORED in terminals:
            return self._after(state.parsed, may_ignore=state.may_ignore)
        parsed = self._parser.step(state.parsed, terminals) if terminals else None
        return None if parsed is None else self._after(parsed, may_ignore=True)


def _with_optional(productions: Iterable[Production], terminal: Terminal) -> Iterable[Production]:
    for rule, symbols in productions:
        choices = [((s,), ()) if s == terminal else ((s,),) for s in symbols]
        for chosen in itertools.product(*choices):
            yield rule, tuple(s for part in chosen for s in part)
