"""The probability of each of several answers, by one forward pass for each prompt."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import loads
from typing import Any, Literal

import torch

from structout.constraints.params import StructuredOutputsParams
from structout.integrations.transformers.generation import check_positions
from structout.integrations.transformers.manager_cache import new_request_id, shared_manager
from structout.integrations.transformers.model_feed import last_logits
from structout.integrations.transformers.prompts import list_of_prompts, tokens_of
from structout.masks.bitmask import unpack_bitmask
from structout.scheduler.manager import StructuredOutputManager


@dataclass(frozen=True)
class Decision:
    """What a model thinks of the answers to one prompt, likeliest first.

    Attributes:
        answers: their values, as ``StructuredOutputsParams.parse`` reads them.
        probabilities: of each answer as the model weighs the whole texts, stop token
            included, divided by ``kept``: they sum to 1.
        drawn: the probability that a constrained draw ends with each answer. It is
            renormalized at each token, so that the beginning of an unlikely text may
            make it likely. They sum to 1.
        log_kept: the logarithm of the probability that the model, without a constraint,
            writes any of the answers and nothing else. Far below 0 it has something
            else in mind.
    """

    answers: list[Any]
    probabilities: list[float]
    drawn: list[float]
    log_kept: float

    @property
    def answer(self) -> Any:
        """The likeliest answer."""
        return self.answers[0]


def decide(
    model: Any,
    tokenizer: Any,
    prompts: Any,
    choice: Any = None,
    *,
    json: Any = None,
    temperature: float = 1.0,
    describe: bool = False,
    tokenizations: Literal["all", "canonical"] = "all",
    max_tokens: int = 512,
    manager: StructuredOutputManager | None = None,
) -> list[Decision]:
    """The probability of each answer that a constraint allows, to each prompt.

    The tokens of all answers form a trie, which the model reads behind the prompt in
    one forward pass: each token attends to the prompt and to its ancestors, as in tree
    verification (SpecInfer, arXiv:2305.09781).

    Args:
        model: a transformers causal LM whose attention takes a mask of four dimensions.
            Sliding windows are not applied.
        tokenizer: its tokenizer.
        prompts: as in :func:`generate`.
        choice: the answers: strings, or a ``Literal`` or ``Enum`` type.
        json: instead, a type or a schema with few texts, such as ``bool``.
        temperature: above 0; divides the logits.
        describe: as in :func:`generate`.
        tokenizations: "all": the tokens of each answer, however they spell it, as a
            constrained draw may choose them. "canonical": only the tokenizer's own, for
            long answers; needs ``choice``.
        max_tokens: the size of the trie, at most.
        manager: as in :func:`generate`.

    Raises:
        GrammarError: the constraint is bad.
        ValueError: the answers have more tokens than ``max_tokens`` or, by their
            tokenizer, no canonical ones, the model has too few positions, or an
            argument is out of range.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature}")
    params = StructuredOutputsParams(choice=choice, json=json)
    params.validate(None if manager is None else manager.config)
    if tokenizations == "canonical" and choice is None:
        raise ValueError('tokenizations="canonical" needs the answers as choice')
    prompt_ids = [tokens_of(tokenizer, prompt, params, describe=describe) for prompt in list_of_prompts(prompts)]
    if manager is None:
        manager = shared_manager(tokenizer, model.get_output_embeddings().weight.shape[0])
    trie_of = _all_tokenizations if tokenizations == "all" else _canonical_tokenizations
    trie = trie_of(manager, params, max_tokens)
    check_positions(model, max(map(len, prompt_ids)), max(trie.depths))
    stops = manager.vocabulary.stop_token_ids
    return [_decision(model, ids, trie, params, temperature, stops) for ids in prompt_ids]


@dataclass
class _Trie:
    """The tokens of the answers, at most ``max_tokens``. Row 0 of the logits is that of
    the prompt's last token, row i + 1 that of token i.

    Attributes:
        tokens: each behind its parent.
        rows: of each token, the row in which it may be drawn.
        depths: of each row, the tokens from the prompt to it.
        ends: the rows in which an answer may end, with its text.
    """

    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=lambda: [0])
    ends: dict[int, str] = field(default_factory=dict)

    def add(self, row: int, token: int) -> int:
        """Add a token. Return its row."""
        if len(self.tokens) == self.max_tokens:
            raise ValueError(f"the answers have more than max_tokens={self.max_tokens} tokens")
        self.tokens.append(token)
        self.rows.append(row)
        self.depths.append(self.depths[row] + 1)
        return len(self.tokens)

    def attention(self) -> torch.Tensor:
        """bool ``[n, n]``: the tokens that each one reads, its ancestors and itself."""
        reads = torch.eye(len(self.tokens), dtype=torch.bool)
        for i, row in enumerate(self.rows):
            if row > 0:
                reads[i] |= reads[row - 1]
        return reads


