"""What bench_limits.py and bench_limits_vllm.py ask a model: the kinds of
value_items.py, and constraints without known answers."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from value_items import INTEGER, NUMBER, SETS, STRING, Chat, record


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"], days: int = 1) -> None:
    """Weather of the next days."""


def send_message(to: str, subject: str, body: str) -> None:
    """Send a message."""


SQL = r"""
start: "SELECT" columns "FROM" NAME where? order? ";"
columns: "*" | NAME ("," NAME)*
where: "WHERE" condition (("AND" | "OR") condition)*
condition: NAME OPERATOR value | "(" condition ")"
value: NUMBER | TEXT | NAME
order: "ORDER BY" NAME ("ASC" | "DESC")?
OPERATOR: "=" | "<" | ">" | "<=" | ">="
NAME: /[a-z_]+/
NUMBER: /[0-9]+/
TEXT: /'[^']*'/
%ignore /[ \n]+/
"""


@dataclasses.dataclass(frozen=True)
class Asked:
    """One constraint and a prompt for it.

    Attributes:
        constraint: arguments of ``generate``.
    """

    name: str
    constraint: dict[str, Any]
    prompt: str


REVIEW = record(
    title=STRING,
    stars={"type": "integer", "minimum": 1, "maximum": 5},
    pros={"type": "array", "items": STRING, "minItems": 1},
    cons={"type": "array", "items": STRING},
    verdict={"enum": ["buy", "wait", "avoid"]},
)
SHAPE = {
    "anyOf": [
        record(kind={"const": "circle"}, radius=NUMBER),
        record(kind={"const": "rectangle"}, width=NUMBER, height=NUMBER, label=STRING),
    ]
}
ITEMS = (
    Asked(
        "recipe",
        {"json": {"type": "array", "items": record(name=STRING, grams=INTEGER), "minItems": 2}},
        "List what goes into a cake.",
    ),
    Asked("review", {"json": REVIEW}, "Review a cheap pair of headphones."),
    Asked("free object", {"json": {"type": "object"}}, "Describe a cat as JSON."),
    Asked("shape", {"json": SHAPE}, "Describe a rectangle of 3 by 4."),
    Asked("dates", {"regex": r"([0-9]{4}-[0-9]{2}-[0-9]{2}, ){2,}and [A-Z][a-z]+ [0-9]{1,2}"}, "Name some dates."),
    Asked("SQL", {"grammar": SQL}, "Select the names of all users above 30, in SQL."),
    Asked("tools", {"tools": [get_weather, send_message]}, "Tell Ada about the weather in Oslo."),
)


@dataclasses.dataclass(frozen=True)
class Task:
    """Prompts with one constraint, and their right answers, which are None where there
    is none."""

    name: str
    constraint: dict[str, Any]
    chats: list[Chat]
    answers: list[Any]

    def once(self) -> "Task":
        """The same with each prompt once."""
        firsts = [i for i, chat in enumerate(self.chats) if chat not in self.chats[:i]]
        return dataclasses.replace(
            self, chats=[self.chats[i] for i in firsts], answers=[self.answers[i] for i in firsts]
        )


def tasks(num_texts: int) -> Iterator[Task]:
    for kind in (kind for kinds in SETS.values() for kind in kinds):
        chats, answers = zip(*dataclasses.replace(kind, count=num_texts).items(), strict=True)
        yield Task(kind.name, {"json": kind.schema}, list(chats), list(answers))
    for item in ITEMS:
        chat = [{"role": "user", "content": item.prompt}]
        yield Task(item.name, item.constraint, [chat] * num_texts, [None] * num_texts)
