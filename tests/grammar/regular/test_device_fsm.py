"""DeviceFSM follows the grammars of NativeBackend token for token."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch

import structout
from structout import DeviceFSM, Vocabulary
from structout.constraints.params import StructuredOutputOptions
from structout.errors import GrammarError, GrammarLimitError
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.token_index import FsmGrammar, TokenIndex
from structout.ops.fsm_states import DEAD_STATE, FINISHED_STATE, FREE_STATE
from structout.ops.token_bitmask import allocate_token_bitmask, unpack_bitmask
from support.devices import DEVICES
from support.random_patterns import random_pattern
from support.tokenizers_on_the_spot import byte_level

PATTERNS = [
    "a|ab|abc",
    "a(ba)*",
    r"\d{3}-\d{4}",
    "[a-z0-9._]+@[a-z]+",
    r"\{\"name\": \"[^\"]{0,5}\"\}",
    "é+|🦊*",
    ".{1,3}",
    "true|false|null",
    r"(?=.*\d)\w{2,4}",
]


def odd_vocabulary() -> Vocabulary:
    """Without some bytes, with tokens of equal bytes and of parts of characters, and
    with stop tokens that have text."""
    rng = random.Random(1)
    texts = [bytes([byte]) for byte in range(256) if byte not in b"bZ7-\x9f"]
    texts += [rng.choice([b"ab", b"b1", b"\xc3\xa9", b'"}', b"7-", b"", b"\x9f\xa6"]) for _ in range(60)]
    texts += [bytes(rng.choices(b"abcxyz019 -_", k=rng.randint(2, 5))) for _ in range(200)]
    return Vocabulary(tuple(texts), (3, 300))


@functools.cache
def vocabulary_of(name: str) -> Vocabulary:
    return odd_vocabulary() if name == "odd" else Vocabulary.from_tokenizer(byte_level(), 525)


def compile_regex(vocabulary: Vocabulary, pattern: str, stops: tuple[int, ...] | None = None) -> FsmGrammar | None:
    """Compile a pattern. None if it is refused, or the vocabulary cannot spell it."""
    try:
        return NativeBackend(vocabulary).compile_grammar(StructuredOutputOptions.REGEX, pattern, stops)
    except GrammarError:
        return None


def mask_of(grammar: FsmGrammar, vocabulary: Vocabulary) -> torch.Tensor:
    bitmask = allocate_token_bitmask(1, vocabulary.size)
    if not grammar.is_terminated():
        grammar.fill_bitmask(bitmask, 0)
    return unpack_bitmask(bitmask, vocabulary.size)[0]


def masks_of_rows(fsm: DeviceFSM, rows: torch.Tensor) -> torch.Tensor:
    """The tokens that each row allows, bool ``[N, V]``: what apply_bitmask leaves."""
    logits = torch.zeros(len(rows), fsm.vocabulary.size, device=rows.device)
    structout.apply_bitmask(logits, fsm.masks, rows)
    return (logits == 0).cpu()


def choose_token(rng: random.Random, allowed: torch.Tensor) -> int:
    """A token that is allowed nine times of ten, and any number else."""
    tokens = allowed.nonzero().flatten().tolist()
    if tokens and rng.random() < 0.9:
        return rng.choice(tokens)
    return rng.choice([-1, rng.randrange(len(allowed)), len(allowed)])


def make_grammars(rng: random.Random, vocabulary: Vocabulary, count: int) -> list[FsmGrammar]:
    grammars: list[FsmGrammar] = []
    while len(grammars) < count:
        pattern = rng.choice([*PATTERNS, random_pattern(rng).text])
        stops = rng.choice([None, None, (97,), (3, 98, 99), ()])
        grammar = compile_regex(vocabulary, pattern, stops)
        if grammar is not None and grammar.index.num_states < 200:
            grammars.append(grammar)
    return grammars


@pytest.mark.parametrize("max_masks", [0, 8, 4096])
@pytest.mark.parametrize("name", ["byte_level", "odd"])
@pytest.mark.parametrize("device", DEVICES)
def test_device_states_follow_host_grammars(device, name, max_masks, num_cases):
    """Rows of many grammars and free rows: masks and steps are those of FsmGrammar,
    whether masks have slots or are computed."""
    rng, vocabulary = random.Random(max_masks), vocabulary_of(name)
    for _ in range(num_cases(4, long=60)):
        fsm = DeviceFSM(vocabulary, device, max_states=4096, max_masks=max_masks, max_rows=12)
        grammars: list[FsmGrammar | None] = [None, *make_grammars(rng, vocabulary, 8), None]
        states = fsm.new_states(len(grammars))
        for i, grammar in enumerate(grammars):
            if grammar is not None:
                max_new_masks = rng.choice([0, 3, 256])
                added = fsm.add(grammar.index, grammar._stop_token_ids, max_new_masks=max_new_masks)
                states[i] = added.start_state
        starts = states.tolist()
        for _ in range(8):
            allowed = masks_of_rows(fsm, fsm.rows(states))
            tokens = []
            for i, grammar in enumerate(grammars):
                if grammar is None or int(states[i]) == FREE_STATE:
                    expected = torch.full((vocabulary.size,), True)
                elif int(states[i]) == DEAD_STATE:
                    expected = torch.full((vocabulary.size,), False)
                else:
                    expected = mask_of(grammar, vocabulary)
                assert torch.equal(allowed[i], expected), i
                tokens.append(choose_token(rng, allowed[i]))
            was_dead = (states == DEAD_STATE).tolist()
            fsm.advance(states, torch.tensor(tokens, device=device))
            for i, grammar in enumerate(grammars):
                state = int(states[i])
                if grammar is None:
                    assert state == FREE_STATE
                elif was_dead[i] or not grammar.accept_tokens("", [tokens[i]]):
                    assert state == DEAD_STATE
                else:
                    at = FINISHED_STATE if grammar.is_terminated() else starts[i] + grammar.state_id()
                    assert state == at


@pytest.mark.parametrize("max_masks", [0, 4096])
@pytest.mark.parametrize("device", DEVICES)
def test_draft_states_follow_host_grammars_and_advance_by_what_is_accepted(device, max_masks, num_cases):
    rng, vocabulary = random.Random(max_masks), vocabulary_of("odd")
    for _ in range(num_cases(6, long=60)):
        fsm = DeviceFSM(vocabulary, device, max_states=4096, max_masks=max_masks, max_rows=64)
        grammars = make_grammars(rng, vocabulary, 6)
        states = fsm.new_states(len(grammars))
        for i, grammar in enumerate(grammars):
            states[i] = fsm.add(grammar.index, grammar._stop_token_ids).start_state
        starts = states.tolist()
        for _ in range(5):
            drafts, ends, expected = [], [0], []
            for grammar in grammars:
                chain, walker = [], grammar.fork()
                for _ in range(rng.choice([0, 1, 3])):
                    chain.append(choose_token(rng, mask_of(walker, vocabulary)))
                    walker.accept_tokens("", chain[-1:])
                bitmask = allocate_token_bitmask(len(chain) + 1, vocabulary.size)
                grammar.fill_bitmask_drafts(bitmask, 0, chain)
                expected.append(unpack_bitmask(bitmask, vocabulary.size))
                drafts += [*chain, 9]
                ends.append(len(drafts))
            token_ids, row_indptr = torch.tensor(drafts, device=device), torch.tensor(ends, device=device)
            row_states = fsm.draft_states(states, token_ids, row_indptr)
            rows = fsm.rows(row_states)
            assert torch.equal(masks_of_rows(fsm, rows), torch.cat(expected))
            ids, num_accepted = structout.verify_drafts(
                torch.zeros(len(drafts), vocabulary.size, device=device), token_ids, row_indptr, fsm.masks, rows,
                seed=rng.getrandbits(30), position=torch.arange(len(drafts), device=device),
            )  # fmt: skip
            fsm.advance_verified(states, row_states, row_indptr, ids, num_accepted)
            for i, grammar in enumerate(grammars):
                new, state = ids[ends[i] :][: int(num_accepted[i]) + 1].tolist(), int(states[i])
                if not grammar.accept_tokens("", new):
                    assert (new[-1], state) == (-1, DEAD_STATE)  # no stop token, so the text cannot end
                    grammar.reset()
                    states[i] = starts[i]
                else:
                    assert state == (FINISHED_STATE if grammar.is_terminated() else starts[i] + grammar.state_id())


def test_states_put_back_follow_host_grammars_that_roll_back():
    rng, vocabulary = random.Random(5), vocabulary_of("byte_level")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=1024, max_masks=512, max_rows=9)
    grammars = [compile_regex(vocabulary, pattern) for pattern in PATTERNS]
    starts = [fsm.add(grammar.index).start_state for grammar in grammars]
    states = torch.tensor(starts, dtype=torch.int32)
    history = [states.clone()]
    for _ in range(60):
        if rng.random() < 0.3:
            count = rng.randrange(len(history))
            del history[len(history) - count :]
            states.copy_(history[-1])
            for grammar in grammars:
                grammar.rollback(count)
        tokens = [rng.choice(mask_of(grammar, vocabulary).nonzero().flatten().tolist()) for grammar in grammars]
        fsm.advance(states, torch.tensor(tokens))
        history.append(states.clone())
        for i, grammar in enumerate(grammars):
            assert grammar.accept_tokens("", [tokens[i]])
            at = FINISHED_STATE if grammar.is_terminated() else starts[i] + grammar.state_id()
            assert int(states[i]) == at


def test_drafts_that_are_all_accepted_advance_as_far():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=64, max_rows=8)
    grammar = compile_regex(vocabulary, "(ac)*")
    assert grammar is not None
    states = fsm.new_states(3)
    states[1:] = fsm.add(grammar.index).start_state
    a, c = vocabulary.token_bytes.index(b"a"), vocabulary.token_bytes.index(b"c")
    drafts, row_indptr = torch.tensor([a, c, a, -1]), torch.tensor([0, 0, 4, 4])
    row_states = fsm.draft_states(states, drafts, row_indptr)
    ids, num_accepted = structout.verify_drafts(
        torch.nn.functional.one_hot(torch.tensor([a, c, a, c]), vocabulary.size).float(),
        drafts, row_indptr, fsm.masks, fsm.rows(row_states), temperature=0.0,
    )  # fmt: skip
    assert num_accepted.tolist() == [0, 3, 0]
    before = states.clone()
    fsm.advance_verified(states, row_states, row_indptr, ids, num_accepted)
    assert states[0] == before[0]
    assert states[2] == before[2]  # a request without rows
    grammar.accept_tokens("", [a, c, a, c])
    assert int(states[1]) == int(before[1]) + grammar.state_id()


@pytest.mark.parametrize("device", DEVICES)
def test_decode_loop_without_grammars_gives_the_tokens_of_the_host(device):
    vocabulary = vocabulary_of("byte_level")
    fsm = DeviceFSM(vocabulary, device, max_states=1024, max_masks=16, max_rows=8)
    grammars = [compile_regex(vocabulary, pattern) for pattern in PATTERNS[:8]]
    states = torch.tensor([fsm.add(g.index).start_state for g in grammars], dtype=torch.int32, device=device)
    for step in range(12):
        logits = torch.randn(8, vocabulary.size, generator=torch.Generator().manual_seed(step))
        bitmask = allocate_token_bitmask(8, vocabulary.size)
        for i, grammar in enumerate(grammars):
            if not grammar.is_terminated():
                grammar.fill_bitmask(bitmask, i)
        expected = structout.masked_sample(logits, bitmask, seed=3, position=step)
        tokens = structout.masked_sample(logits.to(device), fsm.masks, fsm.rows(states), seed=3, position=step)
        assert tokens.tolist() == expected.tolist()
        fsm.advance(states, tokens)
        for grammar, token in zip(grammars, tokens.tolist(), strict=True):
            assert grammar.accept_tokens("", [token])
    assert fsm.stats().num_masks == 16  # all that fit
    assert fsm.stats().num_masks_computed > 0


def test_equal_grammars_share_states_until_the_last_release():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=64, max_rows=8)

    def index(pattern: str) -> TokenIndex:
        return TokenIndex(Automaton.from_regex(pattern), vocabulary)

    first = fsm.add(index("a|ac"))
    assert fsm.add(index("ac?")) is first
    assert fsm.add(index("ac?"), (3,)) is not first  # other stop tokens
    assert fsm.stats().num_grammars == 2
    fsm.release(first)
    assert fsm.rows(torch.tensor([first.start_state], dtype=torch.int32)) >= 0
    fsm.release(first)
    assert fsm.stats().num_grammars == 1
    with pytest.raises(ValueError, match="it was released"):
        fsm.release(first)


def test_release_frees_states_masks_and_numbers():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=20, max_masks=10, max_rows=8, max_grammars=3)
    rng, added = random.Random(3), []
    patterns = [last * n + end for n in range(1, 9) for last, end in (("a", ""), ("c", "x"))]
    for _ in range(200):
        index = TokenIndex(Automaton.from_regex(rng.choice(patterns)), vocabulary)
        try:
            added.append((fsm.add(index), index))
        except GrammarLimitError:
            fsm.release(added.pop(rng.randrange(len(added)))[0])
        for grammar, known in added:
            for state in range(known.num_states):
                device_state = torch.tensor([fsm.state_of(grammar, state)], dtype=torch.int32)
                expected = known.mask(state)
                for stop in vocabulary.stop_token_ids:
                    expected[stop >> 5] |= np.int32(known.accepts(state)) << np.int32(stop & 31)
                assert torch.equal(fsm.masks[fsm.rows(device_state).long()][0], torch.from_numpy(expected))
    for grammar, _ in added:
        fsm.release(grammar)
    stats = fsm.stats()
    assert (stats.num_grammars, stats.num_states, stats.num_masks, stats.num_states_without_slot) == (0, 0, 0, 0)
    assert fsm._state_ranges.take(20) == 0  # one range again
    assert (fsm.mask_slots == -1).all()
    assert (fsm.tables.transitions == -1).all()


def test_released_state_allows_nothing():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=64, max_rows=8)
    grammar = fsm.add(TokenIndex(Automaton.from_regex("a*"), vocabulary))
    states = torch.tensor([grammar.start_state], dtype=torch.int32)
    fsm.release(grammar)
    assert not masks_of_rows(fsm, fsm.rows(states)).any()
    fsm.advance(states, torch.tensor([vocabulary.token_bytes.index(b"a")]))
    assert states.tolist() == [DEAD_STATE]


@pytest.mark.parametrize(
    ("capacities", "limit"),
    [
        ({"max_states": 3}, "max_states"),
        ({"max_grammars": 1}, "max_grammars"),
        ({"max_stop_tokens": 1}, "max_stop_tokens"),
    ],
)
def test_add_to_full_tables_raises_and_changes_nothing(capacities, limit):
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", **({"max_states": 64, "max_masks": 64, "max_rows": 8} | capacities))
    fsm.add(TokenIndex(Automaton.from_regex("x"), vocabulary), ())
    before = [tensor.clone() for tensor in (*fsm.tables, fsm.mask_slots, fsm.masks)]
    with pytest.raises(GrammarLimitError, match=f"^{limit} is limited to "):
        fsm.add(TokenIndex(Automaton.from_regex("aaa"), vocabulary))
    for tensor, old in zip((*fsm.tables, fsm.mask_slots, fsm.masks), before, strict=True):
        assert torch.equal(tensor, old)
    stats = fsm.stats()
    assert (stats.num_grammars, stats.num_states) == (1, 2)


def test_tables_made_in_inference_mode_take_grammars_outside_of_it():
    vocabulary = vocabulary_of("odd")
    with torch.inference_mode():
        fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=1, max_rows=8)
    grammar = fsm.add(TokenIndex(Automaton.from_regex("ac"), vocabulary))
    states = torch.arange(2, dtype=torch.int32) + grammar.start_state
    expected = masks_of_rows(fsm, fsm.rows(states))
    with torch.inference_mode():
        assert torch.equal(masks_of_rows(fsm, fsm.rows(states)), expected)


def test_masks_equal_across_grammars_take_one_slot():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=256, max_masks=64, max_rows=8)
    fsm.add(TokenIndex(Automaton.from_regex("ac"), vocabulary), max_new_masks=8)
    num_masks = fsm.stats().num_masks
    fsm.add(TokenIndex(Automaton.from_regex("xac"), vocabulary), max_new_masks=8)
    assert fsm.stats().num_masks == num_masks + 1  # only that before "x" is new


def test_masks_get_slots_when_rows_meet_them_on_the_cpu():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=8, max_rows=8)
    fsm.add(TokenIndex(Automaton.from_regex("xx"), vocabulary))
    grammar = fsm.add(TokenIndex(Automaton.from_regex("acx"), vocabulary))
    assert fsm.stats().num_masks == 0
    states = torch.tensor([1, 1, 3, -1], dtype=torch.int32) + grammar.start_state
    states[3] = 10**6
    rows = fsm.rows(states)
    assert rows.tolist() == [0, 0, 1, -2]
    assert fsm.rows(states).tolist() == rows.tolist()
    stats = fsm.stats()
    assert (stats.num_masks, stats.num_masks_computed) == (2, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_keep_masks_gives_slots_to_masks_that_were_computed(device):
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, device, max_states=64, max_masks=4, max_rows=8)
    grammar = fsm.add(TokenIndex(Automaton.from_regex("acx"), vocabulary), max_new_masks=1)
    states = torch.arange(4, dtype=torch.int32, device=device) + grammar.start_state
    computed = structout.fsm_rows(states, fsm.masks, fsm._num_computed, fsm.mask_slots, fsm.tables, fsm.max_masks)
    assert computed.tolist() == [0, 5, 6, 7]
    expected = masks_of_rows(fsm, computed)
    fsm.keep_masks(states)
    assert fsm.rows(states).tolist() == [0, 1, 2, 3]
    assert torch.equal(masks_of_rows(fsm, fsm.rows(states)), expected)
    assert fsm.stats().num_masks_computed == 3


def test_states_beyond_the_slots_are_counted_and_computed():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=2, max_rows=8)
    grammar = fsm.add(TokenIndex(Automaton.from_regex("acxy"), vocabulary))
    assert fsm.stats().num_states_without_slot == grammar.num_states
    states = torch.arange(grammar.num_states, dtype=torch.int32) + grammar.start_state
    fsm.rows(states)
    fsm.rows(states)
    stats = fsm.stats()
    assert stats.num_states_without_slot == grammar.num_states - 2
    assert stats.num_masks_computed == 2 * (grammar.num_states - 2)


def test_memory_bytes_counts_the_tables():
    vocabulary = vocabulary_of("odd")
    small, large = (DeviceFSM(vocabulary, "cpu", max_states=n, max_masks=8, max_rows=8).memory_bytes for n in (64, 128))
    assert large - small == 64 * (1024 + 4 + 4)


def test_device_fsm_refuses_what_does_not_fit_the_vocabulary():
    vocabulary = vocabulary_of("odd")
    fsm = DeviceFSM(vocabulary, "cpu", max_states=64, max_masks=8, max_rows=2)
    other = TokenIndex(Automaton.from_regex("a"), vocabulary_of("byte_level"))
    with pytest.raises(ValueError, match="the index is of another vocabulary"):
        fsm.add(other)
    index = TokenIndex(Automaton.from_regex("a"), vocabulary)
    with pytest.raises(ValueError, match=rf"stop_token_ids must be in \[0, {vocabulary.size}\), got \[-1, 5\]"):
        fsm.add(index, (5, -1))
    grammar = fsm.add(index)
    with pytest.raises(IndexError, match=r"index_state must be in \[0, 2\), got 2"):
        fsm.state_of(grammar, 2)
    with pytest.raises((ValueError, RuntimeError), match=r"masks must have num_slots \(8\) rows .* \(3\), got 10"):
        fsm.rows(fsm.new_states(3))


@pytest.mark.gpu
def test_draft_loop_in_a_cuda_graph_equals_the_loop_outside():
    vocabulary, num_requests = vocabulary_of("byte_level"), 3
    fsm = DeviceFSM(vocabulary, "cuda", max_states=1024, max_masks=4, max_rows=16)
    start = torch.tensor(
        [fsm.add(compile_regex(vocabulary, pattern).index).start_state for pattern in PATTERNS[3:6]],
        dtype=torch.int32,
        device="cuda",
    )
    logits = torch.randn(4 * num_requests, vocabulary.size, device="cuda")
    drafts = torch.zeros(4 * num_requests, dtype=torch.int64, device="cuda")
    row_indptr = torch.arange(0, 4 * num_requests + 1, 4, device="cuda")
    position = torch.zeros(4 * num_requests, dtype=torch.int64, device="cuda")
    states, ids = start.clone(), torch.zeros_like(drafts)

    def step() -> None:
        row_states = fsm.draft_states(states, drafts, row_indptr)
        drawn, num_accepted = structout.verify_drafts(
            logits, drafts, row_indptr, fsm.masks, fsm.rows(row_states), seed=1, position=position
        )
        fsm.advance_verified(states, row_states, row_indptr, drawn, num_accepted)
        ids.copy_(drawn)
        drafts.copy_(drawn.clamp(min=-1))  # some of them are allowed again
        position.add_(1)

    def run(call) -> list[torch.Tensor]:
        states.copy_(start)
        drafts.zero_()
        position.zero_()
        seen = []
        for _ in range(6):
            call()
            seen.append(torch.cat([ids, states.long()]).cpu())
        return seen

    expected = run(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    assert all(map(torch.equal, run(graph.replay), expected))


@pytest.mark.gpu
def test_decode_loop_in_a_cuda_graph_serves_grammars_that_come_later():
    vocabulary = vocabulary_of("byte_level")
    fsm = DeviceFSM(vocabulary, "cuda", max_states=1024, max_masks=4, max_rows=2)
    states = fsm.new_states(2)
    logits = torch.randn(2, vocabulary.size, device="cuda")
    position = torch.zeros(2, dtype=torch.int64, device="cuda")
    tokens = torch.zeros(2, dtype=torch.int64, device="cuda")

    def step() -> None:
        tokens.copy_(structout.masked_sample(logits, fsm.masks, fsm.rows(states), seed=5, position=position))
        fsm.advance(states, tokens)
        position.add_(1)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for pattern in ("a(ba)*", r"\d{3}-\d{4}"):
        grammar = compile_regex(vocabulary, pattern)
        added = fsm.add(grammar.index)
        states.fill_(FREE_STATE)
        states[1] = added.start_state
        for _ in range(12):
            bitmask = allocate_token_bitmask(1, vocabulary.size)
            if not grammar.is_terminated():
                grammar.fill_bitmask(bitmask, 0)
            expected = structout.masked_sample(logits[1:].cpu(), bitmask, seed=5, position=position[1:].cpu())
            graph.replay()
            assert tokens[1].item() == expected.item()
            assert grammar.accept_tokens("", [expected.item()])
        fsm.release(added)
