"""How many schemas have stack tables within a budget, how large these are, and what the
stack ops take.

    python bench/bench_stack_tables.py --schemas sample.jsonl [--device cpu|cuda]
        [--count N] [--quick]

Each schema's tables are built ahead in CPU time, with the keys in declared and in any
order. The texts of all instances are then followed by the ops beside the engine's own
matchers: places and masks must be equal. Last, requests at random places of these texts
take steps, with caches warm and with caches full of other data.
"""

import json
import random
import statistics
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch
from engines_alone import read_cases
from large_tokenizer import VOCAB_SIZE, large_tokenizer
from text_form import ordered, tokens_of, with_short_numbers

from structout import DeviceStacks, Vocabulary, stack_advance, stack_rows
from structout.errors import GrammarError
from structout.grammar.interface import StackTables
from structout.grammar.native.extension import core
from structout.grammar.native.json_schema import JsonSchemaGrammar, SchemaIndex, TextForm
from structout.grammar.native.token_index import vocabulary_trie
from structout.masks.bitmask import allocate_token_bitmask
from structout.ops.stack_tables import ASKED_STACK, MISSED_ROW

BUDGET_SECONDS = 0.05
MAX_STATES = 50_000
MAX_MASKS = 4096
STEPS = 40
SIZES = (1, 256, 1024)  # the first is the time of a call
EVICTED_BYTES = 96 << 20


def compiled(
    cases: list[dict[str, Any]], vocabulary: Vocabulary, key_order: str
) -> list[tuple[Any, JsonSchemaGrammar]]:
    found = []
    for case in cases:
        try:
            index = SchemaIndex(json.dumps(case["schema"]), vocabulary, TextForm(key_order=key_order))
        except GrammarError:
            continue
        found.append((case, JsonSchemaGrammar(index, vocabulary.size, vocabulary.stop_token_ids, None)))
    return found


def measure_builds(grammars: list[JsonSchemaGrammar], vocabulary: Vocabulary, key_order: str) -> dict[str, Any]:
    """Build the tables of each schema alone."""
    milliseconds, sizes, states = [], [], []
    for grammar in grammars:
        language = core().StackLanguage(grammar.index.native)
        tables = core().StackTables(vocabulary_trie(vocabulary), max_mask_bytes=0)
        number = tables.add(language, vocabulary.stop_token_ids)
        start = time.thread_time()
        is_complete = tables.build(number, max_states=MAX_STATES, seconds=BUDGET_SECONDS)
        if is_complete:
            milliseconds.append((time.thread_time() - start) * 1e3)
            sizes.append(tables.table_bytes)
            states.append(tables.num_states)
    return {
        "bench": "tables",
        "key_order": key_order,
        "schemas": len(grammars),
        "complete": len(sizes) / len(grammars),
        "kib_p50": statistics.median(sizes) / 1024,
        "states_p50": statistics.median(states),
        "ms_p50": statistics.median(milliseconds),
    }


def tables_of(grammar: JsonSchemaGrammar) -> StackTables:
    tables = grammar.stack_tables()
    assert tables is not None  # no text here reasons
    return tables


class Texts:
    """Valid instances as tokens, each with its schema's grammar."""

    def __init__(self, pairs: list[tuple[Any, JsonSchemaGrammar]], tokenizer: Any, key_order: str, max_each: int):
        self.found: list[tuple[JsonSchemaGrammar, list[int]]] = []
        for case, grammar in pairs:
            instances = [test["data"] for test in case["tests"] if test["valid"]][:max_each]
            for instance in instances:
                value = with_short_numbers(instance)
                tokens = tokens_of(ordered(value, case["schema"]) if key_order == "declared" else value, tokenizer)
                fresh = grammar.copy()
                if tokens and len(fresh.validate_tokens(tokens)) == len(tokens):
                    self.found.append((grammar, tokens))


def check(texts: Texts, vocabulary: Vocabulary, stacks: DeviceStacks) -> Counter[str]:
    """Follow all texts in the rows of ``stacks``, and compare with the engine."""
    found: Counter[str] = Counter()
    size = len(stacks.stacks)
    expected = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    for first in range(0, len(texts.found), size):
        batch = texts.found[first : first + size]
        grammars = [grammar.copy() for grammar, _ in batch]
        for row, grammar in enumerate(grammars):
            stacks.start(row, tables_of(grammar))
        for step in range(max(len(tokens) for _, tokens in batch) + 1):
            found["rows missed"] += int((stack_rows(stacks.stacks, stacks.tables) == MISSED_ROW).sum())
            found["rows asked"] += int((stacks.stacks[:, 0] == ASKED_STACK).sum())
            masks = stacks.masks[stacks.rows().long()].cpu()
            drawn = []
            for row, (grammar, (_, tokens)) in enumerate(zip(grammars, batch, strict=True)):
                drawn.append(tokens[step] if step < len(tokens) else vocabulary.stop_token_ids[0])
                if step > len(tokens):
                    continue
                found["rows"] += 1
                grammar.fill_bitmask(expected, 0)
                if not torch.equal(masks[row], expected[0]):
                    raise SystemExit(f"masks differ at token {step} of {tokens} of {first + row}")
                if not grammar.accept_tokens("", [drawn[-1]]):
                    raise SystemExit(f"the engine refuses token {step} of {tokens}")
            drawn += [-1] * (size - len(batch))
            stacks.advance(torch.tensor(drawn, device=stacks.device))
        if any(not grammar.is_terminated() for grammar in grammars):
            raise SystemExit("a text has not ended")
        found["texts"] += len(batch)
    return found


