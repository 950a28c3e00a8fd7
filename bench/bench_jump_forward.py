"""Measures what forced text saves, and what it does to the texts, on the demo model.

    python bench/bench_jump_forward.py [--quick]

Greedy texts for chat messages, one at a time on one thread, in each form of
jump-forward. "cut" is what an engine does that appends forced text without a look at
what follows: where the text ends, a token ends. A text is canonical if its tokens are
those of the tokenizer for the finished text. "nats" is the log-probability of its
tokens less that of the tokenizer's, under the model without masks. Draft has to write
what off writes.
"""

import functools
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import harness
import torch

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.cli.demo_model import load_demo_model
from structout.constraints.tools.definitions import read_tools
from structout.integrations.transformers import generate
from structout.jump_forward import JumpForward

MODES = {mode.value: mode for mode in JumpForward} | {"cut": JumpForward.FF_TOKENS}
Case = tuple[list[dict[str, str]], StructuredOutputsParams, bool]  # messages, constraint, whether whitespace is fixed


class CuttingManager(StructuredOutputManager):
    """Forced text is tokenized alone, and no token of it is left to the model."""

    def compute_ff_tokens(self, request_id: str) -> list[int]:
        return self.canonical_tokenizer().encode(self.find_jump_forward_string(request_id)) or []


def set_alarm(hour: int, minute: int, label: str) -> None:
    """Set an alarm clock."""


def convert_currency(amount: float, source: Literal["EUR", "JPY", "USD"], target: Literal["EUR", "JPY", "USD"]) -> None:
    """Convert an amount of money."""


def send_message(recipient: str, text: str) -> None:
    """Send a short message to a person."""


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> None:
    """Tell the weather in a city."""


