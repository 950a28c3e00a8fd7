"""Ops over the states of automata: advance them by tokens, and find their masks.

A state is an int32 number. States of many grammars are in the same tables, and these
are in none:

* ``FREE_STATE``: no constraint;
* ``FINISHED_STATE``: the text has ended;
* ``DEAD_STATE``: a token came that was not allowed.

``structout.DeviceFSM`` makes the tables.
"""

from typing import NamedTuple

import torch

from structout.ops import kernels

kernels.require()
_fsm_advance = torch.ops.structout.fsm_advance.default
_fsm_rows = torch.ops.structout.fsm_rows.default
_fsm_draft_states = torch.ops.structout.fsm_draft_states.default

FREE_STATE = -1
FINISHED_STATE = -2
DEAD_STATE = -3

ACCEPTING_FLAG = 1
LIVE_FLAG = 2
GRAMMAR_SHIFT = 2


class FsmTables(NamedTuple):
    """The automata over bytes of many grammars, and the tokens of their vocabulary.

    All tensors are contiguous and on one device. Numbers in them that are out of range
    are safe: they allow nothing.

    Attributes:
        transitions: int32 ``[S, 256]``, the state after each byte. -1: none.
        state_flags: int32 ``[S]``. Bit 0: the text may end in the state. Bit 1: a token
            may end in it. From bit 2 on: the number of the grammar.
        stop_tokens: int32 ``[G, M]``, the tokens that end a text of each grammar,
            padded with -1. Their bytes do not matter.
        token_bytes: uint8 ``[B]``, the bytes of all tokens.
        token_begin: int32 ``[V + 1]``. Token i has the bytes ``token_begin[i]`` to
            ``token_begin[i + 1]``. A token without bytes is not allowed in a text.
    """

    transitions: torch.Tensor
    state_flags: torch.Tensor
    stop_tokens: torch.Tensor
    token_bytes: torch.Tensor
    token_begin: torch.Tensor


def fsm_advance(states: torch.Tensor, tokens: torch.Tensor, tables: FsmTables) -> None:
    """Advance each state by one token, in place.

    ``fsm_advance(states [N], tokens [N], tables) -> None``

    Equivalent to::

        for n in range(N):
            state, token = states[n], tokens[n]
            if state < 0:
                continue                             # free, finished or dead
            if token in stops_of(state):
                states[n] = FINISHED_STATE if accepts(state) else DEAD_STATE
                continue
            for byte in bytes_of(token):
                state = transitions[state, byte]     # -1 ends the walk
            states[n] = state if is_live(state) else DEAD_STATE

    A token without bytes, -1 and an id out of range are not allowed: the state becomes
    ``DEAD_STATE``. So does a state below -3, or not below S.

    Args:
        states: int32 ``[N]``, of any stride but 0.
        tokens: int32 or int64 ``[N]``, of any stride.
        tables: of S states and V tokens, on the device of states.

    Raises:
        ValueError: a dtype, rank, shape or device is wrong. Nothing is written. In
            torch 2.15 it is a RuntimeError.

    Source: Outlines walks the bytes of tokens through an automaton ahead of time
    (Willard and Louf, 2023). This op does it on the device, one token a step.
    """
    _fsm_advance(states, tokens, *tables)


def fsm_rows(
    states: torch.Tensor,
    masks: torch.Tensor,
    num_computed: torch.Tensor,
    mask_slots: torch.Tensor,
    tables: FsmTables,
    num_slots: int,
) -> torch.Tensor:
    """Find the row of ``masks`` that holds the mask of each state. Masks that no slot
    holds are computed on the device.

    ``fsm_rows(states [N], masks [R, ceil(V / 32)], num_computed [1], mask_slots [S],
    tables, num_slots) -> rows [N]``

    Equivalent to::

        for n in range(N):
            state = states[n]
            if state in (FREE_STATE, FINISHED_STATE):
                rows[n] = -1                         # everything is allowed
            elif state == DEAD_STATE:
                rows[n] = -2                         # no token is allowed
            elif 0 <= mask_slots[state] < num_slots:
                rows[n] = mask_slots[state]
            else:
                rows[n] = num_slots + n
                masks[rows[n]] = mask_of(state)
                num_computed += 1

    ``masks`` and the result go to ``apply_bitmask``, ``masked_sample`` and
    ``verify_drafts``. A mask allows the tokens that ``fsm_advance`` would. Bits past V
    are 0.

    Args:
        states: int32 ``[N]``, of any stride.
        masks: int32 ``[R, ceil(V / 32)]``, R at least ``num_slots + N``. The first
            ``num_slots`` rows are a cache, the others hold the masks of one call.
        num_computed: int64 ``[1]``, a count to which the number of computed masks is
            added.
        mask_slots: int32 ``[S]``, contiguous: the row of each state's mask. -1: none.
        tables: of S states and V tokens, on the device of states.
        num_slots: the number of rows that slots name.

    Returns:
        int32 ``[N]``.

    Raises:
        ValueError: as :func:`fsm_advance`.
    """
    return _fsm_rows(states, masks, num_computed, mask_slots, *tables, num_slots)


def fsm_draft_states(
    states: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor, tables: FsmTables
) -> torch.Tensor:
    """Find the state before each draft of each request, and after the last one.

    ``fsm_draft_states(states [B], drafts [T], row_indptr [B + 1], tables) ->
    row_states [T]``

    Equivalent to::

        for b in range(B):
            state = states[b]
            for row in range(row_indptr[b], row_indptr[b + 1]):
                row_states[row] = state
                if drafts[row] == -1:
                    state = FREE_STATE               # unless it is finished or dead
                elif is_allowed(state, drafts[row]):
                    state = state_after(state, drafts[row])
                else:                                # all later rows repeat the state
                    row_states[row : row_indptr[b + 1]] = state
                    break

    The layout is that of ``verify_drafts``: request b owns one row more than it has
    drafts, and row j is for the token after j drafts. Give the result to ``fsm_rows``,
    whose rows go to ``verify_drafts``.

    Args:
        states: int32 ``[B]``, of any stride.
        drafts: int32 or int64 ``[T]``, the draft that each row is to confirm. -1: none.
            A request's last entry is not read.
        row_indptr: int32 or int64 ``[B + 1]``, not decreasing. Values are clamped to
            ``[0, T]``. The state of a row that no request owns is ``FREE_STATE``.
        tables: on the device of states.

    Returns:
        int32 ``[T]``.

    Raises:
        ValueError: as :func:`fsm_advance`.
    """
    return _fsm_draft_states(states, drafts, row_indptr, *tables)


@torch.library.register_fake("structout::fsm_rows")
def _(states: torch.Tensor, *_: torch.Tensor | int) -> torch.Tensor:
    return states.new_empty(states.shape[0])


@torch.library.register_fake("structout::fsm_draft_states")
def _(states: torch.Tensor, drafts: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return states.new_empty(drafts.shape[0])
