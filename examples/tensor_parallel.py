"""Structured generation with a vocabulary that is divided among ranks.

Runs on any machine with two cores:

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Every rank holds some rows of the lm_head and computes only its columns of the logits.
One rank fills each request's masks. All ranks draw the same tokens. In the end rank 0
checks that one process with the whole model draws them too.
"""

import json
import sys

import torch
import torch.distributed as dist
import transformers

import structout
from structout.cli.random_model import load_random_model
from structout.distributed import ShardedManager, VocabParallelSampler, owned_rows, traffic
from structout.ops.sampler import DeviceMasks, SamplingParams

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
        load_random_model()  # creates it in the cache, where the others find it
    dist.barrier()
    model, tokenizer, _ = load_random_model()
    width = model.lm_head.weight.shape[0]

    columns = owned_rows(width, rank, world_size)
    heads = [shard_lm_head(model.lm_head, owned_rows(width, r, world_size)) for r in range(world_size)]
    model.lm_head = heads[rank]
    manager = ShardedManager(structout.StructuredOutputManager(tokenizer, vocab_size=width))
    token_ids, bytes_sent = generate(model, tokenizer, manager, VocabParallelSampler(columns.start))

    if rank == 0:
        model.lm_head = ConcatenatedHead(heads)
        single = ShardedManager(structout.StructuredOutputManager(tokenizer, vocab_size=width), group="")
        expected, _ = generate(model, tokenizer, single, VocabParallelSampler(0, group=""))
        report(token_ids, expected, tokenizer, bytes_sent, width, world_size)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0 and token_ids != expected:
        sys.exit("the tokens differ from those of one process")


def shard_lm_head(lm_head: torch.nn.Linear, columns: range) -> torch.nn.Linear:
    """Return the part of an lm_head that computes some columns of the logits."""
    shard = torch.nn.Linear(lm_head.in_features, len(columns), bias=False)
    shard.weight = torch.nn.Parameter(lm_head.weight[columns.start : columns.stop].detach().clone())
    return shard


class ConcatenatedHead(torch.nn.Module):
    """The whole lm_head, computed shard by shard so that it rounds as the shards do."""

    def __init__(self, heads: list[torch.nn.Linear]):
        super().__init__()
        self.heads = torch.nn.ModuleList(heads)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(hidden) for head in self.heads], dim=-1)


def generate(
    model: torch.nn.Module, tokenizer: object, manager: ShardedManager, sampler: VocabParallelSampler
) -> tuple[list[list[int]], list[int]]:
    """Return each request's tokens, and the bytes this rank sent per step to sample."""
    ids = [f"order-{i}" for i in range(NUM_REQUESTS)]
    for request_id in ids:
        manager.add_request(request_id, structout.StructuredOutputsParams(json=SCHEMA))
    manager.wait_all()  # an engine would run other requests, and call poll_ready in each step

    token_ids: list[list[int]] = [[] for _ in ids]
    prompts = [tokenizer.encode(f"order {i}: ") for i in range(NUM_REQUESTS)]
    width = max(map(len, prompts))
    next_tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    is_token = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    cache = None
    bytes_sent = []
    for position in range(MAX_TOKENS):
        positions = (is_token.cumsum(1) - 1).clamp(min=0)[:, -next_tokens.shape[1] :]
        with torch.inference_mode():
            output = model(next_tokens, attention_mask=is_token, position_ids=positions, past_key_values=cache)
        logits, cache = output.logits[:, -1], output.past_key_values
        masks = DeviceMasks.of(manager.grammar_bitmask(ids), ids, "cpu")
        bytes_before = traffic(sampler.group_name).payload_bytes
        seeds = torch.arange(NUM_REQUESTS)
        drawn = sampler(logits, masks, SamplingParams(seed=seeds, position=position)).ids.tolist()
        bytes_sent.append(traffic(sampler.group_name).payload_bytes - bytes_before)
        unfinished = [i for i, request_id in enumerate(ids) if not manager.is_terminated(request_id)]
        if not unfinished:
            break
        for i in unfinished:
            token_ids[i].append(drawn[i])
            manager.accept_tokens(ids[i], [drawn[i]])
        next_tokens = torch.tensor([[max(token, 0)] for token in drawn])
        is_token = torch.cat([is_token, torch.ones_like(next_tokens)], dim=1)
    return token_ids, bytes_sent


def report(
    token_ids: list[list[int]],
    expected: list[list[int]],
    tokenizer: object,
    bytes_sent: list[int],
    width: int,
    world_size: int,
) -> None:
    for i, tokens in enumerate(token_ids):
        print(f"order-{i}  {json.dumps(json.loads(tokenizer.decode(tokens, skip_special_tokens=True)))}")
    logits_bytes = NUM_REQUESTS * width * 4 * (world_size - 1) // world_size
    print(
        f"\n{world_size} ranks, {len(bytes_sent)} steps of {NUM_REQUESTS} requests, {width} columns of float32 logits"
    )
    print(f"sent per rank and step to sample:   {max(bytes_sent):,} bytes; gathering logits: {logits_bytes:,} bytes")
    print(f"tokens of one process alone:        {'the same' if token_ids == expected else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
