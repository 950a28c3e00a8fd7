"""Steps of the engine's grammars, without a manager."""

from structout.grammar.native.extension import core
from structout.grammar.native.native_grammar import mask_memory
from structout.masks.bitmask import allocate_token_bitmask

MAX_WORK = 1 << 62


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


def accept(grammars, tokens):
    """Whether each grammar has accepted its tokens, in one native call."""
    step = core().Step({i: grammar.matcher for i, grammar in enumerate(grammars)}, [])
    step.feed(dict(enumerate(tokens)))
    accepted, _ = step.accept()
    return [accepted[i] for i in range(len(grammars))]
