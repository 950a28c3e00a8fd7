"""The push ops: argument checks, and on a GPU, ranks that share one device."""

from itertools import pairwise

import pytest
import torch

import structout
from support.refusals import REFUSED

GATHER_CAPACITY, ROWS_CAPACITY = 1 << 20, 1 << 22
FILL = 0xFF
SECOND = 10**9


def gather_arguments(**changes):
    shard = torch.zeros(2, 5, dtype=torch.int32)
    arguments = {
        "shard": shard, "out": shard.new_zeros(3, 2, 5), "state": torch.zeros(6, dtype=torch.int64), "buffers": 64,
        "multicast": 0, "rank": 1, "world_size": 3, "gather_capacity": 40, "token": 7, "timeout_ns": 1,
        "fill_on_error": 255,
    }  # fmt: skip
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": torch.zeros(6)}, r"state must be int64 of shape \[6\], got float32 \[6\]"),
        ({"state": torch.zeros(5).long()}, r"state must be int64 of shape \[6\], got int64 \[5\]"),
        ({"rank": 3}, r"rank must be in \[0, 3\), got 3"),
        ({"rank": -1}, r"rank must be in \[0, 3\), got -1"),
        ({"world_size": 33}, r"world_size must be in \[1, 32\], got 33"),
        ({"buffers": 0}, "buffers must be the address of the ranks' buffer addresses in device memory, got 0"),
        ({"timeout_ns": 0}, "timeout_ns must be at least 1, got 0"),
        ({"gather_capacity": 39}, "gather_capacity must be at least the 40 bytes of shard, got 39; allocate"),
        ({"fill_on_error": 256}, r"fill_on_error must be a byte, in \[0, 255\], got 256"),
        ({"out": torch.zeros(3, 2, 4, dtype=torch.int32)}, r"room for 3 shards of shape \[2, 5\], got"),
        ({"out": torch.zeros(3, 2, 5)}, "out must have the dtype of shard, int32, got float32"),
        ({"out": torch.zeros(5, 2, 3, dtype=torch.int32).mT}, "out must be contiguous; use out.contiguous()"),
        ({"shard": torch.zeros(5, 2, dtype=torch.int32).mT}, "shard must be contiguous; use shard.contiguous()"),
        ({"out": torch.zeros(3, 2, 5, dtype=torch.int32, device="meta")}, r"out must be on .* shard \(cpu\), got meta"),
    ],
)  # fmt: skip
def test_push_all_gather_with_invalid_argument_raises(changes, message):
    with pytest.raises(REFUSED, match=f"push_all_gather: .*{message}"):
        torch.ops.structout._check_push_all_gather(**gather_arguments(**changes))


def test_push_all_gather_with_valid_arguments_passes_the_check():
    torch.ops.structout._check_push_all_gather(**gather_arguments())


def test_push_all_gather_with_overlapping_tensors_raises():
    out = torch.zeros(30, dtype=torch.int32)
    with pytest.raises(REFUSED, match="its address range overlaps that of shard; clone one of them"):
        torch.ops.structout._check_push_all_gather(**gather_arguments(shard=out[10:20], out=out))


def rows_arguments(**changes):
    arguments = {
        "logits": torch.zeros(4, 10), "bitmask": torch.zeros(2, 1, dtype=torch.int32),
        "rows": torch.zeros(4, dtype=torch.int64), "rows_out": torch.zeros(1, dtype=torch.int64),
        "state": torch.zeros(6, dtype=torch.int64), "buffers": 64, "rank": 1, "world_size": 3, "gather_capacity": 0,
        "token": 7, "timeout_ns": 1, "rows_capacity": 2 * 112, "vocab_begin": 10, "vocab_size": 25,
    }  # fmt: skip
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(4, 10).double()}, "logits must be float32, float16 or bfloat16, got float64"),
        ({"vocab_begin": 16}, "vocab_size must be at least 26, because logits has 10 columns from token 16 on, got 25"),
        ({"vocab_begin": -1}, "vocab_begin must be at least 0, got -1"),
        ({"rows_capacity": 223}, "rows_capacity must be at least 224, the bytes .*, got 223; allocate a larger buffer"),
        ({"rows": torch.zeros(3).long()}, r"rows must have one entry per logits row, shape \[4\], got \[3\]"),
        ({"bitmask": None}, "there is no bitmask; pass both or neither"),
        ({"rows": None}, "without rows, bitmask must have one row per logits row, 4, got 2"),
        ({"rows_out": torch.zeros(2).long()}, r"one entry per owned row, shape \[1\], got int64 \[2\]"),
        ({"rows_out": torch.zeros(1).int()}, r"rows_out must be int64"),
    ],
)
def test_push_rows_with_invalid_argument_raises(changes, message):
    with pytest.raises(REFUSED, match=f"push_rows: .*{message}"):
        torch.ops.structout._check_push_rows(**rows_arguments(**changes))


