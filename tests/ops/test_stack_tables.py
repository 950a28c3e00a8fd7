"""stack_advance, stack_rows and stack_draft_rows on every backend equal
their reference bit for bit."""

from __future__ import annotations

import ctypes
import functools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import structout
from structout import StackTableTensors
from structout.ops import reference, stack_reference
from support import host_cuda
from support.devices import DEVICES
from support.gpu_code import ARCHITECTURES
from support.locations import CUDA_PROGRAMS
from support.op_backends import BACKENDS, op_of
from support.refusals import REFUSED
from support.stack_cases import Case, clone, make_case
from support.strided import StridedIntegers, strided_integers
from support.triton_ptx import Kernel, compile_for

PROGRAM = CUDA_PROGRAMS / "stack_tables.cpp"
SCRATCH = 24 * 3  # the frames that a token may push
OPS = ("stack_advance", "stack_rows", "stack_draft_rows")


class Tables(ctypes.Structure):
    """StackTables of csrc/common/stack_tables.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in StackTableTensors._fields),
        *((name, ctypes.c_int64) for name in ("num_states", "num_class_maps", "num_cells", "num_keys")),
        *((name, ctypes.c_int64) for name in ("num_languages", "max_stop_tokens", "num_bytes", "vocab_size")),
    ]

    @classmethod
    def of(cls, tables: StackTableTensors) -> Tables:
        counts = (len(tables.state_fields), len(tables.class_maps), len(tables.cells), len(tables.keys))
        sizes = (*counts, *tables.stop_tokens.shape, len(tables.token_bytes), len(tables.token_begin) - 1)
        return cls(*(table.data_ptr() for table in tables), *sizes)


STACKS = [("stacks", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("column_stride", ctypes.c_int64),
          ("max_depth", ctypes.c_int64)]  # fmt: skip


def stacks_of(stacks: torch.Tensor) -> tuple[int, ...]:
    return stacks.data_ptr(), *stacks.stride(), (stacks.shape[1] - 4) // 3


class AdvanceParams(ctypes.Structure):
    _fields_ = [("tables", Tables), ("num_rows", ctypes.c_int64), *STACKS, ("tokens", StridedIntegers),
                ("scratch", ctypes.c_void_p), ("results", ctypes.c_void_p)]  # fmt: skip


class RowsParams(ctypes.Structure):
    _fields_ = [("tables", Tables), ("num_rows", ctypes.c_int64), *STACKS, ("rows", ctypes.c_void_p)]


class DraftRowsParams(ctypes.Structure):
    _fields_ = [("tables", Tables), ("num_requests", ctypes.c_int64), *STACKS, ("num_rows", ctypes.c_int64),
                ("drafts", StridedIntegers), ("row_indptr", StridedIntegers), ("scratch", ctypes.c_void_p),
                ("rows", ctypes.c_void_p)]  # fmt: skip


@functools.cache
def cuda_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(host_cuda.build("stack_tables", [PROGRAM], sanitize=None, shared=True)))


def run_cuda_on_cpu(name: str, stacks: torch.Tensor, *arguments: Any) -> torch.Tensor:
    getattr(torch.ops.structout, f"_check_{name}")(stacks, *arguments)
    tables = Tables.of(StackTableTensors(*arguments[-len(StackTableTensors._fields) :]))
    if name == "stack_draft_rows":
        drafts, row_indptr = arguments[:2]
        result, scratch = stacks.new_empty(len(drafts)), stacks.new_empty(len(stacks), stacks.shape[1] + SCRATCH)
        params: ctypes.Structure = DraftRowsParams(
            tables, len(stacks), *stacks_of(stacks), len(drafts), strided_integers(drafts),
            strided_integers(row_indptr), scratch.data_ptr(), result.data_ptr(),
        )  # fmt: skip
    else:
        result = stacks.new_empty(len(stacks))
        scratch = stacks.new_empty(len(stacks), SCRATCH)
        tokens = [strided_integers(arguments[0]), scratch.data_ptr()] if name == "stack_advance" else []
        kind = AdvanceParams if name == "stack_advance" else RowsParams
        params = kind(tables, len(stacks), *stacks_of(stacks), *tokens, result.data_ptr())
    getattr(cuda_library(), f"{name}_on_host")(ctypes.byref(params))
    return result


def check(op: Callable[..., Any], name: str, case: Case) -> torch.Tensor:
    expected_case = clone(case)
    expected = getattr(reference, name)(*expected_case.arguments(name))
    got = op(*case.arguments(name))
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected), (got, expected)
    assert torch.equal(case.buffer, expected_case.buffer)
    return got


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_stack_op_on_random_tables_matches_reference(backend, name, is_damaged, num_cases):
    rng, op = random.Random(1), op_of(backend[0], name, "stack_tables", run_cuda_on_cpu, cuda_library)
    is_interpreted = backend == ("triton", "cpu")
    seen: set[int] = set()
    for _ in range(num_cases(8, long=120) if is_interpreted else num_cases(150, long=3000)):
        seen |= set(check(op, name, make_case(rng, backend[1], is_damaged=is_damaged)).tolist())
    assert seen >= ({0, 1} if name == "stack_advance" else {-3, -2})
    assert max(seen) > 0


def test_random_tables_cover_what_the_ops_do():
    """Texts advance, die, finish, miss, push, pop and gain names."""
    rng, kinds = random.Random(4), set()
    for _ in range(300):
        case = make_case(rng, "cpu")
        before, tokens = case.stacks.clone(), case.tokens.tolist()
        results = structout.stack_advance(case.stacks, case.tokens, case.tables)
        for old, new, result, token in zip(
            before.tolist(), case.stacks.tolist(), results.tolist(), tokens, strict=True
        ):
            kinds.add("missed" if result else "dead" if new[0] == -3 else "finished" if new[0] == -2 else "in")
            if new[0] >= 0 and not result:
                kinds |= {"deeper"} if new[1] > old[1] + 1 else {"higher"} if new[1] < old[1] else set()
                kinds |= {"by id"} if is_without_bytes(case.tables, token) else set()
                kinds |= {"named"} if new[2] & ~old[2] and new[1] == old[1] else set()
            assert not result or old == new
    assert kinds >= {"missed", "dead", "finished", "in", "deeper", "higher", "named", "by id"}


def is_without_bytes(tables: StackTableTensors, token: int) -> bool:
    begin, end = tables.token_begin[token : token + 2].tolist()
    return begin == end


@pytest.mark.parametrize("backend", BACKENDS)
def test_stack_draft_rows_with_bad_row_indptr_stays_inside_the_rows(backend):
    rng, op = random.Random(2), op_of(backend[0], "stack_draft_rows", "stack_tables", run_cuda_on_cpu, cuda_library)
    case = make_case(rng, backend[1])
    stacks = case.stacks[:1].expand(2, -1)
    for ends in ([-5, 3, 10**9], [4, 1, 2], [0, 2**31 - 1, 0], [9, 9, 9]):
        row_indptr = torch.tensor(ends, device=backend[1])
        rows = op(stacks, torch.zeros(6, dtype=torch.int64, device=backend[1]), row_indptr, *case.tables)
        assert rows.shape == (6,)
        assert ((rows >= -3) & (rows < 9)).all()


@pytest.mark.parametrize("sanitizer", ["address", pytest.param("thread", marks=pytest.mark.long)])
def test_cuda_source_under_sanitizer_matches_loop(sanitizer, num_cases):
    count = {"address": num_cases(100, long=2000), "thread": num_cases(50, long=150)}[sanitizer]
    executable = host_cuda.build("stack_tables", [PROGRAM], sanitize=sanitizer, shared=False)
    run = host_cuda.run(executable, str(count), "1")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} cases agree" in run.stdout


def text_tables(device: str = "cpu") -> StackTableTensors:
    """Balanced brackets ``[...]`` around an ``x`` each, with the tokens "[", "x", "]",
    "[x]", "]]" and a stop token. States: 0 the bottom, 1 before a value, 2 after an x,
    3 waiting, 4 after a value in brackets, 5 the end."""
    cells = [0, 2 << 3 | 1, 3 << 3 | 2, 5, 1, 3]  # 0: fail; 1: x; 2: push; 3: unused; 4: a push
    cells[2] = 4 << 3 | 2
    actions_of_value, actions_of_end = len(cells), len(cells) + 3
    cells += [0, 7 << 3 | 3, 4 << 3 | 2]  # x pops with verdicts 7; [ pushes
    cells += [0, 0, 0]
    actions_of_after = len(cells)
    cells += [0, 7 << 3 | 3, 0]  # ] pops
    resumes_of_bottom = len(cells)
    cells += [7, 5, -1]
    resumes_of_waiting = len(cells)
    cells += [7, 4, -1]
    maps = torch.zeros(2, 256, dtype=torch.uint8)
    maps[0, ord("x")], maps[0, ord("[")], maps[1, ord("]")] = 1, 2, 1
    fields = [
        [-1, 0, resumes_of_bottom, -1, 0],
        [0, actions_of_value, -1, 1, 4 | 1 << 4],
        [-1, 0, -1, -1, 0],
        [-1, 0, resumes_of_waiting, -1, 0],
        [1, actions_of_after, -1, 4, 4 | 2 << 4],
        [0, actions_of_end, -1, 5, 5 | 1 << 4],
    ]
    keys = torch.full((16, 9), -1, dtype=torch.int32)
    for key, slot in {(1,): 0, (4, 3): 1, (4, 0): 2, (5,): 3}.items():
        full = [*key, *[-1] * (8 - len(key))]
        at = stack_reference._hash_of_key(full) % 16
        while keys[at, 8] != -1:
            at = (at + 1) % 16
        keys[at] = torch.tensor([*full, slot])
    tables = StackTableTensors(
        torch.tensor(fields, dtype=torch.int32),
        maps,
        torch.tensor(cells, dtype=torch.int32),
        keys,
        torch.tensor([[5]], dtype=torch.int32),
        torch.frombuffer(bytearray(b"[x][x]]]"), dtype=torch.uint8),
        torch.tensor([0, 1, 2, 3, 6, 8, 8], dtype=torch.int32),
    )
    return StackTableTensors(*(table.to(device) for table in tables))


def start_of(num_rows: int, max_depth: int, device: str = "cpu") -> torch.Tensor:
    stacks = torch.zeros(num_rows, 4 + 3 * max_depth, dtype=torch.int32, device=device)
    stacks[:, 0], stacks[:, 1] = 1, 1
    return stacks


OPEN, X, CLOSE, WHOLE, CLOSE_TWICE, STOP = range(6)


def test_stack_ops_on_brackets():
    tables, stacks = text_tables(), start_of(1, 3)
    seen = []
    for token in (OPEN, OPEN, X, CLOSE_TWICE, STOP):
        seen.append((*stacks[0, :2].tolist(), *structout.stack_rows(stacks, tables).tolist()))
        assert structout.stack_advance(stacks, torch.tensor([token]), tables).tolist() == [0]
    assert seen == [(1, 1, 0), (1, 2, 0), (1, 3, 0), (4, 2, 1), (5, 0, 3)]
    assert stacks[0, 0] == -2


def test_stack_advance_refuses_misses_and_leaves_the_stack():
    tables = text_tables()
    stacks = start_of(5, 3)
    results = structout.stack_advance(stacks, torch.tensor([CLOSE, X, WHOLE, STOP, -1]), tables)
    assert results.tolist() == [0] * 5
    assert stacks[:, 0].tolist() == [-3, 5, 5, -3, -3]
    full = start_of(1, 1)
    assert structout.stack_advance(full, torch.tensor([OPEN]), tables).tolist() == [1]  # has no room
    assert torch.equal(full, start_of(1, 1))
    fields = tables.state_fields.clone()
    fields[3, 2] = -1  # where brackets go on is not known
    stacks = start_of(1, 3)
    assert structout.stack_advance(stacks, torch.tensor([WHOLE]), tables._replace(state_fields=fields)).tolist() == [1]
    assert torch.equal(stacks, start_of(1, 3))


def test_stack_advance_reads_tokens_by_their_ids():
    """In state 1 the stop token's neighbour, whose bytes are not allowed, leads to the
    end; the token "x" does something else than its byte; another leads nowhere."""
    tables = text_tables()
    fields, pairs = tables.state_fields.clone(), [CLOSE_TWICE, 5, X, 4, WHOLE, -1, OPEN, -2, -1]
    fields[1, 2], fields[1, 4] = len(tables.cells), fields[1, 4] | 8
    tables = tables._replace(
        state_fields=fields, cells=torch.cat([tables.cells, torch.tensor(pairs, dtype=torch.int32)])
    )
    stacks = start_of(5, 3)
    results = structout.stack_advance(stacks, torch.tensor([CLOSE_TWICE, X, WHOLE, OPEN, CLOSE]), tables)
    assert results.tolist() == [0, 0, 0, 1, 0]
    assert stacks[:, :2].tolist() == [[5, 1], [4, 1], [-3, 1], [1, 1], [-3, 1]]
    fields[1, 0] = -1  # which tokens the state reads is not known
    stacks = start_of(1, 3)
    assert structout.stack_advance(stacks, torch.tensor([CLOSE_TWICE]), tables).tolist() == [1]
    assert torch.equal(stacks, start_of(1, 3))


def test_stack_draft_rows_on_brackets():
    drafts = [OPEN, X, CLOSE, STOP, 9, X, OPEN, -1, X, 9]
    row_indptr = torch.tensor([0, 5, 6, 10])
    rows = structout.stack_draft_rows(start_of(3, 3), torch.tensor(drafts), row_indptr, text_tables())
    assert rows.tolist() == [0, 0, 2, 3, -1, 0, 0, 0, -1, -1]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_stack_op_passes_opcheck(name, device):
    rng = random.Random(3)
    for _ in range(3):
        torch.library.opcheck(getattr(torch.ops.structout, name).default, clone(make_case(rng, device)).arguments(name))


@pytest.mark.parametrize("device", DEVICES)
def test_stack_ops_compile_to_one_graph(device):
    tables = text_tables(device)

    def step(stacks: torch.Tensor, tokens: torch.Tensor, row_indptr: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = structout.stack_rows(stacks, tables)
        draft_rows = structout.stack_draft_rows(stacks, tokens, row_indptr, tables)
        return rows, draft_rows, structout.stack_advance(stacks, tokens, tables), stacks

    compiled = torch.compile(step, backend="eager", fullgraph=True, dynamic=True)
    for count in (2, 5):
        tokens = torch.arange(count, device=device) % 3
        arguments = tokens, torch.arange(count + 1, device=device)
        results = [call(start_of(count, 3, device), *arguments) for call in (compiled, step)]
        for got, expected in zip(*results, strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_stack_ops_without_rows_do_nothing(device):
    tables, stacks = text_tables(device), start_of(0, 3, device)
    tokens = torch.zeros(0, dtype=torch.int64, device=device)
    assert structout.stack_advance(stacks, tokens, tables).shape == (0,)
    assert structout.stack_rows(stacks, tables).shape == (0,)
    row_indptr = torch.zeros(1, dtype=torch.int64, device=device)
    assert structout.stack_draft_rows(stacks, tokens, row_indptr, tables).shape == (0,)


def test_stack_advance_shares_many_rows_between_threads(four_threads):
    tables = text_tables()
    stacks = start_of(10_000, 3)
    tokens = torch.randint(-1, 7, (10_000,))
    expected = stacks.clone()
    results = structout.stack_advance(stacks, tokens, tables)
    assert torch.equal(results, reference.stack_advance(expected, tokens, *tables))
    assert torch.equal(stacks, expected)


@pytest.mark.long
@pytest.mark.parametrize("are_sizes_1", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_triton_kernels_compile_for_every_architecture(architecture, are_sizes_1):
    """Triton makes constants of sizes and strides that are 1."""
    tokens = "i32" if are_sizes_1 else "i64"
    machine = dict.fromkeys(("stacks", "state_fields", "cells"), "i32")
    walk = dict.fromkeys(("scratch", "stop_tokens", "token_begin"), "i32") | {"class_maps": "u8", "token_bytes": "u8"}
    sizes = ("row_stride", "column_stride", "max_depth", "num_states", "num_cells")
    walk_sizes = ("num_class_maps", "num_languages", "max_stop_tokens", "num_bytes", "vocab_size")

    def constants(*names: str) -> dict[str, object]:
        return {"LANES": 32} | (dict.fromkeys((*sizes, *names), 1) if are_sizes_1 else {})

    advance = machine | walk | {"tokens": tokens, "results": "i32"}
    draft_rows = (
        machine | walk | {"drafts": tokens, "row_indptr": tokens} | dict.fromkeys(("rows", "copies", "keys"), "i32")
    )
    compiled = compile_for(
        architecture,
        Kernel("stack_tables", "stack_advance_kernel", advance, constants("tokens_stride", *walk_sizes), num_warps=1),
        Kernel("stack_tables", "stack_rows_kernel", machine | {"rows": "i32", "keys": "i32"}, constants("num_keys"),
               num_warps=1),
        Kernel("stack_tables", "stack_draft_rows_kernel", draft_rows,
               constants("num_keys", "drafts_stride", "indptr_stride", *walk_sizes), num_warps=1),
    )  # fmt: skip
    assert not re.search(r"\.local\b", compiled)  # spills nothing


INT = torch.int32
REFUSALS = [
    ("stack_advance", {"stacks": start_of(2, 3).long()}, "stacks must be int32"),
    ("stack_advance", {"stacks": start_of(2, 3)[0]}, "stacks must have 2 dimensions"),
    ("stack_advance", {"stacks": torch.zeros(2, 5, dtype=INT)}, "stacks must have 4 columns and 3 for each frame"),
    ("stack_advance", {"stacks": start_of(1, 3).expand(2, -1)}, "stacks is written in place, but its entries overlap"),
    ("stack_advance", {"tokens": torch.zeros(3, dtype=INT)}, r"tokens must have one entry per stack, shape \[2\]"),
    ("stack_advance", {"tokens": torch.zeros(2)}, "tokens must be int32 or int64"),
    ("stack_advance", {"state_fields": torch.zeros(2, 4, dtype=INT)}, "state_fields must have 5 columns"),
    ("stack_advance", {"class_maps": torch.zeros(2, 256, dtype=INT)}, "class_maps must be contiguous uint8"),
    ("stack_rows", {"cells": torch.zeros(2, 2, dtype=INT)}, "cells must be contiguous int32 with 1 dimension"),
    ("stack_rows", {"keys": torch.zeros(3, 9, dtype=INT)}, "the number of keys must be a power of 2"),
    ("stack_rows", {"keys": torch.zeros(0, 9, dtype=INT)}, "the number of keys must be a power of 2"),
    ("stack_rows", {"stop_tokens": torch.zeros(2, dtype=INT)}, "stop_tokens must be contiguous int32 with 2"),
    ("stack_rows", {"token_bytes": torch.zeros(2, dtype=INT)}, "token_bytes must be contiguous uint8"),
    ("stack_rows", {"token_begin": torch.zeros(0, dtype=INT)}, "token_begin must have one entry per token"),
    ("stack_draft_rows", {"drafts": torch.zeros(2)}, "drafts must be int32 or int64"),
    ("stack_draft_rows", {"row_indptr": torch.tensor([0, 1])}, r"row_indptr must have one entry per stack and one"),
]


@pytest.mark.parametrize(("name", "changed", "message"), REFUSALS)
def test_stack_op_refuses_bad_arguments_and_writes_nothing(name, changed, message):
    arguments = {
        "stack_advance": {"stacks": start_of(2, 3), "tokens": torch.zeros(2, dtype=INT)},
        "stack_rows": {"stacks": start_of(2, 3)},
        "stack_draft_rows": {
            "stacks": start_of(2, 3),
            "drafts": torch.zeros(2, dtype=torch.int64),
            "row_indptr": torch.tensor([0, 1, 2]),
        },
    }[name] | text_tables()._asdict()
    arguments |= changed
    before = [argument.clone() for argument in arguments.values()]
    for op in (name, f"_check_{name}"):
        with pytest.raises(REFUSED, match=f"^{name}: {message}"):
            getattr(torch.ops.structout, op)(*arguments.values())
    assert all(torch.equal(x, y) for x, y in zip(before, arguments.values(), strict=True))
