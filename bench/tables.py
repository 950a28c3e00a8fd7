"""Builds the tables of README.md and docs/ from committed results."""

from collections.abc import Callable
from functools import partial
from typing import Any

import harness

_NOT_MEASURED = "Not measured yet.\n"
PEERS = ("xgrammar", "xgrammar cuda", "llguidance", "masked_fill_")
SMALLEST_OP = "smallest op"  # torch.add of one number: the least that a call costs
Row = dict[str, Any]


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
    return _markdown(head, cells) + _provenance("apply_bitmask", "cpu", about)


def full_table(device: str, bench: str = "apply_bitmask") -> str:
    if not harness.results_path(bench, device).exists():
        return _NOT_MEASURED
    return _table(apply_bitmask_rows(device, bench)) + _provenance(bench, device)


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
            f"**{_time(us['structout'])}**",
        ]
        cells += [f"{_time(us[peer])} ({us[peer] / us['structout']:.1f}×)" if peer in us else "" for peer in peers]
        cells += [*(_time(us[call]) for call in floors), f"{fill_bandwidth_fraction(row):.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def masked_sample_short_table() -> str:
    """Six rows for the README, all times in microseconds."""
    filters = ("none", "top-k 50, top-p 0.9")
    rows = [
        row
        for row in masked_sample_rows("cpu")
        if (row["batch"], row["dtype"]) == (64, "float32")
        and row["allowed"] in ("1,000", "JSON string (96.8%)", "free")
        and row["filters"] in filters
    ]
    names = ("structout", "torch", "xgrammar + torch", "transformers")
    cells = [
        [
            "all" if row["allowed"] == "free" else row["allowed"],
            row["filters"],
            *_microseconds({name: us / row["batch"] for name, us in row["us"].items()}, names),
        ]
        for row in rows
    ]
    about = (
        f"**masked_sample**, float32 logits {rows[0]['batch']} × {rows[0]['vocab']:,}: microseconds per row, lower is "
        f"better. One call samples all {rows[0]['batch']} rows; the time of a row is that of the call divided by "
        f"{rows[0]['batch']}. The peers apply mask, temperature and filters as separate operations."
    )
    return _markdown(["tokens allowed", "filters", *names], cells) + _provenance("masked_sample", "cpu", about)


def _microseconds(us: dict[str, float], names: tuple[str, ...]) -> list[str]:
    """One cell per name, the first in bold; empty where it was not measured."""
    cells = [f"{us[name]:,.1f}" if name in us else "" for name in names]
    return [f"**{cells[0]}**", *cells[1:]]


def masked_sample_rows(device: str, bench: str = "masked_sample") -> list[Row]:
    return [row for row in harness.read_results(bench, device)["rows"] if "us" in row]


def masked_sample_table(device: str, bench: str = "masked_sample") -> str:
    if not harness.results_path(bench, device).exists():
        return _NOT_MEASURED
    rows = masked_sample_rows(device, bench)
    measured = {name for row in rows for name in row["us"]}
    peers = [
        name for name in ("torch", "xgrammar + torch", "transformers", "xgrammar + flashinfer") if name in measured
    ]
    floor = [name for name in (SMALLEST_OP, "read") if name in measured]
    head = [
        "logits",
        "tokens allowed",
        "filters",
        "structout, per row",
        *peers,
        *(f"{name}, per call" for name in floor),
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        us = row["us"]
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]"
        cells = [shape, row["allowed"], row["filters"], f"**{_time(us['structout'] / row['batch'])}**"]
        cells += [f"{us[peer] / us['structout']:,.0f}×" if peer in us else "" for peer in peers]
        cells += [_time(us[name]) for name in floor]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + _provenance(bench, device)


def masked_sample_calls_table() -> str:
    """Where the microseconds of a call for one row go."""
    rows = [row for row in harness.read_results("masked_sample", "cpu")["rows"] if "warm_call" in row]
    cells = [[row["warm_call"], _time(row["microseconds"])] for row in rows]
    if not rows:
        return _NOT_MEASURED
    about = "Medians of calls from Python for one row of float32 logits, everything in the caches."
    return _markdown(["call", "time"], cells) + _provenance("masked_sample", "cpu", about)


def fill_bandwidth_fraction(row: Row) -> float:
    """Achieved bandwidth (mask read, disallowed logits written) as a fraction of
    ``fill_``'s."""
    bytes_filled = row["batch"] * row["vocab"] * (4 if row["dtype"] == "float32" else 2)
    us_at_fill_bandwidth: float = row["us"]["fill_"] * row["bytes"] / bytes_filled
    return us_at_fill_bandwidth / row["us"]["structout"]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


_INTERLEAVED = "Medians of interleaved runs in one process; ×: how many times the time of structout."


def _provenance(bench: str, device: str, about: str = _INTERLEAVED) -> str:
    results = harness.read_results(bench, device)
    where = results["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if version)
    overheads = [row["call_overhead_us"] for row in results["rows"] if "call_overhead_us" in row]
    overhead = f" A call on the smallest input takes {overheads[0]} µs." if overheads else ""
    missing = {name: why for row in results["rows"] for name, why in row.get("missing", {}).items()}
    not_measured = "".join(f" Not measured: {name} ({why})." for name, why in missing.items())
    return (
        f"\n{about}{overhead}{not_measured} "
        f"{where['device']}, {_counted(where['threads'], 'thread')}; {versions}; commit "
        f"{where['commit']}, {where['date']}.\n"
    )


def _time(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


def verdicts_table() -> str:
    head = ["", "schemas", "served", "passing (but for form)", "valid accepted", "valid refused (for their form)"]
    head += ["invalid accepted (by format)", "ready p50", "p99"]
    rows = [
        [
            row["engine"],
            f"{row['schemas taken'] + row['schemas refused']:,}",
            f"{row['schemas taken']:,}",
            _passing(row),
            f"{row['valid accepted']:,}",
            f"{row['valid refused'] + row['valid refused, form']:,} ({row['valid refused, form']:,})",
            f"{row['invalid accepted'] + row['invalid accepted, format']:,} ({row['invalid accepted, format']:,})",
            *(_time(row[f"{name}_ms"] * 1e3) for name in ("p50", "p99")),
        ]
        for row in _rows("verdicts")
    ]
    return _markdown(head, rows) + _provenance("verdicts", "cpu", _cases("verdicts"))


def _passing(row: Row) -> str:
    """The share of all schemas whose instances all get the right verdict."""
    if "schemas passing" not in row:
        return ""
    num_schemas = row["schemas taken"] + row["schemas refused"]
    shares = [row[name] / num_schemas for name in ("schemas passing", "schemas passing, but for form")]
    return f"**{shares[0]:.1%}** ({shares[1]:.1%})"


def schema_masks_table() -> str:
    """What a token of a valid instance costs, and the memory of a schema."""
    steps = ("cold", "warm", "accept")
    rows = [
        [
            row["engine"],
            *(f"{row[f'{name}_{step}_us']:,.1f} µs" for step in steps for name in ("p50", "p99")),
            *(f"{row[f'{name}_bytes'] / 1e3:,.0f} kB" if f"{name}_bytes" in row else "" for name in ("p50", "p99")),
        ]
        for row in _rows("verdicts")
        if "p50_warm_us" in row
    ]
    if not rows:
        return "Not measured with these results.\n"
    head = ["", *(f"{step}, {name}" for step in ("first mask", "mask again", "accept") for name in ("p50", "p99"))]
    head += ["memory, p50", "p99"]
    about = "Wall clock, a call for each step, calls from Python included. " + _cases("verdicts")
    return _markdown(head, rows) + _provenance("verdicts", "cpu", about)


def refusals_table(engine: str) -> str:
    """What an engine refuses of its largest sample, by the keyword at fault."""
    rows = [row for row in _rows("verdicts") if row["engine"] == engine]
    if not rows:
        return "Not measured with these results.\n"
    refused = max(rows, key=lambda row: row["schemas taken"])["refused_by"]
    if not refused:
        return "Nothing was refused.\n"
    return _markdown([f"`{reason}`" for reason in refused], [[str(count) for count in refused.values()]])


def json_schema_suite_table() -> str:
    parts = ("required", "optional", "formats")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _rows("json_schema_suite"):
        found.setdefault((row["engine"], row["draft"].removeprefix("draft")), {})[row["part"]] = row
    apart = ("valid refused, annotation", "invalid accepted, annotation", "valid refused, form")

    def cells(of_parts: dict[str, Any]) -> list[str]:
        right = [f"{of_parts[part]['right']:,} of {of_parts[part]['tests']:,}" for part in parts]
        counts = ("refused", "valid refused", "invalid accepted")
        sums = [sum(of_parts[part][count] for part in parts) for count in counts]
        return [*right, *map(str, sums), str(sum(of_parts[part][count] for part in parts for count in apart))]

    head = ["", "draft", "required: right", "optional: right", "formats: right", "tests of refused schemas"]
    head += ["valid refused", "invalid accepted", "wrong by form or annotation"]
    rows = [[engine, draft, *cells(of_parts)] for (engine, draft), of_parts in found.items()]
    note = "Formats count as asserted; the last column counts tests that take them as annotations."
    return _markdown(head, rows) + _provenance("json_schema_suite", "cpu", note)


def ready_table() -> str:
    rows = [
        [row["engine"], *(_time(row[f"{name}_ms"] * 1e3) for name in ("p50", "p99", "max")), f"{row['above_1_s']:.1%}"]
        for row in _rows("ready")
    ]
    head = ["", "p50", "p99", "longest", "above 1 s"]
    return _markdown(head, rows) + _provenance("ready", "cpu", _cases("ready"))


def unions_table() -> str:
    found = _rows("unions")
    engines = list(found[0]["ready_ms"])
    rows = [
        [
            row["union"],
            str(row["tools"]),
            *("refused" if row["ready_ms"][name] is None else _time(row["ready_ms"][name] * 1e3) for name in engines),
        ]
        for row in found
    ]
    return _markdown(["", "tools", *engines], rows) + _provenance("unions", "cpu", f"{found[0]['vocabulary']}.")


def grammars_table() -> str:
    found = [row for row in _rows("grammars") if "own" in row]
    engines = list(found[0]["ready_ms"])
    rows = [
        [
            row["grammar"],
            *("refused" if row["ready_ms"][name] is None else _time(row["ready_ms"][name] * 1e3) for name in engines),
            f"{row['own']['tokens']:,}",
            str(row["own"]["states"]),
            str(row["own"]["masks"]),
            *(_compared_masks(row["masks"].get(name)) for name in engines[1:]),
        ]
        for row in found
    ]
    head = ["grammar", *engines, "tokens", "states", "masks", *(f"masks beside {name}" for name in engines[1:])]
    first = (
        "Ready: CPU time until the first mask. Tokens, states and masks: of structout, along the texts of each grammar."
    )
    return _markdown(head, rows) + _provenance("grammars", "cpu", f"{first} {found[0]['vocabulary']}.")


def _compared_masks(counts: dict[str, Any] | None) -> str:
    if counts is None or "refused" in counts:
        return "" if counts is None else "refused"
    kinds = ("equal", "explained", "unexplained", "gave_up")
    return ", ".join(f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if counts[kind])


def ambiguous_grammars_table() -> str:
    found = [row for row in _rows("grammars") if "ambiguous" in row]
    engines = list(found[0]["us_a_byte"])
    rows = [
        [row["ambiguous"], *(_mean_of_bytes(row["us_a_byte"][name], row["bytes"]) for name in engines)] for row in found
    ]
    head = ["", *(f"{name}, a byte" for name in engines)]
    return _markdown(head, rows) + _provenance("grammars", "cpu", f"Texts of {found[0]['bytes']:,} bytes.")


def _mean_of_bytes(measured: dict[str, Any], num_bytes: int) -> str:
    if "error" in measured:
        return str(measured["error"])
    reached = "" if measured["bytes"] >= num_bytes else f", ends after {measured['bytes']:,}"
    return f"{_time(measured['mean'])}{reached}"


def schema_traffic_table() -> str:
    rows = [
        [
            f"{row['schemas']} of {row['keys']} optional keys",
            row["key_order"],
            f"{row['texts']:,}",
            str(row["failed"]),
            f"{row['us_per_text'] / row['tokens_per_text']:.1f} µs",
            f"{row['resident_mb'][-1] - row['resident_mb'][0]:+.1f} MB",
        ]
        for row in _rows("schema_traffic")
    ]
    head = ["schemas", "order of keys", "texts", "failed", "CPU time for a token", "memory after the first tenth"]
    return _markdown(head, rows) + _provenance(
        "schema_traffic", "cpu", "A vocabulary of 2,000 tokens; memory of the process."
    )


def schema_costs_table() -> str:
    found = _rows("schema_costs")
    engines = list(found[0]["ready_ms"])
    rows = [
        [
            row["schema"],
            str(row["length"]),
            *("refused" if row["ready_ms"][name] is None else _time(row["ready_ms"][name] * 1e3) for name in engines),
        ]
        for row in found
    ]
    provenance = _provenance("schema_costs", "cpu", f"{found[0]['vocabulary']}.")
    return _markdown(["", "length", *engines], rows) + provenance


def manager_table() -> str:
    steps = [row for row in _rows("manager") if "drafts" in row]
    peers = ["bare fills", "structout", "structout auto", "vllm"]
    rows = [
        [
            row["call"],
            row.get("constraint", "json"),
            f"{row['drafts']}",
            *(_time(row["us"][peer]) if peer in row["us"] else "" for peer in peers),
        ]
        for row in sorted(steps, key=lambda row: row.get("constraint", "json"))
    ]
    about = f"{steps[0]['requests']} requests, V = {steps[0]['vocab']:,}, {steps[0]['tokenizer']}, {steps[0]['vllm']}."
    return _markdown(["call", "constraint", "drafts", *peers], rows) + _provenance("manager", "cpu", about)


def mask_pool_table() -> str:
    (row,) = (row for row in _rows("manager") if "bytes_sent" in row)
    head = ["steps", "masks", "sent", "evicted", "bytes sent, % of full masks", "time to deduplicate, per step"]
    num_masks = row["masks_sent"] + row["masks_reused"]
    cells = [
        f"{row['steps']:,}",
        f"{num_masks:,}",
        f"{row['masks_sent']:,}",
        f"{row['masks_evicted']:,}",
        f"**{row['bytes_sent'] / row['bytes_of_full_masks']:.1%}**",
        _time(row["us"]["deduplicate"]),
    ]
    about = f"Up to {row['requests']} requests at a time, a pool of {row['capacity']:,} masks, {row['tokenizer']}."
    return _markdown(head, [cells]) + _provenance("manager", "cpu", about)


def jump_forward_table() -> str:
    rows = [
        [
            row["whitespace"],
            row["engine"],
            f"{row['forced_share']:.1%}",
            *(f"{row['us_per_forced_token'][when]:.1f} µs" for when in ("first", "again")),
        ]
        for row in _rows("jump_forward")
    ]
    head = ["whitespace", "", "tokens forced", "per token, first pass", "per token, second pass"]
    first = _rows("jump_forward")[0]
    about = f"{first['instances']} texts of {first['tokens']:,} tokens, {first['vocabulary']}."
    return _markdown(head, rows) + _provenance("jump_forward", "cpu", about)


def transformers_table() -> str:
    """Each peer's time of a step beside the forward pass, and how many times as fast as
    xgrammar's processor that is."""
    rows = _rows("transformers")
    peers = list(rows[0]["ms_beside_forward"])
    cells = []
    for row in rows:
        for peer in peers:
            beside, whole = row["ms_beside_forward"][peer], row["ms_whole"][peer]
            median, least, greatest = row["times_as_fast"][peer]
            ratio = f"{median:.1f}× ({least:.1f} to {greatest:.1f})" if peer.startswith("structout") else ""
            tokens_per_second = f"{row['batch'] / whole * 1e3:,.0f}"
            cells.append([row["sampling"], peer, _time(beside * 1e3), ratio, tokens_per_second])
    head = ["sampling", "", "a step beside the forward pass", "xgrammar's time / this", "tokens/s of `generate`"]
    first = rows[0]
    about = (
        f"{first['batch']} JSON requests of {first['tokens']} tokens through `model.generate`, V = {first['vocab']:,}, "
        f"{first['vocabulary']}, a Llama of one layer; medians and ranges of {first['rounds']} interleaved pairs."
    )
    return _markdown(head, cells) + _provenance("transformers", "cpu", about)


def generate_table() -> str:
    """Each engine's tokens per second, in generate."""
    rows = _rows("generate")
    cells = [[row["peer"], _with_range(row["tokens_per_second"], ",.0f")] for row in rows]
    first = rows[0]
    about = (
        f"{first['batch']} texts of {first['tokens']} tokens of one regular expression, V = {first['vocab']:,}, "
        f"{first['vocabulary']}, a Llama of one layer; medians and ranges of {first['rounds']} interleaved rounds."
    )
    return _markdown(["engine", "tokens/s of `generate`"], cells) + _provenance("generate", "cpu", about)


def tensor_parallel_table() -> str:
    """One row per batch size, dtype and mask."""
    cases = [row for row in _rows("tensor_parallel") if row["call"] == "sharded_masked_sample"]
    rows = []
    for row in cases:
        ours, gathered = row["us"]["structout"], row["us"]["gather, then masked_sample"]
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]"
        rows.append(
            [shape, row["allowed"], row["filters"], f"**{_time(ours)}**", _time(gathered), f"{gathered / ours:.1f}×"]
        )
    head = ["logits", "tokens allowed", "filters", "on shards", "gathered first", ""]
    return _markdown(head, rows) + _provenance("tensor_parallel", "cpu", _TWO_RANKS)


def shared_masks_table() -> str:
    rows = []
    for row in _rows("tensor_parallel"):
        if row["call"] == "all_gather_bitmask":
            what, peer = f"all_gather_bitmask, {row['rows']} rows", "gloo"
        elif row["call"] == "grammar_bitmask":
            what, peer = f"grammar_bitmask, {row['requests']} requests", "every rank fills all"
        else:
            continue
        ours, theirs = row["us"]["structout"], row["us"][peer]
        rows.append([what, f"**{_time(ours)}**", f"{peer}: {_time(theirs)}", f"{theirs / ours:.2f}×"])
    head = ["call", "structout", "peer", ""]
    return _markdown(head, rows) + _provenance("tensor_parallel", "cpu", _TWO_RANKS)


def exchanged_bytes_table() -> str:
    rows = []
    cases = [row for row in _rows("tensor_parallel") if row["call"] == "bytes"]
    for row in cases:
        sent, gathered = row["payload_bytes"], row["bytes_to_gather_logits"]
        share = f"1/{gathered / sent:,.0f}" if gathered > 100 * sent else f"{sent / gathered:.2%}"
        rows.append([row["allowed"], row["filters"], f"{sent:,}", f"{gathered:,}", f"**{share}**"])
    about = (
        f"{cases[0]['ranks']} ranks, bfloat16 [{cases[0]['batch']}, {cases[0]['vocab']:,}], the rank that sends most."
    )
    head = ["tokens allowed", "filters", "bytes sent", "to gather the logits", ""]
    return _markdown(head, rows) + _provenance("tensor_parallel", "cpu", about)


# Published bytes per second of one GPU in one direction, from NVIDIA's data sheets of
# H200 and GB200 NVL72; PCIe 5.0 x16.
_NVLINK = {"8 H200, NVLink 4": (8, 450e9), "64 of a GB200 NVL72, NVLink 5": (64, 900e9)}
_PCIE = 64e9


def gpu_model_table() -> str:
    """Not measured: bytes divided by rates. The bytes are those of the counted table,
    scaled to the number of ranks.
    """
    (counted,) = (r for r in _rows("tensor_parallel") if r["call"] == "bytes" and _is_unfiltered_and_free(r))
    (fill,) = (r for r in _rows("tensor_parallel") if r["call"] == "grammar_bitmask")
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
                *(_precise_time(size / rate * 1e6) for size in to_draw.values()),
                _precise_time(mask_bytes / _PCIE * 1e6),
                _precise_time((mask_bytes / ranks / _PCIE + mask_bytes * others / ranks / rate) * 1e6),
                _precise_time(alone),
                _precise_time(alone / ranks),
            ]
        )
    head = ["", "logits gathered", "draw without filters", "draw with filters", "masks, each copied", "masks, shared"]
    about = (
        f"A model, not a measurement: {batch} rows of {vocab:,}, bfloat16, bytes over published rates; no latencies."
    )
    return _markdown([*head, "every rank fills all", "fills shared"], rows) + f"\n{about}\n"


