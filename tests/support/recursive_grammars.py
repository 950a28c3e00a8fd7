"""Random small grammars with recursion of every kind, in GBNF and in Lark."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
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

_CHARACTERS = "abc(), \né"
_BOUNDS = [(0, None, "*"), (1, None, "+"), (0, 1, "?"), (2, 2, "{2}"), (1, 3, "{1,3}")]
_SIGNS = {(low, high): sign for low, high, sign in _BOUNDS}


@dataclass(frozen=True)
class RecursiveGrammar:
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
        return "\n".join(f"{names[name]} ::= {_gbnf(body, names)}" for name, body in self.rules.items())

    def lark(self) -> str:
        names = dict(zip(self.rules, ["start", *list(self.rules)[1:]], strict=True))
        lines = [f"{names[name]}: {_lark(body, names)}" for name, body in self.rules.items()]
        lines += [f"{name}: {_lark(body, {})}" for name, body in self.terminals.items()]
        if self.ignored is not None:
            lines.append(f"%ignore {_lark(self.ignored, {})}")
        return "\n".join(lines)

    def tokens(self, rng: random.Random) -> list[bytes]:
        """Each byte, and longer texts."""
        longer = {bytes(rng.choices(self.alphabet, k=rng.randint(2, 4))) for _ in range(15)}
        longer |= {"".join(rng.choices(self.characters, k=rng.randint(2, 6))).encode() for _ in range(25)}
        return [bytes([byte]) for byte in self.alphabet] + sorted(longer)


def random_scannerless_grammar(rng: random.Random) -> RecursiveGrammar:
    """A grammar for GBNF."""
    characters = _characters(rng)

    def leaf() -> Expression:
        if rng.random() < 0.5:
            return Literal("".join(rng.choices(characters, k=rng.choice([1, 1, 2, 3]))))
        return _class(rng, characters)

    return RecursiveGrammar(_rules(rng, leaf), {}, None, characters)


def random_lexed_grammar(rng: random.Random) -> RecursiveGrammar:
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
    return RecursiveGrammar(_rules(rng, leaf), terminals, ignored, characters)


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
    low, high, _ = rng.choice(_BOUNDS)
    return Repetition(part, low, high)


def _terminal(rng: random.Random, characters: str, depth: int) -> Expression:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        if rng.random() < 0.6:
            return Literal("".join(rng.choices(characters, k=rng.choice([1, 2, 3]))))
        return _class(rng, characters)
    parts = tuple(_terminal(rng, characters, depth - 1) for _ in range(2))
    if kind < 0.55:
        return _repeated(rng, parts[0])
    if kind < 0.75:
        return Sequence(parts)
    if kind < 0.9:
        return Choice(parts)
    return Both((parts[0], Other(parts[1]))) if kind < 0.95 else Both((_repeated(rng, parts[0]), parts[1]))


def _gbnf(part: Expression, names: Mapping[str, str]) -> str:
    match part:
        case Literal(text):
            return json.dumps(text, ensure_ascii=False)
        case Characters(members, is_negated):
            escaped = "".join("\\n" if c == "\n" else c for c in members)
            return f"[{'^' * is_negated}{escaped}]"
        case Reference(name):
            return names[name]
        case Sequence(parts):
            return " ".join(_gbnf(p, names) for p in parts) or '""'
        case Choice(parts):
            return " | ".join(_gbnf(p, names) for p in parts)
        case Repetition(inside, low, high):
            return f"({_gbnf(inside, names)}){_SIGNS[low, high]}"
    raise TypeError(part)


def _lark(part: Expression, names: Mapping[str, str]) -> str:
    match part:
        case Literal(text):
            return json.dumps(text, ensure_ascii=False)
        case Characters(members, is_negated):
            escaped = "".join({"\n": "\\n", "(": "\\(", ")": "\\)"}.get(c, c) for c in members)
            return f"/[{'^' * is_negated}{escaped}]/"
        case Reference(name):
            return names.get(name, name)
        case Sequence(parts):
            return " ".join(_lark_group(p, names) for p in parts) or '""'
        case Choice(parts):
            return " | ".join(_lark(p, names) for p in parts)
        case Repetition(inside, low, high):
            return f"({_lark(inside, names)}){_SIGNS[low, high]}"
        case Both(parts):
            return " & ".join(_lark_group(p, names) for p in parts)
        case Other(inside):
            return f"~({_lark(inside, names)})"
    raise TypeError(part)


def _lark_group(part: Expression, names: Mapping[str, str]) -> str:
    written = _lark(part, names)
    return f"({written})" if isinstance(part, Choice | Sequence | Both) else written
