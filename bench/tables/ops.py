"""Tables of the ops, and of the code that compilers make of them."""

from typing import Any

import harness

from tables.text import INTERLEAVED, NOT_MEASURED, Row, markdown, provenance, time_of

_COLD_CACHES = "Before each call everything was evicted from the L2 cache."
PEERS = ("xgrammar", "xgrammar cuda", "llguidance", "masked_fill_")
SMALLEST_OP = "smallest op"  # torch.add of one number: the least that a call costs
COUNTED = {
    "apply_penalties": "listed tokens a row",
    "verify_drafts": "drafts a request",
    "masked_sample_topn": "likeliest tokens",
}


def apply_bitmask_rows(device: str, bench: str = "apply_bitmask") -> list[Row]:
    return [row for row in harness.read_results(bench, device)["rows"] if "us" in row]


def short_table() -> str:
    """Six rows for the README, all times in microseconds."""
    rows = [
        row
        for row in apply_bitmask_rows("cpu")
        if (row["vocab"], row["dtype"]) == (151_936, "float32")
        and row["batch"] in (1, 64)
        and row["density"] in (0.001, 0.5, 0.968)
    ]
    names = ("structout", "xgrammar", "llguidance", "masked_fill_", "fill_")
    cells = [
        [
            f"{row['batch']} × {row['vocab']:,}",
            f"{row['density']:.1%}",
            *_microseconds(row["us"], names),
            f"{fill_bandwidth_fraction(row):.0%}",
        ]
        for row in rows
    ]
    head = ["logits", "tokens allowed", "structout", *(f"`{name}`" for name in names[1:]), "% of `fill_` bandwidth"]
    about = (
        "**apply_bitmask**, float32 logits: microseconds per call, lower is better. `fill_` overwrites every logit, "
        "which sets the memory bandwidth. The last column is the bandwidth that structout achieves on the bytes it has "
        "to move (the mask, and the disallowed logits) as a share of `fill_`'s. Scattered disallowed logits cost whole "
        "cache lines, so the share is low where few are disallowed. A call has a fixed cost as well."
    )
    return markdown(head, cells) + provenance("apply_bitmask", "cpu", about)


def full_table(device: str, bench: str = "apply_bitmask") -> str:
    return _table(apply_bitmask_rows(device, bench)) + provenance(bench, device)


def apply_bitmask_cuda_table() -> str:
    rows = [row for row in apply_bitmask_rows("cuda") if row["vocab"] == 151_936]
    return _table(rows) + provenance("apply_bitmask", "cuda", f"{INTERLEAVED} {_COLD_CACHES}")


