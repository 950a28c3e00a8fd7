"""Ops over texts whose places are stacks of states: advance them by tokens, and find
their masks.

They do for JSON schemas and grammars, whose texts are inside each other, what
:mod:`structout.ops.fsm_states` does for automata. A place of a text is a row of int32:

===========  ===================================================================
column       what it holds
===========  ===================================================================
0            the state on top, or a number below 0
1            D, the number of frames below it
2, 3         the names that have come in the object on top: 64 bits
4 + 3 i      the state of frame i, the bottom first: it waits for a value
5 + 3 i, ... the names that have come around it: 64 bits
===========  ===================================================================

Tops below 0 are in no tables:

* ``FREE_STACK``: no constraint;
* ``FINISHED_STACK``: the text has ended;
* ``DEAD_STACK``: a token came that was not allowed;
* ``ASKED_STACK``: the engine itself follows the text, because more than its states
  matters: used keys, or items that must differ.

Tables are made when they are first needed, so entries may be missing. A text that comes
to one does not change, and the op says so. ``structout.DeviceStacks`` makes the tables,
and completes them.
"""

from typing import NamedTuple

import torch

from structout.ops import kernels

kernels.require()
_stack_advance = torch.ops.structout.stack_advance.default
_stack_rows = torch.ops.structout.stack_rows.default
_stack_draft_rows = torch.ops.structout.stack_draft_rows.default

FREE_STACK = -1
FINISHED_STACK = -2
DEAD_STACK = -3
ASKED_STACK = -4

FREE_ROW = -1
EMPTY_ROW = -2
MISSED_ROW = -3

ADVANCED = 0
MISSED = 1

FIRST_FRAME = 4
FRAME_COLUMNS = 3


def stack_columns(max_depth: int) -> int:
    """The columns of a stack of up to ``max_depth`` frames."""
    return FIRST_FRAME + FRAME_COLUMNS * max_depth


class StackTableTensors(NamedTuple):
    """The machines of many constraints, and the tokens of their vocabulary.

    All tensors are contiguous and on one device. Numbers in them that are out of range
    are safe: they allow nothing.

    Attributes:
        state_fields: int32 ``[S, 5]``: the row of class_maps, -1 while it is missing;
            the cell of the action of class 0; the cell of its pairs, or -1; the state
            that names its masks, or -1; flags. Flag 1: the text may end in the state.
            2: it keeps names. 4: a token may end in it. 8: it reads tokens by their
            ids. Bits 4 to 7: how many frames name its mask, 0 while that is not known.
            From bit 8 on: the number of the constraint.
        class_maps: uint8 ``[C, 256]``, the class of each byte.
        cells: int32 ``[L]``. Actions, of a kind in bits 0 to 2 and an operand above:
            0 fail; 1 replace the top by the state; 2 push: the cells of the state on
            top and of the one below; 3 pop, with the number of verdicts; 4 pop, and
            read the byte again; 5 missing; 6 guarded: the cells of a guard's cell, of
            an action, and of the name that it completes. Up to 64 pairs of a state
            that waits, of verdicts and the state that follows, or of one that reads
            tokens, of a token and the state that follows; -1 at the end. Guards: 64
            bits of required names, 64 of those of which one must be left, a limit on
            keys or -1, flags. Conditions of masks: the condition before, a frame and a
            guard's cell, -2 at the end.
        keys: int32 ``[K, 9]``, K a power of 2: a hash table with open addressing. Up to
            8 frames name a mask, whose slot is the last; -1: an empty entry.
        stop_tokens: int32 ``[G, M]``, the tokens that end a text of each constraint,
            padded with -1.
        token_bytes: uint8 ``[B]``, the bytes of all tokens.
        token_begin: int32 ``[V + 1]``. Token i has the bytes ``token_begin[i]`` to
            ``token_begin[i + 1]``.
    """

    state_fields: torch.Tensor
    class_maps: torch.Tensor
    cells: torch.Tensor
    keys: torch.Tensor
    stop_tokens: torch.Tensor
    token_bytes: torch.Tensor
    token_begin: torch.Tensor


