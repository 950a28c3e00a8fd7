"""Tables of tensor parallelism."""

from tables.text import NOT_MEASURED, markdown, precise_time, provenance, rows_of, time_of

_TWO_RANKS = "Two ranks with one thread each, over gloo, on one host; medians of interleaved runs, of the slower rank."
# Published bytes per second of one GPU in one direction, from NVIDIA's data sheets of
# H200 and GB200 NVL72; PCIe 5.0 x16.
_NVLINK = {"8 H200, NVLink 4": (8, 450e9), "64 of a GB200 NVL72, NVLink 5": (64, 900e9)}
_PCIE = 64e9
_BATCH, _VOCAB = 256, 151_936


def tensor_parallel_table() -> str:
    """One row per batch size, dtype and mask."""
    rows = []
    for row in rows_of("tensor_parallel"):
        ours, gathered = row["us"]["structout"], row["us"]["gather, then masked_sample"]
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]"
        rows.append(
            [
                shape,
                row["allowed"],
                row["filters"],
                f"**{time_of(ours)}**",
                time_of(gathered),
                f"{gathered / ours:.1f}×",
            ]
        )
    if not rows:
        return NOT_MEASURED
    head = ["logits", "tokens allowed", "filters", "on shards", "gathered first", ""]
    return markdown(head, rows) + provenance("tensor_parallel", "cpu", _TWO_RANKS)


def gpu_model_table() -> str:
    """Not measured: bytes divided by rates."""
    mask_bytes = _BATCH * 4 * ((_VOCAB + 31) // 32)
    rows = []
    for name, (ranks, rate) in _NVLINK.items():
        others = ranks - 1
        logits = _BATCH * _VOCAB * 2 * others / ranks
        to_draw = {"gathered": logits, "without filters": 12 * _BATCH * others, "filters": logits / ranks}
        rows.append(
            [
                name,
                *(precise_time(size / rate * 1e6) for size in to_draw.values()),
                precise_time(mask_bytes / _PCIE * 1e6),
                precise_time((mask_bytes / ranks / _PCIE + mask_bytes * others / ranks / rate) * 1e6),
            ]
        )
    head = ["", "logits gathered", "draw without filters", "draw with filters", "masks, each copied", "masks, gathered"]
    about = (
        f"A model, not a measurement: {_BATCH} rows of {_VOCAB:,}, bfloat16, bytes over published rates; no latencies."
    )
    return markdown(head, rows) + f"\n{about}\n"
