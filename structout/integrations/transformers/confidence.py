"""How sure a model is of a text and of each of its values."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import exp, fsum
from typing import Any

import torch

from structout.constraints.params import StructuredOutputsParams
from structout.constraints.tools.call_formats import ToolFormat
from structout.constraints.tools.definitions import read_tools
from structout.integrations.transformers.model_feed import last_logits
from structout.ops.sampler import DeviceMasks
from structout.ops.token_logprobs import token_logprobs
from structout.scheduler.manager import StructuredOutputManager

_NUM_ALTERNATIVES = 8  # of each token
_LEAST_PROBABILITY = 1e-4  # of an alternative
_DECODER = json.JSONDecoder()
_OF_NUMBERS = b"0123456789.eE"


@dataclass(frozen=True)
class LeafConfidence:
    """How sure the model is of one value: of a string, a number or a literal.

    Attributes:
        value: the value.
        probability: of its tokens under the constraint, each given those before it.
        log_kept: the sum over its tokens of the log of the probability that the
            constraint leaves. Far below 0 the model wanted to write something else.
        other: the likeliest other value, where one token decides which value it
            becomes: of enums, booleans, small integers, choices and names of tools.
            None if there is none, or if a likelier token leaves the value open.
        other_probability: the probability of ``other``; 0 if there is none.
    """

    value: Any
    probability: float
    log_kept: float
    other: Any = None
    other_probability: float = 0.0


@dataclass(frozen=True)
class Confidence:
    """How sure the model is of one text. Its probabilities are those of the model as it
    is, at temperature 1 and without filters.

    Attributes:
        logprob: the log-probability of the text under the constraint, stop token
            included.
        log_kept: the log of the probability that the constraint leaves, summed over the
            tokens. 0 for free texts.
        values: in the shape of ``Generation.parsed``, with a :class:`LeafConfidence` in
            place of each leaf: for JSON its objects and arrays, for ``tools`` a dict
            with ``name`` and ``arguments`` for each call, else one leaf. In formats
            other than JSON, the arguments of a call are one leaf. None for texts that
            are not complete.
    """

    logprob: float
    log_kept: float
    values: Any

    @property
    def model_logprob(self) -> float:
        """The log-probability that the model gives the text without a constraint."""
        return self.logprob + self.log_kept


def confidence_of(
    model: Any,
    manager: StructuredOutputManager,
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    request_id: str | None,
    params: StructuredOutputsParams | None,
    *,
    has_values: bool,
) -> Confidence:
    """Read a text in one forward pass.

    Args:
        model: a transformers causal LM.
        manager: made for its vocabulary.
        prompt_ids: the prompt's tokens.
        token_ids: the text's tokens, stop token included.
        request_id: its request, which has accepted the tokens; they are taken back.
            None for a free text.
        params: the constraint of the request.
        has_values: whether to find the values of the text, which is whole then.
    """
    if not token_ids:
        return Confidence(0.0, 0.0, None)
    logits = last_logits(model, [*prompt_ids, *token_ids[:-1]], len(token_ids))
    drawn = torch.tensor(token_ids, device=logits.device)
    top_n = _NUM_ALTERNATIVES if has_values and request_id is not None else 0
    own = under = token_logprobs(logits, drawn)
    if request_id is not None:
        manager.rollback(request_id, manager.num_tokens(request_id))
        masks = manager.grammar_bitmask([request_id], {request_id: list(token_ids[:-1])})
        device_masks = DeviceMasks.of(masks, [request_id], logits.device, [len(token_ids)])
        under = token_logprobs(logits, drawn, device_masks.bitmask, device_masks.rows, top_n=top_n)
    logprobs = under.logprobs.tolist()
    log_kept = (own.logprobs - under.logprobs).clamp(max=0).tolist()
    values = None
    if has_values:
        alternatives = [*zip(under.top_ids.tolist(), under.top_logprobs.exp().tolist(), strict=True)]
        values = _ScoredText(manager, request_id, list(token_ids), logprobs, log_kept, alternatives).values(params)
    return Confidence(fsum(logprobs), fsum(log_kept), values)


class _ScoredText:
    """A text with what the model thinks of its tokens.

    Args:
        manager: of the request.
        request_id: the request, at the start of the text; None for a free text.
        token_ids: the tokens.
        logprobs: of each token, under the constraint.
        log_kept: of each token.
        alternatives: the likeliest tokens in place of each, and their probabilities.
    """

    def __init__(
        self,
        manager: StructuredOutputManager,
        request_id: str | None,
        token_ids: list[int],
        logprobs: list[float],
        log_kept: list[float],
        alternatives: list[tuple[list[int], list[float]]],
    ):
        self._manager = manager
        self._request_id = request_id
        self._token_ids = token_ids
        self._alternatives = alternatives
        self._num_accepted = 0
        self.logprobs = logprobs
        self.log_kept = log_kept
        stops = manager.vocabulary.stop_token_ids
        content = token_ids[:-1] if request_id is not None and token_ids[-1] in stops else token_ids
        pieces = [self._bytes_of(token) for token in content]
        self._bytes = b"".join(pieces)
        end = len(self._bytes)
        self._bounds = [*pairwise(accumulate(map(len, pieces), initial=0)), (end, end)]  # of each token, then the end
        self._text = self._bytes.decode(errors="surrogateescape")  # bytes that are no character count, too
        self._offsets = [*accumulate((len(_encoded(character)) for character in self._text), initial=0)]

    def values(self, params: StructuredOutputsParams | None) -> Any:
        """A leaf in place of each value of the text."""
        has_json = params is not None and (params.json_object or params.json is not None)
        answer = self._text if params is None else params.read_reasoning(self._text)[1]
        start = len(self._text) - len(answer)
        if params is not None and params.tools is not None:
            form = params.call_format
            if not has_json or answer.startswith(form.trigger):
                return self._calls(params, form)
        if has_json:
            return _shape(self._text, start, self._leaf)[0]
        choices = ()
        if params is not None and params.choice is not None:
            choices = json.loads(replace(params, reasoning="disabled").constraint().spec)
        return self._leaf(_encoded(answer).decode(errors="replace"), start, len(self._text), choices)

    def _calls(self, params: StructuredOutputsParams, form: ToolFormat) -> list[Any]:
        values, at = [], 0
        names = [tool.name for tool in read_tools(params.tools)]
        for call in params.parse_tool_calls(self._text):
            begin = re.compile(form.begin_pattern(call.name)).search(self._text, at)
            assert begin is not None
            name = self._text.index(call.name, begin.start())
            if form.argument_style is None:
                arguments, at = _shape(self._text, begin.end(), self._leaf)
            else:
                at = self._text.index(form.end, begin.end()) if form.end else len(self._text)
                arguments = self._leaf(call.arguments, begin.end(), at, ())
            values.append({"name": self._leaf(call.name, name, name + len(call.name), names), "arguments": arguments})
        return values

    def _leaf(self, value: Any, first: int, last: int, candidates: Sequence[str] | None = None) -> LeafConfidence:
        """The confidence in the value that is written from character ``first`` to
        ``last``.

        Args:
            value: the value.
            first: where it begins.
            last: where it ends.
            candidates: the values that might stand in its place. None: any JSON.
        """
        start, end = self._offsets[first], self._offsets[last]
        bounds = enumerate(self._bounds[: len(self._token_ids)])
        tokens = [i for i, (begin, stop) in bounds if (begin < end and start < stop) or begin == stop == end]
        deciding = tokens if candidates is None or candidates else []
        if isinstance(value, int | float) and self._bounds[tokens[-1]] != self._bounds[-1]:
            deciding = [*deciding, tokens[-1] + 1]  # a number might have had more digits
        others: dict[str, float] = defaultdict(float)  # as JSON, with their probabilities
        undecided = before = 0.0
        for i in deciding:
            for token, probability in zip(*self._alternatives[i], strict=True):
                if probability > _LEAST_PROBABILITY and token != self._token_ids[i]:
                    other = self._other_value(i, token, start, candidates)
                    if other is None:
                        undecided = max(undecided, exp(before) * probability)
                    else:
                        others[other] += exp(before) * probability
            before += self.logprobs[i]
        others.pop(json.dumps(value), None)
        likeliest = max(others, key=others.__getitem__, default=None)
        is_known = likeliest is not None and others[likeliest] > undecided
        return LeafConfidence(
            value,
            exp(fsum(self.logprobs[i] for i in tokens)),
            fsum(self.log_kept[i] for i in tokens),
            json.loads(likeliest) if likeliest is not None and is_known else None,
            others[likeliest] if likeliest is not None and is_known else 0.0,
        )

    def _other_value(self, i: int, token: int, start: int, candidates: Sequence[str] | None) -> str | None:
        """The value, as JSON, that begins at byte ``start`` with ``token`` in place of
        token i. None if it is open."""
        assert self._request_id is not None  # free texts have no alternatives
        begin = self._bounds[i][0]
        lead = self._bytes[begin:start]  # of the token, in front of the value
        piece = self._bytes_of(token)
        if lead.strip() and not piece.startswith(lead):
            return None
        piece = piece[len(lead) :] if lead.strip() else piece
        self._move_to(i)
        self._manager.accept_tokens(self._request_id, [token])
        try:
            forced = self._manager.find_jump_forward_string(self._request_id)
            written = (self._bytes[start:begin] + piece).decode(errors="replace") + forced
            return self._json_value(written.lstrip()) if candidates is None else _candidate(candidates, written)
        finally:
            self._manager.rollback(self._request_id, 1)

    def _json_value(self, written: str) -> str | None:
        """The value that a text begins with, as JSON. None if it may go on."""
        try:
            value, end = _DECODER.raw_decode(written)
        except ValueError:
            return None
        is_open = end == len(written) and written[-1].isdigit() and self._may_read_more_of_a_number()
        return None if is_open or isinstance(value, dict | list) else json.dumps(value)

    def _may_read_more_of_a_number(self) -> bool:
        assert self._request_id is not None
        tokens = map(self._manager.vocabulary.token_of_byte, _OF_NUMBERS)
        return any(token is not None and self._manager.validate_tokens(self._request_id, [token]) for token in tokens)

    def _move_to(self, i: int) -> None:
        """Let the request have read the first i tokens."""
        assert self._request_id is not None
        if i < self._num_accepted:
            self._manager.rollback(self._request_id, self._num_accepted - i)
        else:
            self._manager.accept_tokens(self._request_id, self._token_ids[self._num_accepted : i])
        self._num_accepted = i

    def _bytes_of(self, token: int) -> bytes:
        return self._manager.vocabulary.bytes_of([token], with_names=True)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _shape(text: str, at: int, leaf: Callable[[Any, int, int], Any]) -> tuple[Any, int]:
    """The JSON value at ``at`` with ``leaf(value, start, end)`` in place of its leaves,
    and where it ends. The text is JSON."""
    at = _skip(text, at)
    if text[at] not in "{[":
        value, end = _DECODER.raw_decode(text, at)
        return leaf(value, at, end), end
    members: dict[str, Any] = {}
    items: list[Any] = []
    is_object = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        at = _skip(text, at + (text[at] == ","))
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            members[key], at = _shape(text, _skip(text, at) + 1, leaf)
        else:
            item, at = _shape(text, at, leaf)
            items.append(item)
        at = _skip(text, at)
    return members if is_object else items, at + 1


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _candidate(candidates: Sequence[str], written: str) -> str | None:
    """The one, as JSON, that a text begins with or is the beginning of. None if several
    may be."""
    found = [each for each in candidates if each.startswith(written)]
    if not found:
        found = sorted((each for each in candidates if written.startswith(each)), key=len)[-1:]
    return json.dumps(found[0]) if len(found) == 1 else None