def stack_advance(stacks: torch.Tensor, tokens: torch.Tensor, tables: StackTableTensors) -> torch.Tensor:
    """Advance each stack by one token, in place.

    ``stack_advance(stacks [N, 4 + 3 D], tokens [N], tables) -> results [N]``

    Equivalent to::

        for n in range(N):
            stack, results[n] = stacks[n], ADVANCED
            if stack.top < 0:                        # free, finished or dead
                results[n] = MISSED if stack.top == ASKED_STACK else ADVANCED
            elif tokens[n] in stops_of(stack.top):
                stack.top = FINISHED_STACK if accepts(stack) else DEAD_STACK
            else:
                try:
                    if tokens[n] in pairs_of(stack.top):
                        stack.top = pairs_of(stack.top)[tokens[n]]
                        continue
                    for byte in bytes_of(tokens[n]):
                        stack = after(stack, byte)   # replaces, pushes or pops the top
                except NotAllowed:
                    stack.top = DEAD_STACK
                except Missing:                      # the stack has not changed
                    results[n] = MISSED

    A token without bytes, -1 and an id out of range are not allowed, unless the state
    reads the token by its id. A token that
    pushes more than 24 frames, or more than fit into the stack, misses.

    Args:
        stacks: int32 ``[N, 4 + 3 D]``, of any strides that keep entries apart.
        tokens: int32 or int64 ``[N]``, of any stride.
        tables: on the device of stacks.

    Returns:
        int32 ``[N]``: 1 where the tables lack an entry, or the engine must be asked.

    Raises:
        ValueError: a dtype, rank, shape or device is wrong. Nothing is written. In
            torch 2.15 it is a RuntimeError.

    Source: a visibly pushdown reading of JSON; the tables keep the stack apart from the
    states, as summaries of pushdown systems do (Reps, Horwitz and Sagiv, 1995).
    """
    return _stack_advance(stacks, tokens, *tables)


def stack_rows(stacks: torch.Tensor, tables: StackTableTensors) -> torch.Tensor:
    """Find the slot of each stack's mask.

    ``stack_rows(stacks [N, 4 + 3 D], tables) -> rows [N]``

    Equivalent to::

        for n in range(N):
            top = stacks[n].top
            if top in (FREE_STACK, FINISHED_STACK):
                rows[n] = FREE_ROW                   # everything is allowed
            elif top == DEAD_STACK:
                rows[n] = EMPTY_ROW                  # no token is allowed
            else:
                rows[n] = keys.get(key_of(stacks[n]), MISSED_ROW)

    The key of a stack is its top and as many frames below as the mask looks at. Where
    the mask depends on the names that have come, the first key leads to a list of
    conditions, whose truth is a second key. The rows go to ``apply_bitmask``,
    ``masked_sample`` and ``verify_drafts``, with the masks that the slots name: a row
    of ``MISSED_ROW`` allows nothing there.

    Args:
        stacks: int32 ``[N, 4 + 3 D]``, of any strides.
        tables: on the device of stacks.

    Returns:
        int32 ``[N]``.

    Raises:
        ValueError: as :func:`stack_advance`.
    """
    return _stack_rows(stacks, *tables)


def stack_draft_rows(
    stacks: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor, tables: StackTableTensors
) -> torch.Tensor:
    """Find the slot of the mask before each draft of each request, and after the last.

    ``stack_draft_rows(stacks [B, 4 + 3 D], drafts [T], row_indptr [B + 1], tables) ->
    rows [T]``

    Equivalent to::

        for b in range(B):
            stack = copy(stacks[b])
            row = row_of(stack)
            for t in range(row_indptr[b], row_indptr[b + 1]):
                rows[t] = row
                if drafts[t] == -1:
                    row = FREE_ROW                   # unless it is finished or dead
                elif is_allowed(stack, drafts[t]):
                    stack = after(stack, drafts[t])
                    row = row_of(stack)
                else:                                # all later rows repeat the row
                    rows[t : row_indptr[b + 1]] = row
                    break

    After a draft that misses, the later rows of the request are ``MISSED_ROW``. The
    layout is that of ``verify_drafts``. To advance stacks by the drafts that were
    accepted, give these to ``stack_advance``.

    Args:
        stacks: int32 ``[B, 4 + 3 D]``, of any strides.
        drafts: int32 or int64 ``[T]``, the draft that each row is to confirm. -1: none.
            A request's last entry is not read.
        row_indptr: int32 or int64 ``[B + 1]``, not decreasing. Values are clamped to
            ``[0, T]``. A row that no request owns is ``FREE_ROW``.
        tables: on the device of stacks.

    Returns:
        int32 ``[T]``.

    Raises:
        ValueError: as :func:`stack_advance`.
    """
    return _stack_draft_rows(stacks, drafts, row_indptr, *tables)


@torch.library.register_fake("structout::stack_advance")
def _(stacks: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return stacks.new_empty(stacks.shape[0])


@torch.library.register_fake("structout::stack_rows")
def _(stacks: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return stacks.new_empty(stacks.shape[0])


@torch.library.register_fake("structout::stack_draft_rows")
def _(stacks: torch.Tensor, drafts: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return stacks.new_empty(drafts.shape[0])