def _is_unfiltered_and_free(row: Row) -> bool:
    return bool(row["filters"] == "none" and row["allowed"] == "free")


def _precise_time(us: float) -> str:
    return _time(us) if us >= 10 else f"{us:.2f} µs"


_TWO_RANKS = "Two ranks with one thread each, over gloo, on one host; medians of interleaved runs, of the slower rank."


def _rows(bench: str) -> list[Row]:
    rows: list[Row] = harness.read_results(bench, "cpu")["rows"]
    return rows


def _cases(bench: str) -> str:
    row = _rows(bench)[0]
    return f"Schemas of {row['cases']}, {row['vocabulary']}."


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
                *(_with_range(peer["tokens_per_second"], ",.0f") for peer in (stock, ours)),
                f"**{gain:.2f}×**",
                *(_with_range(peer["ms_per_step"], ".2f") for peer in (stock, ours)),
                f"1/{less:.1f}",
            ]
        )
    head = ["model", "requests", "sampling", "vLLM tokens/s", "structout", "", "vLLM ms a step", "structout", ""]
    about = (
        f"{rows[0]['vllm_version']}, bfloat16, {rows[0]['batch']} requests, tokenizer {rows[0]['tokenizer']}. Medians "
        "of five alternating rounds, with the range."
    )
    return _markdown(head, cells) + _provenance("vllm", "cpu", about)