def test_push_rows_with_valid_arguments_passes_the_check():
    torch.ops.structout._check_push_rows(**rows_arguments())
    torch.ops.structout._check_push_rows(**rows_arguments(bitmask=None, rows=None))


def test_push_buffer_has_room_for_signals_two_halves_and_rows():
    signals = 2 * 3 * 32 * 16
    assert torch.ops.structout._push_buffer(3, 100, 50) == (signals + 2 * 3 * 112, signals + 2 * 3 * 112 + 64)


class Ranks:
    """Ranks on one device.

    Their kernels wait for each other, so all are launched before any other use of it.
    """

    def __init__(self, world_size: int):
        self.rows_offset, size = torch.ops.structout._push_buffer(world_size, GATHER_CAPACITY, ROWS_CAPACITY)
        self.world_size = world_size
        self.buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(world_size)]
        self.addresses = torch.tensor([buffer.data_ptr() for buffer in self.buffers], device="cuda")
        self.states = [torch.zeros(6, dtype=torch.int64, device="cuda") for _ in range(world_size)]
        self.streams = [torch.cuda.Stream() for _ in range(world_size)]
        torch.cuda.synchronize()

    def group(self, rank: int, token: int, timeout_ns: int = 10 * SECOND) -> dict[str, object]:
        return {
            "state": self.states[rank], "buffers": self.addresses.data_ptr(), "rank": rank,
            "world_size": self.world_size, "gather_capacity": GATHER_CAPACITY, "token": token, "timeout_ns": timeout_ns,
        }  # fmt: skip

    def launch(self, call, ranks=None) -> None:
        torch.cuda.synchronize()
        for rank in range(self.world_size) if ranks is None else ranks:
            with torch.cuda.stream(self.streams[rank]):
                call(rank)
        torch.cuda.synchronize()


@pytest.fixture(params=["cuda", pytest.param("triton", marks=pytest.mark.triton)])
def all_gather(request):
    if request.param == "cuda":
        op = torch.ops.structout._push_all_gather.default
    else:
        from structout.triton_kernels.push import push_all_gather as op

    def run(shard, out, group):
        op(shard=shard, out=out, multicast=0, fill_on_error=FILL, **group)

    # Load and compile everything before ranks wait for each other.
    single = Ranks(1)
    for size in (64, 16, 4, 3, 1):
        shard = torch.ones(size, dtype=torch.uint8, device="cuda")
        out = torch.zeros_like(shard)
        run(shard, out, single.group(0, token=size))
        assert torch.equal(out, shard)
    return run


@pytest.mark.gpu
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_push_all_gather_of_many_sizes_gathers_every_byte(all_gather, world_size):
    ranks, sizes = Ranks(world_size), (0, 1, 16, 37, 1000, 4096, 123_456, GATHER_CAPACITY, 20)
    for epoch in range(60):
        size = sizes[epoch % len(sizes)]
        shards = torch.randint(256, (world_size, size), dtype=torch.uint8, device="cuda").unbind()
        shards = [shard.clone() for shard in shards]
        outs = [torch.zeros(world_size, size, dtype=torch.uint8, device="cuda") for _ in shards]
        ranks.launch(lambda rank, s=shards, o=outs, t=epoch: all_gather(s[rank], o[rank], ranks.group(rank, token=t)))
        for out in outs:
            assert torch.equal(out, torch.stack(shards))
    assert all(state.tolist() == [60, 0, 0, 0, 0, 0] for state in ranks.states)


@pytest.mark.gpu
def test_push_all_gather_captured_in_a_graph_can_be_replayed(all_gather):
    ranks = Ranks(2)
    shards = [torch.zeros(5000, dtype=torch.int64, device="cuda") for _ in range(2)]
    outs = [torch.zeros(2, 5000, dtype=torch.int64, device="cuda") for _ in range(2)]
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for rank, graph in enumerate(graphs):
        with torch.cuda.graph(graph, stream=ranks.streams[rank]):
            all_gather(shards[rank], outs[rank], ranks.group(rank, token=1))
    for step in range(101):  # the halves alternate at every replay
        for rank, shard in enumerate(shards):
            shard.fill_(10 * step + rank)
        ranks.launch(lambda rank: graphs[rank].replay())
        for out in outs:
            assert torch.equal(out, torch.stack(shards))


