"""The reference of every op in plain torch: slow, readable, and on any device.

Tests and benchmarks compare every backend with it.
"""

import itertools
import math
from collections.abc import Iterator

import torch

from structout.ops import sampling_math
from structout.ops.token_bitmask import pack_bitmask, unpack_bitmask


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """The reference of :func:`structout.apply_bitmask`."""
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    logits.masked_fill_(~_allowed_tokens(logits, bitmask, rows), float("-inf"))


def _allowed_tokens(logits: torch.Tensor, bitmask: torch.Tensor | None, rows: torch.Tensor | None) -> torch.Tensor:
    """The allowed tokens of each row of logits ``[N, V]``, bool ``[N, V]``."""
    if bitmask is None:
        return torch.ones_like(logits, dtype=torch.bool)
    allowed = unpack_bitmask(bitmask if bitmask.dim() == 2 else bitmask.unsqueeze(0), logits.shape[-1])
    if rows is None:
        return allowed
    no_tokens, all_tokens = allowed.new_zeros(1, logits.shape[-1]), allowed.new_ones(1, logits.shape[-1])
    table = torch.cat([allowed, no_tokens, all_tokens])
    num_masks = allowed.shape[0]
    is_in_range = (rows >= 0) & (rows < num_masks)
    table_rows = torch.where(is_in_range, rows, torch.where(rows == -1, num_masks + 1, num_masks))
    return table[table_rows.long()]


