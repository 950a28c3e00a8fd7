"""Masks for ranks that all run the scheduler: each rank fills some rows, and all ranks
have them all.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Every rank has a manager with the same requests, and draws and accepts the same tokens.
"""

import torch
import torch.distributed as dist
import transformers

import structout
from structout import StructuredOutputManager, StructuredOutputsParams
from structout.cli.random_model import load_random_model

REQUESTS_A_RANK = 3
ORDER = StructuredOutputsParams(regex=r"ORD-[0-9]{4}, (pending|paid|shipped), [1-9][0-9]? (apple|pear|plum)s")


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo")
    first, num_requests = REQUESTS_A_RANK * dist.get_rank(), REQUESTS_A_RANK * dist.get_world_size()
    model, tokenizer, _ = load_random_model()

    # BEGIN
    manager = StructuredOutputManager(tokenizer, vocab_size=model.lm_head.out_features)
    request_ids = [f"order-{i}" for i in range(num_requests)]
    for request_id in request_ids:
        manager.add_request(request_id, ORDER)
    manager.wait_all()
    own_ids = request_ids[first : first + REQUESTS_A_RANK]
    ids, seeds = torch.tensor([tokenizer.encode("order: ")] * num_requests), torch.arange(num_requests)
    texts: list[list[int]] = [[] for _ in request_ids]
    while not all(map(manager.is_terminated, request_ids)):
        own_masks = manager.grammar_bitmask(own_ids).dense(own_ids)  # rows of complete texts are free
        bitmask = structout.all_gather_bitmask(torch.from_numpy(own_masks))
        logits = model(ids).logits[:, -1]
        tokens = structout.masked_sample(logits, bitmask, seed=seeds, position=ids.shape[1])
        for request_id, text, token in zip(request_ids, texts, tokens.tolist(), strict=True):
            if not manager.is_terminated(request_id):
                manager.accept_tokens(request_id, [token])
                text.append(token)
        ids = torch.cat([ids, tokens.unsqueeze(1)], dim=1)
    # END

    if dist.get_rank() == 0:
        for request_id, text in zip(request_ids, texts, strict=True):
            print(f"{request_id}: {tokenizer.decode(text, skip_special_tokens=True)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