def _with_range(figures: list[float], form: str) -> str:
    median, least, largest = figures
    return f"{median:{form}} ({least:{form}}–{largest:{form}})"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


COUNTED = {
    "apply_penalties": "listed tokens a row",
    "verify_drafts": "drafts a request",
    "masked_sample_topn": "likeliest tokens",
}


def step_ops_table(device: str) -> str:
    rows = harness.read_results("step_ops", device)["rows"]
    cells = []
    for row in rows:
        us = row["us"]
        what = COUNTED[row["op"].partition(",")[0]]
        peers = [f"{name} {_time(time)} ({time / us['structout']:.1f}×)" for name, time in us.items()][1:]
        case = f"{row['batch']} × {row['count']:,} {what}, {row['dtype']}"
        op, _, kind = row["op"].partition(",")
        cells.append([f"`{op}`{kind and ','}{kind}", case, f"**{_time(us['structout'])}**", ", ".join(peers)])
    return _markdown(["op", "batch", "structout", "peers"], cells) + _provenance("step_ops", device)


def busy_thread_table() -> str:
    """A step alone and beside a busy thread, now and before."""
    cells = []
    for row in _rows("busy_thread"):
        ours, before = row["us"]["structout"], row["us"]["before"]
        thread = "busy" if row["busy"] else "none"
        medians = [f"**{_time(ours)}**", _time(before), f"{before / ours:.1f}×"]
        means = [_time(row["us_mean"][name]) for name in ("structout", "before")]
        cells.append([row["engine"], str(row["drafts"]), thread, *medians, *means])
    row = _rows("busy_thread")[0]
    about = (
        f"{row['requests']} requests on JSON schemas, {row['steps']} steps of each case, in processes that alternate; "
        f"before: commit {row['before']}."
    )
    head = ["engine", "drafts", "other thread", "structout, median", "before", "", "structout, mean", "before"]
    return _markdown(head, cells) + _provenance("busy_thread", "cpu", about)