def masked_sample(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """The reference of :func:`structout.masked_sample`: ids int64 ``[N]``."""
    return masked_sample_logprobs(logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)[0]


def masked_sample_logprobs(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of :func:`structout.masked_sample_logprobs`: ids int64 ``[N]`` and
    logprobs float32 ``[N]``."""
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    num_rows = logits.shape[0]
    allowed = _allowed_tokens(logits, bitmask, rows)

    def per_row(parameter: torch.Tensor | None, default: float) -> list[float]:
        return [default] * num_rows if parameter is None else parameter.tolist()

    draws = [
        _sample_row(row, mask, *parameters)
        for row, mask, *parameters in zip(
            logits,
            allowed,
            per_row(temperature, 1.0),
            per_row(top_k, 0),
            per_row(top_p, 1.0),
            per_row(min_p, 0.0),
            per_row(seed, 0),
            per_row(position, 0),
            strict=True,
        )
    ]
    ids = torch.tensor([token for token, _ in draws], dtype=torch.int64, device=logits.device)
    logprobs = torch.tensor([logprob for _, logprob in draws], dtype=torch.float32, device=logits.device)
    return ids, logprobs


def _sample_row(
    logits: torch.Tensor,
    allowed: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> tuple[int, float]:
    """Sample one row as docs/sampling_contract.md says, step by step.

    Args:
        logits: ``[V]``.
        allowed: bool ``[V]``.
        temperature: a float32 value.
        top_k: an int64 value.
        top_p: a float32 value.
        min_p: a float32 value.
        seed: an int64 value.
        position: an int64 value.

    Returns:
        the token id and its logprob.
    """
    no_token = (-1, -math.inf)
    if not (0 <= temperature < math.inf and top_p >= 0 and min_p >= 0):
        return no_token
    ids = allowed.nonzero().flatten()
    x = logits[ids].float()
    if x.isnan().any():
        return no_token
    ids, x = ids[x > -math.inf], x[x > -math.inf]
    if len(ids) == 0:
        return no_token

    is_greedy = temperature == 0
    z, t = _scale(x, temperature)
    highest = x.max()
    mass = sampling_math.mass(t)
    log_total = sampling_math.log_of_mass(mass.sum())

    if is_greedy:
        chosen = int((x == highest).nonzero()[0])
    else:
        kept = torch.ones_like(ids, dtype=torch.bool)
        if min_p >= sampling_math.SMALLEST_MIN_P:
            kept &= t >= sampling_math.log(_float32(min(min_p, 1.0)))
        if 0 < top_k < int(kept.sum()):
            kept &= x >= x[kept].sort(descending=True).values[top_k - 1]
        if top_p < 1:
            kept &= x >= _top_p_threshold(x[kept], mass[kept], top_p)
        ids, z, t = ids[kept], z[kept], t[kept]
        score = z + sampling_math.gumbel(sampling_math.noise_bits(seed, position, ids))
        chosen = int((score == score.max()).nonzero()[0])
    return int(ids[chosen]), float(t[chosen] - log_total)


def _top_p_threshold(x: torch.Tensor, mass: torch.Tensor, top_p: float) -> torch.Tensor:
    """The largest logit that, with all larger ones, has the mass ``top_p`` requires."""
    total = mass.sum()
    target = (_float32(top_p) * total.float()).to(torch.int64).clamp(min=1).minimum(total)
    x, order = x.sort(descending=True)
    reached = mass[order].cumsum(0) >= target
    return x[reached][0]


def _float32(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


def token_logprobs(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    token_ids: torch.Tensor,
    top_n: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The reference of :func:`structout.token_logprobs`: logprobs float32 ``[N]``,
    ranks int64 ``[N]``, top_ids int64 ``[N, top_n]`` and top_logprobs float32
    ``[N, top_n]``."""
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    num_rows = logits.shape[0]
    allowed = _allowed_tokens(logits, bitmask, rows)
    logprobs = torch.full((num_rows,), -math.inf, device=logits.device)
    ranks = torch.zeros(num_rows, dtype=torch.int64, device=logits.device)
    top_ids = torch.full((num_rows, top_n), -1, device=logits.device)
    top_logprobs = torch.full((num_rows, top_n), -math.inf, device=logits.device)
    for row, token in enumerate(token_ids.tolist()):
        row_temperature = 1.0 if temperature is None else float(temperature[row])
        x = logits[row].float() + 0.0  # + 0: -0 becomes 0
        ids = (allowed[row] & (x > -math.inf)).nonzero().flatten()
        if token < 0 or not 0 <= row_temperature < math.inf or len(ids) == 0:
            continue
        _, t = _scale(x[ids], row_temperature)
        row_logprobs = t - sampling_math.log_of_mass(sampling_math.mass(t).sum())
        order = x[ids].argsort(descending=True, stable=True)[:top_n]
        top_ids[row, : len(order)] = ids[order]
        top_logprobs[row, : len(order)] = row_logprobs[order]
        if token in ids:
            logprobs[row] = row_logprobs[ids == token]
            ranks[row] = 1 + (x[ids] > x[token]).sum()
    return logprobs, ranks, top_ids, top_logprobs


def masked_sample_topn(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    top_n: int,
    raw: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The reference of :func:`structout.masked_sample_topn`."""
    ids = masked_sample(logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    if raw:
        return ids, *token_logprobs(logits, None, None, None, ids, top_n)
    return ids, *token_logprobs(logits, bitmask, rows, temperature, ids, top_n)


def _scale(x: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """z = x / temperature (greedy: x) and t = z - max(z). If the largest z overflows,
    only logits equal to it can be drawn."""
    inverse = _float32(1.0) if temperature == 0 else _float32(1.0) / _float32(temperature)
    highest = x.max()
    if (highest * inverse).isfinite():
        return x * inverse, x * inverse - highest * inverse
    z = torch.where(x == highest, 0.0, -math.inf)
    return z, z


def verify_drafts(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    drafts: torch.Tensor,
    row_indptr: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of :func:`structout.verify_drafts`: ids int64 ``[T]`` and
    num_accepted int32 ``[B]``."""
    ids = masked_sample(logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    bounds = row_indptr.clamp(0, len(ids)).tolist()
    num_accepted = []
    for begin, end in itertools.pairwise(bounds):
        row = begin
        while row + 1 < end and ids[row] == drafts[row] and ids[row] != -1:
            row += 1
        ids[row + 1 : end] = -1
        num_accepted.append(row - begin)
    return ids, torch.tensor(num_accepted, dtype=torch.int32, device=logits.device)


def apply_penalties(
    logits: torch.Tensor,
    indptr: torch.Tensor,
    token_ids: torch.Tensor,
    output_counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """The reference of :func:`structout.apply_penalties`."""
    for row, entry, x in _listed_logits(logits, indptr, token_ids):
        count = output_counts[entry].float()
        changed = torch.where(x > 0, x / repetition[row], x * repetition[row])
        changed = changed - frequency[row] * count
        x.copy_(changed - presence[row] * (count > 0))


def apply_logit_bias(logits: torch.Tensor, indptr: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor) -> None:
    """The reference of :func:`structout.apply_logit_bias`."""
    for _, entry, x in _listed_logits(logits, indptr, token_ids):
        x.add_(bias[entry])


def _listed_logits(
    logits: torch.Tensor, indptr: torch.Tensor, token_ids: torch.Tensor
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield each listed token's row, entry and logit, float32. A new value that the
    caller writes to the logit is rounded back to the row."""
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    bounds = indptr.clamp(0, len(token_ids)).tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(bounds)):
        for entry in range(begin, end):
            token = int(token_ids[entry])
            if 0 <= token < logits.shape[1]:
                x = logits[row, token].to(torch.float32, copy=True)
                yield row, entry, x
                logits[row, token] = x


def fsm_advance(states: torch.Tensor, tokens: torch.Tensor, *tables: torch.Tensor) -> None:
    """The reference of :func:`structout.fsm_advance`."""
    automata = _Automata(*tables)
    advanced = [automata.advance(state, token) for state, token in zip(states.tolist(), tokens.tolist(), strict=True)]
    states.copy_(torch.tensor(advanced, dtype=torch.int32))


def fsm_rows(
    states: torch.Tensor,
    masks: torch.Tensor,
    num_computed: torch.Tensor,
    mask_slots: torch.Tensor,
    *tables_and_num_slots: torch.Tensor | int,
) -> torch.Tensor:
    """The reference of :func:`structout.fsm_rows`."""
    *tables, num_slots = tables_and_num_slots
    assert isinstance(num_slots, int)
    automata = _Automata(*tables)  # type: ignore[arg-type]  # the others are tensors
    slots, rows = mask_slots.tolist(), []
    for n, given in enumerate(states.tolist()):
        state = automata.known(given)
        if state < 0:
            rows.append(-2 if state == automata.DEAD else -1)
        elif 0 <= slots[state] < num_slots:
            rows.append(slots[state])
        else:
            rows.append(num_slots + n)
            masks[rows[-1]] = pack_bitmask(torch.tensor(automata.allowed(state), dtype=torch.bool))
            num_computed += 1
    return torch.tensor(rows, dtype=torch.int32, device=states.device)


def fsm_draft_states(
    states: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor, *tables: torch.Tensor
) -> torch.Tensor:
    """The reference of :func:`structout.fsm_draft_states`."""
    automata = _Automata(*tables)
    row_states = [automata.FREE] * len(drafts)
    bounds, tokens = row_indptr.clamp(0, len(drafts)).tolist(), drafts.tolist()
    for state, (begin, end) in zip(states.tolist(), itertools.pairwise(bounds), strict=True):
        if begin < end:
            row_states[begin:end] = automata.along(automata.known(state), tokens[begin : end - 1])
    return torch.tensor(row_states, dtype=torch.int32, device=states.device)


class _Automata:
    """The tables of the FSM ops as lists."""

    FREE, FINISHED, DEAD = -1, -2, -3

    def __init__(
        self,
        transitions: torch.Tensor,
        state_flags: torch.Tensor,
        stop_tokens: torch.Tensor,
        token_bytes: torch.Tensor,
        token_begin: torch.Tensor,
    ):
        self.transitions, self.flags = transitions.tolist(), state_flags.tolist()
        self.stop_tokens = stop_tokens.tolist()
        text = token_bytes.tolist()
        self.tokens = [
            text[begin:end] if 0 <= begin < end <= len(text) else []
            for begin, end in itertools.pairwise(token_begin.tolist())
        ]

    def known(self, state: int) -> int:
        return state if self.DEAD <= state < len(self.flags) else self.DEAD

    def advance(self, state: int, token: int) -> int:
        state = self.known(state)
        if state < 0:
            return state
        if not 0 <= token < len(self.tokens):
            return self.DEAD
        grammar = self.flags[state] >> 2
        if 0 <= grammar < len(self.stop_tokens) and token in self.stop_tokens[grammar]:
            return self.FINISHED if self.flags[state] & 1 else self.DEAD
        for byte in self.tokens[token]:
            state = self.transitions[state][byte]
            if not 0 <= state < len(self.flags):
                return self.DEAD
        return state if self.tokens[token] and self.flags[state] & 2 else self.DEAD

    def allowed(self, state: int) -> list[bool]:
        return [self.advance(state, token) != self.DEAD for token in range(len(self.tokens))]

    def along(self, state: int, drafts: list[int]) -> list[int]:
        """The state before each draft, and after the last."""
        chain = [state]
        for i, draft in enumerate(drafts):
            if draft == -1 and state >= 0:
                state = self.FREE
            elif state >= 0:
                after = self.advance(state, draft)
                if after == self.DEAD:
                    return chain + [state] * (len(drafts) - i)
                state = after
            chain.append(state)
        return chain
