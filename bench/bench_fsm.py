r"""Measures structout's own engine: from a pattern to all masks beside
outlines_core, and the steps of a request.

    python bench/bench_fsm.py [--rounds 3] [--quick]

Both engines build the same index, for a vocabulary of 152,000 tokens, in alternation.
outlines_core gets ``(?:pattern)$``: without the end it leaves out tokens that lead from
one match towards a longer one. It reads ``\d``, ``\w`` and ``\s`` as Unicode classes,
so the patterns spell out what they mean. For some it needs minutes: those indices are
built once. Times are CPU times of one thread.
"""

import itertools
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import torch
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.params import StructuredOutputOptions
from structout.grammar.native.automaton import Automaton, AutomatonLimits
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.token_index import TokenIndex
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask

_LIMITS = AutomatonLimits(states=1 << 20, nodes=1 << 22, seconds=60)
_EMAIL = r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}"
_QUICK = ("phone", "email", "choice of 100")
_BUILT_ONCE = ("character, Unicode", "string of up to 200", "anything up to 200")  # by outlines_core
NUM_CHOICES = 5_000
NUM_STEPS = 200
NUM_REQUESTS = 256
NUM_DRAFTS = 3
_STEPS_OF_REQUESTS = 40


def patterns() -> dict[str, str]:
    """The patterns by name."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(6, 16))) for _ in range(100)]
    five = ", ".join(
        [
            '"name": "[^"\\\\\\x00-\\x1f]{0,40}"',
            f'"email": "{_EMAIL}"',
            '"age": [0-9]{1,3}',
            '"city": "[^"\\\\\\x00-\\x1f]{0,40}"',
            '"ok": (true|false)',
        ]
    )
    twenty = ", ".join(f'"field_{i}": ("[a-zA-Z ]*"|[0-9]+|true|false|null)' for i in range(20))
    byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    return {
        "phone": r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}",
        "date": "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
        "email": _EMAIL,
        "ipv4": rf"({byte}\.){{3}}{byte}",
        "uuid": "[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
        "choice of 100": "|".join(words),
        "JSON of 5 fields": rf"\{{{five}\}}",
        "JSON of 20 fields": rf"\{{{twenty}\}}",
        "character, ASCII": _character(r"[A-Za-z0-9_ \t\n\r]"),
        "character, Unicode": _character(f"[{_unicode_words()}]"),
        "string of up to 200": r'"[^"\\]{0,200}"',
        "anything, then END": r"[^\n]*END",
        "anything up to 200": r"[^\n\r\u{2028}\u{2029}]{0,200}",
    }


def _character(letter: str) -> str:
    """The pattern of SGLang's example of a character in a novel."""
    name = f'"{letter}{{1,16}}"'
    return (
        rf'\{{\n    "name": {name},\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
        r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n'
        r'    "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n'
        rf'    "wand": \{{\n        "wood": {name},\n        "core": {name},\n'
        r'        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n    "alive": "(Alive|Deceased)",\n'
        rf'    "patronus": {name},\n    "bogart": {name}\n\}}'
    )


