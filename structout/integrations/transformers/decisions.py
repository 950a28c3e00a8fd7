"""The probability of each of several answers, by one forward pass for each prompt."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json import loads
from typing import Any, Literal, NamedTuple

import torch

from structout.constraints.params import StructuredOutputsParams
from structout.integrations.request_ids import new_request_id
from structout.integrations.transformers.generation import check_positions, params_of_prompts
from structout.integrations.transformers.manager_cache import shared_manager
from structout.integrations.transformers.model_feed import last_logits
from structout.integrations.transformers.prompts import list_of_prompts, tokens_of
from structout.ops.token_bitmask import unpack_bitmask
from structout.scheduler.manager import StructuredOutputManager

_MAX_GROUP_TOKENS = 1_024  # of prompts that share a pass, unless one is half as long: attention is quadratic


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
    params: StructuredOutputsParams | Sequence[StructuredOutputsParams] | None = None,
    temperature: float = 1.0,
    describe: bool = False,
    tokenizations: Literal["all", "canonical"] = "all",
    max_tokens: int = 512,
    manager: StructuredOutputManager | None = None,
) -> list[Decision]:
    """The probability of each answer that a constraint allows, to each prompt.

    The tokens of all answers form a trie, which the model reads behind the prompt in
    one forward pass: each token attends to the prompt and to its ancestors, as in tree
    verification (SpecInfer, arXiv:2305.09781). Prompts that follow one another and have
    at least their first half in common, such as many questions on one text, share the
    pass, and what they have in common is read once.

    Args:
        model: a transformers causal LM whose attention takes a mask of four dimensions.
            Sliding windows are not applied.
        tokenizer: its tokenizer.
        prompts: as in :func:`generate`.
        choice: the answers: strings, or a ``Literal`` or ``Enum`` type.
        json: instead, a type or a schema with few texts, such as ``bool``.
        params: instead, a constraint with few texts, or a list of one for each prompt.
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
    prompts = list_of_prompts(prompts)
    params_of = params_of_prompts(params, {"choice": choice, "json": json}, len(prompts))
    distinct = {id(each): each for each in params_of}
    for each in distinct.values():
        if each is None:
            raise TypeError("params must be StructuredOutputsParams, or a list of these, got None")
        each.validate(None if manager is None else manager.config)
        if tokenizations == "canonical" and each.choice is None:
            raise ValueError('tokenizations="canonical" needs the answers as choice')
    prompt_ids = [
        tokens_of(tokenizer, prompt, each, describe=describe) for prompt, each in zip(prompts, params_of, strict=True)
    ]
    if manager is None:
        manager = shared_manager(tokenizer, model.get_output_embeddings().weight.shape[0])
    trie_of = _all_tokenizations if tokenizations == "all" else _canonical_tokenizations
    tries = {key: trie_of(manager, each, max_tokens) for key, each in distinct.items() if each is not None}
    questions = [_Question(ids, tries[id(each)]) for ids, each in zip(prompt_ids, params_of, strict=True)]
    for ids, trie in questions:
        check_positions(model, len(ids), 1 + max(trie.depths, default=-1))
    stops = manager.vocabulary.stop_token_ids
    return [
        _decision(logits, question.trie, temperature, stops)
        for group in _groups(questions)
        for question, logits in zip(group, _logits(model, group), strict=True)
    ]


