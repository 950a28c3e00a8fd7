"""Steps of the engine's grammars, without a manager."""

import torch

from structout.grammar.interface import mask_memory
from structout.grammar.native.extension import core
from structout.ops.token_bitmask import allocate_token_bitmask

MAX_WORK = 1 << 62


def mask_of(grammar):
    """The mask of the next token. It allows all where nothing constrains it."""
    mask = allocate_token_bitmask(1, grammar.vocab_size, pin_memory=False)
    if grammar.is_unconstrained():
        return mask.fill_(-1)[0]
    grammar.fill_bitmask(mask, 0)
    return mask[0]


def expected_rows(grammar, drafts):
    """The mask rows of a chain of drafts, and the number of drafts that are allowed, by
    accepting them one by one."""
    here, rows, num_allowed = grammar.fork(), [], 0
    free = torch.full_like(mask_of(grammar), -1)
    for j, token in enumerate([*drafts, None]):
        if here.is_terminated():
            rows += [free] * (len(drafts) + 1 - j)
            break
        rows.append(mask_of(here))
        if token == -1:
            rows += [free] * (len(drafts) - j)
            break
        if token is not None and not here.accept_tokens("", [token]):
            rows += [rows[-1]] * (len(drafts) - j)
            break
        num_allowed += token is not None
    return torch.stack(rows), num_allowed


def step_of(grammars, drafts=None):
    """The native step of grammars, with the drafts of each or None."""
    matchers = {i: grammar.matcher for i, grammar in enumerate(grammars)}
    given = {i: tokens for i, tokens in enumerate(drafts or []) if tokens is not None}
    return core().Step(matchers, [*matchers], given)


def run(step, vocab_size):
    """Fill the masks of all rows of the step."""
    masks = allocate_token_bitmask(step.max_rows, vocab_size, pin_memory=False)
    step.run(MAX_WORK, core().MaskBuffer(*mask_memory(masks, vocab_size, []), len(masks)))
    return masks[: int(step.row_indptr[-1])]


def fill_tree(grammar, masks, tokens, next_token, next_sibling):
    """Fill the mask after each node of a tree of drafts. Returns how many nodes are
    allowed, without node 0."""
    if grammar.is_terminated():  # a step gives it no rows
        masks.fill_(-1)
        return 0
    step = core().Step({0: grammar.matcher}, [0], {0: tokens}, None, {0: (next_token, next_sibling)})
    buffer = core().MaskBuffer(*mask_memory(masks, grammar.vocab_size, []), len(masks))
    step.run(MAX_WORK, buffer)
    for _, problem in step.problems:
        raise ValueError(problem)
    for index in step.unfinished:
        step.finish(index, MAX_WORK, buffer)
    return int(step.num_allowed[0])


def accept(grammars, tokens):
    """Whether each grammar has accepted its tokens, in one native call."""
    step = core().Step({i: grammar.matcher for i, grammar in enumerate(grammars)}, [])
    step.feed(dict(enumerate(tokens)))
    accepted, _ = step.accept()
    return [accepted[i] for i in range(len(grammars))]
