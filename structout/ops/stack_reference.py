"""The reference of the stack ops in plain torch and Python."""

import itertools

import torch


def stack_advance(stacks: torch.Tensor, tokens: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
    """The reference of :func:`structout.stack_advance`."""
    machines, results = _StackMachines(*tables), []
    for row, token in zip(stacks, tokens.tolist(), strict=True):
        stack, missed = machines.advance(row.tolist(), token)
        row.copy_(torch.tensor(stack, dtype=torch.int32))
        results.append(int(missed))
    return torch.tensor(results, dtype=torch.int32, device=stacks.device)


def stack_rows(stacks: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
    """The reference of :func:`structout.stack_rows`."""
    machines = _StackMachines(*tables)
    rows = [machines.row(stack) for stack in stacks.tolist()]
    return torch.tensor(rows, dtype=torch.int32, device=stacks.device)


def stack_draft_rows(
    stacks: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor, *tables: torch.Tensor
) -> torch.Tensor:
    """The reference of :func:`structout.stack_draft_rows`."""
    machines, rows = _StackMachines(*tables), [-1] * len(drafts)
    bounds, tokens = row_indptr.clamp(0, len(drafts)).tolist(), drafts.tolist()
    for stack, (begin, end) in zip(stacks.tolist(), itertools.pairwise(bounds), strict=True):
        if begin < end:
            rows[begin:end] = machines.along(stack, tokens[begin : end - 1])
    return torch.tensor(rows, dtype=torch.int32, device=stacks.device)


class _NotAllowedError(Exception):
    pass


class _MissingError(Exception):
    pass


class _StackMachines:
    """The tables of the stack ops as lists. Stacks are lists of columns."""

    FREE, FINISHED, DEAD, ASKED = -1, -2, -3, -4
    FREE_ROW, EMPTY_ROW, MISSED_ROW = -1, -2, -3
    FRAMES_OF_TOKEN, FRAMES_OF_KEY, MAX_PAIRS, MAX_CONDITIONS = 24, 8, 64, 224

    def __init__(
        self,
        state_fields: torch.Tensor,
        class_maps: torch.Tensor,
        cells: torch.Tensor,
        keys: torch.Tensor,
        stop_tokens: torch.Tensor,
        token_bytes: torch.Tensor,
        token_begin: torch.Tensor,
    ):
        self.fields, self.class_maps, self.cells = state_fields.tolist(), class_maps.tolist(), cells.tolist()
        self.keys, self.stop_tokens = keys.tolist(), stop_tokens.tolist()
        text = token_bytes.tolist()
        self.tokens = [
            text[begin:end] if 0 <= begin < end <= len(text) else []
            for begin, end in itertools.pairwise(token_begin.tolist())
        ]

    def advance(self, stack: list[int], token: int) -> tuple[list[int], bool]:
        """The stack after a token, and whether it has missed."""
        top, depth = stack[:2]
        if top == self.ASKED:
            return stack, True
        if self.DEAD < top < 0:
            return stack, False
        dead = [self.DEAD, *stack[1:]]
        if not self._is_state(top) or not 0 <= depth <= self._max_depth(stack):
            return dead, False
        if not 0 <= token < len(self.tokens):
            return dead, False
        if self._is_stop(top, token):
            return [self.FINISHED if self._accepts(stack) else self.DEAD, *stack[1:]], False
        try:
            by_id = self._by_id(top, token)
            if by_id is not None:
                return [by_id, depth, 0, 0, *stack[4:]], False
            return self._after(stack, self.tokens[token]), False
        except _NotAllowedError:
            return dead, False
        except _MissingError:
            return stack, True

    def row(self, stack: list[int]) -> int:
        """The slot of the stack's mask, or what there is in its place."""
        top, depth = stack[:2]
        if top == self.ASKED:
            return self.MISSED_ROW
        if self.DEAD < top < 0:
            return self.FREE_ROW
        if not self._is_state(top) or not 0 <= depth <= self._max_depth(stack):
            return self.EMPTY_ROW
        state = self.fields[top][3]
        num_frames = self.fields[state][4] >> 4 & 15 if self._is_state(state) else 0
        if not 1 <= num_frames <= self.FRAMES_OF_KEY:
            return self.MISSED_ROW
        states = [stack[4 + 3 * i] for i in reversed(range(depth))]
        key = [state, *states, -2][:num_frames]
        slot = self._find(key + [-1] * (self.FRAMES_OF_KEY - len(key)))
        if -(2**31) < slot <= -2:
            slot = self._find([slot, *self._conditions(-2 - slot, stack)])
        return slot if slot >= 0 else self.MISSED_ROW

    def along(self, stack: list[int], drafts: list[int]) -> list[int]:
        """The row before each draft, and after the last."""
        rows = [self.row(stack)]
        for i, draft in enumerate(drafts):
            if stack[0] < 0:
                rows.append(rows[-1])
                continue
            if draft == -1:
                return rows + [self.FREE_ROW] * (len(drafts) - i)
            stack, missed = self.advance(stack, draft)
            if missed or stack[0] == self.DEAD:
                return rows + [self.MISSED_ROW if missed else rows[-1]] * (len(drafts) - i)
            rows.append(self.row(stack))
        return rows

    def _is_state(self, state: int) -> bool:
        return 0 <= state < len(self.fields)

    @staticmethod
    def _max_depth(stack: list[int]) -> int:
        return (len(stack) - 4) // 3

    def _is_stop(self, state: int, token: int) -> bool:
        language = self.fields[state][4] >> 8
        return 0 <= language < len(self.stop_tokens) and token in self.stop_tokens[language]

    def _accepts(self, stack: list[int]) -> bool:
        return stack[1] <= 1 and bool(self.fields[stack[0]][4] & 1)

    def _cells(self, first: int, count: int) -> list[int] | None:
        return self.cells[first : first + count] if 0 <= first <= len(self.cells) - count else None

    def _kept(self, state: int, names: int) -> int:
        """The names that are left in a state."""
        return names if self._is_state(state) and self.fields[state][4] & 2 else 0

    def _after(self, stack: list[int], text: list[int]) -> list[int]:
        if not text:
            raise _NotAllowedError
        max_depth = self._max_depth(stack)
        top, names = stack[0], _names(stack, 2)
        frames = [(stack[4 + 3 * i], _names(stack, 5 + 3 * i)) for i in range(stack[1])]
        num_kept = len(frames)
        rest = list(text)
        while rest:
            kind, operand, guard, name = self._action(top, rest[0])
            if guard is not None and not self._holds(guard, names):
                raise _NotAllowedError
            if kind == 1:
                top = operand
                if 0 <= name < 64:
                    names |= 1 << name
            elif kind == 2:
                pushed = self._cells(operand, 2)
                if pushed is None or len(frames) - num_kept == self.FRAMES_OF_TOKEN or len(frames) >= max_depth:
                    raise _MissingError
                frames.append((pushed[1], self._kept(pushed[1], names)))
                top, names = pushed[0], 0
            elif kind in (3, 4):
                if not frames:
                    raise _NotAllowedError
                waiting, names = frames.pop()
                num_kept = min(num_kept, len(frames))
                top = self._resumed(waiting, operand)
            else:
                raise _NotAllowedError if kind == 0 else _MissingError
            if not self._is_state(top):
                raise _NotAllowedError
            names = self._kept(top, names)
            if kind != 4:
                rest.pop(0)
        if not self.fields[top][4] & 4:
            raise _NotAllowedError
        after = [top, len(frames), *_words(names), *stack[4:]]
        for i, (state, waiting_names) in enumerate(frames):
            after[4 + 3 * i : 7 + 3 * i] = state, *_words(waiting_names)
        return after

    def _action(self, state: int, byte: int) -> tuple[int, int, int | None, int]:
        """The kind and operand of what a byte does, its guard, and the name that it
        completes."""
        map_number = self.fields[state][0]
        if not 0 <= map_number < len(self.class_maps):
            raise _MissingError
        cell = self._cells(self.fields[state][1] + self.class_maps[map_number][byte], 1)
        if cell is None:
            raise _MissingError
        guard, action, name = None, cell[0], -1
        if action & 7 == 6:
            guarded = self._cells(action >> 3, 3)
            if guarded is None:
                raise _MissingError
            guard, action, name = guarded
        return action & 7, action >> 3, guard, name

    def _by_id(self, top: int, token: int) -> int | None:
        """The state after a token that a state reads by its id; None if it does not."""
        if not self.fields[top][4] & 8:
            return None
        if self.fields[top][0] < 0:
            raise _MissingError
        state = self._paired(top, token)
        if state is not None and not (self._is_state(state) and self.fields[state][4] & 4):
            raise _NotAllowedError
        return state

    def _resumed(self, waiting: int, verdicts: int) -> int:
        if not self._is_state(waiting):
            raise _NotAllowedError
        state = self._paired(waiting, verdicts)
        if state is None:
            raise _MissingError
        return state

    def _paired(self, state: int, verdicts_or_token: int) -> int | None:
        for i in range(self.MAX_PAIRS):
            pair = self._cells(self.fields[state][2] + 2 * i, 2)
            if pair is None or pair[0] < 0:
                break
            if pair[0] == verdicts_or_token:
                if pair[1] == -2:
                    raise _MissingError
                return pair[1]
        return None

    def _holds(self, guard: int, names: int) -> bool:
        cells = self._cells(guard, 6)
        if cells is None:
            return False
        required, candidates, limit, flags = _names(cells, 0), _names(cells, 2), cells[4], cells[5]
        num_missing = (required & ~names).bit_count()
        if flags & 1:
            return num_missing == 0
        must_be_required = 0 <= limit <= num_missing
        if flags & 2 and not must_be_required:
            return True
        return bool(candidates & ~names & (required if must_be_required else -1))

    def _find(self, key: list[int]) -> int:
        first = _hash_of_key(key)
        for i in range(len(self.keys)):
            entry = self.keys[(first + i) % len(self.keys)]
            if entry[8] == -1:
                return -1
            if entry[:8] == key:
                return entry[8]
        return -1

    def _conditions(self, first: int, stack: list[int]) -> list[int]:
        words, cell, depth = [0] * (self.FRAMES_OF_KEY - 1), first, stack[1]
        for bit in range(self.MAX_CONDITIONS):
            condition = self._cells(cell, 3)
            if condition is None or condition[0] == -2:
                break
            before, frame, guard = condition
            cell += 3
            names = _names(stack, 2) if frame == 0 else 0
            if 0 < frame <= depth:
                names = _names(stack, 5 + 3 * (depth - frame))
            if guard == -1:
                if 2 * bit + 2 > len(words):
                    break
                words[2 * bit : 2 * bit + 2] = _words(names)
                continue
            is_open = not 0 <= before < bit or words[before // 32] >> (before % 32) & 1
            if is_open and self._holds(guard, names):
                words[bit // 32] = _signed(words[bit // 32] | 1 << (bit % 32))
        return words


def _names(columns: list[int], first: int) -> int:
    """The 64 bits of two columns."""
    return columns[first] & 0xFFFFFFFF | (columns[first + 1] & 0xFFFFFFFF) << 32


def _words(names: int) -> tuple[int, int]:
    return _signed(names & 0xFFFFFFFF), _signed(names >> 32)


def _signed(word: int) -> int:
    """The int32 of the same 32 bits."""
    return (word & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _hash_of_key(key: list[int]) -> int:
    mask, value = 0xFFFFFFFF, 0x9E3779B1
    for part in key:
        value = (value ^ part & mask) * 0x85EBCA6B & mask
        value ^= value >> 15
    return value
