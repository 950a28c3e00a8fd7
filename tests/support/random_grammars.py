"""Random small grammars in GBNF and in Lark: with recursion of every kind, and regular
ones with texts that they have."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.grammar_judge import (
    Both,
    Characters,
    Choice,
    Expression,
    Lexed,
    Literal,
    Other,
    Reference,
    Repetition,
    Scannerless,
    Sequence,
)
from support.random_patterns import HOSTILE, PLAIN

_CHARACTERS = "abc(), \né"
_BOUNDS = [(0, None), (1, None), (0, 1), (2, 2), (1, 3), (2, None), (0, 2)]
_SIGNS = {(0, None): "*", (1, None): "+", (0, 1): "?", (2, 2): "{2}", (2, None): "{2,}"}


@dataclass(frozen=True)
class RandomGrammar:
    """The first rule is the start.

    Attributes:
        rules: by name.
        terminals: by name. None in GBNF.
        ignored: what ``%ignore`` names, or None.
        characters: those that the grammar is about.
    """

    rules: Mapping[str, Expression]
    terminals: Mapping[str, Expression]
    ignored: Expression | None
    characters: str

    @property
    def alphabet(self) -> bytes:
        return bytes(sorted(set(self.characters.encode())))

    def scannerless(self) -> Scannerless:
        return Scannerless(self.rules, self.alphabet)

    def lexed(self, *, prunes: bool = True) -> Lexed:
        more = self.characters + ("zè" if "é" in self.characters else "z")  # for negated classes
        alphabet = bytes(sorted(set(more.encode())))
        return Lexed(self.rules, self.terminals, self.ignored, alphabet, self.alphabet, prunes=prunes)

    def gbnf(self) -> str:
        names = dict(zip(self.rules, ["root", *list(self.rules)[1:]], strict=True))
        return "\n".join(f"{names[name]} ::= {_written(body, names, _gbnf)}" for name, body in self.rules.items())

    def lark(self) -> str:
        names = dict(zip(self.rules, ["start", *list(self.rules)[1:]], strict=True))
        lines = [f"{names[name]}: {_written(body, names, _lark)}" for name, body in self.rules.items()]
        lines += [f"{name}: {_written(body, {}, _lark)}" for name, body in self.terminals.items()]
        if self.ignored is not None:
            lines.append(f"%ignore {_written(self.ignored, {}, _lark)}")
        return "\n".join(lines)

    def as_terminals(self) -> RandomGrammar:
        """The same with one terminal for the whole text, so that llguidance does not
        cut it greedily into several."""
        return RandomGrammar({"start": Reference(next(iter(self.rules)))}, self.rules, None, self.characters)

    def with_recursion(self, rng: random.Random) -> RandomGrammar:
        """The same rules, where ``(...)*`` at the top of a rule is written as recursion
        on the left or on the right."""
        rules = dict(self.rules)
        for name, body in rules.items():
            if isinstance(body, Repetition) and body.high is None and body.low <= 1:
                once = Sequence(tuple(rng.sample([Reference(name), body.part], 2)))
                rules[name] = Choice((once, body.part if body.low else Sequence(())))
        return RandomGrammar(rules, self.terminals, self.ignored, self.characters)

    def sample(self, rng: random.Random) -> str:
        """A text of a regular grammar."""
        return self._sample(next(iter(self.rules.values())), rng)

    def _sample(self, part: Expression, rng: random.Random) -> str:
        match part:
            case Literal(text):
                return text
            case Characters(members, is_negated):
                return rng.choice([c for c in HOSTILE + PLAIN if c not in members] if is_negated else members)
            case Reference(name):
                return self._sample(self.rules[name], rng)
            case Sequence(parts):
                return "".join(self._sample(each, rng) for each in parts)
            case Choice(parts):
                return self._sample(rng.choice(parts), rng)
            case Repetition(inside, low, high):
                count = rng.randint(low, low + 2 if high is None else high)
                return "".join(self._sample(inside, rng) for _ in range(count))
        raise TypeError(part)

    def tokens(self, rng: random.Random) -> list[bytes]:
        """Each byte, and longer texts."""
        longer = {bytes(rng.choices(self.alphabet, k=rng.randint(2, 4))) for _ in range(15)}
        longer |= {"".join(rng.choices(self.characters, k=rng.randint(2, 6))).encode() for _ in range(25)}
        return [bytes([byte]) for byte in self.alphabet] + sorted(longer)


def random_scannerless_grammar(rng: random.Random) -> RandomGrammar:
    """A grammar for GBNF."""
    characters = _characters(rng)

    def leaf() -> Expression:
        if rng.random() < 0.5:
            return Literal("".join(rng.choices(characters, k=rng.choice([1, 1, 2, 3]))))
        return _class(rng, characters)

    return RandomGrammar(_rules(rng, leaf), {}, None, characters)


def random_lexed_grammar(rng: random.Random) -> RandomGrammar:
    """A grammar for Lark, whose terminals overlap."""
    characters = _characters(rng)
    terminals = {f"T{i}": _terminal(rng, characters, 2) for i in range(rng.randint(1, 4))}

    def leaf() -> Expression:
        if rng.random() < 0.6:
            return Reference(rng.choice(list(terminals)))
        if rng.random() < 0.7:
            return Literal("".join(rng.choices(characters, k=rng.choice([1, 1, 2]))))
        return _class(rng, characters)

    ignored = _terminal(rng, characters[:2], 1) if rng.random() < 0.4 else None
    return RandomGrammar(_rules(rng, leaf), terminals, ignored, characters)


def random_regular_grammar(rng: random.Random) -> RandomGrammar:
    """A grammar of characters of all kinds, whose rules refer to later rules only."""
    rules: dict[str, Expression] = {}

    def character() -> str:
        return rng.choice(HOSTILE if rng.random() < 0.2 else PLAIN)

    def characters() -> str:
        first, last = sorted(rng.sample("abcxyz", 2)) if rng.random() < 0.5 else [character()] * 2
        return "".join(map(chr, range(ord(first), ord(last) + 1)))

    def leaf() -> Expression:
        if rules and rng.random() < 0.4:
            return Reference(rng.choice(list(rules)))
        if rng.random() < 0.5:
            return Literal("".join(character() for _ in range(rng.randint(1, 3))))
        return Characters("".join(characters() for _ in range(rng.randint(1, 3))), rng.random() < 0.25)

    for number in reversed(range(rng.randint(1, 4))):
        rules = {f"R{number}": _expression(rng, 3, leaf), **rules}
    return RandomGrammar(rules, {}, None, HOSTILE + PLAIN)


def _characters(rng: random.Random) -> str:
    return "".join(rng.sample(_CHARACTERS, rng.choice([2, 3, 3, 4])))


def _class(rng: random.Random, characters: str) -> Characters:
    return Characters("".join(rng.sample(characters, rng.choice([1, 2]))), rng.random() < 0.25)


def _rules(rng: random.Random, leaf) -> dict[str, Expression]:
    names = [f"r{i}" for i in range(rng.randint(1, 4))]

    def part(has_rules: bool) -> Expression:
        found = Reference(rng.choice(names)) if has_rules and rng.random() < 0.5 else leaf()
        return _repeated(rng, found) if rng.random() < 0.2 else found

    def alternative(has_rules: bool) -> Expression:
        count = rng.choice([1, 1, 2, 2, 3]) if rng.random() < 0.93 else 0
        return Sequence(tuple(part(has_rules) for _ in range(count)))

    return {
        name: Choice((*(alternative(True) for _ in range(rng.randint(0, 2))), alternative(rng.random() < 0.1)))
        for name in names
    }


def _repeated(rng: random.Random, part: Expression) -> Repetition:
    return Repetition(part, *rng.choice(_BOUNDS))


def _terminal(rng: random.Random, characters: str, depth: int) -> Expression:
    def leaf() -> Expression:
        if rng.random() < 0.6:
            return Literal("".join(rng.choices(characters, k=rng.choice([1, 2, 3]))))
        return _class(rng, characters)

    def both(parts: tuple[Expression, ...]) -> Both:
        return Both((parts[0], Other(parts[1])) if rng.random() < 0.5 else (_repeated(rng, parts[0]), parts[1]))

    return _expression(rng, depth, leaf, both)


def _expression(
    rng: random.Random,
    depth: int,
    leaf: Callable[[], Expression],
    other: Callable[[tuple[Expression, ...]], Expression] = Choice,
) -> Expression:
    """Parts in parts, to a depth. ``other`` is a rare way to join two."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return leaf()
    parts = tuple(_expression(rng, depth - 1, leaf, other) for _ in range(2))
    if kind < 0.5:
        return _repeated(rng, parts[0])
    if kind < 0.7:
        return Sequence(parts)
    return Choice(parts) if kind < 0.9 else other(parts)


