"""Loads and stores shard results: what one shard of the vocabulary draws for a row.

Ranks exchange them as int32 [3 or 4, num_rows], each field by its bits
(csrc/common/shard_result.h):

highest    highest allowed logit: -inf if there is none, NaN if one is NaN or a
           parameter is invalid
score      of the token drawn: its scaled logit plus noise; greedy: its logit
token      -1: nothing can be drawn, and score and logit are -inf
logit      of the token drawn; needed for logprobs only
"""

import triton
import triton.language as tl

NUM_FIELDS = 4


@triton.jit
def store_shard_result(shard_results, num_rows, row, mask, highest, score, token, logit):
    """Store the results of the rows in ``mask``; None: of all rows."""
    stride = tl.cast(num_rows, tl.int64)
    at = shard_results + row
    tl.store(at, _bits_of(highest), mask=mask)
    tl.store(at + stride, _bits_of(score), mask=mask)
    tl.store(at + stride * 2, token, mask=mask)
    tl.store(at + stride * 3, _bits_of(logit), mask=mask)


@triton.jit
def _bits_of(x):
    return (x + 0.0).to(tl.int32, bitcast=True)  # + 0: -0 becomes 0


@triton.jit
def load_shard_result(shard_results, num_rows, row, mask, HAS_LOGITS: tl.constexpr):
    """(highest, score, token, logit). Logits are 0 if they were not sent."""
    stride = tl.cast(num_rows, tl.int64)
    at = shard_results + row
    highest = tl.load(at, mask=mask, other=0).to(tl.float32, bitcast=True)
    score = tl.load(at + stride, mask=mask, other=0).to(tl.float32, bitcast=True)
    token = tl.load(at + stride * 2, mask=mask, other=0)
    logit = tl.zeros_like(score)
    if HAS_LOGITS:
        logit = tl.load(at + stride * 3, mask=mask, other=0).to(tl.float32, bitcast=True)
    return highest, score, token, logit