def random_places(
    texts: Texts, stacks: DeviceStacks, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Draw places of requests whose tables and masks are known.

    Returns:
        the places, the token after each, and the share of places that were left out
        because the engine follows them or fills their masks.
    """
    rng, device = random.Random(num_rows), stacks.device
    places: list[torch.Tensor] = []
    tokens: list[int] = []
    num_left_out = 0
    while len(places) < num_rows:
        grammar, text = rng.choice(texts.found)
        at = rng.randrange(len(text))
        stacks.start(0, tables_of(grammar)._replace(token_ids=tuple(text[:at])))
        place = stacks.stacks[:1].clone()
        has_mask = int(stack_rows(place, stacks.tables)) >= 0
        token = torch.tensor([text[at]], device=device)
        if has_mask and int(stack_advance(place.clone(), token, stacks.tables)) == 0:
            places.append(place[0])
            tokens.append(text[at])
        else:
            num_left_out += 1
    left_out = num_left_out / (num_left_out + num_rows)
    return torch.stack(places), torch.tensor(tokens, device=device), {"left_out": left_out}


def times_on_cpu(start: torch.Tensor, drawn: torch.Tensor, stacks: DeviceStacks, is_flushed: bool) -> dict[str, float]:
    """Return the median microseconds of each op."""
    evicted = torch.zeros(EVICTED_BYTES, dtype=torch.uint8)
    times: dict[str, list[float]] = {"rows_us": [], "advance_us": []}
    for _ in range(STEPS):
        current = start.clone()
        calls = partial(stack_rows, current, stacks.tables), partial(stack_advance, current, drawn, stacks.tables)
        for call, microseconds in zip(calls, times.values(), strict=True):
            if is_flushed:
                evicted.add_(1)
            begin = time.perf_counter()
            call()
            microseconds.append((time.perf_counter() - begin) * 1e6)
    return {name: statistics.median(microseconds) for name, microseconds in times.items()}


def times_on_cuda(start: torch.Tensor, drawn: torch.Tensor, stacks: DeviceStacks, is_flushed: bool) -> dict[str, float]:
    """Return the median microseconds of each op. That of stack_advance includes a copy,
    which puts the texts back."""
    current = start.clone()

    def advance() -> None:
        current.copy_(start)
        torch.ops.structout.stack_advance(current, drawn, *stacks.tables)

    calls = {"rows_us": lambda: torch.ops.structout.stack_rows(start, *stacks.tables), "advance_us": advance}
    state = "us" if is_flushed else "us_repeated"
    return harness.time_calls(calls, start.device, read_inputs=lambda: None, seconds=0.02)[state]


def main() -> None:
    parser = harness.argument_parser("stack tables: how many, how large, how fast", quick="few schemas")
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--count", type=int, default=520, help="schemas")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--followed", type=int, default=100, help="of them, whose instances are followed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = large_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, VOCAB_SIZE)
    cases = read_cases(arguments.schemas)
    cases = random.Random(0).sample(cases, min(len(cases), 20 if arguments.quick else arguments.count))
    device = torch.device(arguments.device)
    results = harness.ResultsFile("stack_tables", device, arguments)

    def add(row: dict[str, Any]) -> None:
        results.add(row)
        print(row, flush=True)

    for key_order in ("declared", "any"):
        pairs = compiled(cases, vocabulary, key_order)
        add(measure_builds([grammar for _, grammar in pairs], vocabulary, key_order))
        texts = Texts(pairs[: arguments.followed], tokenizer, key_order, 2 if arguments.quick else 10)
        stacks = DeviceStacks(vocabulary, device, 64, max_masks=MAX_MASKS)
        found = check(texts, vocabulary, stacks)
        add({"bench": "equal", "key_order": key_order, **found})
        for num_rows in SIZES:
            start, drawn, left_out = random_places(texts, stacks, num_rows)
            for is_flushed in (False, True):
                times = (times_on_cuda if start.is_cuda else times_on_cpu)(start, drawn, stacks, is_flushed)
                row: dict[str, Any] = {"bench": "step", "key_order": key_order, "rows": num_rows} | left_out
                add(row | {"flushed": is_flushed} | times | {"us": sum(times.values())})
    results.close()


if __name__ == "__main__":
    main()
