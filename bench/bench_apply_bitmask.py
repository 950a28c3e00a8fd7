"""Measures apply_bitmask beside xgrammar, llguidance and torch. Checks each result
before timing it.

    python bench/bench_apply_bitmask.py [--device cpu|cuda] [--quick]

Masks of density d allow each token with probability d, as in xgrammar's published
benchmark. Inside a JSON string 0.968 of a real vocabulary is allowed, in most other
states of JSON 0.001.
"""

import itertools
from typing import Any

import harness
import torch
from harness import Call

import structout
from structout.masks.bitmask import bitmask_width
from structout.ops import reference

BATCHES = {"cpu": (1, 8, 64, 256, 512), "cuda": (1, 64, 256, 4096)}
SECONDS = {"cpu": 0.3, "cuda": 0.01}  # for each call and state of the caches
VOCABS = (128_256, 151_936)
DENSITIES = (0.0, 0.001, 0.5, 0.968, 0.999)
DTYPES = (torch.float32, torch.bfloat16)
Case = tuple[int, int, torch.dtype, float]


def ours(logits: torch.Tensor, bitmask: torch.Tensor) -> Call:
    return lambda: torch.ops.structout.apply_bitmask(logits, bitmask)


def ours_in_triton(logits: torch.Tensor, bitmask: torch.Tensor) -> Call | None:
    if not logits.is_cuda:
        return None
    from structout.triton_kernels.apply_bitmask import apply_bitmask

    return lambda: apply_bitmask(logits, bitmask)


def xgrammar(logits: torch.Tensor, bitmask: torch.Tensor) -> Call:
    """On CUDA its Triton kernel."""
    from xgrammar import apply_token_bitmask_inplace

    backend = "triton" if logits.is_cuda else "auto"
    return lambda: apply_token_bitmask_inplace(logits, bitmask, backend=backend)


def xgrammar_cuda(logits: torch.Tensor, bitmask: torch.Tensor) -> Call | None:
    if not logits.is_cuda:
        return None
    from xgrammar import apply_token_bitmask_inplace

    return lambda: apply_token_bitmask_inplace(logits, bitmask, backend="cuda")


def llguidance(logits: torch.Tensor, bitmask: torch.Tensor) -> Call:
    from llguidance.torch import apply_token_bitmask_inplace

    return lambda: apply_token_bitmask_inplace(logits, bitmask)


def masked_fill(logits: torch.Tensor, bitmask: torch.Tensor) -> Call:
    disallowed = ~structout.unpack_bitmask(bitmask, logits.shape[-1])
    return lambda: logits.masked_fill_(disallowed, float("-inf"))


# All write -inf to the same places, so they may run in any order.
PEERS = harness.Peers(
    {
        "structout": ours,
        "llguidance": llguidance,
        "masked_fill_": masked_fill,
        "xgrammar": xgrammar,
        "structout triton": ours_in_triton,
        "xgrammar cuda": xgrammar_cuda,
    }
)


def random_mask(num_rows: int, vocab_size: int, density: float, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    rows = [structout.pack_bitmask(torch.rand(vocab_size, generator=generator, device=device) < density)
            for _ in range(min(num_rows, 16))]  # fmt: skip
    return torch.stack(rows).repeat(-(-num_rows // len(rows)), 1)[:num_rows]


def run_case(case: Case, device: torch.device, seconds: float) -> dict[str, Any]:
    num_rows, vocab_size, dtype, density = case
    bitmask = random_mask(num_rows, vocab_size, density, device)
    original = torch.randn(num_rows, vocab_size, device=device).to(dtype)
    expected = original.clone()
    reference.apply_bitmask(expected, bitmask)
    logits = original.clone()
    calls: dict[str, Call] = {}
    for name, call in PEERS.calls(logits, bitmask):
        if not torch.equal(logits, expected):
            raise AssertionError(f"{name} is wrong on {case}: nothing is timed on a wrong result")
        calls[name] = call
        logits.copy_(original)
    calls |= bandwidths(logits, original)
    times = harness.time_calls(calls, device, read_inputs=lambda: read(logits, bitmask), seconds=seconds)
    disallowed = int((~structout.unpack_bitmask(bitmask, vocab_size)).sum())
    return {
        "batch": num_rows,
        "vocab": vocab_size,
        "dtype": str(dtype)[6:],
        "density": density,
        "bytes": disallowed * logits.element_size() + 4 * num_rows * bitmask_width(vocab_size),
        **times,
        "missing": dict(PEERS.missing),
    }


def bandwidths(logits: torch.Tensor, source: torch.Tensor) -> dict[str, Call]:
    """Return calls that only move bytes: all logits written; on CUDA also read and
    written, and read."""
    calls: dict[str, Call] = {"fill_": lambda: logits.fill_(float("-inf"))}
    if logits.device.type == "cuda":
        calls |= {"copy_": lambda: logits.copy_(source), "read": lambda: read(logits)}
    return calls


def read(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16).amax()


def host_time(device: torch.device) -> dict[str, Any]:
    """Time one call of the op from Python, on the smallest input."""
    logits, bitmask = torch.zeros(1, 32, device=device), torch.zeros(1, 1, dtype=torch.int32, device=device)
    op = torch.ops.structout.apply_bitmask
    return {"call_overhead_us": harness.host_microseconds(lambda: op(logits, bitmask))}


def main() -> None:
    parser = harness.argument_parser("apply_bitmask beside its peers", quick="a few small cases")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    PEERS.may_fail = not arguments.quick
    device = torch.device(arguments.device)

    cases: list[Case] = list(itertools.product(BATCHES[device.type], VOCABS, DTYPES, DENSITIES))
    if arguments.quick:
        cases = list(itertools.product((1, 4), (4096,), DTYPES, (0.001, 0.999)))
    results = harness.ResultsFile("apply_bitmask", device, arguments)
    for case in cases:
        row = run_case(case, device, seconds=0.02 if arguments.quick else SECONDS[device.type])
        results.add(row)
        ours = row["us"]["structout"]
        beside = "  ".join(f"{name} {us:,.1f} ({us / ours:.1f}x)" for name, us in row["us"].items() if us != ours)
        missing = "".join(f"  NOT MEASURED: {name} ({why})" for name, why in row["missing"].items())
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']}]"
        print(f"{shape:<24}{row['density']:>6.1%} allowed  structout {ours:,.1f} us  {beside}{missing}", flush=True)
    overhead = host_time(device)
    results.add(overhead)
    print(overhead)
    results.close()


if __name__ == "__main__":
    main()
