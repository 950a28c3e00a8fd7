"""Measures the steps of requests whose automata are on the device, beside those of the
grammars on the CPU. Checks each result before timing it.

    python bench/bench_device_fsm.py [--device cpu|cuda] [--quick]

The vocabulary has 152,000 tokens. The requests are at random places of a few patterns.
The peers: the batched calls of the native engine, which a manager makes; and for
fsm_advance a table of token classes, a lookup in torch.
"""

import itertools
import random
from typing import Any

import harness
import torch
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from structout import DeviceFSM
from structout.constraints.params import StructuredOutputOptions
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.extension import core
from structout.grammar.native.token_index import FsmGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.ops.fsm_states import fsm_rows
from structout.ops.token_bitmask import allocate_token_bitmask

PATTERNS = {
    "phone": r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}",
    "strings": r'"[^"\\]*"(, "[^"\\]*")*',
    "mixed": r'\{"name": "[^"\\]{0,40}", "age": [0-9]{1,3}, "city": "[^"\\]{0,40}", "ok": (true|false)\}',
}
SECONDS = {"cpu": 0.3, "cuda": 0.05}
MAX_TOKENS = 12


class Batch:
    """Requests at random places of one pattern, on the host and on the device."""

    def __init__(self, vocabulary: Vocabulary, pattern: str, size: int, device: str):
        rng = random.Random(0)
        self.backend = NativeBackend(vocabulary)
        compiled = self.backend.compile_grammar(StructuredOutputOptions.REGEX, pattern)
        assert isinstance(compiled, FsmGrammar)
        self.index = compiled.index
        self.size = size
        self.grammars = [walk(compiled.copy(), rng) for _ in range(size)]
        self.fsm = DeviceFSM(vocabulary, device, max_states=2048, max_masks=1024, max_rows=size)
        grammar = self.fsm.add(self.index, max_new_masks=1024)
        states = [self.fsm.state_of(grammar, grammar_.state_id()) for grammar_ in self.grammars]
        self.start_state = grammar.start_state
        self.states = torch.tensor(states, dtype=torch.int32, device=device)
        self.tokens = torch.tensor([choose(self.index, g.state_id(), rng) for g in self.grammars], device=device)


def choose(index: Any, state: int, rng: random.Random) -> int:
    """A token that may follow."""
    mask = index.mask(state)
    words = mask.nonzero()[0].tolist()
    word = rng.choice(words)
    return word * 32 + rng.choice([bit for bit in range(32) if int(mask[word]) >> bit & 1])


def walk(grammar: FsmGrammar, rng: random.Random) -> FsmGrammar:
    for _ in range(rng.randrange(MAX_TOKENS)):
        token = choose(grammar.index, grammar.state_id(), rng)
        state = grammar.index.next(grammar.state_id(), token)
        if not grammar.index.mask(state).any():
            break  # only a stop token may follow
        grammar.accept_tokens("", [token])
    return grammar


def check(is_right: bool) -> None:
    if not is_right:
        raise AssertionError("the device differs from the host: nothing is timed on a wrong result")


def advance_on_device(batch: Batch) -> harness.Call:
    states = batch.states.clone()
    batch.fsm.advance(states, batch.tokens)
    expected = [
        batch.start_state + batch.index.next(grammar.state_id(), token)
        for grammar, token in zip(batch.grammars, batch.tokens.tolist(), strict=True)
    ]
    check(states.tolist() == expected)
    tables = batch.fsm.tables
    # The states go on being the same: those that end are put back.
    advance, start = torch.ops.structout.fsm_advance, batch.states

    def call() -> None:
        states.copy_(start)
        advance(states, batch.tokens, *tables)

    return call


def advance_by_classes(batch: Batch) -> harness.Call | None:
    """A table of the states after each class of tokens, int32 ``[S, C]``."""
    class_of_token, next_of_class = map(torch.from_numpy, batch.index.token_classes())
    classes, following = class_of_token.to(batch.states.device), next_of_class.to(batch.states.device)
    states = (batch.states - batch.start_state).long()
    return lambda: following[states, classes[batch.tokens]]


