"""fsm_advance, fsm_rows and fsm_draft_states on every backend equal their reference
bit for bit."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import structout
from structout import FsmTables
from structout.ops import reference
from support import ptx
from support.devices import DEVICES, on_device
from support.gpu_code import ARCHITECTURES
from support.op_backends import BACKENDS, op_of
from support.refusals import REFUSED
from support.strided import Strided, StridedIntegers, strided, strided_integers
from support.triton_ptx import Kernel, compile_for

OPS = ("fsm_advance", "fsm_rows", "fsm_draft_states")
BETWEEN = -99  # what is between the entries of a vector
LETTERS = 4  # the bytes that lead anywhere; most walks would end at once with more


class Tables(ctypes.Structure):
    """FsmTables of csrc/common/fsm_states.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in FsmTables._fields),
        *((name, ctypes.c_int64) for name in ("num_states", "num_grammars", "max_stops", "num_bytes", "vocab_size")),
    ]

    @classmethod
    def of(cls, tables: FsmTables) -> Tables:
        sizes = (len(tables.transitions), *tables.stop_tokens.shape, len(tables.token_bytes))
        return cls(*(table.data_ptr() for table in tables), *sizes, len(tables.token_begin) - 1)


class AdvanceParams(ctypes.Structure):
    _fields_ = [("tables", Tables), ("num_rows", ctypes.c_int64), ("states", Strided), ("tokens", StridedIntegers)]


class RowsParams(ctypes.Structure):
    _fields_ = [("tables", Tables), ("num_rows", ctypes.c_int64), ("states", Strided), ("mask_slots", ctypes.c_void_p),
                ("masks", ctypes.c_void_p), ("words_per_row", ctypes.c_int64), ("row_stride", ctypes.c_int64),
                ("num_slots", ctypes.c_int64), ("num_computed", ctypes.c_void_p),
                ("rows", ctypes.c_void_p)]  # fmt: skip


class DraftStatesParams(ctypes.Structure):
    _fields_ = [("tables", Tables), ("num_requests", ctypes.c_int64), ("states", Strided),
                ("num_rows", ctypes.c_int64), ("drafts", StridedIntegers), ("row_indptr", StridedIntegers),
                ("row_states", ctypes.c_void_p)]  # fmt: skip


@functools.cache
def cuda_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(ptx.program("fsm_states")))


def run_cuda_on_cpu(name: str, *arguments: Any) -> torch.Tensor | None:
    getattr(torch.ops.structout, f"_check_{name}")(*arguments)
    states = arguments[0]
    result = None
    if name == "fsm_advance":
        tables = Tables.of(FsmTables(*arguments[2:]))
        params: ctypes.Structure = AdvanceParams(tables, len(states), strided(states), strided_integers(arguments[1]))
    elif name == "fsm_rows":
        masks, num_computed, mask_slots, *tensors, num_slots = arguments[1:]
        result = states.new_empty(len(states))
        params = RowsParams(
            Tables.of(FsmTables(*tensors)), len(states), strided(states), mask_slots.data_ptr(), masks.data_ptr(),
            masks.shape[1], masks.stride(0), num_slots, num_computed.data_ptr(), result.data_ptr(),
        )  # fmt: skip
    else:
        drafts, row_indptr, *tensors = arguments[1:]
        result = states.new_empty(len(drafts))
        params = DraftStatesParams(
            Tables.of(FsmTables(*tensors)), len(states), strided(states), len(drafts), strided_integers(drafts),
            strided_integers(row_indptr), result.data_ptr(),
        )  # fmt: skip
    getattr(cuda_library(), f"{name}_on_host")(ctypes.byref(params))
    return result