def fsm_table() -> str:
    """The index of each pattern beside outlines_core's."""
    cells = []
    for row in _rows("fsm")[2:]:
        peer = row.get("outlines_core_ms")
        ratio = "" if peer is None else f"{peer:,.0f} ms ({peer / row['full_ms']:.0f}×)"
        ready, full = f"{row['lazy_ms']:.2f} ms", f"{row['full_ms']:,.1f} ms"
        cells.append([row["pattern"], f"{row['states']:,}", f"{row['masks']:,}", ready, full, ratio])
    head = ["pattern", "states", "masks", "ready", "all masks", "outlines_core"]
    return _markdown(head, cells) + _provenance("fsm", "cpu", "CPU time of one thread.")


def fsm_steps_table() -> str:
    """What a step costs, in the engine alone and through the manager."""
    engine, manager = _rows("fsm")[:2]
    cells = [
        ["fill, copied", engine["fill_us_a_row"], *(manager[f"{k} drafts, fill_us_a_row"] for k in (0, 3))],
        ["fill, by slot", engine["slot_us_a_row"], *(manager[f"{k} drafts, pooled_us_a_row"] for k in (0, 3))],
        ["accept, a token", engine["accept_us_a_token"], *(manager[f"{k} drafts, accept_us_a_token"] for k in (0, 3))],
    ]
    rows = [[name, *(f"{figure:.2f} µs" for figure in figures)] for name, *figures in cells]
    about = "256 requests at places of their own; a manager's step runs with cold caches."
    head = ["a row of a step", "the engine", "the manager", "the manager, 3 drafts"]
    return _markdown(head, rows) + _provenance("fsm", "cpu", about)