TOOLS: list[Callable[..., None]] = [set_alarm, convert_currency, send_message, get_weather]
CALLS = [
    "Set an alarm for 6:45 with the label run.",
    "How much is 250 US dollars in euros?",
    "Tell Anna that the meeting starts at noon.",
    "What is the weather in Paris, in celsius?",
    "Wake me at 7:30 for school.",
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
PEOPLE = [
    "Maria Lopez is 34 years old and lives in Madrid.",
    "In Oslo lives Erik Hansen, who turned 61 last week.",
    "My neighbour Aiko Tanaka, 27, has moved to Kyoto.",
    "John Smith from Chicago is 45.",
    "Pierre Dubois, aged 52, runs a bakery in Lyon.",
    "The oldest of them is Ivan Petrov, 93, of Sofia.",
]
FORMS = {
    r"The date is [0-9]{4}-[0-9]{2}-[0-9]{2}\.": "Write the date 5 March 2024 as 'The date is YYYY-MM-DD.'",
    r"Call \+[0-9]{2} [0-9]{3} [0-9]{4} \(ask for [A-Z][a-z]+\)": "Write: Call +49 555 0199 (ask for Anna)",
    r"Sentiment: (positive|negative|neutral), confidence: (low|medium|high)": "Rate this review: I love this phone!",
}
SQL = """root ::= "SELECT " columns " FROM orders WHERE " column " " ("=" | "<" | ">") " " value ";"
columns ::= column (", " column){0,2}
column ::= "customer" | "total" | "city"
value ::= [0-9]{1,5} | "'" [A-Za-z ]{1,12} "'"
"""
QUESTIONS = ["Which customers live in Rome?", "Which orders have a total above 500?", "In which cities does Ada order?"]


def cases() -> dict[str, list[Case]]:
    """The cases of each kind."""

    def chat(system: str, text: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": system}, {"role": "user", "content": text}]

    described = "\n".join(json.dumps(tool.as_dict) for tool in read_tools(TOOLS))
    calling = f"Call one of these tools: {described}\nAnswer as <tool_call>\n{{...}}\n</tool_call>"
    call = StructuredOutputsParams(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    person = StructuredOutputsParams(json=PERSON)
    people = [chat("Extract the person as JSON (name, age, city).", text) for text in PEOPLE]
    table = "Answer with one SQL query on the table orders (customer, total, city)."
    return {
        "tool calls": [(chat(calling, text), call, True) for text in CALLS],
        "JSON, fixed whitespace": [(messages, person, True) for messages in people],
        "JSON, free whitespace": [(messages, person, False) for messages in people],
        "patterns": [
            (chat("You answer in one line.", text), StructuredOutputsParams(regex=regex), True)
            for regex, text in FORMS.items()
        ],
        "SQL": [(chat(table, text), StructuredOutputsParams(grammar=SQL), True) for text in QUESTIONS],
    }


@functools.cache
def log_probability(model: Any, prompt: tuple[int, ...], text: tuple[int, ...]) -> float:
    """The model's log-probability of a text after a prompt."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(text).unsqueeze(1)).sum())


class Bench:
    """The demo model, with the number of its forward passes so far."""

    def __init__(self) -> None:
        self.model, self._tokenizer, self.directory = load_demo_model()
        self._num_passes = 0
        self.model.register_forward_pre_hook(self._count)
        width = self.model.get_output_embeddings().weight.shape[0]
        self._managers = {
            (made, is_fixed): made(self._tokenizer, width, StructuredOutputsConfig(any_whitespace=not is_fixed))
            for made in (StructuredOutputManager, CuttingManager)
            for is_fixed in (True, False)
        }

    def _count(self, *_: object) -> None:
        self._num_passes += 1

    def write(self, case: Case, mode: str) -> tuple[str, dict[str, float]]:
        """A text, and what was measured."""
        messages, params, is_fixed = case
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        manager = self._managers[CuttingManager if mode == "cut" else StructuredOutputManager, is_fixed]
        write = functools.partial(generate, self.model, self._tokenizer, prompt, params=params, manager=manager)
        num_before, start = self._num_passes, time.process_time()
        result = write(jump_forward=MODES[mode], max_new_tokens=120, do_sample=False)
        seconds, num_passes = time.process_time() - start, self._num_passes - num_before
        if not result.is_complete[0]:
            raise AssertionError(f"{mode} does not end: {result.texts[0]}")
        own = tuple(result.token_ids[0])
        canonical = tuple(self._tokenizer(result.texts[0], add_special_tokens=False)["input_ids"])
        own_log, canonical_log = (log_probability(self.model, tuple(prompt), tokens) for tokens in (own, canonical))
        return result.texts[0], {
            "tokens": result.usage[0].completion_tokens,
            "passes": num_passes,
            "seconds": seconds,
            "canonical": own == canonical,
            "nats": own_log - canonical_log,
        }


def main() -> None:
    arguments = harness.argument_parser("forced text on the demo model", quick="one text").parse_args()
    torch.set_num_threads(1)
    bench = Bench()
    results = harness.ResultsFile("jump_forward", torch.device("cpu"), arguments)
    for kind, given in list(cases().items())[-1 if arguments.quick else 0 :]:
        sums: dict[str, Counter[str]] = {mode: Counter() for mode in MODES}
        for case in given[: 1 if arguments.quick else None]:
            written = {mode: bench.write(case, mode) for mode in MODES}
            if written["draft"][0] != written["off"][0]:
                raise AssertionError(f"draft wrote {written['draft'][0]!r} in place of {written['off'][0]!r}")
            for mode, (text, measured) in written.items():
                sums[mode].update({**measured, "same": text == written["off"][0]})
        for mode, row in sums.items():
            rounded = {name: round(value, 2) for name, value in row.items()}
            results.add({"kind": kind, "mode": mode, "texts": len(given), "model": bench.directory.name, **rounded})
            print(f"{kind:<22}{mode:<11}{rounded}", flush=True)
    results.close()


if __name__ == "__main__":
    main()