class _Tree:
    """Tokens that a model reads at once: prompts and what may follow them.

    Attributes:
        tokens: of each node.
        parents: of each node, an earlier one, -1 for none.
        depths: of each node, how many others lead to it.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []

    def add(self, parent: int, token: int) -> int:
        """Add a token. Return its node."""
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def add_chain(self, parent: int, tokens: Sequence[int]) -> int:
        """Add one token behind the other. Return the last node, ``parent`` for none."""
        for token in tokens:
            parent = self.add(parent, token)
        return parent

    def attention(self) -> torch.Tensor:
        """bool ``[n, n]``: the nodes that each one reads, its ancestors and itself."""
        reads = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                reads[node] |= reads[parent]
        return reads


class _Trie(_Tree):
    """The tokens of the answers to a prompt, at most ``max_tokens``.

    Attributes:
        params: the constraint.
        ends: the nodes after which an answer may end, with its text. -1: no token.
    """

    def __init__(self, params: StructuredOutputsParams, max_tokens: int):
        super().__init__()
        self._max_tokens = max_tokens
        self.params = params
        self.ends: dict[int, str] = {}

    def add(self, parent: int, token: int) -> int:
        if len(self.tokens) == self._max_tokens:
            raise ValueError(f"the answers have more than max_tokens={self._max_tokens} tokens")
        return super().add(parent, token)


class _Question(NamedTuple):
    prompt_ids: list[int]
    trie: _Trie


def _all_tokenizations(manager: StructuredOutputManager, params: StructuredOutputsParams, max_tokens: int) -> _Trie:
    """The tokens that the masks of a constraint allow, up to all of its ends."""
    trie, stops = _Trie(params, max_tokens), set(manager.vocabulary.stop_token_ids)
    path: list[int] = []
    pending: list[tuple[int, int | None]] = [(-1, None)]
    request_id = new_request_id("decide")
    manager.add_request(request_id, params)
    try:
        manager.wait_ready(request_id)
        while pending:
            node, token = pending.pop()
            if token is not None:
                length = trie.depths[node] + 1 if node >= 0 else 0
                manager.rollback(request_id, len(path) - length)
                manager.accept_tokens(request_id, [token])
                path[length:] = [token]
                node = trie.add(node, token)
            masks = torch.from_numpy(manager.grammar_bitmask([request_id]).bitmask.copy())
            allowed = unpack_bitmask(masks, manager.vocabulary.size)[0].nonzero().flatten().tolist()
            if not stops.isdisjoint(allowed):
                trie.ends[node] = manager.vocabulary.text_of(path)
            pending += [(node, token) for token in allowed if token not in stops]
    finally:
        manager.finish_request(request_id)
    return trie


def _canonical_tokenizations(
    manager: StructuredOutputManager, params: StructuredOutputsParams, max_tokens: int
) -> _Trie:
    """The tokens by which the tokenizer itself spells each choice."""
    trie = _Trie(params, max_tokens)
    nodes: dict[tuple[int, int], int] = {}
    for text in loads(params.constraint().spec):
        tokens = manager.canonical_tokenizer().encode(text)
        if tokens is None:
            raise ValueError(f"the tokenizer changes {text!r} when it encodes it: it has no canonical tokens")
        node = -1
        for token in tokens:
            if (node, token) not in nodes:
                nodes[node, token] = trie.add(node, token)
            node = nodes[node, token]
        trie.ends[node] = text
    return trie


def _decision(logits: torch.Tensor, trie: _Trie, temperature: float, stops: Sequence[int]) -> Decision:
    """The decision of logits ``[1 + n, V]``: behind the prompt and each node."""
    norms = torch.stack([torch.logsumexp(row.double() / temperature, 0) for row in logits])

    def log_probabilities(nodes: list[int], tokens: list[int]) -> torch.Tensor:
        rows = torch.tensor(nodes) + 1
        return logits[rows, tokens].double() / temperature - norms[rows]

    of_tokens = [*zip(trie.parents, log_probabilities(trie.parents, trie.tokens).tolist(), strict=True)]
    of_ends = [(node, log_probabilities([node] * len(stops), [*stops]).logsumexp(0).item()) for node in trie.ends]
    ways = defaultdict(list)  # that the constraint leaves, behind each node
    for node, log_probability in of_tokens + of_ends:
        ways[node].append(log_probability)
    kept = {node: _log_sum(of_node) for node, of_node in ways.items()}
    whole, drawn = {-1: 0.0}, {-1: 0.0}  # logarithms of the text up to each node
    for node, (parent, log_probability) in enumerate(of_tokens):
        whole[node] = whole[parent] + log_probability
        drawn[node] = drawn[parent] + log_probability - kept[parent]
    of_texts = defaultdict(list)
    for node, log_probability in of_ends:
        logs = whole[node] + log_probability, drawn[node] + log_probability - kept[node]
        of_texts[trie.ends[node]].append(logs)
    log_whole = {text: _log_sum([each for each, _ in logs]) for text, logs in of_texts.items()}
    log_kept = _log_sum([*log_whole.values()])
    texts = sorted(of_texts, key=log_whole.__getitem__, reverse=True)
    return Decision(
        answers=[trie.params.parse(text) for text in texts],
        probabilities=[math.exp(log_whole[text] - log_kept) for text in texts],
        drawn=[math.exp(_log_sum([each for _, each in of_texts[text]])) for text in texts],
        log_kept=log_kept,
    )


def _groups(questions: Sequence[_Question]) -> Iterator[list[_Question]]:
    """The questions that share a forward pass."""
    group: list[_Question] = []
    size = longest = 0
    for question in questions:
        length = len(question.prompt_ids)
        longest = max(longest, length)
        shared = _num_shared([each.prompt_ids for each in (*group, question)])
        size += length + len(question.trie.tokens) - (shared if group else 0)
        if group and (2 * shared < longest or size > max(_MAX_GROUP_TOKENS, 2 * longest)):
            yield group
            group, longest, size = [], length, length + len(question.trie.tokens)
        group.append(question)
    yield group


def _num_shared(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens the prompts begin with alike, the last of each not counted."""
    shortest = min(map(len, prompts)) - 1
    columns = zip(*(prompt[:shortest] for prompt in prompts), strict=True)
    return next((i for i, column in enumerate(columns) if len({*column}) > 1), shortest)


def _logits(model: Any, group: Sequence[_Question]) -> list[torch.Tensor]:
    """For each question ``[1 + n, V]``: behind its prompt, and behind each token of its
    trie."""
    num_shared = _num_shared([question.prompt_ids for question in group])
    tree = _Tree()
    shared = tree.add_chain(-1, group[0].prompt_ids[:num_shared])
    # The logits that count are those of the last nodes.
    last = [tree.add_chain(shared, question.prompt_ids[num_shared:-1]) for question in group]
    for before, (prompt_ids, trie) in zip(last, group, strict=True):
        end = tree.add(before, prompt_ids[-1])
        for parent, token in zip(trie.parents, trie.tokens, strict=True):
            tree.add(end + 1 + parent, token)
    sizes = [1 + len(question.trie.tokens) for question in group]
    mask = torch.zeros(len(tree.tokens), len(tree.tokens), dtype=model.dtype)
    mask.masked_fill_(~tree.attention(), torch.finfo(model.dtype).min)
    logits = last_logits(
        model,
        tree.tokens,
        sum(sizes),
        attention_mask=mask[None, None].to(model.device),
        position_ids=torch.tensor([tree.depths], device=model.device),
    )
    return [*logits.cpu().split(sizes)]


def _log_sum(logs: list[float]) -> float:
    return torch.tensor(logs, dtype=torch.float64).logsumexp(0).item()
