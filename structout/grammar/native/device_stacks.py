"""Texts on a device whose places are stacks, for constrained decoding without the CPU,
except where the tables miss."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from structout.grammar.interface import StackTables
from structout.grammar.native.device_fsm import token_table
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.token_index import vocabulary_trie
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import bitmask_dtype, bitmask_width
from structout.ops.stack_tables import (
    ASKED_STACK,
    DEAD_STACK,
    FINISHED_STACK,
    FREE_ROW,
    FREE_STACK,
    MISSED,
    MISSED_ROW,
    StackTableTensors,
    stack_advance,
    stack_columns,
    stack_draft_rows,
    stack_rows,
)

_NO_TOKEN = -2  # in the history of a row that did not advance
_BUILD_STATES = 50_000
_BUILD_SECONDS = 0.05


class DeviceStacks:
    """Texts of JSON schemas, grammars, tags and other constraints of one vocabulary,
    with the tables of their machines on a device.

    A text is a row of ``stacks``. ``rows`` finds the masks of all texts and ``advance``
    moves them by a token each; both are ops on the device, which does not wait for the
    engine where the tables have all that is needed::

        device = DeviceStacks(vocabulary, "cuda", num_texts=batch_size)
        device.start(0, grammar.stack_tables())
        ...
        tokens = masked_sample(logits, device.masks, device.rows())
        device.advance(tokens)

    Where an entry is missing, the engine makes it, and the op runs again. Texts that
    have used keys without a name or items that must differ are followed by the engine
    itself until the object or array ends. So each call looks once at what has missed,
    which waits for the device.

    It is not thread-safe.

    Args:
        vocabulary: of all constraints.
        device: of the stacks and logits.
        num_texts: N, the rows of ``stacks``.
        max_depth: values inside each other. The engine follows texts that go deeper.
        max_masks: the masks that are kept. Each takes ``V / 8`` bytes. The engine fills
            a mask beyond each time that it is needed.
        max_rows: the rows of one call of ``draft_rows``. Default: N.

    Attributes:
        stacks: int32 ``[N, 4 + 3 max_depth]``, the places of the texts; see
            :mod:`structout.ops.stack_tables`.
        tables: what the ops read.
        masks: int32 ``[max_masks + max_rows, ceil(V / 32)]``, the bitmask that the
            result of ``rows`` refers to. The rows from ``max_masks`` on are those of
            one call.
    """

    needs_host = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        device: torch.device | str,
        num_texts: int,
        *,
        max_depth: int = 32,
        max_masks: int = 1024,
        max_rows: int | None = None,
    ):
        self.vocabulary = vocabulary
        self.max_depth = max_depth
        self.max_masks = max_masks
        width = bitmask_width(vocabulary.size)
        self._native = core().StackTables(vocabulary_trie(vocabulary), max_mask_bytes=max_masks * width * 4)
        token_bytes, token_begin = (torch.from_numpy(table).to(device) for table in token_table(vocabulary))
        with torch.inference_mode(mode=False):
            self.stacks = torch.zeros(num_texts, stack_columns(max_depth), dtype=torch.int32, device=device)
            self.stacks[:, 0] = FREE_STACK
            num_own = num_texts if max_rows is None else max_rows
            self.masks = torch.zeros(max_masks + num_own, width, dtype=bitmask_dtype, device=device)
        self._vocabulary_tensors = (token_bytes, token_begin)
        self._num_masks = 0  # of those that are on the device
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._languages: list[object] = []  # whose ids are in _numbers
        self._texts: list[_Text | None] = [None] * num_texts  # None: the row is free
        # The tokens of all rows in late calls of advance, for the engine's own texts.
        self._steps: list[torch.Tensor] = []
        self._num_steps = 0  # calls of advance so far
        self._upload()

    @property
    def device(self) -> torch.device:
        return self.stacks.device

    @property
    def table_bytes(self) -> int:
        """The memory of the machines, without keys and masks."""
        return self._native.table_bytes

    def start(self, row: int, tables: StackTables) -> None:
        """Put a text into a row. Equal constraints share their tables.

        The tables are built ahead for up to 50 ms, where the constraint is new.

        Raises:
            ValueError: the constraint is of another vocabulary.
            GrammarLimitError: the text needs more than the engine's limits.
        """
        stops = tuple(sorted(set(tables.stop_token_ids)))
        key = (id(tables.language), stops)
        with grammar_errors():
            if key not in self._numbers:
                number = self._native.add(tables.language, stops)
                self._native.build(number, max_states=_BUILD_STATES, seconds=_BUILD_SECONDS)
                self._numbers[key] = number
                self._languages.append(tables.language)
            number = self._numbers[key]
            self._start(row, number, stops, tables.token_ids or ())
        if tables.token_ids is None:
            self.stacks[row, 0] = FINISHED_STACK

    def release(self, row: int) -> None:
        """Make a row free: it allows every token, until another text starts there."""
        self._texts[row] = None
        self.stacks[row, 0] = FREE_STACK
        self._forget_steps()

    def fork(self, row: int, new_row: int) -> None:
        """Put a text into another row as well, where it goes on by itself.

        Raises:
            ValueError: ``row`` is free.
        """
        text = self._live(row)
        self._catch_up(row)
        native = None if text.native is None else text.native.copy()
        self._texts[new_row] = replace(text, tokens=[*text.tokens], native=native)
        self.stacks[new_row] = self.stacks[row]
        self._forget_steps()

    def rollback(self, row: int, num_tokens: int) -> None:
        """Take a text's last tokens back, those that it refused included. It waits for
        the device, and reads the text again.

        Raises:
            ValueError: ``row`` is free, or its text has fewer tokens.
            GrammarLimitError: the text needs more than the engine's limits.
        """
        text = self._live(row)
        self._catch_up(row)
        num_left = len(text.tokens) - num_tokens
        if not 0 <= num_left <= len(text.tokens):
            raise ValueError(f"num_tokens must be in 0..{len(text.tokens)}, the tokens of row {row}, got {num_tokens}")
        if num_tokens:
            with grammar_errors():
                self._start(row, text.language, text.stop_token_ids, text.tokens[:num_left])

    def rows(self) -> torch.Tensor:
        """Find the row of ``masks`` for each text, int32 ``[N]``. See
        :func:`structout.stack_rows`.

        Raises:
            GrammarLimitError: a text needs more than the engine's limits.
        """
        own: set[int] = set()
        rows = stack_rows(self.stacks, self.tables)
        # A mask that looks at more frames takes its slot from others of the same state,
        # so they may miss in turn: at most once for each frame of a key.
        while missed := [row for row in _list(rows == MISSED_ROW) if row not in own]:
            stacks = self.stacks[missed].cpu().numpy()
            with grammar_errors():
                for row, stack in zip(missed, stacks, strict=True):
                    if stack[0] == ASKED_STACK or not self._native.keep_mask(stack):
                        mask = self._native.mask(self._live(row).language, self._text_of(row))
                        self.masks[self.max_masks + row] = torch.from_numpy(mask).to(self.device)
                        own.add(row)
            self._upload()
            rows = stack_rows(self.stacks, self.tables)
        if own:
            at = torch.tensor(sorted(own), device=self.device)
            rows[at] = at.int() + self.max_masks
        return rows

    def advance(self, tokens: torch.Tensor, is_active: torch.Tensor | None = None) -> None:
        """Advance each text by one token, in place. See
        :func:`structout.stack_advance`.

        Args:
            tokens: int32 or int64 ``[N]``.
            is_active: bool ``[N]``. The texts that advance. Default: all.

        Raises:
            GrammarLimitError: a text needs more than the engine's limits.
        """
        before = None if is_active is None else self.stacks.clone()
        results = stack_advance(self.stacks, tokens, self.tables)
        if is_active is not None and before is not None:
            self.stacks.copy_(torch.where(is_active[:, None], self.stacks, before))
            results = results * is_active
            tokens = torch.where(is_active, tokens, _NO_TOKEN)
        missed = _list(results == MISSED)
        if missed:
            self._advance_missed(missed, tokens)
        self._steps.append(tokens.clone())
        self._num_steps += 1

    def draft_rows(self, drafts: torch.Tensor, row_indptr: torch.Tensor) -> torch.Tensor:
        """Find the row of ``masks`` before each draft of each text, and after the last.
        See :func:`structout.stack_draft_rows`.

        Args:
            drafts: int32 or int64 ``[T]``, T at most ``max_rows``.
            row_indptr: int32 or int64 ``[N + 1]``.
        """
        if len(drafts) > len(self.masks) - self.max_masks:
            raise ValueError(
                f"drafts has {len(drafts)} rows, but max_rows is {len(self.masks) - self.max_masks}; "
                "make DeviceStacks with more max_rows"
            )
        rows = stack_draft_rows(self.stacks, drafts, row_indptr, self.tables)
        if not _list(rows == MISSED_ROW):
            return rows
        bounds, tokens, found = row_indptr.clamp(0, len(drafts)).tolist(), drafts.tolist(), rows.tolist()
        with grammar_errors():
            for row, (begin, end) in enumerate(pairwise(bounds)):
                if MISSED_ROW in found[begin:end]:
                    found[begin:end] = self._rows_along(row, tokens[begin:end], begin)
        self._upload()
        rows.copy_(torch.tensor(found, dtype=torch.int32))
        return rows

    def advance_verified(self, row_indptr: torch.Tensor, ids: torch.Tensor, num_accepted: torch.Tensor) -> None:
        """Advance each text by its accepted drafts and the token after them, in place.

        Args:
            row_indptr: int32 or int64 ``[N + 1]``, as in ``draft_rows``. A text without
                rows stays.
            ids: int64 ``[T]``, from ``verify_drafts``.
            num_accepted: int32 ``[N]``, from ``verify_drafts``.
        """
        begin, end = row_indptr[:-1], row_indptr[1:]
        num_tokens = torch.where(begin < end, num_accepted + 1, 0)
        for i in range(int(num_tokens.max()) if len(num_tokens) else 0):
            at = (begin + i).clamp(max=len(ids) - 1).long()
            self.advance(ids.index_select(0, at), i < num_tokens)

    def are_over(self) -> bool:
        """Whether no text can go on: all are finished or dead. It waits for the
        device."""
        tops = self.stacks[:, 0]
        return bool(((tops == FINISHED_STACK) | (tops == DEAD_STACK)).all())

    def _upload(self) -> None:
        """Write the tables and the new masks to the device."""
        fields, class_maps, cells, keys, stops = (torch.from_numpy(a).to(self.device) for a in self._native.arrays())
        self.tables = StackTableTensors(fields, class_maps, cells, keys, stops, *self._vocabulary_tensors)
        if self._native.num_masks > self._num_masks:
            new = torch.from_numpy(self._native.masks(self._num_masks)).to(self.device)
            self.masks[self._num_masks : self._num_masks + len(new)] = new
            self._num_masks += len(new)

    def _advance_missed(self, missed: list[int], tokens: torch.Tensor) -> None:
        stacks, given = self.stacks[missed].cpu().numpy(), tokens[missed].tolist()
        again = []
        with grammar_errors():
            for row, stack, token in zip(missed, stacks, given, strict=True):
                if stack[0] != ASKED_STACK and self._native.complete(stack, token):
                    again.append(row)
                else:
                    self.stacks[row] = torch.from_numpy(self._read(row, stack, token)).to(self.device)
        self._upload()
        if again:
            advanced = self.stacks[again]
            stack_advance(advanced, tokens[again], self.tables)
            self.stacks[again] = advanced

    def _read(self, row: int, stack: npt.NDArray[np.int32], token: int) -> npt.NDArray[np.int32]:
        """The place of a text that the engine follows after a token."""
        given, text, after = self._live(row), self._text_of(row).copy(), stack.copy()
        if token in given.stop_token_ids:
            after[0] = FINISHED_STACK if text.is_complete() else DEAD_STACK
        elif 0 <= token < self.vocabulary.size and text.read(token):
            after = self._native.place(given.language, text, self.max_depth)
        else:
            after[0] = DEAD_STACK
        return after

    def _rows_along(self, row: int, drafts: list[int], first: int) -> list[int]:
        """The rows of masks along the drafts of a text, found by the engine. What it
        needs goes into the tables."""
        given, text = self._live(row), self._text_of(row).copy()
        rows: list[int] = []
        for i, draft in enumerate(drafts):
            place = self._native.place(given.language, text, self.max_depth)
            slot = self._native.slot(place)
            if slot < 0:
                slot = self.max_masks + first + i
                self.masks[slot] = torch.from_numpy(self._native.mask(given.language, text)).to(self.device)
            rows.append(slot)
            if i + 1 == len(drafts):
                break
            if draft == -1 or (draft in given.stop_token_ids and text.is_complete()):
                return rows + [FREE_ROW] * (len(drafts) - len(rows))
            if place[0] != ASKED_STACK:
                self._native.complete(place, draft)
            is_text = 0 <= draft < self.vocabulary.size and draft not in given.stop_token_ids
            if not is_text or not text.read(draft):
                return rows + [slot] * (len(drafts) - len(rows))
        return rows

    def _start(self, row: int, language: int, stop_token_ids: tuple[int, ...], tokens: Sequence[int]) -> None:
        """Put a text that has read some tokens into a row."""
        text = self._native.text(language)
        end = None
        for token in tokens:
            if token in stop_token_ids:
                end = FINISHED_STACK if text.is_complete() else DEAD_STACK
            elif not 0 <= token < self.vocabulary.size or not text.read(token):
                end = DEAD_STACK
            if end is not None:
                break
        place = self._native.place(language, text, self.max_depth)
        if end is not None:
            place[0] = end
        self._upload()
        self.stacks[row] = torch.from_numpy(place).to(self.device)
        self._texts[row] = _Text(language, stop_token_ids, [*tokens], self._num_steps, text if tokens else None)
        self._forget_steps()

    def _live(self, row: int) -> "_Text":
        text = self._texts[row]
        if text is None:
            raise ValueError(f"row {row} has no text: start() puts one there")
        return text

    def _text_of(self, row: int) -> Any:
        """The engine's text of a row, after all tokens so far."""
        text = self._live(row)
        self._catch_up(row)
        if text.native is None:
            text.native = self._native.text(text.language)
            for token in text.tokens:
                text.native.read(token)
        return text.native

    def _catch_up(self, row: int) -> None:
        """Bring a text's tokens up to date, and the engine's own text. It waits for the
        device."""
        text = self._live(row)
        steps = self._steps[len(self._steps) - (self._num_steps - text.num_steps) :]
        later = torch.stack(steps)[:, row].tolist() if steps else []
        text.num_steps = self._num_steps
        for token in later:
            if token != _NO_TOKEN:
                text.tokens.append(token)
                if text.native is not None:
                    text.native.read(token)

    def _forget_steps(self) -> None:
        """Drop the tokens of calls that no text needs any more."""
        num_needed = max((self._num_steps - text.num_steps for text in self._texts if text is not None), default=0)
        del self._steps[: len(self._steps) - num_needed]


@dataclass
class _Text:
    """A text, and the engine's own once that is needed.

    Attributes:
        language: the number of its constraint.
        stop_token_ids: the tokens that end it.
        tokens: those that are known on the CPU; where the engine has a text, it has
            read them.
        num_steps: the calls of ``advance`` whose tokens are among them.
        native: the engine's own, or None.
    """

    language: int
    stop_token_ids: tuple[int, ...]
    tokens: list[int]
    num_steps: int
    native: Any


def _list(mask: torch.Tensor) -> list[int]:
    """Where a mask is set. It waits for the device."""
    return mask.nonzero().flatten().tolist()
