"""Random grammars without recursion, or with recursion at the end of a rule, in the
notations of xgrammar (GBNF) and llguidance (Lark), with texts that they accept."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from support.random_patterns import HOSTILE, PLAIN


@dataclass(frozen=True)
class Text:
    text: str

    def gbnf(self) -> str:
        return '"' + "".join(_escaped_in_gbnf(character, '"\\') for character in self.text) + '"'

    def lark(self) -> str:
        return json.dumps(self.text, ensure_ascii=False).replace("\x7f", "\\u007f")

    def sample(self, rng: random.Random) -> str:
        return self.text


@dataclass(frozen=True)
class Characters:
    ranges: tuple[tuple[str, str], ...]
    is_negated: bool

    def gbnf(self) -> str:
        return self._written(lambda character: _escaped_in_gbnf(character, "]\\^-"))

    def lark(self) -> str:
        return f"/{self._written(lambda character: f'{chr(92)}u{{{ord(character):x}}}')}/"

    def sample(self, rng: random.Random) -> str:
        if self.is_negated:
            others = [c for c in HOSTILE + PLAIN if not any(first <= c <= last for first, last in self.ranges)]
            return rng.choice(others)
        first, last = rng.choice(self.ranges)
        return chr(rng.randint(ord(first), ord(last)))

    def _written(self, escaped) -> str:
        members = [escaped(a) if a == b else f"{escaped(a)}-{escaped(b)}" for a, b in self.ranges]
        return f"[{'^' if self.is_negated else ''}{''.join(members)}]"


@dataclass(frozen=True)
class Sequence:
    parts: tuple

    def gbnf(self) -> str:
        return " ".join(_grouped(part, part.gbnf()) for part in self.parts) or '""'

    def lark(self) -> str:
        return " ".join(_grouped(part, part.lark()) for part in self.parts)

    def sample(self, rng: random.Random) -> str:
        return "".join(part.sample(rng) for part in self.parts)


@dataclass(frozen=True)
class Alternatives:
    parts: tuple

    def gbnf(self) -> str:
        return " | ".join(part.gbnf() for part in self.parts)

    def lark(self) -> str:
        return " | ".join(part.lark() for part in self.parts)

    def sample(self, rng: random.Random) -> str:
        return rng.choice(self.parts).sample(rng)


@dataclass(frozen=True)
class Repetition:
    part: object
    low: int
    high: int | None
    bounds: str

    def gbnf(self) -> str:
        return _grouped(self, self.part.gbnf()) + self.bounds

    def lark(self) -> str:
        return _grouped(self, self.part.lark()) + self.bounds

    def sample(self, rng: random.Random) -> str:
        high = self.low + 2 if self.high is None else self.high
        return "".join(self.part.sample(rng) for _ in range(rng.randint(self.low, high)))


@dataclass(frozen=True)
class Reference:
    number: int
    body: object

    def gbnf(self) -> str:
        return f"r-{self.number}" if self.number else "root"

    def lark(self) -> str:
        return f"R{self.number}"

    def sample(self, rng: random.Random) -> str:
        return self.body.sample(rng)


@dataclass(frozen=True)
class Grammar:
    """Rule 0 is the start. Rules refer to later rules only."""

    references: tuple[Reference, ...]

    def gbnf(self) -> str:
        return "\n".join(f"{rule.gbnf()} ::= {rule.body.gbnf()}" for rule in self.references)

    def lark(self) -> str:
        """One terminal for the whole text, so that llguidance does not cut it greedily
        into several."""
        rules = "\n".join(f"{rule.lark()}: {rule.body.lark()}" for rule in self.references)
        return f"start: R0\n{rules}"

    def gbnf_with_recursion(self, rng: random.Random) -> str:
        """The same rules, where ``(...)*`` at the top of a rule is written as recursion
        on the left or on the right."""
        lines = []
        for rule in self.references:
            name, body = rule.gbnf(), rule.body
            if isinstance(body, Repetition) and body.high is None and body.low <= 1:
                inside = _grouped(body, body.part.gbnf())
                once = f"{name} {inside}" if rng.random() < 0.5 else f"{inside} {name}"
                lines.append(f"{name} ::= {once} | {inside if body.low else '()'}")
            else:
                lines.append(f"{name} ::= {body.gbnf()}")
        return "\n".join(lines)

    def sample(self, rng: random.Random) -> str:
        return self.references[0].sample(rng)


def random_grammar(rng: random.Random) -> Grammar:
    references: list[Reference] = []
    for number in reversed(range(rng.randint(1, 4))):
        references.insert(0, Reference(number, _expression(rng, 3, references)))
    return Grammar(tuple(references))


def _expression(rng: random.Random, depth: int, references: list[Reference]):
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        if references and rng.random() < 0.4:
            return rng.choice(references)
        return _text(rng) if rng.random() < 0.5 else _characters(rng)
    if kind < 0.5:
        return Sequence(tuple(_expression(rng, depth - 1, references) for _ in range(rng.randint(2, 3))))
    if kind < 0.7:
        return Alternatives(tuple(_expression(rng, depth - 1, references) for _ in range(rng.randint(2, 3))))
    low = rng.randint(0, 2)
    high = low + rng.randint(1, 2)
    shapes = [(0, None, "*"), (1, None, "+"), (0, 1, "?"), (low, None, f"{{{low},}}"), (low, high, f"{{{low},{high}}}")]
    return Repetition(_expression(rng, depth - 1, references), *rng.choice(shapes))


def _text(rng: random.Random) -> Text:
    return Text("".join(_character(rng) for _ in range(rng.randint(1, 3))))


def _characters(rng: random.Random) -> Characters:
    ranges = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            first, last = sorted(rng.sample("abcxyz", 2))
        else:
            first = last = _character(rng)
        ranges.append((first, last))
    return Characters(tuple(ranges), rng.random() < 0.25)


def _character(rng: random.Random) -> str:
    return rng.choice(HOSTILE if rng.random() < 0.2 else PLAIN)


def _grouped(outer, written: str) -> str:
    inner = outer.part if isinstance(outer, Repetition) else outer
    needs_group = isinstance(inner, Alternatives) or (
        isinstance(outer, Repetition) and isinstance(inner, Sequence | Repetition)
    )
    return f"({written})" if needs_group else written


def _escaped_in_gbnf(character: str, escaped: str) -> str:
    if character in escaped:
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