@pytest.mark.gpu
@pytest.mark.parametrize("num_bytes", [64 * 12, 64 * 19_000])  # of 64 rows: draws of a shard, masks
def test_push_all_gather_latency_is_recorded(all_gather, record_property, num_bytes):
    """Two ranks on one device, a hundred exchanges in one graph; JUnit has the time of
    one."""
    ranks, num_exchanges = Ranks(2), 100
    size = min(num_bytes, GATHER_CAPACITY)
    shards = [torch.full((size,), rank + 1, dtype=torch.uint8, device="cuda") for rank in range(2)]
    outs = [torch.zeros(2, size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for rank, graph in enumerate(graphs):
        with torch.cuda.graph(graph, stream=ranks.streams[rank]):
            for _ in range(num_exchanges):
                all_gather(shards[rank], outs[rank], ranks.group(rank, token=1))
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(ranks.streams[0]):
            start.record()
        for rank in range(2):
            with torch.cuda.stream(ranks.streams[rank]):
                graphs[rank].replay()
        with torch.cuda.stream(ranks.streams[0]):
            end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / num_exchanges)
    record_property("microseconds_per_exchange", sorted(times)[len(times) // 2])
    record_property("bytes_per_rank", size)
    for out in outs:
        assert torch.equal(out, torch.stack(shards))


@pytest.mark.gpu
def test_push_all_gather_with_absent_rank_fills_output_and_names_the_rank(all_gather):
    ranks = Ranks(3)
    shard = torch.ones(10_000, dtype=torch.int64, device="cuda")
    outs = [torch.zeros(3, 10_000, dtype=torch.int64, device="cuda") for _ in range(3)]
    ranks.launch(lambda rank: all_gather(shard, outs[rank], ranks.group(rank, 1, SECOND // 50)), ranks=(0, 1))
    ranks.launch(lambda rank: all_gather(shard, outs[rank], ranks.group(rank, 2)), ranks=(0, 1))  # ends at once
    for rank in (0, 1):
        assert (outs[rank] == -1).all()
        assert ranks.states[rank].tolist()[3:] == [1, 2, 1]


@pytest.mark.gpu
def test_push_all_gather_with_different_tokens_fills_output_and_names_the_peer(all_gather):
    ranks = Ranks(2)
    shard = torch.ones(10, dtype=torch.int64, device="cuda")
    outs = [torch.zeros(2, 10, dtype=torch.int64, device="cuda") for _ in range(2)]
    ranks.launch(lambda rank: all_gather(shard, outs[rank], ranks.group(rank, token=rank)))
    for rank in (0, 1):
        assert (outs[rank] == -1).all()
        assert ranks.states[rank].tolist()[3:] == [2, 1 - rank, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard_unit", [1, 64])
def test_push_rows_gathers_owned_rows_that_sample_as_the_whole(dtype, shard_unit):
    world_size, vocab_size, num_rows = 4, 5003, 10
    ranks = Ranks(world_size)
    edges = [vocab_size * rank // world_size // shard_unit * shard_unit for rank in range(world_size)] + [vocab_size]
    structout.masked_sample(torch.zeros(1, vocab_size, dtype=dtype, device="cuda"))
    for step in range(20):
        logits = torch.randn(num_rows, vocab_size, device="cuda").to(dtype)
        bitmask = torch.randint(-(2**31), 2**31, (3, structout.bitmask_width(vocab_size)), device="cuda").int()
        rows = torch.randint(-1, 4, (num_rows,), device="cuda")
        expected = structout.masked_sample(logits, bitmask, rows, seed=step)
        shards = [logits[:, begin:end].contiguous() for begin, end in pairwise(edges)]
        first_rows = [num_rows * rank // world_size for rank in range(world_size + 1)]
        rows_out = [rows.new_zeros(first_rows[rank + 1] - first_rows[rank]) for rank in range(world_size)]

        def push(rank, step=step, shards=shards, bitmask=bitmask, rows=rows, rows_out=rows_out):
            torch.ops.structout._push_rows(
                shards[rank], bitmask, rows, rows_out[rank], **ranks.group(rank, token=step),
                rows_capacity=ROWS_CAPACITY, vocab_begin=edges[rank], vocab_size=vocab_size,
            )  # fmt: skip

        ranks.launch(push)
        row_stride = -(-vocab_size * dtype.itemsize // 16) * 16 // dtype.itemsize
        for rank, buffer in enumerate(ranks.buffers):
            num_owned = rows_out[rank].numel()
            gathered = buffer[ranks.rows_offset :].view(dtype)[: num_owned * row_stride]
            gathered = gathered.view(num_owned, row_stride)[:, :vocab_size]
            ids = structout.masked_sample(gathered, bitmask, rows_out[rank], seed=step)
            assert torch.equal(ids, expected[first_rows[rank] : first_rows[rank + 1]])
