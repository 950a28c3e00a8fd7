"""Random tables and stacks for the ops of csrc/common/stack_tables.h."""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

import torch

from structout import StackTableTensors
from structout.ops import stack_reference
from support.devices import on_device

BETWEEN = -99  # what is between the entries of a vector
LETTERS = 4  # the bytes that do anything; most walks would end at once with more
LOWEST = -(2**31)


class Case(NamedTuple):
    """The arguments of all three ops. ``buffer`` is what ``stacks`` is a view into."""

    tables: StackTableTensors
    buffer: torch.Tensor
    stacks: torch.Tensor
    tokens: torch.Tensor
    drafts: torch.Tensor
    row_indptr: torch.Tensor

    def arguments(self, name: str) -> tuple[Any, ...]:
        if name == "stack_advance":
            return self.stacks, self.tokens, *self.tables
        if name == "stack_rows":
            return self.stacks, *self.tables
        return self.stacks, self.drafts, self.row_indptr, *self.tables


class TableMaker:
    """Makes tables whose states push, pop and guard at random."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.num_states = rng.randint(1, 12)
        self.num_languages = rng.randint(1, 3)
        self.cells: list[int] = []
        self.class_maps = [[0] * 256 for _ in range(rng.randint(1, 3))]
        for class_map in self.class_maps:
            class_map[:LETTERS] = [rng.randrange(4) for _ in range(LETTERS)]
        self.fields = [self._state() for _ in range(self.num_states)]

    def put(self, *values: int) -> int:
        self.cells += values
        return len(self.cells) - len(values)

    def state(self) -> int:
        return self.rng.randrange(self.num_states)

    def guard(self) -> int:
        def names() -> tuple[int, int]:
            return self.rng.choice([0, 0, 1, 5, 1 << 31, 2**32 - 1]), self.rng.choice([0, 0, 2, 1 << 31])

        words = [word - (word >> 31 << 32) for word in (*names(), *names())]
        return self.put(*words, self.rng.choice([-1, -1, 0, 1, 2]), self.rng.choice([0, 0, 1, 2]))

    def _action(self, can_be_guarded: bool = True) -> int:
        kind = self.rng.choice([0, 1, 1, 1, 2, 2, 3, 4, 5, 6, 6] if can_be_guarded else [1, 1, 2, 3, 5])
        if kind == 1:
            return self.state() << 3 | 1
        if kind == 2:
            return self.put(self.state(), self.state()) << 3 | 2
        if kind in (3, 4):
            return self.rng.randrange(3) << 3 | kind
        if kind == 6:
            guard, action = self.guard(), self._action(can_be_guarded=False)
            return self.put(guard, action, self.rng.choice([-1, 0, 2, 31, 32, 63])) << 3 | 6
        return kind

    def _state(self) -> list[int]:
        actions = [self._action() for _ in range(4)]
        begin = self.put(*actions)
        pairs = [  # of verdicts or of tokens
            (key, self.rng.choice([self.state()] * 8 + [-1, -2])) for key in self.rng.sample(range(3), 2)
        ]
        list_of_pairs = self.put(*itertools.chain(*pairs), -1)
        flags = self.rng.choice([0, 1]) | self.rng.choice([0, 2, 2]) | (self.rng.random() < 0.9) << 2
        flags |= self.rng.choice([0, 0, 8])
        flags |= self.rng.choice([0, 1, 1, 2, 3, 5, 8]) << 4 | self.rng.randrange(self.num_languages) << 8
        class_map = self.rng.randrange(len(self.class_maps)) if self.rng.random() < 0.95 else -1
        return [
            class_map,
            begin,
            self.rng.choice([list_of_pairs] * 9 + [-1]),
            self.rng.choice([self.state()] * 9 + [-1]),
            flags,
        ]

    def conditions(self) -> int:
        """A list of conditions, or of raw names."""
        if self.rng.random() < 0.3:
            entries = [(-1, self.rng.randrange(4), -1) for _ in range(self.rng.randint(1, 4))]
        else:
            count = self.rng.choice([1, 3, 40])
            guards = [self.guard() for _ in range(3)]
            entries = [(self.rng.randint(-1, i), self.rng.randrange(3), self.rng.choice(guards)) for i in range(count)]
        return self.put(*itertools.chain(*entries), *self.rng.choice([(-2, 0, 0), (-2, 0, 0), ()]))


class _Recorder(stack_reference._StackMachines):
    """Notes the keys that are looked up."""

    def __init__(self, *tables: torch.Tensor):
        super().__init__(*tables)
        self.asked: list[list[int]] = []

    def _find(self, key: list[int]) -> int:
        self.asked.append(key)
        return super()._find(key)


def make_case(rng: random.Random, device: str, *, is_damaged: bool = False) -> Case:
    """Random tables, stacks and tokens. In damaged tables some numbers are out of
    range."""
    maker = TableMaker(rng)
    vocab_size = rng.choice([1, 5, 33])
    lengths = [rng.choice([0, 1, 1, 2, 3, 7, 40]) for _ in range(vocab_size)]
    token_begin = [0, *itertools.accumulate(lengths)]
    token_bytes = [rng.randrange(LETTERS) if rng.random() < 0.98 else 255 for _ in range(token_begin[-1])]
    max_stops = rng.choice([0, 1, 3])
    stops = [
        rng.sample(range(vocab_size), min(vocab_size, rng.randint(0, max_stops))) for _ in range(maker.num_languages)
    ]
    stops = [listed + [-1] * (max_stops - len(listed)) for listed in stops]
    max_depth, num_rows = rng.choice([0, 1, 3, 30]), rng.choice([1, 2, 5, 40])
    stacks = [_stack(rng, maker, max_depth, is_damaged) for _ in range(num_rows)]
    if is_damaged:
        _damage(rng, maker, token_begin, stops)

    def integers(values: Any, *shape: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).reshape(shape)

    def tables(keys: list[list[int]]) -> StackTableTensors:
        return StackTableTensors(
            integers(maker.fields, -1, 5),
            torch.tensor(maker.class_maps, dtype=torch.uint8),
            integers(maker.cells, -1),
            integers(keys, -1, 9),
            integers(stops, maker.num_languages, max_stops),
            torch.tensor(token_bytes, dtype=torch.uint8),
            integers(token_begin, -1),
        )

    keys = _keys(rng, maker, tables, stacks)
    special = [-1, vocab_size, *([LOWEST, 2**31 - 1] if is_damaged else [])]
    known_stops = [stop for listed in stops for stop in listed if stop >= 0] or [0]

    def tokens(count: int) -> list[int]:
        return [rng.choice([rng.randrange(vocab_size)] * 8 + special + known_stops) for _ in range(count)]

    ends = [rng.choice([0, 2])]
    for _ in range(num_rows):
        ends.append(ends[-1] + rng.choice([0, 1, 1, 2, 4, 6]))
    buffer, view = _buffer(rng, stacks, max_depth)
    return Case(
        StackTableTensors(*(table.to(device) for table in tables(keys))),
        buffer := buffer.to(device),
        view(buffer),
        on_device(_vector(rng, tokens(num_rows)), device),
        on_device(_vector(rng, tokens(ends[-1] + rng.choice([0, 3]))), device),
        on_device(_vector(rng, ends), device),
    )


def clone(case: Case) -> Case:
    """A copy whose stacks may be written."""
    buffer = case.buffer.clone()
    shape, strides = case.stacks.shape, case.stacks.stride()
    return case._replace(buffer=buffer, stacks=buffer.as_strided(shape, strides))


def _stack(rng: random.Random, maker: TableMaker, max_depth: int, is_damaged: bool) -> list[int]:
    def names() -> tuple[int, int]:
        return rng.choice([0, 0, 1, -1, 5]), rng.choice([0, 0, LOWEST, 2])

    wild = [LOWEST, -7, maker.num_states, 2**31 - 1] if is_damaged else []
    top = maker.state() if rng.random() < 0.85 else rng.choice([-1, -2, -3, -4, *wild])
    depth = rng.randint(0, max_depth)
    frames = [(maker.state() if rng.random() < 0.98 or not wild else rng.choice(wild), *names()) for _ in range(depth)]
    unused = [BETWEEN] * (3 * (max_depth - depth))
    if is_damaged and rng.random() < 0.05:
        depth = rng.choice([-1, LOWEST, max_depth + 1, 2**31 - 1])
    return [top, depth, *names(), *itertools.chain(*frames), *unused]


def _damage(rng: random.Random, maker: TableMaker, token_begin: list[int], stops: list[list[int]]) -> None:
    wild = [LOWEST, -7, maker.num_states, len(maker.cells) - 1, len(maker.cells), 2**31 - 1]
    for _ in range(4):
        maker.fields[maker.state()][rng.randrange(5)] = rng.choice(wild)
        maker.cells[rng.randrange(len(maker.cells))] = rng.choice(wild)
    for _ in range(2):
        token_begin[rng.randrange(len(token_begin))] = rng.choice([-5, 10**9, token_begin[-1] + 1, 0])
    if stops[0]:
        stops[0][0] = rng.choice([-9, 2**31 - 1])


def _keys(rng: random.Random, maker: TableMaker, tables: Any, stacks: list[list[int]]) -> list[list[int]]:
    """A table of keys with most of those of the stacks: some lead to conditions."""
    slots: dict[tuple[int, ...], int] = {}
    for is_second in (False, True):
        recorder = _Recorder(*tables(_table_of(rng, slots)))
        for stack in stacks:
            recorder.row(stack)
        for key in map(tuple, recorder.asked):
            kind = rng.random()
            if key in slots or kind < 0.1:
                continue
            is_conditional = not is_second and kind < 0.5
            slots[key] = -2 - maker.conditions() if is_conditional else LOWEST if kind < 0.55 else rng.randrange(9)
    return _table_of(rng, slots)


def _table_of(rng: random.Random, slots: dict[tuple[int, ...], int]) -> list[list[int]]:
    size = 1 << rng.choice([0, 1, 3])
    while size < len(slots):
        size *= 2
    table = [[-1] * 9 for _ in range(size)]
    for key, slot in slots.items():
        at = stack_reference._hash_of_key(list(key))
        while table[at % size][8] != -1:
            at += 1
        table[at % size] = [*key, slot]
    return table


def _buffer(rng: random.Random, stacks: list[list[int]], max_depth: int) -> tuple[torch.Tensor, Any]:
    """A buffer with the stacks in it, and what makes the view of them: rows side by
    side, with a gap, or columns side by side."""
    values = torch.tensor(stacks, dtype=torch.int32).reshape(-1, 4 + 3 * max_depth)
    form, (num_rows, num_columns) = rng.choice(["rows", "gap", "columns"]), values.shape

    def view(buffer: torch.Tensor) -> torch.Tensor:
        return buffer.T if form == "columns" else buffer[:, :num_columns]

    shape = (num_columns, num_rows) if form == "columns" else (num_rows, num_columns + 2 * (form == "gap"))
    buffer = torch.full(shape, BETWEEN, dtype=torch.int32)
    view(buffer).copy_(values)
    return buffer, view


def _vector(rng: random.Random, values: list[int]) -> torch.Tensor:
    """A vector of any stride, of int32 or int64."""
    stride, dtype = rng.choice([1, 1, 3]), rng.choice([torch.int32, torch.int64])
    buffer = torch.full((len(values) * stride,), BETWEEN, dtype=dtype)
    buffer[::stride] = torch.tensor(values, dtype=dtype)
    return buffer[::stride]
