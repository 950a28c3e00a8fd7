"""Structured generation over a vocabulary that is split among ranks. On any machine with two cores:

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Every rank holds some rows of the lm_head, computes its columns of the logits, and never sees the others. Each request's
masks are filled by one rank. Every rank draws the same tokens: those that one process with the whole model draws, which
rank 0 checks in the end.
"""

import json
import sys

import torch
import torch.distributed as dist
import transformers

import structout
from structout.cli.demo_model import load_demo_model
from structout.distributed import ShardedManager, VocabParallelSampler, owned_rows, traffic
from structout.integrations.transformers.kv_cache import CachedModel
from structout.sampler import DeviceMasks, SamplingParams

NUM_REQUESTS = 8
MAX_TOKENS = 48
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^ORD-[0-9]{4}$"},
        "status": {"enum": ["pending", "paid", "shipped"]},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["id", "status", "quantity"],
    "additionalProperties": False,
}


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        load_demo_model()  # made here, if it is not in the cache, and read by the others
    dist.barrier()
    model, tokenizer, _ = load_demo_model()
    width = model.lm_head.weight.shape[0]

    columns = owned_rows(width, rank, world_size)
    parts = [columns_of(model.lm_head, owned_rows(width, r, world_size)) for r in range(world_size)]
    model.lm_head = parts[rank]
    manager = ShardedManager(structout.StructuredOutputManager(tokenizer, vocab_size=width))
    texts, exchanged = generate(model, tokenizer, manager, VocabParallelSampler(columns.start))

    if rank == 0:
        model.lm_head = InParts(parts)
        alone = ShardedManager(structout.StructuredOutputManager(tokenizer, vocab_size=width), group="")
        expected, _ = generate(model, tokenizer, alone, VocabParallelSampler(0, group=""))
        report(texts, expected, tokenizer, exchanged, width, world_size)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0 and texts != expected:
        sys.exit("the tokens differ from those of one process")


def columns_of(lm_head: torch.nn.Linear, columns: range) -> torch.nn.Linear:
    """What a tensor-parallel rank holds of an lm_head."""
    part = torch.nn.Linear(lm_head.in_features, len(columns), bias=False)
    part.weight = torch.nn.Parameter(lm_head.weight[columns.start : columns.stop].detach().clone())
    return part


class InParts(torch.nn.Module):
    """The whole lm_head, by the same products: one over all columns might round differently."""

    def __init__(self, parts: list[torch.nn.Linear]):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(hidden) for part in self.parts], dim=-1)


def generate(
    model: torch.nn.Module, tokenizer: object, manager: ShardedManager, sampler: VocabParallelSampler
) -> tuple[list[list[int]], list[int]]:
    """The tokens of each request, and the bytes that this rank sent in each step for the draw alone."""
    ids = [f"order-{i}" for i in range(NUM_REQUESTS)]
    for request_id in ids:
        manager.add_request(request_id, structout.StructuredOutputsParams(json=SCHEMA))
    waiting = set(ids)
    while waiting:  # a real engine would go on with other requests
        waiting -= set(manager.poll_ready())

    running = CachedModel(model, NUM_REQUESTS)
    texts: list[list[int]] = [[] for _ in ids]
    next_tokens = [tokenizer.encode(f"order {i}: ") for i in range(NUM_REQUESTS)]
    last = torch.tensor([len(tokens) - 1 for tokens in next_tokens])
    bytes_sent = []
    for position in range(MAX_TOKENS):
        logits = running.forward(next_tokens)[torch.arange(NUM_REQUESTS), last]
        masks = DeviceMasks.of(manager.grammar_bitmask(ids), ids, "cpu")
        before = traffic(sampler.group_name).payload_bytes
        seeds = torch.arange(NUM_REQUESTS)
        drawn = sampler(logits, masks, SamplingParams(seed=seeds, position=position)).tolist()
        bytes_sent.append(traffic(sampler.group_name).payload_bytes - before)
        going_on = [i for i, request_id in enumerate(ids) if not manager.is_terminated(request_id)]
        if not going_on:
            break
        for i in going_on:
            texts[i].append(drawn[i])
            manager.accept_tokens(ids[i], [drawn[i]])
        next_tokens = [[drawn[i]] if i in going_on else [0] for i in range(NUM_REQUESTS)]
        last = torch.zeros(NUM_REQUESTS, dtype=torch.long)
    return texts, bytes_sent


def report(
    texts: list[list[int]],
    expected: list[list[int]],
    tokenizer: object,
    exchanged: list[int],
    width: int,
    world_size: int,
) -> None:
    for i, tokens in enumerate(texts):
        print(f"order-{i}  {json.dumps(json.loads(tokenizer.decode(tokens, skip_special_tokens=True)))}")
    gathered = NUM_REQUESTS * width * 4 * (world_size - 1) // world_size
    each_step = max(exchanged)
    print(f"\n{world_size} ranks, {len(exchanged)} steps of {NUM_REQUESTS} requests, {width} columns of float32 logits")
    print(f"sent by a rank in a step, to draw:  {each_step:,} bytes; to gather the logits: {gathered:,} bytes")
    print(f"tokens of one process alone:        {'the same' if texts == expected else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