def _unicode_words() -> str:
    """The members of a class of all letters, digits and spaces."""
    is_member = re.compile(r"[\w\s]")
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if is_member.match(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(rf"\u{{{first:x}}}-\u{{{last:x}}}" for first, last in ranges)


def cpu_milliseconds(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.thread_time()
    result = call()
    return result, (time.thread_time() - start) * 1e3


def outlines_vocabulary(vocabulary: Vocabulary) -> Any:
    import outlines_core

    ids: dict[bytes, list[int]] = {}
    for token, data in enumerate(vocabulary.token_bytes):
        if data and token not in vocabulary.stop_token_ids:
            ids.setdefault(data, []).append(token)
    return outlines_core.Vocabulary(vocabulary.stop_token_ids[0], ids)


def outlines_index(pattern: str, vocabulary: Any) -> Any:
    """The index, or None if outlines_core does not support the pattern."""
    import outlines_core

    try:
        return outlines_core.Index(f"(?:{pattern})$", vocabulary)
    except ValueError:
        return None


def check_same_start(index: TokenIndex, peer: Any, vocabulary: Vocabulary, name: str) -> None:
    allowed = set(peer.get_allowed_tokens(peer.get_initial_state())) - set(vocabulary.stop_token_ids)
    mask = index.mask(0)
    own = {token for token in range(vocabulary.size) if mask[token >> 5] >> (token & 31) & 1}
    if own != allowed:
        raise SystemExit(f"{name}: {len(own ^ allowed)} first tokens differ from outlines_core's")


def measure_index(name: str, pattern: str, vocabulary: Vocabulary, peer_vocabulary: Any, rounds: int) -> dict[str, Any]:
    samples: dict[str, list[float]] = {"lazy_ms": [], "full_ms": [], "outlines_core_ms": []}

    def ready() -> TokenIndex:
        index = TokenIndex(Automaton.from_regex(pattern, _LIMITS), vocabulary)
        index.mask(0)
        return index

    for round_ in range(rounds):
        index, lazy = cpu_milliseconds(ready)
        _, rest = cpu_milliseconds(index.compute_masks)
        samples["lazy_ms"].append(lazy)
        samples["full_ms"].append(lazy + rest)
        if peer_vocabulary is not None and (round_ == 0 or name not in _BUILT_ONCE):
            peer, taken = cpu_milliseconds(lambda: outlines_index(pattern, peer_vocabulary))
            if peer is None:
                continue
            samples["outlines_core_ms"].append(taken)
            if round_ == 0:
                check_same_start(index, peer, vocabulary, name)
    row: dict[str, Any] = {"pattern": name, "states": index.num_states, "masks": index.num_masks}
    row["outlines_core_builds"] = len(samples["outlines_core_ms"])
    return row | {key: statistics.median(taken) for key, taken in samples.items() if taken}


def measure_steps(vocabulary: Vocabulary) -> dict[str, Any]:
    """A row of a mask, a token of a text, and a choice of 5,000 texts."""
    backend = NativeBackend(vocabulary)
    choices = json.dumps([f"option number {i * 7919 % 10_007} of a list" for i in range(NUM_CHOICES)])
    _, choice_ms = cpu_milliseconds(lambda: backend.compile_grammar(StructuredOutputOptions.CHOICE, choices))
    row: dict[str, Any] = {"pattern": "steps", "choice_of_5000_ms": choice_ms}
    compiled = backend.compile_grammar(StructuredOutputOptions.REGEX, '"[^"\\\\]*"(, "[^"\\\\]*")*')
    tokens = vocabulary.spell('"' + "some text of a few words, " * 40) or []
    batch = [compiled.copy() for _ in range(NUM_STEPS)]
    for position, grammar in enumerate(batch):
        grammar.accept_tokens("", tokens[: position % len(tokens)])
    bitmask = allocate_token_bitmask(NUM_STEPS, vocabulary.size, pin_memory=False)
    rows = list(range(NUM_STEPS))
    for name, call in {
        "fill_us_a_row": lambda: backend.fill_bitmask_batch(batch, bitmask, rows),
        "draft_us_a_row": lambda: compiled.fill_bitmask_drafts(bitmask, 0, tokens[: NUM_STEPS - 1]),
    }.items():
        call()
        row[name] = statistics.median(cpu_milliseconds(call)[1] for _ in range(50)) * 1e3 / NUM_STEPS
    taken = []
    for _ in range(50):
        taken.append(cpu_milliseconds(lambda: compiled.accept_tokens("", tokens))[1] * 1e3 / len(tokens))
        compiled.reset()
    row["accept_us_a_token"] = statistics.median(taken)
    return row


def measure_manager(tokenizer: Any, vocab_size: int) -> dict[str, Any]:
    """Steps of 256 requests through the manager, per row or token."""
    texts = {
        '"[^"\\\\]*"(, "[^"\\\\]*")*': '"' + "some text of a few words, " * 40,
        r"([0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]) ?)+": "2024-01-31 " * 40,
        r"(\w+ ){1,600}": "word and other words of a text " * 40,
    }
    config = StructuredOutputsConfig(compile_timeout=60)
    samples: dict[str, list[float]] = {}
    with StructuredOutputManager(tokenizer, vocab_size, config) as manager:
        tokens = {pattern: manager.vocabulary.spell(text) or [] for pattern, text in texts.items()}
        rng = random.Random(0)
        ahead: dict[str, list[int]] = {}
        for i, pattern in zip(range(NUM_REQUESTS), itertools.cycle(texts)):
            first = rng.randrange(60)
            params = StructuredOutputsParams(regex=pattern, backend="native")
            manager.add_request(f"request {i}", params, output_token_ids=tokens[pattern][:first])
            ahead[f"request {i}"] = tokens[pattern][first:]
        manager.wait_all()
        ids = list(ahead)
        for num_drafts, is_timed in ((0, False), (NUM_DRAFTS, False), (0, True), (NUM_DRAFTS, True)):
            num_tokens = 1 + num_drafts
            for step in range(_STEPS_OF_REQUESTS // num_tokens):
                at = step * num_tokens
                next_tokens = {name: chain[at : at + num_tokens] for name, chain in ahead.items()}
                drafts = {name: chain[:num_drafts] for name, chain in next_tokens.items()} if num_drafts else None
                calls: dict[str, Callable[[], Any]] = {
                    "fill_us_a_row": partial(manager.grammar_bitmask, ids, drafts),
                    "accept_us_a_token": partial(manager.accept_batch, next_tokens),
                }
                for name, call in calls.items():
                    result, taken = cpu_milliseconds(call)
                    if name == "accept_us_a_token" and not all(result.values()):
                        raise SystemExit("the manager refuses a token of a text that the pattern allows")
                    if is_timed:
                        key = f"{num_drafts} drafts, {name}"
                        samples.setdefault(key, []).append(taken * 1e3 / (NUM_REQUESTS * num_tokens))
            for name in ids:
                manager.rollback(name, _STEPS_OF_REQUESTS // num_tokens * num_tokens)
    return {"pattern": "manager"} | {name: statistics.median(taken) for name, taken in samples.items()}


def main() -> None:
    parser = harness.argument_parser("the index of structout's own engine", quick="a small vocabulary, three patterns")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer) if arguments.quick else VOCAB_SIZE)
    _, trie_ms = cpu_milliseconds(lambda: vocabulary.trie)
    print(f"trie of {vocabulary.size:,} tokens: {trie_ms:.0f} ms, once")
    try:
        peer_vocabulary = outlines_vocabulary(vocabulary)
    except ImportError as error:
        print(f"outlines_core is left out: {harness.short_reason(error)}")
        peer_vocabulary = None
    results = harness.ResultsFile("fsm", torch.device("cpu"), arguments)
    for row in (measure_steps(vocabulary), measure_manager(tokenizer, vocabulary.size)):
        results.add(row)
        print("  ".join(f"{key} {value:.3f}" for key, value in row.items() if key != "pattern"))
    ratios = []
    for name, pattern in patterns().items():
        if arguments.quick and name not in _QUICK:
            continue
        row = measure_index(name, pattern, vocabulary, peer_vocabulary, 1 if arguments.quick else arguments.rounds)
        summary = f"{name:20} {row['states']:6} states {row['masks']:5} masks  ready {row['lazy_ms']:8.2f} ms"
        summary += f"  all masks {row['full_ms']:8.1f}"
        if "outlines_core_ms" in row:
            ratios.append(row["outlines_core_ms"] / row["full_ms"])
            summary += f"  outlines_core {row['outlines_core_ms']:9.1f}  {ratios[-1]:5.1f} x"
        results.add(row)
        print(summary, flush=True)
    if ratios:
        print(f"geometric mean {statistics.geometric_mean(ratios):.1f} x, smallest {min(ratios):.1f} x")
    results.close()


if __name__ == "__main__":
    main()
