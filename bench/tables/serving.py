"""Tables of the manager, of generation, and of the engines around structout."""

import harness

from tables.text import markdown, provenance, rows_of, time_of, with_range


def manager_table() -> str:
    steps = [row for row in rows_of("manager") if "drafts" in row]
    peers = ["bare fills", "structout", "structout auto", "vllm"]
    rows = [
        [
            row["call"],
            row.get("constraint", "json"),
            f"{row['drafts']}",
            *(time_of(row["us"][peer]) if peer in row["us"] else "" for peer in peers),
        ]
        for row in sorted(steps, key=lambda row: row.get("constraint", "json"))
    ]
    about = f"{steps[0]['requests']} requests, V = {steps[0]['vocab']:,}, {steps[0]['tokenizer']}, {steps[0]['vllm']}."
    return markdown(["call", "constraint", "drafts", *peers], rows) + provenance("manager", "cpu", about)


def busy_thread_table() -> str:
    """A step alone and beside a busy thread, now and before."""
    cells = []
    for row in rows_of("busy_thread"):
        ours, before = row["us"]["structout"], row["us"]["before"]
        thread = "busy" if row["busy"] else "none"
        medians = [f"**{time_of(ours)}**", time_of(before), f"{before / ours:.1f}×"]
        means = [time_of(row["us_mean"][name]) for name in ("structout", "before")]
        cells.append([row["engine"], str(row["drafts"]), thread, *medians, *means])
    row = rows_of("busy_thread")[0]
    about = (
        f"{row['requests']} requests on JSON schemas, {row['steps']} steps of each case, in processes that alternate; "
        f"before: commit {row['before']}."
    )
    head = ["engine", "drafts", "other thread", "structout, median", "before", "", "structout, mean", "before"]
    return markdown(head, cells) + provenance("busy_thread", "cpu", about)


def mask_pool_table() -> str:
    (row,) = (row for row in rows_of("manager") if "bytes_sent" in row)
    head = ["steps", "masks", "sent", "evicted", "bytes sent, % of full masks", "time to deduplicate, per step"]
    num_masks = row["masks_sent"] + row["masks_reused"]
    cells = [
        f"{row['steps']:,}",
        f"{num_masks:,}",
        f"{row['masks_sent']:,}",
        f"{row['masks_evicted']:,}",
        f"**{row['bytes_sent'] / row['bytes_of_full_masks']:.1%}**",
        time_of(row["us"]["deduplicate"]),
    ]
    about = f"Up to {row['requests']} requests at a time, a pool of {row['capacity']:,} masks, {row['tokenizer']}."
    return markdown(head, [cells]) + provenance("manager", "cpu", about)


def vllm_table() -> str:
    rows = harness.read_results("vllm", "cpu")["rows"]
    cells = []
    for row in rows:
        stock, ours = row["vllm"], row["structout"]
        gain = ours["tokens_per_second"][0] / stock["tokens_per_second"][0]
        less = stock["ms_per_step"][0] / ours["ms_per_step"][0]
        cells.append(
            [
                f"{row['model']}, V = {row['vocab']:,}",
                row["requests"],
                row["sampling"],
                *(with_range(peer["tokens_per_second"], ",.0f") for peer in (stock, ours)),
                f"**{gain:.2f}×**",
                *(with_range(peer["ms_per_step"], ".2f") for peer in (stock, ours)),
                f"1/{less:.1f}",
            ]
        )
    head = ["model", "requests", "sampling", "vLLM tokens/s", "structout", "", "vLLM ms a step", "structout", ""]
    about = (
        f"{rows[0]['vllm_version']}, bfloat16, {rows[0]['batch']} requests, tokenizer {rows[0]['tokenizer']}. Medians "
        "of five alternating rounds, with the range."
    )
    return markdown(head, cells) + provenance("vllm", "cpu", about)


def vllm_states_table() -> str:
    rows = harness.read_results("vllm_states", "cpu")["rows"]
    cells = []
    for row in rows:
        for place in ("scheduler", "worker"):
            free, ours, ratio = (row[f"{place} {name}"] for name in ("free", "JSON", "ratio"))
            cells.append(
                [
                    place,
                    row["sampling"],
                    *(with_range(case["tokens_per_second"], ",.0f") for case in (free, ours)),
                    f"**{ratio['tokens_per_second']:.2f}×**",
                    *(with_range(case["core_ms"], ".2f") for case in (free, ours)),
                    f"{ratio['core_ms']:.2f}×",
                ]
            )
    head = ["states", "sampling", "free tokens/s", "JSON", "", "free, engine core ms a step", "JSON", ""]
    about = (
        f"{rows[0]['vllm_version']}, {rows[0]['model']} model, V = {rows[0]['vocab']:,}, bfloat16, {rows[0]['batch']} "
        "requests, asynchronous scheduling. Medians of nine alternating rounds, with the range."
    )
    return markdown(head, cells) + provenance("vllm_states", "cpu", about)


def transformers_table() -> str:
    """Each peer's time of a step beside the forward pass, and how many times as fast as
    xgrammar's processor that is."""
    rows = rows_of("transformers")
    peers = list(rows[0]["ms_beside_forward"])
    cells = []
    for row in rows:
        for peer in peers:
            beside, whole = row["ms_beside_forward"][peer], row["ms_whole"][peer]
            median, least, greatest = row["times_as_fast"][peer]
            ratio = f"{median:.1f}× ({least:.1f} to {greatest:.1f})" if peer.startswith("structout") else ""
            tokens_per_second = f"{row['batch'] / whole * 1e3:,.0f}"
            cells.append([row["sampling"], peer, time_of(beside * 1e3), ratio, tokens_per_second])
    head = ["sampling", "", "a step beside the forward pass", "xgrammar's time / this", "tokens/s of `generate`"]
    first = rows[0]
    about = (
        f"{first['batch']} JSON requests of {first['tokens']} tokens through `model.generate`, V = {first['vocab']:,}, "
        f"{first['vocabulary']}, a Llama of one layer; medians and ranges of {first['rounds']} interleaved pairs."
    )
    return markdown(head, cells) + provenance("transformers", "cpu", about)


def generate_table(device: str) -> str:
    """Each engine's tokens per second, in generate."""
    rows = rows_of("generate", device)
    cells = [[row["peer"], with_range(row["tokens_per_second"], ",.0f")] for row in rows]
    first = rows[0]
    about = (
        f"{first['batch']} texts of {first['tokens']} tokens of one regular expression, V = {first['vocab']:,}, "
        f"{first['vocabulary']}, a Llama of one layer; medians and ranges of {first['rounds']} interleaved rounds."
    )
    return markdown(["engine", "tokens/s of `generate`"], cells) + provenance("generate", device, about)


def tool_calls_table() -> str:
    names = ("requests", "calls", "invalid or lost", "cut off", "HTTP errors")
    rows = [[row["parser"], *(f"{row[name]:,}" for name in names)] for row in rows_of("tool_calls_vllm")]
    return markdown(["parser", *names], rows) + provenance("tool_calls_vllm", "cpu", "Answers of vLLM's HTTP server.")