def device_fsm_table(device: str) -> str:
    cells = []
    for row in harness.read_results("device_fsm", device)["rows"]:
        us = row["us"]
        peers = [f"{name} {_time(time)} ({time / us['structout']:.1f}×)" for name, time in us.items()][1:]
        ours = f"**{_time(us['structout'])}**, {1e3 * us['structout'] / row['batch']:,.0f} ns a row"
        op, _, kind = row["op"].partition(",")
        cells.append([f"`{op}`{kind and ','}{kind}", f"{row['batch']}, {row['pattern']}", ours, ", ".join(peers)])
    return _markdown(["op", "batch", "structout", "peers"], cells) + _provenance("device_fsm", device)


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
    return _markdown(head, cells) + _provenance("sass", "cpu", about)


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
    return _markdown(["loop", *sets], cells) + about


def sass_estimates_table() -> str:
    rows = _sass_rows("case")
    names = ("path_instructions", "dependent_loads", "barriers", "cluster_barriers", "registers", "us")
    cells = [
        [row["op"], f"[{row['rows']:,}, 151,936], {row['case']}"]
        + [_change(rows["before"].get(key), row, name) if name in row else "" for name in names]
        for key, row in rows["now"].items()
    ]
    about = (
        "Estimates for an H200 from counts, not measurements: bfloat16, sm_90. The instructions are those of a warp on "
        "the shortest path through the kernel, streams over a row excluded; for apply_bitmask, of a tile of 4,096 "
        "tokens."
    )
    head = ["op", "logits, tokens", "instructions", "dependent loads", "barriers", "of clusters", "registers", "µs"]
    return _markdown(head, cells) + _provenance("sass", "cpu", about)


