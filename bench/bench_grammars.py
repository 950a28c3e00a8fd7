"""Measures recursive grammars on structout's own engine, beside xgrammar and llguidance
alone.

    python bench/bench_grammars.py [--quick] [--grammars FOLDER] [--seconds S]
    python bench/bench_grammars.py --memory 1000000

For each grammar: the time until its first mask is there; masks along its texts,
compared with the masks of the other engines token by token; how many states and masks
the texts have, and how often a mask was known; the time of a mask that is known. Then
texts that are ambiguous or nested, and how much memory many random texts take: with
``--memory`` nothing but that is measured, and no row is written.

A folder has files ``NAME.gbnf`` and ``NAME.lark``, and ``texts.json``: the texts of
each. Default: the grammars of the tests.
"""

import itertools
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from engines_alone import Refused
from grammar_comparison import compared, first_line, last, middle
from grammar_engines import GRAMMARS, GrammarEngine, Llguidance, Own, Xgrammar, allowed_tokens, read_grammars
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from structout import allocate_token_bitmask
from structout.grammar.vocabulary import Vocabulary

NUM_FIRST_TEXTS = 20  # before hits are counted
NUM_BATCHED = 64
AMBIGUOUS = {
    "s s": ('root ::= s\ns ::= s s | "a" | "(" s ")"', "a"),
    "s s in brackets": ('root ::= s\ns ::= s s | "a" | "(" s ")"', "(a"),
    "s s s or s s": ('root ::= s\ns ::= s s s | s s | "a"', "a"),
    "operators": ('root ::= e\ne ::= e "+" e | e "*" e | "(" e ")" | [0-9]+', "1+2*(3+"),
    "palindromes": ('root ::= p\np ::= "a" p "a" | "b" p "b" | "" | [ab]', "ab"),
    "right recursion": ('root ::= x\nx ::= "a" x | "a"', "a"),
}
LONG_RUNS = ("go_like.lark", "java_like.lark")
NUM_SAMPLES = 10  # of the memory, along the tokens
MAX_TEXT_TOKENS = 1_000
NESTED = ("json.gbnf", '{"a": [', "1, 2", "]}")
DEPTHS = (1, 2, 5, 10, 50, 200, 1000)


def main() -> None:
    parser = harness.argument_parser("recursive grammars", quick="a small vocabulary, the first two texts of each")
    parser.add_argument("--grammars", type=Path, default=GRAMMARS, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=6, help="for the masks of each engine and grammar")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="files of the folder")
    parser.add_argument("--drawn", type=int, default=18, metavar="N", help="texts of each grammar drawn from masks")
    parser.add_argument("--memory", type=int, metavar="TOKENS", help="only draw so many tokens of each long run")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer) if arguments.quick else VOCAB_SIZE)
    own = Own(vocabulary)
    if arguments.memory:
        for row in long_runs(own, vocabulary, arguments.memory):
            print(row)
        return
    peers: list[GrammarEngine] = [Llguidance(tokenizer, vocabulary), Xgrammar(vocabulary)]
    engines: list[GrammarEngine] = [own, *peers]
    results = harness.ResultsFile("grammars", torch.device("cpu"), arguments)
    names = {"vocabulary": tokenizer.name_or_path}
    seconds, num_texts, num_bytes = (2.0, 2, 60) if arguments.quick else (arguments.seconds, None, 2000)
    for name, (grammar, texts) in read_grammars(arguments.grammars).items():
        if arguments.only and name not in arguments.only:
            continue
        tokens = [tokenizer.encode(text, add_special_tokens=False) for text in texts[:num_texts]]
        chosen = peers if name.endswith(".gbnf") else peers[:1]  # xgrammar reads Lark without a lexer
        row = names | {"grammar": name, "ready_ms": {e.name: ready_ms(e, grammar) for e in (own, *chosen)}}
        try:
            row["own"] = own_masks(own, grammar, tokens)
            drawn = drawn_texts(own, grammar, tokens, vocabulary, 1 if arguments.quick else arguments.drawn)
            row["masks"] = compared(own, chosen, grammar, [*tokens, *drawn], vocabulary, seconds)
        except Refused as error:
            row["refused"] = str(error)
        results.add(row)
        print(describe(row))
    for name, (grammar, unit) in AMBIGUOUS.items():
        row = names | {"ambiguous": name, "bytes": num_bytes}
        row["us_a_byte"] = {e.name: us_a_byte(e, grammar, unit, num_bytes, vocabulary, seconds) for e in engines}
        results.add(row)
        print(f"{name:16} {row['us_a_byte']}")
    for row in nested(own, tokenizer, DEPTHS[:4] if arguments.quick else DEPTHS):
        results.add(names | row)
        print(row)
    for row in long_runs(own, vocabulary, 2_000 if arguments.quick else 30_000):
        results.add(names | row)
        print(row)
    results.close()


