"""The loop of a small engine: requests arrive and leave at any step, each with its own
constraint or none, and share one call of the sampler.

    python examples/engine_loop.py

A request waits while its constraint compiles; the others go on. A bad constraint, or a
text that cannot go on, fails its own request only.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import torch

import structout
from structout import GrammarStatus, StructuredOutputManager, StructuredOutputsParams
from structout.cli.demo_model import load_demo_model

ORDER = {
    "type": "object",
    "properties": {"item": {"enum": ["apple", "pear"]}, "quantity": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["item", "quantity"],
    "additionalProperties": False,
}


@dataclass
class Request:
    """A text being written. ``cache`` holds its keys and values."""

    id: str
    prompt: str
    params: StructuredOutputsParams | None = None  # None: no constraint
    max_tokens: int = 60
    temperature: float = 0.8
    seed: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    cache: Any = None
    error: str = ""


class Engine:
    """Decodes all requests that are ready, one token each in a step."""

    def __init__(self, model: Any, tokenizer: Any, manager: StructuredOutputManager):
        self.model, self.tokenizer, self.manager = model, tokenizer, manager
        self.waiting: dict[str, Request] = {}
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        request.token_ids = self.tokenizer.encode(request.prompt)
        request.num_prompt_tokens = len(request.token_ids)
        if request.params is None:
            self.running.append(request)
        else:
            self.waiting[request.id] = request
            self.manager.add_request(request.id, request.params)  # compiles in the background

    def step(self) -> list[Request]:
        """Decode one token of each running request; return those that have ended."""
        ended = self._admit()
        if not self.running:
            return ended
        logits = torch.cat([self._forward(request) for request in self.running])  # [N, V]
        ids = [request.id for request in self.running]
        masks = self.manager.grammar_bitmask([r.id for r in self.running if r.params is not None])
        drawn = structout.masked_sample(
            logits,
            masks.to(logits.device),
            masks.rows_for(ids),  # -1 for requests without a constraint
            temperature=torch.tensor([request.temperature for request in self.running]),
            seed=torch.tensor([request.seed for request in self.running]),
            position=torch.tensor([len(request.token_ids) for request in self.running]),
        ).tolist()
        accepted = self.manager.accept_batch(
            {r.id: [t] for r, t in zip(self.running, drawn, strict=True) if r.params is not None and t >= 0}
        )
        assert all(accepted.values())  # what a mask allows, its grammar accepts
        for request, token in zip(self.running, drawn, strict=True):
            if token < 0:
                request.error = masks.errors.get(request.id, "no token can be drawn")
            else:
                request.token_ids.append(token)
        over = [request for request in self.running if self._is_over(request)]
        for request in over:
            self.manager.finish_request(request.id)
        self.running = [request for request in self.running if request not in over]
        return ended + over

    def text(self, request: Request) -> str:
        return self.tokenizer.decode(request.token_ids[request.num_prompt_tokens :], skip_special_tokens=True)

    def _admit(self) -> list[Request]:
        """Move requests whose constraint is ready to the running ones; return those
        whose constraint is bad."""
        failed = []
        for request_id, status in self.manager.poll_changed():
            request = self.waiting.pop(request_id, None)
            if request is None:
                continue
            if status is GrammarStatus.READY:
                self.running.append(request)
            else:
                request.error = str(self.manager.error(request_id))
                self.manager.finish_request(request_id)
                failed.append(request)
        return failed

    def _forward(self, request: Request) -> torch.Tensor:
        """The logits of the next token: float32 [1, V]."""
        new = request.token_ids[0 if request.cache is None else -1 :]
        with torch.inference_mode():
            output = self.model(torch.tensor([new]), past_key_values=request.cache, use_cache=True)
        request.cache = output.past_key_values
        return output.logits[:, -1]

    def _is_over(self, request: Request) -> bool:
        is_stopped = request.token_ids[-1] == self.tokenizer.eos_token_id
        is_full = len(request.token_ids) - request.num_prompt_tokens >= request.max_tokens
        return bool(request.error) or is_stopped or is_full


def main() -> None:
    model, tokenizer, _ = load_demo_model()
    requests = [
        Request("order", "An order: ", StructuredOutputsParams(json=ORDER), seed=1),
        Request("code", "A code: ", StructuredOutputsParams(regex="[A-Z]{3}-[0-9]{4}"), seed=2),
        Request("free", "A free text: ", max_tokens=20, seed=3),
        Request("bad", "An error: ", StructuredOutputsParams(regex="(")),
    ]
    with StructuredOutputManager(tokenizer, vocab_size=model.lm_head.out_features) as manager:
        engine = Engine(model, tokenizer, manager)
        num_ended = steps = 0
        while num_ended < len(requests):
            if steps < len(requests):  # they arrive one after the other
                engine.add(requests[steps])
            for request in engine.step():
                num_ended += 1
                print(f"{request.id}: {request.error or engine.text(request)}")
            steps += 1
        assert manager.num_requests == 0
    jsons = [engine.text(request) for request in requests[:1]]
    assert all(json.loads(text)["quantity"] >= 1 for text in jsons)


if __name__ == "__main__":
    main()