TABLES: dict[str, Callable[[], str]] = {
    "apply_bitmask_cpu_short": short_table,
    "apply_bitmask_cpu": partial(full_table, "cpu"),
    "apply_bitmask_avx2_cpu": partial(full_table, "cpu", "apply_bitmask_avx2"),
    "apply_bitmask_default_cpu": partial(full_table, "cpu", "apply_bitmask_default"),
    "apply_bitmask_cuda": partial(full_table, "cuda"),
    "vllm_cpu": vllm_table,
    "masked_sample_cpu_short": masked_sample_short_table,
    "masked_sample_calls": masked_sample_calls_table,
    "masked_sample_cpu": partial(masked_sample_table, "cpu"),
    "masked_sample_avx2_cpu": partial(masked_sample_table, "cpu", "masked_sample_avx2"),
    "masked_sample_default_cpu": partial(masked_sample_table, "cpu", "masked_sample_default"),
    "masked_sample_cuda": partial(masked_sample_table, "cuda"),
    "cpu_code": cpu_code_table,
    "step_ops_cpu": partial(step_ops_table, "cpu"),
    "step_ops_cuda": partial(step_ops_table, "cuda"),
    "device_fsm_cpu": partial(device_fsm_table, "cpu"),
    "device_fsm_cuda": partial(device_fsm_table, "cuda"),
    "sass_cpu": sass_table,
    "sass_estimates": sass_estimates_table,
    "verdicts_cpu": verdicts_table,
    "refusals_cpu": partial(refusals_table, "structout"),
    "fsm_refusals_cpu": partial(refusals_table, "structout fsm, any order"),
    "schema_masks_cpu": schema_masks_table,
    "json_schema_suite_cpu": json_schema_suite_table,
    "ready_cpu": ready_table,
    "unions_cpu": unions_table,
    "grammars_cpu": grammars_table,
    "ambiguous_grammars_cpu": ambiguous_grammars_table,
    "schema_costs_cpu": schema_costs_table,
    "schema_traffic_cpu": schema_traffic_table,
    "manager_cpu": manager_table,
    "busy_thread_cpu": busy_thread_table,
    "mask_pool_cpu": mask_pool_table,
    "jump_forward_cpu": jump_forward_table,
    "transformers_cpu": transformers_table,
    "generate_cpu": generate_table,
    "fsm_cpu": fsm_table,
    "fsm_steps_cpu": fsm_steps_table,
    "tensor_parallel_cpu": tensor_parallel_table,
    "shared_masks_cpu": shared_masks_table,
    "exchanged_bytes_cpu": exchanged_bytes_table,
    "tensor_parallel_model": gpu_model_table,
}