class Case(NamedTuple):
    """The arguments of all three ops. ``mask_buffer`` is what ``masks`` is a view
    into."""

    tables: FsmTables
    states: torch.Tensor
    tokens: torch.Tensor
    mask_buffer: torch.Tensor
    masks: torch.Tensor
    num_computed: torch.Tensor
    mask_slots: torch.Tensor
    num_slots: int
    draft_states: torch.Tensor
    drafts: torch.Tensor
    row_indptr: torch.Tensor

    def arguments(self, name: str) -> tuple[Any, ...]:
        if name == "fsm_advance":
            return self.states, self.tokens, *self.tables
        if name == "fsm_rows":
            return (
                *(self.states, self.masks, self.num_computed, self.mask_slots),
                *(*self.tables, self.num_slots),
            )
        return self.draft_states, self.drafts, self.row_indptr, *self.tables


def make_tables(rng: random.Random, *, is_damaged: bool) -> FsmTables:
    """Make random automata. In damaged tables some numbers are out of range."""
    num_states, num_grammars = rng.randint(1, 12), rng.randint(1, 3)
    transitions = torch.full((num_states, 256), -1, dtype=torch.int32)
    for state, byte in itertools.product(range(num_states), range(LETTERS)):
        if rng.random() < 0.7:
            transitions[state, byte] = rng.randrange(num_states)
    flags = [
        rng.choice([0, 1]) | (rng.random() < 0.8) << 1 | rng.randrange(num_grammars) << 2 for _ in range(num_states)
    ]
    vocab_size = rng.choice([1, 31, 32, 33, 70, 260])
    lengths = [rng.choice([0, 1, 1, 2, 3, 7]) for _ in range(vocab_size)]
    token_begin = [0, *itertools.accumulate(lengths)]
    token_bytes = [rng.randrange(LETTERS) if rng.random() < 0.98 else 255 for _ in range(token_begin[-1])]
    max_stops = rng.choice([0, 1, 3])
    stops = [sorted({rng.randrange(vocab_size) for _ in range(rng.randint(0, max_stops))}) for _ in range(num_grammars)]
    stop_tokens = torch.full((num_grammars, max_stops), -1, dtype=torch.int32)
    for grammar, listed in enumerate(stops):
        stop_tokens[grammar, : len(listed)] = torch.tensor(listed, dtype=torch.int32)
    if is_damaged:
        wild = [-(2**31), -7, num_states, 2**31 - 1]
        for _ in range(4):
            transitions[rng.randrange(num_states), rng.randrange(LETTERS)] = rng.choice(wild)
        flags[rng.randrange(num_states)] = rng.choice([-1, 2**31 - 1, 3 | num_grammars << 2])
        for _ in range(3):
            token_begin[rng.randrange(vocab_size + 1)] = rng.choice([-5, 10**9, token_begin[-1] + 1, 0])
        if max_stops:
            stop_tokens[rng.randrange(num_grammars), 0] = rng.choice([-9, vocab_size, 2**31 - 1])
    return FsmTables(
        transitions,
        torch.tensor(flags, dtype=torch.int32),
        stop_tokens,
        torch.tensor(token_bytes, dtype=torch.uint8),
        torch.tensor(token_begin, dtype=torch.int32),
    )