def _table(rows: list[Row]) -> str:
    peers = [peer for peer in PEERS if any(peer in row["us"] for row in rows)]
    floors = [call for call in ("fill_", "copy_", "read") if call in rows[0]["us"]]
    head = ["logits", "allowed", "structout", *peers, *(f"`{call}`" for call in floors), "% of `fill_` bandwidth"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        us = row["us"]
        cells = [
            f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]",
            f"{row['density']:.1%}",
            f"**{time_of(us['structout'])}**",
        ]
        cells += [f"{time_of(us[peer])} ({us[peer] / us['structout']:.1f}×)" if peer in us else "" for peer in peers]
        cells += [*(time_of(us[call]) for call in floors), f"{fill_bandwidth_fraction(row):.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def masked_sample_short_table() -> str:
    """Six rows for the README, microseconds per row."""
    rows = _short_rows("cpu", "float32")
    about = (
        f"**masked_sample** on a CPU, float32 logits {rows[0]['batch']} × {rows[0]['vocab']:,}: microseconds per row, "
        f"lower is better. One call samples all {rows[0]['batch']} rows; the time of a row is that of the call divided "
        f"by {rows[0]['batch']}. The peers apply mask, temperature and filters as separate operations."
    )
    names = ("structout", "torch", "xgrammar + torch", "transformers")
    return _short_table(rows, names, about, "cpu")


def masked_sample_cuda_short_table() -> str:
    """Six rows for the README, microseconds per call."""
    rows = _short_rows("cuda", "bfloat16")
    about = (
        f"**masked_sample** on a GPU, bfloat16 logits {rows[0]['batch']} × {rows[0]['vocab']:,}: microseconds per "
        f"call, lower is better. {_COLD_CACHES}"
    )
    names = ("structout", "torch", "xgrammar + torch", "transformers", "xgrammar + flashinfer")
    return _short_table(rows, names, about, "cuda")


def _short_rows(device: str, dtype: str) -> list[Row]:
    return [
        row
        for row in masked_sample_rows(device)
        if (row["batch"], row["dtype"]) == (64, dtype)
        and row["allowed"] in ("1,000", "JSON string (96.8%)", "free")
        and row["filters"] in ("none", "top-k 50, top-p 0.9")
    ]


def _short_table(rows: list[Row], names: tuple[str, ...], about: str, device: str) -> str:
    cells = [
        [
            "all" if row["allowed"] == "free" else row["allowed"],
            row["filters"],
            *_microseconds(
                {name: us / (row["batch"] if device == "cpu" else 1) for name, us in row["us"].items()}, names
            ),
        ]
        for row in rows
    ]
    return markdown(["tokens allowed", "filters", *names], cells) + provenance("masked_sample", device, about)


def _microseconds(us: dict[str, float], names: tuple[str, ...]) -> list[str]:
    """One cell per name, the first in bold; empty where it was not measured."""
    cells = [f"{us[name]:,.1f}" if name in us else "" for name in names]
    return [f"**{cells[0]}**", *cells[1:]]


def masked_sample_rows(device: str, bench: str = "masked_sample") -> list[Row]:
    return [row for row in harness.read_results(bench, device)["rows"] if "us" in row]


def masked_sample_table(device: str, bench: str = "masked_sample") -> str:
    return _masked_sample_table(masked_sample_rows(device, bench)) + provenance(bench, device)


def masked_sample_cuda_table() -> str:
    rows = [
        row
        for row in masked_sample_rows("cuda")
        if row["dtype"] == "bfloat16" and row["batch"] != 128 and row["allowed"] != "1"
    ]
    return _masked_sample_table(rows, "call") + provenance("masked_sample", "cuda", f"{INTERLEAVED} {_COLD_CACHES}")


def _masked_sample_table(rows: list[Row], unit: str = "row") -> str:
    measured = {name for row in rows for name in row["us"]}
    peers = [
        name for name in ("torch", "xgrammar + torch", "transformers", "xgrammar + flashinfer") if name in measured
    ]
    floor = [name for name in (SMALLEST_OP, "read") if name in measured]
    head = [
        "logits",
        "tokens allowed",
        "filters",
        f"structout, per {unit}",
        *peers,
        *(f"{name}, per call" for name in floor),
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        us = row["us"]
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]"
        divisor = row["batch"] if unit == "row" else 1
        cells = [shape, row["allowed"], row["filters"], f"**{time_of(us['structout'] / divisor)}**"]
        cells += [f"{us[peer] / us['structout']:,.0f}×" if peer in us else "" for peer in peers]
        cells += [time_of(us[name]) for name in floor]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def masked_sample_calls_table() -> str:
    """Where the microseconds of a call for one row go."""
    rows = [row for row in harness.read_results("masked_sample", "cpu")["rows"] if "warm_call" in row]
    cells = [[row["warm_call"], time_of(row["microseconds"])] for row in rows]
    if not rows:
        return NOT_MEASURED
    about = "Medians of calls from Python for one row of float32 logits, everything in the caches."
    return markdown(["call", "time"], cells) + provenance("masked_sample", "cpu", about)


def fill_bandwidth_fraction(row: Row) -> float:
    """Achieved bandwidth (mask read, disallowed logits written) as a fraction of
    ``fill_``'s."""
    bytes_filled = row["batch"] * row["vocab"] * (4 if row["dtype"] == "float32" else 2)
    us_at_fill_bandwidth: float = row["us"]["fill_"] * row["bytes"] / bytes_filled
    return us_at_fill_bandwidth / row["us"]["structout"]


def step_ops_table(device: str) -> str:
    rows = harness.read_results("step_ops", device)["rows"]
    cells = []
    for row in rows:
        us = row["us"]
        what = COUNTED[row["op"].partition(",")[0]]
        peers = [f"{name} {time_of(time)} ({time / us['structout']:.1f}×)" for name, time in us.items()][1:]
        case = f"{row['batch']} × {row['count']:,} {what}, {row['dtype']}"
        op, _, kind = row["op"].partition(",")
        cells.append([f"`{op}`{kind and ','}{kind}", case, f"**{time_of(us['structout'])}**", ", ".join(peers)])
    return markdown(["op", "batch", "structout", "peers"], cells) + provenance("step_ops", device)


def device_fsm_table(device: str) -> str:
    cells = []
    for row in harness.read_results("device_fsm", device)["rows"]:
        us = row["us"]
        peers = [f"{name} {time_of(time)} ({time / us['structout']:.1f}×)" for name, time in us.items()][1:]
        ours = f"**{time_of(us['structout'])}**, {1e3 * us['structout'] / row['batch']:,.0f} ns a row"
        op, _, kind = row["op"].partition(",")
        cells.append([f"`{op}`{kind and ','}{kind}", f"{row['batch']}, {row['pattern']}", ours, ", ".join(peers)])
    return markdown(["op", "batch", "structout", "peers"], cells) + provenance("device_fsm", device)


def cpu_code_table() -> str:
    results = harness.read_results("cpu_code", "cpu")
    counts: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        counts.setdefault(row["loop"], {})[f"{row['instructions']}, {row['lanes']} lanes"] = row["count"]
    sets = list(dict.fromkeys(name for of_loop in counts.values() for name in of_loop))
    cells = [
        [loop, *(f"{of_loop[name]:g}" if name in of_loop else "" for name in sets)] for loop, of_loop in counts.items()
    ]
    about = (
        "\nInstructions for 64 tokens of float32 logits, in the shortest turn of each loop. "
        f"{results['rows'][0]['compiler']} -O3; commit {results['environment']['commit']}.\n"
    )
    return markdown(["loop", *sets], cells) + about


def _sass_rows(key: str) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """The rows of sass that have `key`, by library and by what they count."""
    rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {"before": {}, "now": {}}
    for row in harness.read_results("sass", "cpu")["rows"]:
        if key in row:
            rows[row["library"]][tuple(row.get(name) for name in (key, "kernel", "dtype", "architecture"))] = row
    return rows


def _change(before: dict[str, Any] | None, now: dict[str, Any], name: str) -> str:
    return f"{now[name]:g}" if before is None or name not in before else f"{before[name]:g} → {now[name]:g}"


def sass_table() -> str:
    rows = _sass_rows("loop")
    cells = []
    for key, row in rows["now"].items():
        if row["kernel"] != "masked_sample by blocks" or row["loop"].startswith("histogram"):
            continue
        counts = [_change(rows["before"].get(key), row, name) for name in ("instructions", "cycles")]
        cells.append([f"sm_{row['architecture']}", row["loop"], row["dtype"], str(row["tokens"]), *counts])
    about = (
        "What a warp needs for 16 bytes of logits per thread, counted in the machine code; `cycles` is the time in "
        f"which the four schedulers of a multiprocessor issue it. nvcc {row['nvcc']}."
    )
    head = ["GPU", "loop", "logits", "tokens", "instructions", "cycles"]
    return markdown(head, cells) + provenance("sass", "cpu", about)


# How bench_masked_sample.py names the cases of bench_sass.py.
MEASURED_CASES: dict[str, dict[str, Any]] = {
    "16 allowed": {"allowed": "16", "filters": "none"},
    "16 allowed, top_k 50, top_p 0.9": {"allowed": "16", "filters": "top-k 50, top-p 0.9"},
    "all allowed": {"allowed": "free", "filters": "none"},
    "all allowed, top_k 50, top_p 0.9": {"allowed": "free", "filters": "top-k 50, top-p 0.9"},
}


def measured_time(case: Row) -> str:
    """What an H200 took for a case of the estimates, or nothing."""
    wanted = MEASURED_CASES[case["case"]] | {"batch": case["rows"], "dtype": "bfloat16"}
    for row in masked_sample_rows("cuda"):
        if wanted.items() <= {key: value for key, value in row.items() if key in wanted}.items():
            return f"{row['us']['structout']:.1f}"
    return ""


def sass_estimates_table() -> str:
    rows = _sass_rows("case")
    names = ("path_instructions", "dependent_loads", "barriers", "cluster_barriers", "registers", "us")
    cells = [
        [f"[{row['rows']:,}, 151,936], {row['case']}"]
        + [_change(rows["before"].get(key), row, name) if name in row else "" for name in names]
        + [measured_time(row)]
        for key, row in rows["now"].items()
    ]
    about = (
        "Estimates of masked_sample on an H200 from counts, and what it took, as in the tables above: bfloat16, "
        "sm_90. The instructions are those of a warp on the shortest path through the kernel, streams over a row "
        "excluded."
    )
    head = ["logits, tokens", "instructions", "dependent loads", "barriers", "of clusters", "registers"]
    head += ["µs, estimated", "µs, measured"]
    return markdown(head, cells) + provenance("sass", "cpu", about)