def _all_tokenizations(manager: StructuredOutputManager, params: StructuredOutputsParams, max_tokens: int) -> _Trie:
    """The tokens that the masks of a constraint allow, up to all of its ends."""
    trie, stops = _Trie(max_tokens), set(manager.vocabulary.stop_token_ids)
    path: list[int] = []
    pending: list[tuple[int, int | None]] = [(0, None)]
    request_id = new_request_id("decide")
    manager.add_request(request_id, params)
    try:
        manager.wait_ready(request_id)
        while pending:
            row, token = pending.pop()
            manager.rollback(request_id, len(path) - trie.depths[row])
            del path[trie.depths[row] :]
            if token is not None:
                manager.accept_tokens(request_id, [token])
                path.append(token)
                row = trie.add(row, token)
            masks = torch.from_numpy(manager.grammar_bitmask([request_id]).bitmask.copy())
            allowed = unpack_bitmask(masks, manager.vocabulary.size)[0].nonzero().flatten().tolist()
            if not stops.isdisjoint(allowed):
                trie.ends[row] = manager.vocabulary.text_of(path)
            pending += [(row, token) for token in allowed if token not in stops]
    finally:
        manager.finish_request(request_id)
    return trie


def _canonical_tokenizations(
    manager: StructuredOutputManager, params: StructuredOutputsParams, max_tokens: int
) -> _Trie:
    """The tokens by which the tokenizer itself spells each choice."""
    trie = _Trie(max_tokens)
    row_of: dict[tuple[int, int], int] = {}
    for text in loads(params.constraint().spec):
        tokens = manager.canonical_tokenizer().encode(text)
        if tokens is None:
            raise ValueError(f"the tokenizer changes {text!r} when it encodes it: it has no canonical tokens")
        row = 0
        for token in tokens:
            if (row, token) not in row_of:
                row_of[row, token] = trie.add(row, token)
            row = row_of[row, token]
        trie.ends[row] = text
    return trie


def _decision(
    model: Any,
    prompt_ids: list[int],
    trie: _Trie,
    params: StructuredOutputsParams,
    temperature: float,
    stops: Sequence[int],
) -> Decision:
    logits = _logits(model, prompt_ids, trie)
    norms = torch.stack([torch.logsumexp(row.double() / temperature, 0) for row in logits])

    def log_probabilities(rows: list[int], tokens: list[int]) -> torch.Tensor:
        return logits[rows, tokens].double() / temperature - norms[rows]

    of_tokens = [*zip(trie.rows, log_probabilities(trie.rows, trie.tokens).tolist(), strict=True)]
    of_ends = [(row, log_probabilities([row] * len(stops), [*stops]).logsumexp(0).item()) for row in trie.ends]
    ways = defaultdict(list)  # that the constraint leaves, of each row
    for row, log_probability in of_tokens + of_ends:
        ways[row].append(log_probability)
    kept = {row: _log_sum(of_row) for row, of_row in ways.items()}
    whole, drawn = [0.0], [0.0]  # logarithms of the text up to each row
    for row, log_probability in of_tokens:
        whole.append(whole[row] + log_probability)
        drawn.append(drawn[row] + log_probability - kept[row])
    of_texts = defaultdict(list)
    for row, log_probability in of_ends:
        logs = whole[row] + log_probability, drawn[row] + log_probability - kept[row]
        of_texts[trie.ends[row]].append(logs)
    log_whole = {text: _log_sum([each for each, _ in logs]) for text, logs in of_texts.items()}
    log_kept = _log_sum([*log_whole.values()])
    texts = sorted(of_texts, key=log_whole.__getitem__, reverse=True)
    return Decision(
        answers=[params.parse(text) for text in texts],
        probabilities=[math.exp(log_whole[text] - log_kept) for text in texts],
        drawn=[math.exp(_log_sum([each for _, each in of_texts[text]])) for text in texts],
        log_kept=log_kept,
    )


def _logits(model: Any, prompt_ids: list[int], trie: _Trie) -> torch.Tensor:
    """``[1 + n, V]``: behind the prompt, and behind each token of the trie."""
    num_prompt, num_tokens = len(prompt_ids), len(trie.tokens)
    reads = torch.ones(num_prompt + num_tokens, num_prompt + num_tokens, dtype=torch.bool).tril()
    reads[num_prompt:, num_prompt:] = trie.attention()
    mask = torch.zeros(reads.shape, dtype=model.dtype).masked_fill(~reads, torch.finfo(model.dtype).min)
    positions = [*range(num_prompt), *(num_prompt + depth - 1 for depth in trie.depths[1:])]
    return last_logits(
        model,
        [*prompt_ids, *trie.tokens],
        1 + num_tokens,
        attention_mask=mask[None, None].to(model.device),
        position_ids=torch.tensor([positions], device=model.device),
    ).cpu()


def _log_sum(logs: list[float]) -> float:
    return torch.tensor(logs, dtype=torch.float64).logsumexp(0).item()