def _written(part: Expression, names: Mapping[str, str], leaf: Callable[[Literal | Characters], str]) -> str:
    """An expression in a notation, which differ in their texts and classes."""

    def grouped(each: Expression) -> str:
        written = _written(each, names, leaf)
        return f"({written})" if isinstance(each, Choice | Sequence | Both) else written

    match part:
        case Literal() | Characters():
            return leaf(part)
        case Reference(name):
            return names.get(name, name)
        case Sequence(parts):
            return " ".join(map(grouped, parts)) or '""'
        case Choice(parts):
            return " | ".join(_written(each, names, leaf) for each in parts)
        case Repetition(inside, low, high):
            return f"({_written(inside, names, leaf)}){_SIGNS.get((low, high), f'{{{low},{high}}}')}"
        case Both(parts):
            return " & ".join(map(grouped, parts))
        case Other(inside):
            return f"~({_written(inside, names, leaf)})"
    raise TypeError(part)


def _gbnf(part: Literal | Characters) -> str:
    def escaped(character: str, special: str) -> str:
        if character in special:
            return "\\" + character
        return character if character.isprintable() else f"\\U{ord(character):08x}"

    if isinstance(part, Literal):
        return '"' + "".join(escaped(character, '"\\') for character in part.text) + '"'
    return _class_of(part, lambda character: escaped(character, "]\\^-"))


def _lark(part: Literal | Characters) -> str:
    if isinstance(part, Literal):
        return json.dumps(part.text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"/{_class_of(part, lambda character: f'{chr(92)}u{{{ord(character):x}}}')}/"


def _class_of(part: Characters, escaped: Callable[[str], str]) -> str:
    """A class. Characters that follow one another are a range."""
    ranges: list[list[str]] = []
    for character in part.members:
        if ranges and ord(character) == ord(ranges[-1][-1]) + 1:
            ranges[-1].append(character)
        else:
            ranges.append([character])
    members = [escaped(each[0]) + (f"-{escaped(each[-1])}" if len(each) > 1 else "") for each in ranges]
    return f"[{'^' * part.is_negated}{''.join(members)}]"
