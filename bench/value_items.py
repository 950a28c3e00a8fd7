"""Prompts with known answers, made from templates: what bench_values.py asks a model.

Each of the four sets has kinds of prompts; a kind has one JSON schema. The prompt says
which keys to write. Most kinds show examples, as earlier turns of the chat. Two show
none: there the model chooses its own whitespace.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Chat = list[dict[str, str]]
Draw = Callable[[random.Random], tuple[str, Any]]  # a text, and the value that it asks for


@dataclass(frozen=True)
class Kind:
    """Prompts that share a task and a schema.

    Attributes:
        count: how many of them the set has.
        num_examples: answered texts before the one that is asked.
    """

    name: str
    count: int
    num_examples: int
    task: str
    schema: dict[str, Any]
    draw: Draw

    def items(self) -> list[tuple[Chat, Any]]:
        """Chats, and the answer of each. A larger ``count`` adds to them."""
        rng = random.Random(self.name)
        chat = [_turn("system", f"You answer with JSON and nothing else. {self.task}")]
        while len(chat) < 1 + 2 * self.num_examples:
            text, answer = self.draw(rng)
            chat += [_turn("user", text), _turn("assistant", json.dumps(answer))]
        drawn = [self.draw(rng) for _ in range(self.count)]
        return [([*chat, _turn("user", text)], answer) for text, answer in drawn]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


FIRST_NAMES = "Ada Boris Carla Daniel Elena Felix Greta Hugo Irene Jonas Karin Luis Maria Nadia Oscar Paula".split()
LAST_NAMES = "Keller Lopez Marsh Novak Olsen Petrov Quinn Rossi Schmidt Tanaka Weber Young".split()
CITIES = "Berlin Cairo Denver Geneva Lima Madrid Oslo Paris Prague Rome Seoul Toronto Vienna Warsaw".split()
STREETS = ["Oak Street", "Mill Lane", "Park Avenue", "Station Road", "Hill Street", "River Road"]
GOODS = ["apples", "blue pens", "candles", "coffee cups", "garden chairs", "notebooks", "red lamps", "towels"]
MONTHS = ("January February March April May June July August September October November December").split()


def record(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has these keys and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def person(rng: random.Random) -> tuple[str, Any]:
    name, age = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}", rng.randint(18, 79)
    street, number, city = rng.choice(STREETS), rng.randint(1, 99), rng.choice(CITIES)
    text = rng.choice(
        [
            f"{name} is {age} years old and lives at {number} {street} in {city}.",
            f"At {number} {street}, {city}, you will find {name}, who turned {age} this year.",
            f"My neighbour {name} ({age}) has moved to {city}; the new address is {number} {street}.",
        ]
    )
    return text, {"name": name, "age": age, "address": {"street": f"{number} {street}", "city": city}}


def order(rng: random.Random) -> tuple[str, Any]:
    name, item, count = rng.choice(FIRST_NAMES), rng.choice(GOODS), rng.randint(2, 40)
    price = rng.randint(1, 60) + rng.choice([0.25, 0.5, 0.75])
    text = rng.choice(
        [
            f"{name} would like {count} {item} for {price} dollars each.",
            f"Please send {count} {item} to {name}. One costs {price} dollars.",
            f"For {price} dollars each, {name} takes {count} {item}.",
        ]
    )
    return text, {"customer": name, "item": {"name": item, "quantity": count, "price": price}}


def meeting(rng: random.Random) -> tuple[str, Any]:
    names, room = rng.sample(FIRST_NAMES, rng.randint(2, 3)), rng.randint(100, 499)
    city, day = rng.choice(CITIES), rng.choice("Monday Tuesday Wednesday Thursday Friday".split())
    who = f"{', '.join(names[:-1])} and {names[-1]}"
    text = rng.choice(
        [
            f"{who} meet on {day} in room {room} of the {city} office.",
            f"On {day} room {room} in {city} is booked for {who}.",
        ]
    )
    return text, {"day": day, "place": {"city": city, "room": room}, "attendees": names}


def book(rng: random.Random) -> tuple[str, Any]:
    first, last, year = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES), rng.randint(1900, 2020)
    adjective = rng.choice("Silent Golden Broken Hidden Last".split())
    title = f"The {adjective} {rng.choice('River Garden Tower Letter Winter'.split())}"
    pages = rng.randint(90, 800)
    text = rng.choice(
        [
            f'"{title}" was written by {first} {last} in {year}. It has {pages} pages.',
            f'In {year} {first} {last} published "{title}", a novel of {pages} pages.',
        ]
    )
    return text, {"title": title, "author": {"first": first, "last": last}, "year": year, "pages": pages}


LABELS = {
    "sports": [
        "{n} scored twice in the final match.",
        "The team from {c} won the cup.",
        "{n} ran the marathon in {c}.",
    ],
    "weather": [
        "Heavy rain is expected in {c} tomorrow.",
        "It snowed all night in {c}.",
        "A storm with strong wind is near {c}.",
    ],
    "food": [
        "{n} baked a cake with cherries.",
        "The soup in {c} tasted of garlic.",
        "Fry the onions in butter, says {n}.",
    ],
    "music": ["{n} plays the violin in an orchestra.", "The band sang their new song in {c}.", "{n} bought a piano."],
    "travel": [
        "{n} booked a flight to {c}.",
        "Our hotel in {c} is close to the beach.",
        "The train to {c} leaves at noon with {n}.",
    ],
    "money": [
        "The bank in {c} raised its interest rates.",
        "{n} pays taxes and saves the rest.",
        "Shares fell on the market in {c}.",
    ],
    "health": [
        "{n} has a fever and saw a doctor.",
        "The hospital in {c} needs nurses.",
        "{n} takes pills against headache.",
    ],
    "animals": [
        "{n} feeds two cats and a dog.",
        "The zoo in {c} has a young elephant.",
        "Birds build nests, {n} explains.",
    ],
}


def topic(rng: random.Random) -> tuple[str, Any]:
    label = rng.choice(list(LABELS))
    text = rng.choice(LABELS[label]).format(n=rng.choice(FIRST_NAMES), c=rng.choice(CITIES))
    return text, {"topic": label}


TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "get_weather": ("the weather in a city", {"city": STRING}),
    "set_timer": ("start a timer", {"minutes": INTEGER}),
    "send_message": ("write to a person", {"to": STRING, "text": STRING}),
    "multiply": ("multiply two numbers", {"a": INTEGER, "b": INTEGER}),
    "book_table": ("reserve in a restaurant", {"people": INTEGER, "city": STRING}),
    "play_song": ("play music", {"title": STRING}),
}


def call(rng: random.Random) -> tuple[str, Any]:
    city, name, a, b = rng.choice(CITIES), rng.choice(FIRST_NAMES), rng.randint(2, 90), rng.randint(2, 90)
    words = rng.choice(["I am late", "happy birthday", "dinner is ready", "see you soon", "call me back"])
    song = f"{rng.choice('Blue Silver Summer Night'.split())} {rng.choice('Train Moon Rain Dance'.split())}"
    texts, tool, arguments = rng.choice(
        [
            ([f"Will it rain in {city} today?", f"How warm is it in {city}?"], "get_weather", {"city": city}),
            ([f"Wake me in {a} minutes.", f"Set a timer for {a} minutes."], "set_timer", {"minutes": a}),
            ([f"Tell {name}: {words}.", f"Write to {name}: {words}."], "send_message", {"to": name, "text": words}),
            ([f"What is {a} times {b}?", f"Multiply {a} by {b}."], "multiply", {"a": a, "b": b}),
            (
                [f"A table for {a} in {city}, please.", f"{a} of us want to eat in {city}."],
                "book_table",
                {"people": a, "city": city},
            ),
            ([f"Play {song}.", f"I want to hear the song {song}."], "play_song", {"title": song}),
        ]
    )
    return rng.choice(texts), {"tool": tool, "arguments": arguments}


def payment(rng: random.Random) -> tuple[str, Any]:
    year, month, day = rng.randint(2001, 2029), rng.randint(1, 12), rng.randint(1, 28)
    euros, cents = rng.randint(1, 9999), rng.randint(0, 99)
    area, number = rng.randint(200, 989), rng.randint(1000000, 9999999)
    date = rng.choice([f"{MONTHS[month - 1]} {day}, {year}", f"{day} {MONTHS[month - 1]} {year}"])
    amount = rng.choice([f"{euros:,}.{cents:02}", f"{euros}.{cents:02}"])
    digits = f"{number // 10000} {number % 10000:04}"
    phone = rng.choice(
        [f"({area}) {digits.replace(' ', '-')}", f"{area} {digits}", f"{area}.{digits.replace(' ', '.')}"]
    )
    text = rng.choice(
        [
            f"On {date} we received {amount} euros. Questions? Call {phone}.",
            f"Call {phone} about the {amount} euros that are due on {date}.",
        ]
    )
    return text, {
        "date": f"{year}-{month:02}-{day:02}",
        "amount": f"{euros}.{cents:02} EUR",
        "phone": f"{area}-{digits.replace(' ', '-')}",
    }


SETS: dict[str, list[Kind]] = {
    "extraction": [
        Kind(
            "person",
            25,
            2,
            "Read the person from the text: name, age, and the address with street and city.",
            record(name=STRING, age=INTEGER, address=record(street=STRING, city=STRING)),
            person,
        ),
        Kind(
            "order",
            25,
            2,
            "Read the order from the text: customer, and the item with name, quantity and price.",
            record(customer=STRING, item=record(name=STRING, quantity=INTEGER, price=NUMBER)),
            order,
        ),
        Kind(
            "meeting",
            25,
            0,
            "Read the meeting from the text: day, the place with city and room, and the list of attendees.",
            record(day=STRING, place=record(city=STRING, room=INTEGER), attendees={"type": "array", "items": STRING}),
            meeting,
        ),
        Kind(
            "book",
            25,
            0,
            "Read the book from the text: title, the author with first and last name, year, and pages.",
            record(title=STRING, author=record(first=STRING, last=STRING), year=INTEGER, pages=INTEGER),
            book,
        ),
    ],
    "classification": [
        Kind(
            "topic",
            100,
            3,
            f"Say what the text is about, as the topic: {', '.join(LABELS)}.",
            record(topic={"enum": list(LABELS)}),
            topic,
        )
    ],
    "tools": [
        Kind(
            "call",
            100,
            4,
            "Choose the tool for what the user wants, and its arguments. The tools:\n"
            + "\n".join(f"{name}({', '.join(arguments)}): {what}" for name, (what, arguments) in TOOLS.items()),
            {
                "anyOf": [
                    record(tool={"const": name}, arguments=record(**arguments))
                    for name, (_, arguments) in TOOLS.items()
                ]
            },
            call,
        )
    ],
    "fixed forms": [
        Kind(
            "payment",
            100,
            2,
            "Read the payment from the text: date as YYYY-MM-DD, amount as 0.00 EUR, and phone as 000-000-0000.",
            record(
                date={"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
                amount={"type": "string", "pattern": r"^\d+\.\d{2} EUR$"},
                phone={"type": "string", "pattern": r"^\d{3}-\d{3}-\d{4}$"},
            ),
            payment,
        )
    ],
}
