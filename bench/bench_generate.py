"""Measures structout.integrations.transformers.generate with each grammar engine, and
with our own on the device.

    python bench/bench_generate.py [--device cpu|cuda] [--quick]

64 texts of one regular expression, drawn as one batch on one thread by a Llama of one
layer with random weights. All peers draw the same tokens, and are checked to do so. The
model's cache is dynamic, except with the FSM on the device, where it is static. One
round runs each peer once.
"""

import random
import statistics
import time
from typing import Any

import harness
import torch
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer
from one_layer_model import one_layer_config
from transformers import LlamaForCausalLM

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.integrations.transformers import generate

BATCH = 64
NUM_TOKENS = 48
ROUNDS = 5
PATTERN = r"([A-Z][a-z]{2,12} (paid|owes) [0-9]{1,4}[.][0-9]{2} on [0-9]{4}-[0-9]{2}-[0-9]{2}; ){40}"
PEERS: dict[str, dict[str, Any]] = {
    "fsm": {"backend": "native"},
    "fsm on the device": {"backend": "native", "device_fsm": True},
    "xgrammar": {"backend": "xgrammar"},
}


def make_model(vocab_size: int, device: torch.device) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(one_layer_config(vocab_size)).eval().to(device)


def run(model: Any, manager: StructuredOutputManager, tokenizer: Any, num_tokens: int, peer: str) -> Any:
    options = dict(PEERS[peer])
    return generate(
        model,
        tokenizer,
        "List the payments: ",
        params=StructuredOutputsParams(regex=PATTERN, fit="off", backend=options.pop("backend")),
        manager=manager,
        num_return_sequences=BATCH,
        max_new_tokens=num_tokens,
        do_sample=True,
        top_k=0,
        **options,
    )


def main() -> None:
    parser = harness.argument_parser("generate with each grammar engine", quick="a small vocabulary, one round")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    vocab_size, num_tokens, num_rounds = (4096, 8, 1) if arguments.quick else (VOCAB_SIZE, NUM_TOKENS, ROUNDS)
    tokenizer = trained_tokenizer(2000, 400_000) if arguments.quick else large_tokenizer()
    model = make_model(vocab_size, device)
    results = harness.ResultsFile("generate", device, arguments)
    with StructuredOutputManager(tokenizer, vocab_size) as manager:
        expected = run(model, manager, tokenizer, num_tokens, "fsm").token_ids
        for peer in PEERS:
            if run(model, manager, tokenizer, num_tokens, peer).token_ids != expected:
                raise AssertionError(f"{peer} drew other tokens: nothing is timed on a wrong result")
        speeds: dict[str, list[float]] = {peer: [] for peer in PEERS}
        order = list(PEERS)
        for _ in range(num_rounds):
            random.shuffle(order)
            for peer in order:
                start = time.perf_counter()
                run(model, manager, tokenizer, num_tokens, peer)
                speeds[peer].append(BATCH * num_tokens / (time.perf_counter() - start))
    for peer, values in speeds.items():
        tokens_per_second = [round(f(values), 1) for f in (statistics.median, min, max)]
        results.add(
            {
                "peer": peer,
                "batch": BATCH,
                "tokens": num_tokens,
                "vocab": vocab_size,
                "vocabulary": tokenizer.name_or_path,
                "rounds": num_rounds,
                "tokens_per_second": tokens_per_second,
            }
        )
        median, least, greatest = tokens_per_second
        print(f"{peer:<18} {median:8,.0f} tokens/s ({least:,.0f} to {greatest:,.0f})", flush=True)
    results.close()


if __name__ == "__main__":
    main()
