"""Tables of tensor parallelism."""

from tables.ops import _is_unfiltered_and_free
from tables.text import markdown, precise_time, provenance, rows_of, time_of

_TWO_RANKS = "Two ranks with one thread each, over gloo, on one host; medians of interleaved runs, of the slower rank."
# Published bytes per second of one GPU in one direction, from NVIDIA's data sheets of
# H200 and GB200 NVL72; PCIe 5.0 x16.
_NVLINK = {"8 H200, NVLink 4": (8, 450e9), "64 of a GB200 NVL72, NVLink 5": (64, 900e9)}
_PCIE = 64e9


def tensor_parallel_table() -> str:
    """One row per batch size, dtype and mask."""
    cases = [row for row in rows_of("tensor_parallel") if row["call"] == "sharded_masked_sample"]
    rows = []
    for row in cases:
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
    head = ["logits", "tokens allowed", "filters", "on shards", "gathered first", ""]
    return markdown(head, rows) + provenance("tensor_parallel", "cpu", _TWO_RANKS)


def shared_masks_table() -> str:
    rows = []
    for row in rows_of("tensor_parallel"):
        if row["call"] == "all_gather_bitmask":
            what, peer = f"all_gather_bitmask, {row['rows']} rows", "gloo"
        elif row["call"] == "grammar_bitmask":
            what, peer = f"grammar_bitmask, {row['requests']} requests", "every rank fills all"
        else:
            continue
        ours, theirs = row["us"]["structout"], row["us"][peer]
        rows.append([what, f"**{time_of(ours)}**", f"{peer}: {time_of(theirs)}", f"{theirs / ours:.2f}×"])
    head = ["call", "structout", "peer", ""]
    return markdown(head, rows) + provenance("tensor_parallel", "cpu", _TWO_RANKS)


def exchanged_bytes_table() -> str:
    rows = []
    cases = [row for row in rows_of("tensor_parallel") if row["call"] == "bytes"]
    for row in cases:
        sent, gathered = row["payload_bytes"], row["bytes_to_gather_logits"]
        share = f"1/{gathered / sent:,.0f}" if gathered > 100 * sent else f"{sent / gathered:.2%}"
        rows.append([row["allowed"], row["filters"], f"{sent:,}", f"{gathered:,}", f"**{share}**"])
    about = (
        f"{cases[0]['ranks']} ranks, bfloat16 [{cases[0]['batch']}, {cases[0]['vocab']:,}], the rank that sends most."
    )
    head = ["tokens allowed", "filters", "bytes sent", "to gather the logits", ""]
    return markdown(head, rows) + provenance("tensor_parallel", "cpu", about)


def gpu_model_table() -> str:
    """Not measured: bytes divided by rates. The bytes are those of the counted table,
    scaled to the number of ranks.
    """
    (counted,) = (r for r in rows_of("tensor_parallel") if r["call"] == "bytes" and _is_unfiltered_and_free(r))
    (fill,) = (r for r in rows_of("tensor_parallel") if r["call"] == "grammar_bitmask")
    batch, vocab = counted["batch"], counted["vocab"]
    bytes_a_row = counted["payload_bytes"] / (counted["ranks"] - 1) / batch
    mask_bytes = batch * 4 * ((vocab + 31) // 32)
    rows = []
    for name, (ranks, rate) in _NVLINK.items():
        others = ranks - 1
        logits = batch * vocab * 2 * others / ranks
        to_draw = {"gathered": logits, "without filters": bytes_a_row * batch * others, "filters": logits / ranks}
        alone = fill["us"]["every rank fills all"]
        rows.append(
            [
                name,
                *(precise_time(size / rate * 1e6) for size in to_draw.values()),
                precise_time(mask_bytes / _PCIE * 1e6),
                precise_time((mask_bytes / ranks / _PCIE + mask_bytes * others / ranks / rate) * 1e6),
                precise_time(alone),
                precise_time(alone / ranks),
            ]
        )
    head = ["", "logits gathered", "draw without filters", "draw with filters", "masks, each copied", "masks, shared"]
    about = (
        f"A model, not a measurement: {batch} rows of {vocab:,}, bfloat16, bytes over published rates; no latencies."
    )
    return markdown([*head, "every rank fills all", "fills shared"], rows) + f"\n{about}\n"