def ready_ms(engine: GrammarEngine, grammar: str) -> float | None:
    """CPU time until the first mask, the median of three. None if the engine refuses
    the grammar."""
    times: list[float] = []
    while len(times) < (1 if sum(times) > 1 else 3):
        start = time.process_time()
        try:
            engine.start(engine.compile(grammar)).fill()
        except Refused:
            return None
        times.append(time.process_time() - start)
    return round(1e3 * statistics.median(times), 2)


def own_masks(own: Own, grammar: str, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """States, masks and times along texts. Raises ``Refused``.

    A state is new, and its mask known, if the same mask was there before. The walks
    over the vocabulary for it may be new all the same: ``known_pieces_us`` is without
    those.
    """
    compiled = own.compile(grammar)
    states: set[int] = set()
    masks: set[bytes] = set()
    hit_us: list[float] = []
    new_state_us: list[float] = []
    known_pieces_us: list[float] = []
    miss_us: list[float] = []
    late, late_hits, num_refused = 0, 0, 0
    places: list[Any] = []
    for number, tokens in enumerate(texts):
        text, row = compiled.copy(), allocate_token_bitmask(1, own.backend.vocabulary.size, pin_memory=False)
        for token in tokens:
            state = text.state_id()
            num_pieces = own.num_pieces(compiled)
            start = time.perf_counter()
            text.fill_bitmask(row, 0)
            took = 1e6 * (time.perf_counter() - start)
            mask = row.numpy().tobytes()
            (miss_us if mask not in masks else hit_us if state in states else new_state_us).append(took)
            if mask in masks and state not in states and own.num_pieces(compiled) == num_pieces:
                known_pieces_us.append(took)
            late += number >= NUM_FIRST_TEXTS
            late_hits += number >= NUM_FIRST_TEXTS and mask in masks
            states.add(state)
            masks.add(mask)
            places.append(text.fork())
            if not text.accept_tokens("", [token]):
                num_refused += 1
                break
    measured: dict[str, Any] = {"tokens": len(places), "refused_texts": num_refused}
    measured |= {"states": len(states), "masks": len(masks)}
    measured |= {"hit_us": middle(hit_us), "new_state_us": middle(new_state_us), "new_state_us_p99": last(new_state_us)}
    measured |= {"known_pieces_us": middle(known_pieces_us), "known_pieces_us_p99": last(known_pieces_us)}
    measured |= {"miss_us": middle(miss_us), "miss_us_max": round(max(miss_us, default=0), 1)}
    measured |= {
        "hit_rate_late": round(late_hits / late, 5) if late else None,
        "batched_hit_us": batched_us(own, places),
    }
    return measured | {"memory_bytes": compiled.memory_bytes}


def batched_us(own: Own, places: Sequence[Any]) -> float | None:
    """Microseconds a row of a batch whose masks are known."""
    chosen = random.Random(0).choices(places, k=NUM_BATCHED) if places else []
    rows = allocate_token_bitmask(NUM_BATCHED, own.backend.vocabulary.size, pin_memory=False)
    times = []
    for _ in range(50 if chosen else 0):
        start = time.perf_counter()
        own.backend.fill_bitmask_batch(chosen, rows, range(NUM_BATCHED))
        times.append(time.perf_counter() - start)
    return middle([1e6 * t / NUM_BATCHED for t in times])


def drawn_texts(
    own: Own, grammar: str, texts: Sequence[Sequence[int]], vocabulary: Vocabulary, count: int
) -> list[list[int]]:
    """Texts whose beginning is a part of a given text, and that go on with tokens drawn
    from masks: half of them by their first byte."""
    rng, compiled = random.Random(1), own.compile(grammar)
    first_byte = np.array([token[0] if token else 0 for token in vocabulary.token_bytes])
    drawn = []
    for _ in range(count):
        begun = list(rng.choice(texts)) if texts else []
        tokens = begun[: rng.randint(0, len(begun))]
        steps = own.start(compiled)
        tokens = list(itertools.takewhile(steps.accept, tokens))
        while len(tokens) < len(begun) + 40:
            steps.fill()
            allowed = np.flatnonzero(allowed_tokens(steps.row, vocabulary.size))
            allowed = allowed[~np.isin(allowed, vocabulary.stop_token_ids)]
            if not len(allowed):
                break
            if rng.random() < 0.5:
                allowed = allowed[first_byte[allowed] == rng.choice(np.unique(first_byte[allowed]).tolist())]
            token = int(rng.choice(allowed.tolist()))
            if not steps.accept(token):
                raise AssertionError(f"a mask allows token {token}, which is not accepted")
            tokens.append(token)
        drawn.append(tokens)
    return drawn


def us_a_byte(
    engine: GrammarEngine, grammar: str, unit: str, num_bytes: int, vocabulary: Vocabulary, seconds: float
) -> dict[str, Any]:
    """Microseconds for the mask and the step of each byte of a text that repeats
    ``unit``. The text ends where the time is over."""
    id_of_byte = {token: i for i, token in enumerate(vocabulary.token_bytes) if len(token) == 1}
    try:
        steps = engine.start(engine.compile(grammar))
        times: list[float] = []
        start = time.perf_counter()
        for number in range(num_bytes):
            before = time.perf_counter()
            steps.fill()
            if not steps.accept(id_of_byte[unit[number % len(unit)].encode()]):
                raise Refused(f"byte {number} is not accepted")
            times.append(1e6 * (time.perf_counter() - before))
            if time.perf_counter() - start > seconds:
                break
    except Refused as error:
        return {"error": first_line(error)}
    return {"bytes": len(times), "mean": round(statistics.mean(times), 1), "max": round(max(times))}


def nested(own: Own, tokenizer: Any, depths: Sequence[int]) -> list[dict[str, Any]]:
    """Texts that are nested more and more, all of one grammar."""
    name, begin, inside, end = NESTED
    try:
        compiled = own.compile((GRAMMARS / name).read_text())
    except Refused as error:
        return [{"nested": name, "refused": first_line(error)}]
    masks: set[bytes] = set()
    rows: list[dict[str, Any]] = []
    for depth in depths:
        tokens = tokenizer.encode(begin * depth + inside + end * depth, add_special_tokens=False)
        steps, times, hits = own.start(compiled), [], 0
        for token in tokens:
            before = time.perf_counter()
            steps.fill()
            times.append(1e6 * (time.perf_counter() - before))
            mask = steps.row.numpy().tobytes()
            hits += mask in masks
            masks.add(mask)
            if not steps.accept(token):
                raise AssertionError(f"a text nested {depth} deep is refused")
        rate = round(hits / len(tokens), 5)
        row: dict[str, Any] = {"nested": name, "depth": depth, "tokens": len(tokens), "masks": len(masks)}
        rows.append(row | {"hit_rate": rate, "us": middle(times), "us_p99": last(times)})
    return rows


def long_runs(own: Own, vocabulary: Vocabulary, num_tokens: int) -> list[dict[str, Any]]:
    """The memory of a grammar along random texts, one after the other: after each tenth
    of the tokens."""
    rows = []
    for name in LONG_RUNS:
        compiled, rng = own.compile((GRAMMARS / name).read_text()), random.Random(name)
        samples: list[int] = []
        drawn, num_texts, start = 0, 0, time.perf_counter()
        while drawn < num_tokens:
            steps, num_texts = own.start(compiled), num_texts + 1
            for _ in range(MAX_TEXT_TOKENS):
                steps.fill()
                token = random_token(steps.row[0].numpy(), vocabulary, rng)
                if token is None:
                    break
                if not steps.accept(token):
                    raise AssertionError(f"a mask allows token {token}, which is not accepted")
                drawn += 1
                if drawn * NUM_SAMPLES // num_tokens > len(samples):
                    samples.append(compiled.memory_bytes)
        took = 1e6 * (time.perf_counter() - start) / drawn
        row: dict[str, Any] = {"long_run": name, "tokens": drawn, "texts": num_texts}
        rows.append(row | {"memory_bytes": samples, "us_a_token": round(took, 1)})
    return rows


def random_token(row: np.ndarray[Any, Any], vocabulary: Vocabulary, rng: random.Random) -> int | None:
    """A token of a mask that does not end the text. None if there is no other."""
    words = row.view(np.uint32)
    for _ in range(20):  # where much is allowed, one is soon found
        token = rng.randrange(vocabulary.size)
        if words[token >> 5] >> (token & 31) & 1 and token not in vocabulary.stop_token_ids:
            return token
    filled = np.flatnonzero(words)
    rng.shuffle(order := filled.tolist())
    for word in order:
        bits = [32 * word + bit for bit in range(32) if words[word] >> bit & 1]
        tokens = [token for token in bits if token not in vocabulary.stop_token_ids]
        if tokens:
            return rng.choice(tokens)
    return None


def describe(row: dict[str, Any]) -> str:
    ready = "  ".join(f"{name} {ms} ms" for name, ms in row["ready_ms"].items())
    if "refused" in row:
        return f"{row['grammar']:24} ready: {ready}\n    refused: {row['refused']}"
    lines = [f"{row['grammar']:24} ready: {ready}", f"    own: {row['own']}"]
    for peer, counts in row["masks"].items():
        lines.append(f"    {peer}: { {key: value for key, value in counts.items() if key != 'reasons'} }")
        lines += [f"        {reason}: {examples}" for reason, examples in counts.get("reasons", {}).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
