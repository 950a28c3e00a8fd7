"""Automata of many grammars in tables on a device, for constrained decoding without the
CPU."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from structout.errors import GrammarLimitError
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.token_index import TokenIndex
from structout.grammar.vocabulary import Vocabulary, text_bytes
from structout.masks.bitmask import bitmask_width
from structout.ops.fsm_states import (
    ACCEPTING_FLAG,
    FREE_STATE,
    GRAMMAR_SHIFT,
    LIVE_FLAG,
    FsmTables,
    fsm_advance,
    fsm_draft_states,
    fsm_rows,
)

_MAX_NEW_MASKS = 256


@dataclass(frozen=True, eq=False)
class DeviceGrammar:
    """A grammar in the tables of a DeviceFSM.

    Attributes:
        start_state: the state of an empty text. State s of the TokenIndex is
            ``start_state + s`` on the device.
        num_states: the number of states.
        stop_token_ids: the tokens that end a text.
        number: the grammar's number in ``state_flags`` and ``stop_tokens``.
    """

    start_state: int
    num_states: int
    stop_token_ids: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class DeviceFsmStats:
    """The contents of a DeviceFSM in numbers, and the masks that it has computed.

    Attributes:
        num_grammars: different grammars in the tables.
        num_states: states of these grammars.
        num_masks: masks in slots.
        num_states_without_slot: states whose mask has no slot. States that are never
            entered do not count.
        num_masks_computed: masks that ``rows`` has computed so far.
    """

    num_grammars: int
    num_states: int
    num_masks: int
    num_states_without_slot: int
    num_masks_computed: int


class DeviceFSM:
    """Automata of many grammars of one vocabulary, in tables on a device.

    A request is an int32 state. ``rows`` finds the masks of states, ``advance`` moves
    states by tokens, and both are ops: a decoding loop runs without the CPU. All
    tensors keep their addresses, so a CUDA graph may capture the loop while grammars
    come and go::

        fsm = DeviceFSM(vocabulary, "cuda")
        states = fsm.new_states(batch_size)
        states[0] = fsm.add(index).start_state
        ...
        tokens = masked_sample(logits, fsm.masks, fsm.rows(states))
        fsm.advance(states, tokens)

    A copy of the states is all that a rollback or a fork needs.

    It is not thread-safe. Methods that write to the tables do so on the current stream.

    Args:
        vocabulary: of all grammars.
        device: of the states and logits.
        max_states: the states of all grammars together. Each takes 1 KiB.
        max_masks: the number of slots for masks. Each takes ``V / 8`` bytes. A mask
            without a slot is computed on the device each time that it is needed.
        max_rows: the states that one call of ``rows`` takes. Each takes ``V / 8``
            bytes.
        max_grammars: the number of different grammars.
        max_stop_tokens: the stop tokens of one grammar.

    Attributes:
        tables: what the ops read.
        masks: int32 ``[max_masks + max_rows, ceil(V / 32)]``, the bitmask that the
            result of ``rows`` refers to.
        mask_slots: int32 ``[max_states]``, the row of ``masks`` for each state, or -1.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        device: torch.device | str,
        *,
        max_states: int = 16384,
        max_masks: int = 1024,
        max_rows: int = 256,
        max_grammars: int = 256,
        max_stop_tokens: int = 8,
    ):
        self.vocabulary = vocabulary
        self.max_masks = max_masks

        # Tensors made in inference mode could not be written outside of it.
        with torch.inference_mode(mode=False):
            self._make_tensors(device, max_states, max_rows, max_grammars, max_stop_tokens)
        self._fingerprint = vocabulary.trie.fingerprint
        self._state_ranges = _Ranges(max_states)
        self._slot_of_state = np.full(max_states, -1, dtype=np.int32)  # mask_slots, on the CPU
        self._slots = _MaskSlots(max_masks)
        self._free_numbers = list(range(max_grammars))[::-1]
        self._entries: dict[tuple[Automaton, tuple[int, ...]], _Entry] = {}

    @property
    def device(self) -> torch.device:
        return self.masks.device

    @property
    def memory_bytes(self) -> int:
        """The memory of all tensors on the device."""
        tensors = (*self.tables, self.mask_slots, self.masks, self._num_computed)
        return sum(tensor.nbytes for tensor in tensors)

    def add(
        self, index: TokenIndex, stop_token_ids: Sequence[int] | None = None, *, max_new_masks: int | None = None
    ) -> DeviceGrammar:
        """Put a grammar into the tables.

        A grammar of the same language and stop tokens is shared. Each ``add`` needs a
        ``release``.

        Args:
            index: of the same vocabulary.
            stop_token_ids: the tokens that end a text. Default: the vocabulary's.
            max_new_masks: the states whose masks are put into slots now, the nearest to
                the start first, while there are free slots. It takes up to a
                millisecond each. Default: 256; none on the CPU, where ``rows`` does it.

        Raises:
            GrammarLimitError: the tables are full, or there are too many stop tokens.
                Nothing has changed.
            ValueError: ``index`` is of another vocabulary, or a stop token is not in
                it.
        """
        if index.native.vocabulary_fingerprint != self._fingerprint:
            raise ValueError("the index is of another vocabulary; make it with the vocabulary of the DeviceFSM")
        stops = tuple(sorted(set(self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids)))
        if stops and not 0 <= stops[0] <= stops[-1] < self.vocabulary.size:
            raise ValueError(f"stop_token_ids must be in [0, {self.vocabulary.size}), got {list(stops)}")
        key = (index.automaton, stops)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(self._place(index, stops), index)
            self._upload(entry)
            if max_new_masks is None:
                max_new_masks = 0 if self.device.type == "cpu" else _MAX_NEW_MASKS
            self._fill_slots(entry, range(max_new_masks))
        entry.num_users += 1
        return entry.grammar

    def release(self, grammar: DeviceGrammar) -> None:
        """Undo one ``add``. The last one frees the grammar's states and masks.

        No request may be in one of its states then: such a state allows nothing, until
        another grammar gets its number.

        Raises:
            ValueError: the grammar is not in the tables.
        """
        key, entry = next((item for item in self._entries.items() if item[1].grammar is grammar), (None, None))
        if key is None or entry is None:
            raise ValueError("the grammar is not in the tables: it was released, or belongs to another DeviceFSM")
        entry.num_users -= 1
        if entry.num_users > 0:
            return
        del self._entries[key]
        states = _states_of(grammar)
        self.tables.transitions[states].fill_(-1)
        self.tables.state_flags[states].fill_(0)
        self.tables.stop_tokens[grammar.number].fill_(-1)
        self.mask_slots[states].fill_(-1)
        self._slot_of_state[states] = -1
        self._slots.release(entry.mask_hashes)
        self._state_ranges.release(grammar.start_state, grammar.num_states)
        self._free_numbers.append(grammar.number)

    def new_states(self, num_requests: int) -> torch.Tensor:
        """States of requests without a constraint, int32 ``[num_requests]``."""
        return torch.full((num_requests,), FREE_STATE, dtype=torch.int32, device=self.device)

    def state_of(self, grammar: DeviceGrammar, index_state: int) -> int:
        """The state on the device of a state of the grammar's TokenIndex, such as
        ``FsmGrammar.state_id()``.

        Raises:
            IndexError: the index has no such state.
        """
        if not 0 <= index_state < grammar.num_states:
            raise IndexError(f"index_state must be in [0, {grammar.num_states}), got {index_state}")
        return grammar.start_state + index_state

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """Find the row of ``masks`` for each state, int32 ``[N]``.

        Masks that have no slot are computed; the next call overwrites them. On the CPU
        they first get a slot, if there is a free one. See :func:`structout.fsm_rows`.

        Raises:
            ValueError: there are more than ``max_rows`` states, or they are not int32
                ``[N]`` on the device.
        """
        is_traced = torch.compiler.is_compiling() or type(states) is not torch.Tensor
        if states.device.type == "cpu" and states.dtype == torch.int32 and not is_traced:
            self.keep_masks(states)
        return fsm_rows(states, self.masks, self._num_computed, self.mask_slots, self.tables, self.max_masks)

    def keep_masks(self, states: torch.Tensor) -> None:
        """Put the masks of states into slots, while there are free ones, so that
        ``rows`` need not compute them.

        It waits for the device, and takes up to a millisecond for each mask.

        Args:
            states: int32 ``[N]``.
        """
        if self._slots.is_full or self._num_without_slot() == 0:
            return
        numbers = states.cpu().numpy()
        known = numbers[(numbers >= 0) & (numbers < len(self._slot_of_state))]
        missing = known[self._slot_of_state[known] < 0]
        if not missing.size:
            return
        for entry in self._entries.values():
            index_states = np.unique(missing) - entry.grammar.start_state
            self._fill_slots(entry, index_states.tolist())

    def advance(self, states: torch.Tensor, tokens: torch.Tensor) -> None:
        """Advance each state by one token, in place. See
        :func:`structout.fsm_advance`."""
        fsm_advance(states, tokens, self.tables)

    def draft_states(self, states: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor) -> torch.Tensor:
        """Find the states along the drafts of each request. See
        :func:`structout.fsm_draft_states`."""
        return fsm_draft_states(states, drafts, row_indptr, self.tables)

    def advance_verified(
        self,
        states: torch.Tensor,
        row_states: torch.Tensor,
        row_indptr: torch.Tensor,
        ids: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> None:
        """Advance each state by its accepted drafts and the token after them, in place.

        Args:
            states: int32 ``[B]``. A request without rows keeps its state.
            row_states: int32 ``[T]``, from ``draft_states``.
            row_indptr: int32 or int64 ``[B + 1]``, the same as there.
            ids: int64 ``[T]``, from ``verify_drafts``.
            num_accepted: int32 ``[B]``, from ``verify_drafts``.
        """
        if len(row_states) == 0:
            return
        begin, end = row_indptr[:-1], row_indptr[1:]
        has_rows = begin < end
        last_row = ((begin + num_accepted) * has_rows).long().clamp(0, len(row_states) - 1)
        advanced = row_states.index_select(0, last_row)
        self.advance(advanced, ids.index_select(0, last_row))
        states.copy_(torch.where(has_rows, advanced, states))

    def stats(self) -> DeviceFsmStats:
        """Count what the tables hold. It waits for the device."""
        num_states = sum(entry.grammar.num_states for entry in self._entries.values())
        return DeviceFsmStats(
            num_grammars=len(self._entries),
            num_states=num_states,
            num_masks=self._slots.num_used,
            num_states_without_slot=self._num_without_slot(),
            num_masks_computed=int(self._num_computed),
        )

    def _num_without_slot(self) -> int:
        return sum(entry.num_live_states - len(entry.mask_hashes) for entry in self._entries.values())

    def _make_tensors(
        self, device: torch.device | str, max_states: int, max_rows: int, max_grammars: int, max_stop_tokens: int
    ) -> None:
        def filled(*shape: int, value: int = -1) -> torch.Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        token_bytes, token_begin = token_table(self.vocabulary)
        self.tables = FsmTables(
            transitions=filled(max_states, 256),
            state_flags=filled(max_states, value=0),
            stop_tokens=filled(max_grammars, max_stop_tokens),
            token_bytes=torch.from_numpy(token_bytes).to(device),
            token_begin=torch.from_numpy(token_begin).to(device),
        )
        self.mask_slots = filled(max_states)
        width = bitmask_width(self.vocabulary.size)
        self.masks = torch.zeros(self.max_masks + max_rows, width, dtype=torch.int32, device=device)
        self._num_computed = torch.zeros(1, dtype=torch.int64, device=device)

    def _place(self, index: TokenIndex, stops: tuple[int, ...]) -> DeviceGrammar:
        """Find room for a grammar."""
        max_grammars, max_stop_tokens = self.tables.stop_tokens.shape
        if len(stops) > max_stop_tokens:
            raise GrammarLimitError("max_stop_tokens", len(stops), max_stop_tokens)
        if not self._free_numbers:
            raise GrammarLimitError("max_grammars", max_grammars + 1, max_grammars)
        start = self._state_ranges.take(index.num_states)
        return DeviceGrammar(start, index.num_states, stops, self._free_numbers.pop())

    def _upload(self, entry: "_Entry") -> None:
        """Write everything but the masks."""
        grammar, states = entry.grammar, _states_of(entry.grammar)
        transitions, is_accepting, is_live = entry.index.byte_tables()
        transitions[transitions >= 0] += grammar.start_state
        entry.num_live_states = int(is_live.sum())
        flags = is_accepting * ACCEPTING_FLAG + is_live * LIVE_FLAG + (grammar.number << GRAMMAR_SHIFT)
        self.tables.transitions[states] = torch.from_numpy(transitions).to(self.device)
        self.tables.state_flags[states] = torch.from_numpy(flags.astype(np.int32)).to(self.device)
        stop_tokens = torch.tensor(grammar.stop_token_ids, dtype=torch.int32)
        self.tables.stop_tokens[grammar.number, : len(stop_tokens)] = stop_tokens.to(self.device)

    def _fill_slots(self, entry: "_Entry", index_states: Iterable[int]) -> None:
        """Put the masks of states of the index into slots, while there are free ones.

        Args:
            index_states: the states. It skips any that the index does not have, that
                are not live or that have a slot.
        """
        grammar, index = entry.grammar, entry.index
        new_masks: dict[int, npt.NDArray[np.int32]] = {}
        first_state = grammar.start_state
        for state in index_states:
            if not 0 <= state < grammar.num_states or self._slot_of_state[first_state + state] >= 0:
                continue
            if self._slots.is_full:
                break
            if not index.is_live(state):
                continue
            mask = index.mask(state)
            _set_stop_tokens(mask, grammar.stop_token_ids, index.accepts(state))
            mask_hash = blake2b(mask.tobytes(), digest_size=16).digest()
            slot, is_new = self._slots.take(mask_hash)
            entry.mask_hashes.append(mask_hash)
            self._slot_of_state[first_state + state] = slot
            if is_new:
                new_masks[slot] = mask
        if new_masks:
            new_rows = torch.from_numpy(np.stack(list(new_masks.values()))).to(self.device)
            self.masks.index_copy_(0, torch.tensor(list(new_masks), device=self.device), new_rows)
        states = _states_of(grammar)
        self.mask_slots[states] = torch.from_numpy(self._slot_of_state[states]).to(self.device)


@dataclass
class _Entry:
    """A grammar, its index, and how often it was added.

    Attributes:
        num_live_states: the states that can be entered.
        mask_hashes: of the masks of its states that are in slots, one for each state.
    """

    grammar: DeviceGrammar
    index: TokenIndex
    num_users: int = 0
    num_live_states: int = 0
    mask_hashes: list[bytes] = field(default_factory=list)


class _Ranges:
    """Free numbers below a capacity. Takes and releases ranges of them."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._free = [(0, capacity)] if capacity else []  # begin and end, by increasing numbers

    def take(self, size: int) -> int:
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[i : i + 1] = [(begin + size, end)] if begin + size < end else []
                return begin
        largest = max((end - begin for begin, end in self._free), default=0)
        raise GrammarLimitError("max_states", self._capacity - largest + size, self._capacity)

    def release(self, begin: int, size: int) -> None:
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self._free, (begin, begin + size)]):
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        self._free = joined


class _MaskSlots:
    """Assigns slots to masks, by their hashes. Equal masks share one, which is free
    again when no state uses it."""

    def __init__(self, capacity: int):
        self._free = list(range(capacity))[::-1]
        self._slot_of: dict[bytes, int] = {}
        self._num_users: dict[bytes, int] = {}

    @property
    def num_used(self) -> int:
        return len(self._slot_of)

    @property
    def is_full(self) -> bool:
        return not self._free

    def take(self, mask_hash: bytes) -> tuple[int, bool]:
        """The slot of a mask, and whether the mask has to be written there. There must
        be a free one."""
        is_new = mask_hash not in self._slot_of
        if is_new:
            self._slot_of[mask_hash] = self._free.pop()
        self._num_users[mask_hash] = self._num_users.get(mask_hash, 0) + 1
        return self._slot_of[mask_hash], is_new

    def release(self, mask_hashes: Sequence[bytes]) -> None:
        for mask_hash in mask_hashes:
            self._num_users[mask_hash] -= 1
            if self._num_users[mask_hash] == 0:
                del self._num_users[mask_hash]
                self._free.append(self._slot_of.pop(mask_hash))


def _states_of(grammar: DeviceGrammar) -> slice:
    return slice(grammar.start_state, grammar.start_state + grammar.num_states)


def token_table(vocabulary: Vocabulary) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """The bytes of all tokens, and where each token's begin."""
    texts = text_bytes(vocabulary)
    token_begin = np.zeros(len(texts) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in texts], out=token_begin[1:])
    return np.frombuffer(bytearray(b"".join(texts)), dtype=np.uint8), token_begin


def _set_stop_tokens(mask: npt.NDArray[np.int32], stops: Sequence[int], is_allowed: bool) -> None:
    words = mask.view(np.uint32)
    for stop in stops:
        bit = np.uint32(1 << (stop & 31))
        words[stop >> 5] = words[stop >> 5] | bit if is_allowed else words[stop >> 5] & ~bit