def make_vector(rng: random.Random, values: list[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A vector of any stride."""
    stride = rng.choice([1, 1, 3])
    buffer = torch.full((len(values) * stride,), BETWEEN, dtype=dtype)
    buffer[::stride] = torch.tensor(values, dtype=dtype)
    return on_device(buffer[::stride], device)


def make_case(rng: random.Random, device: str, *, is_damaged: bool = False) -> Case:
    tables = make_tables(rng, is_damaged=is_damaged)
    num_states, vocab_size = len(tables.state_flags), len(tables.token_begin) - 1
    integers = rng.choice([torch.int32, torch.int64])

    def states(count: int) -> list[int]:
        special = [-1, -2, -3, *([-4, num_states, 2**31 - 1, -(2**31)] if is_damaged else [])]
        return [rng.randrange(num_states) if rng.random() < 0.8 else rng.choice(special) for _ in range(count)]

    def tokens(count: int) -> list[int]:
        special = [-1, vocab_size, *([-(2**31), 2**31 - 1] if is_damaged else [])]
        stops = tables.stop_tokens[tables.stop_tokens >= 0].tolist() or [0]
        return [rng.choice([rng.randrange(vocab_size)] * 8 + special + stops) for _ in range(count)]

    num_rows = rng.choice([1, 2, 5, 40])
    num_slots = rng.randint(0, 5)
    slots = [rng.randrange(-1, num_slots) for _ in range(num_states)]
    if is_damaged:
        slots[rng.randrange(num_states)] = rng.choice([num_slots, 2**31 - 1, -7])
    width, gap, num_mask_rows = -(-vocab_size // 32), rng.choice([0, 3]), num_slots + num_rows + rng.choice([0, 2])
    mask_buffer = torch.randint(-(2**31), 2**31, (num_mask_rows, width + gap), dtype=torch.int32)
    lengths = [rng.choice([1, 1, 2, 4, 6]) for _ in range(rng.randint(0, 6))]
    ends = [rng.choice([0, 2])]
    for length in lengths:
        ends.append(ends[-1] + length)
    num_draft_rows = ends[-1] + rng.choice([0, 3])
    mask_buffer = mask_buffer.to(device)
    return Case(
        FsmTables(*(table.to(device) for table in tables)),
        make_vector(rng, states(num_rows), torch.int32, device),
        make_vector(rng, tokens(num_rows), integers, device),
        mask_buffer,
        mask_buffer[:, :width],
        torch.tensor([7], device=device),
        torch.tensor(slots, dtype=torch.int32, device=device),
        num_slots,
        make_vector(rng, states(len(lengths)), torch.int32, device),
        make_vector(rng, tokens(num_draft_rows), rng.choice([torch.int32, torch.int64]), device),
        torch.tensor(ends, dtype=integers, device=device),
    )


def clone(case: Case) -> Case:
    buffer = case.mask_buffer.clone()
    width = case.masks.shape[1]
    return case._replace(
        states=case.states.clone(),
        mask_buffer=buffer,
        masks=buffer[:, :width],
        num_computed=case.num_computed.clone(),
    )


def check(op: Callable[..., Any], name: str, case: Case) -> None:
    expected_case = clone(case)
    expected = getattr(reference, name)(*expected_case.arguments(name))
    got = op(*case.arguments(name))
    if expected is not None:
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected), (got, expected)
    for changed, other in zip(case[1:6], expected_case[1:6], strict=True):
        assert torch.equal(changed, other), (changed, other)
    if case.states.stride(0) > 1:
        is_between = torch.arange(len(case.states._base), device=case.states.device) % case.states.stride(0) != 0
        assert (case.states._base[is_between] == BETWEEN).all()


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_fsm_op_on_random_automata_matches_reference(backend, name, is_damaged, num_cases):
    rng, op = random.Random(1), op_of(backend[0], name, "fsm_states", run_cuda_on_cpu, cuda_library)
    is_interpreted = backend == ("triton", "cpu")
    for _ in range(num_cases(40, long=250) if is_interpreted else num_cases(150, long=3000)):
        check(op, name, make_case(rng, backend[1], is_damaged=is_damaged))


@pytest.mark.parametrize("backend", BACKENDS)
def test_fsm_draft_states_with_bad_row_indptr_stays_inside_the_rows(backend):
    rng, op = random.Random(2), op_of(backend[0], "fsm_draft_states", "fsm_states", run_cuda_on_cpu, cuda_library)
    for ends in ([-5, 3, 10**9], [4, 1, 2], [0, 2**31 - 1, 0], [9, 9, 9]):
        tables = make_tables(rng, is_damaged=False)
        states = torch.tensor([0, -2], dtype=torch.int32)
        drafts = torch.tensor([0, 0, -1, 0, 0, 0])
        arguments = (states, drafts, torch.tensor(ends), *tables)
        row_states = op(*(argument.to(backend[1]) for argument in arguments))
        assert row_states.shape == (6,)
        assert ((row_states >= -2) & (row_states < len(tables.state_flags))).all()


def text_tables() -> FsmTables:
    """The automaton of ``ab*``, with the tokens "a", "b", "ab", "bb", "<stop>"."""
    transitions = torch.full((2, 256), -1, dtype=torch.int32)
    transitions[0, ord("a")] = transitions[1, ord("b")] = 1
    return FsmTables(
        transitions,
        torch.tensor([2, 3], dtype=torch.int32),
        torch.tensor([[4]], dtype=torch.int32),
        torch.frombuffer(bytearray(b"ababbb"), dtype=torch.uint8),
        torch.tensor([0, 1, 2, 4, 6, 6], dtype=torch.int32),
    )


def test_fsm_advance_on_a_small_automaton():
    states = torch.tensor([0, 0, 0, 1, 1, 0, 1, -1, -2, -3, 2, -4], dtype=torch.int32)
    tokens = torch.tensor([0, 2, 1, 3, 4, 4, -1, 9, 0, 0, 0, 0])
    structout.fsm_advance(states, tokens, text_tables())
    assert states.tolist() == [1, 1, -3, 1, -2, -3, -3, -1, -2, -3, -3, -3]


def test_fsm_rows_on_a_small_automaton():
    tables = text_tables()
    states = torch.tensor([0, 1, -1, -2, -3, 7], dtype=torch.int32)
    masks, num_computed = torch.zeros(8, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    rows = structout.fsm_rows(states, masks, num_computed, torch.tensor([1, -1], dtype=torch.int32), tables, 2)
    assert rows.tolist() == [1, 3, -1, -1, -2, -2]
    assert masks.flatten().tolist() == [0, 0, 0, 0b11010, 0, 0, 0, 0]
    assert int(num_computed) == 1
    # The row of a dead state draws nothing.
    ids = structout.masked_sample(torch.zeros(6, 5), masks, rows)
    assert ids[4:].tolist() == [-1, -1]


def test_fsm_draft_states_on_a_small_automaton():
    drafts = [0, 1, 4, 1, 9, 0, 0, 1, 9, 0, -1, 1, 9, 9]
    states, row_indptr = torch.tensor([0, 0, 0, 1], dtype=torch.int32), torch.tensor([0, 5, 9, 13, 14])
    row_states = structout.fsm_draft_states(states, torch.tensor(drafts), row_indptr, text_tables())
    assert [row_states[begin:end].tolist() for begin, end in itertools.pairwise(row_indptr.tolist())] == [
        [0, 1, 1, -2, -2],
        [0, 1, 1, 1],
        [0, 1, -1, -1],
        [1],
    ]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_fsm_op_passes_opcheck(name, device):
    rng = random.Random(3)
    for _ in range(3):
        torch.library.opcheck(getattr(torch.ops.structout, name).default, clone(make_case(rng, device)).arguments(name))


@pytest.mark.parametrize("device", DEVICES)
def test_fsm_ops_compile_to_one_graph(device):
    tables = FsmTables(*(table.to(device) for table in text_tables()))
    mask_slots = torch.full((2,), -1, dtype=torch.int32, device=device)

    def step(states, tokens, masks, num_computed, row_indptr):
        structout.fsm_advance(states, tokens, tables)
        rows = structout.fsm_rows(states, masks, num_computed, mask_slots, tables, 0)
        return states, masks, num_computed, rows, structout.fsm_draft_states(states, tokens, row_indptr, tables)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (2, 5):
        results = [
            call(
                torch.zeros(count, dtype=torch.int32, device=device),
                torch.arange(count, device=device),
                torch.zeros(count, 1, dtype=torch.int32, device=device),
                torch.zeros(1, dtype=torch.int64, device=device),
                torch.arange(count + 1, device=device),
            )
            for call in (compiled, step)
        ]
        for got, expected in zip(*results, strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_fsm_ops_without_rows_do_nothing(device):
    tables = FsmTables(*(table.to(device) for table in text_tables()))
    states, tokens = torch.zeros(0, dtype=torch.int32, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    structout.fsm_advance(states, tokens, tables)
    masks, num_computed = torch.zeros(0, 1, dtype=torch.int32, device=device), torch.zeros(1, device=device).long()
    slots = torch.zeros(2, dtype=torch.int32, device=device)
    assert structout.fsm_rows(states, masks, num_computed, slots, tables, 0).shape == (0,)
    row_states = structout.fsm_draft_states(states, tokens, torch.zeros(1, device=device).long(), tables)
    assert row_states.shape == (0,)
    assert int(num_computed) == 0


def test_fsm_advance_shares_many_rows_between_threads(four_threads):
    rng = random.Random(6)
    tables = make_tables(rng, is_damaged=False)
    states = torch.randint(-3, len(tables.state_flags), (10_000,), dtype=torch.int32)
    tokens = torch.randint(-1, len(tables.token_begin), (10_000,))
    expected = states.clone()
    structout.fsm_advance(states, tokens, tables)
    reference.fsm_advance(expected, tokens, *tables)
    assert torch.equal(states, expected)


def test_fsm_rows_shares_a_mask_between_threads(four_threads):
    """One row of many words is split, and gives the same mask."""
    rng = random.Random(5)
    tables = make_tables(rng, is_damaged=False)
    lengths = [rng.randint(0, 5) for _ in range(60_000)]
    token_begin = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    token_bytes = torch.randint(LETTERS, (int(token_begin[-1]),), dtype=torch.uint8)
    tables = tables._replace(token_bytes=token_bytes, token_begin=token_begin)
    states = torch.arange(len(tables.state_flags), dtype=torch.int32)
    masks = torch.zeros(len(states), -(-60_000 // 32), dtype=torch.int32)
    expected = masks.clone()
    arguments = torch.zeros(1, dtype=torch.int64), torch.full((len(states),), -1, dtype=torch.int32)
    structout.fsm_rows(states, masks, *arguments, tables, 0)
    reference.fsm_rows(states, expected, *arguments, *tables, 0)
    assert expected.any()
    assert torch.equal(masks, expected)


@pytest.mark.parametrize("are_sizes_1", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_triton_kernels_compile_for_every_architecture(architecture, are_sizes_1):
    """Triton makes constants of sizes and strides that are 1."""
    tokens = "i32" if are_sizes_1 else "i64"
    tables = dict.fromkeys(("transitions", "state_flags", "stop_tokens", "token_begin"), "i32") | {"token_bytes": "u8"}
    rows = dict.fromkeys(("states", "rows", "masks", "mask_slots"), "i32") | {"num_computed": "i64"}
    chains = {"states": "i32", "row_states": "i32", "drafts": tokens, "row_indptr": tokens}
    sizes = ("num_states", "num_grammars", "max_stop_tokens", "num_bytes", "vocab_size", "states_stride")

    def ones(*names: str) -> dict[str, object]:
        return dict.fromkeys((*sizes, *names), 1) if are_sizes_1 else {}

    ptx = compile_for(
        architecture,
        Kernel(
            *("fsm_states", "fsm_advance_kernel", tables | {"states": "i32", "tokens": tokens}),
            {"LANES": 64} | ones("tokens_stride"),
        ),
        Kernel(
            *("fsm_states", "fsm_rows_kernel", tables | rows),
            {"TILE_WORDS": 16} | ones("masks_stride", "words_per_row"),
        ),
        Kernel(
            *("fsm_states", "fsm_draft_states_kernel", tables | chains),
            ones("drafts_stride", "indptr_stride"),
            num_warps=1,
        ),
    )
    assert not re.search(r"\.local\b", ptx)  # spills nothing


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


STATES = ints(2)
REFUSALS = [
    ("fsm_advance", {"states": STATES.long()}, "states must be int32"),
    ("fsm_advance", {"states": STATES[None]}, "states must have 1 dimension"),
    ("fsm_advance", {"states": STATES[:1].expand(2)}, "states is written in place, but its entries overlap"),
    ("fsm_advance", {"tokens": ints(3)}, r"tokens must have one entry per state, shape \[2\], got \[3\]"),
    ("fsm_advance", {"tokens": torch.zeros(2)}, "tokens must be int32 or int64"),
    ("fsm_advance", {"transitions": ints(2, 255)}, r"transitions must have .* \[2, 256\], got \[2, 255\]"),
    ("fsm_advance", {"transitions": ints(3, 256)}, r"transitions must have .* \[2, 256\], got \[3, 256\]"),
    ("fsm_advance", {"state_flags": torch.zeros(2)}, "state_flags must be contiguous int32 with 1 dimension"),
    ("fsm_advance", {"stop_tokens": ints(2)}, "stop_tokens must be contiguous int32 with 2 dimensions"),
    ("fsm_advance", {"token_bytes": ints(2)}, "token_bytes must be contiguous uint8"),
    ("fsm_advance", {"token_begin": ints(0)}, "token_begin must have one entry per token and one more"),
    ("fsm_rows", {"masks": ints(3, 1)}, r"masks must have num_slots \(2\) rows .* \(2\), got 3"),
    ("fsm_rows", {"masks": ints(4, 2)}, "masks must have 1 words per row for 5 tokens, got 2"),
    ("fsm_rows", {"masks": ints(1, 1).expand(4, 1)}, "masks is written in place, but its rows overlap"),
    ("fsm_rows", {"num_slots": -1}, r"masks must have num_slots \(-1\) rows"),
    ("fsm_rows", {"mask_slots": ints(3)}, r"mask_slots must have one entry per state of the tables"),
    ("fsm_rows", {"num_computed": ints(2).long()}, "num_computed must have one entry"),
    ("fsm_draft_states", {"drafts": torch.zeros(2)}, "drafts must be int32 or int64"),
    ("fsm_draft_states", {"row_indptr": ints(2)}, r"row_indptr must have one entry per state and one more"),
]


@pytest.mark.parametrize(("name", "changed", "message"), REFUSALS)
def test_fsm_op_refuses_bad_arguments_and_writes_nothing(name, changed, message):
    tables = text_tables()
    arguments = {
        "fsm_advance": {"states": ints(2), "tokens": ints(2)},
        "fsm_rows": {"states": ints(2), "masks": ints(4, 1), "num_computed": ints(1).long(), "mask_slots": ints(2) - 1},
        "fsm_draft_states": {"states": ints(2), "drafts": ints(2).long(), "row_indptr": torch.tensor([0, 1, 2])},
    }[name] | tables._asdict()
    if name == "fsm_rows":
        arguments["num_slots"] = 2
    arguments |= changed
    before = [a.clone() for a in arguments.values() if isinstance(a, torch.Tensor)]
    for op in (name, f"_check_{name}"):
        with pytest.raises(REFUSED, match=f"^{name}: {message}"):
            getattr(torch.ops.structout, op)(*arguments.values())
    after = [a for a in arguments.values() if isinstance(a, torch.Tensor)]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.gpu
def test_fsm_ops_in_a_cuda_graph_read_the_states_of_each_replay():
    rng = random.Random(6)
    case = make_case(rng, "cuda")
    start = case.states.clone()

    def step():
        rows = torch.ops.structout.fsm_rows(*case.arguments("fsm_rows"))
        torch.ops.structout.fsm_advance(*case.arguments("fsm_advance"))
        return rows

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = step()
    case.states.copy_(start)
    expected = clone(case)
    for _ in range(4):
        graph.replay()
        expected_rows = reference.fsm_rows(*expected.arguments("fsm_rows"))
        reference.fsm_advance(*expected.arguments("fsm_advance"))
        assert torch.equal(rows, expected_rows)
        assert torch.equal(case.states, expected.states)
        assert torch.equal(case.mask_buffer, expected.mask_buffer)