def advance_on_host(batch: Batch) -> harness.Call:
    tokens = {i: [token] for i, token in enumerate(batch.tokens.tolist())}
    positions = {i: grammar.matcher for i, grammar in enumerate(batch.grammars)}

    def call() -> None:
        step = core().Step(positions, [])
        step.feed(tokens)
        step.accept()
        for grammar in batch.grammars:
            grammar.rollback(1)

    return call


def check_masks(batch: Batch, masks: torch.Tensor, rows: torch.Tensor) -> None:
    bitmask = allocate_token_bitmask(batch.size, batch.fsm.vocabulary.size)
    batch.backend.fill_bitmask_batch(batch.grammars, bitmask, range(batch.size))
    check(torch.equal(masks[rows.long()].cpu(), bitmask))


def rows_of_slots(batch: Batch) -> harness.Call:
    rows = batch.fsm.rows(batch.states)
    check_masks(batch, batch.fsm.masks, rows)
    check(int(rows.max()) < batch.fsm.max_masks)
    return lambda: batch.fsm.rows(batch.states)


def rows_computed(batch: Batch) -> harness.Call:
    masks = batch.fsm.masks[: batch.size]
    no_slots = torch.full_like(batch.fsm.mask_slots, -1)
    num_computed = torch.zeros(1, dtype=torch.int64, device=masks.device)

    def call() -> torch.Tensor:
        return fsm_rows(batch.states, masks, num_computed, no_slots, batch.fsm.tables, 0)

    check_masks(batch, masks, call())
    return call


def fill_on_host(batch: Batch) -> harness.Call:
    """Masks that are known are copied into the rows of a bitmask, which goes to the
    device."""
    bitmask = allocate_token_bitmask(batch.size, batch.fsm.vocabulary.size)
    rows = list(range(batch.size))
    device = batch.states.device

    def call() -> torch.Tensor:
        batch.backend.fill_bitmask_batch(batch.grammars, bitmask, rows)
        return bitmask.to(device, non_blocking=True)

    return call


def draft_states_on_device(batch: Batch) -> harness.Call:
    row_indptr = torch.arange(0, 4 * batch.size + 1, 4, device=batch.states.device)
    drafts = batch.tokens.repeat_interleave(4)
    row_states = batch.fsm.draft_states(batch.states, drafts, row_indptr)
    check(torch.equal(row_states[::4], batch.states))
    return lambda: batch.fsm.draft_states(batch.states, drafts, row_indptr)


OPS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "fsm_advance": (
        {"structout": advance_on_device, "token classes": advance_by_classes, "host, and rolled back": advance_on_host},
        [512, 64],
    ),
    "fsm_rows, masks in slots": ({"structout": rows_of_slots, "host fill, copied": fill_on_host}, [512, 64]),
    "fsm_rows, masks computed": ({"structout": rows_computed}, [1, 64]),
    "fsm_draft_states, 3 drafts": ({"structout": draft_states_on_device}, [512]),
}


def main() -> None:
    parser = harness.argument_parser("states of automata on the device", quick="a small vocabulary, few requests")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer) if arguments.quick else VOCAB_SIZE)
    device = torch.device(arguments.device)
    results = harness.ResultsFile("device_fsm", device, arguments)
    for (op, (makers, sizes)), (name, pattern) in itertools.product(OPS.items(), PATTERNS.items()):
        peers = harness.Peers(makers)
        peers.may_fail = not arguments.quick
        for size in [4] if arguments.quick else sizes:
            batch = Batch(vocabulary, pattern, size, arguments.device)
            calls = dict(peers.calls(batch))
            seconds = 0.02 if arguments.quick else SECONDS[arguments.device]
            times = harness.time_calls(calls, device, read_inputs=lambda: None, seconds=seconds)
            row = {"op": op, "pattern": name, "batch": size, "vocab": vocabulary.size}
            results.add(row | times | {"missing": dict(peers.missing)})
            beside = "  ".join(
                f"{peer} {us:,.1f} us ({1e3 * us / size:,.0f} ns a row)" for peer, us in times["us"].items()
            )
            print(f"{op:<28}{name:<9}{size:>4}  {beside}", flush=True)
    results.close()


if __name__ == "__main__":
    main()
