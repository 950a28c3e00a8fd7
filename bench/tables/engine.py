"""Tables of the constraint engine."""

from collections.abc import Mapping
from typing import Any

from tables.text import Row, markdown, provenance, rows_of, time_of


def verdicts_table(bench: str = "verdicts") -> str:
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
            *(time_of(row[f"{name}_ms"] * 1e3) for name in ("p50", "p99")),
        ]
        for row in rows_of(bench)
    ]
    return markdown(head, rows) + provenance(bench, "cpu", cases_of(bench))


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
        for row in rows_of("verdicts")
        if "p50_warm_us" in row
    ]
    if not rows:
        return "Not measured with these results.\n"
    head = ["", *(f"{step}, {name}" for step in ("first mask", "mask again", "accept") for name in ("p50", "p99"))]
    head += ["memory, p50", "p99"]
    about = "Wall clock, a call for each step, calls from Python included. " + cases_of("verdicts")
    return markdown(head, rows) + provenance("verdicts", "cpu", about)


def refusals_table(engine: str) -> str:
    """What an engine refuses of its largest sample, by the keyword at fault."""
    rows = [row for row in rows_of("verdicts") if row["engine"] == engine]
    if not rows:
        return "Not measured with these results.\n"
    refused = max(rows, key=lambda row: row["schemas taken"])["refused_by"]
    if not refused:
        return "Nothing was refused.\n"
    return markdown([f"`{reason}`" for reason in refused], [[str(count) for count in refused.values()]])


def json_schema_suite_table() -> str:
    parts = ("required", "optional", "formats")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows_of("json_schema_suite"):
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
    return markdown(head, rows) + provenance("json_schema_suite", "cpu", note)


def ready_table() -> str:
    rows = [
        [
            row["engine"],
            *(time_of(row[f"{name}_ms"] * 1e3) for name in ("p50", "p99", "max")),
            f"{row['above_1_s']:.1%}",
        ]
        for row in rows_of("ready")
    ]
    head = ["", "p50", "p99", "longest", "above 1 s"]
    return markdown(head, rows) + provenance("ready", "cpu", cases_of("ready"))


def unions_table() -> str:
    found = rows_of("unions")
    engines = list(found[0]["ready_ms"])
    rows = [
        [
            row["union"],
            str(row["tools"]),
            *(_ready(row["ready_ms"], name) for name in engines),
        ]
        for row in found
    ]
    return markdown(["", "tools", *engines], rows) + provenance("unions", "cpu", f"{found[0]['vocabulary']}.")


def grammars_table() -> str:
    found = [row for row in rows_of("grammars") if "own" in row]
    engines = list(found[0]["ready_ms"])
    rows = [
        [
            row["grammar"],
            *(_ready(row["ready_ms"], name) for name in engines),
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
    return markdown(head, rows) + provenance("grammars", "cpu", f"{first} {found[0]['vocabulary']}.")


def _ready(milliseconds: Mapping[str, float | None], engine: str) -> str:
    if engine not in milliseconds:
        return ""
    measured = milliseconds[engine]
    return "refused" if measured is None else time_of(measured * 1e3)


def _compared_masks(counts: dict[str, Any] | None) -> str:
    if counts is None or "refused" in counts:
        return "" if counts is None else "refused"
    kinds = ("equal", "explained", "unexplained", "gave_up")
    return ", ".join(f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if counts[kind])


def ambiguous_grammars_table() -> str:
    found = [row for row in rows_of("grammars") if "ambiguous" in row]
    engines = list(found[0]["us_a_byte"])
    rows = [
        [row["ambiguous"], *(_mean_of_bytes(row["us_a_byte"][name], row["bytes"]) for name in engines)] for row in found
    ]
    head = ["", *(f"{name}, a byte" for name in engines)]
    return markdown(head, rows) + provenance("grammars", "cpu", f"Texts of {found[0]['bytes']:,} bytes.")


def _mean_of_bytes(measured: dict[str, Any], num_bytes: int) -> str:
    if "error" in measured:
        return str(measured["error"])
    reached = "" if measured["bytes"] >= num_bytes else f", ends after {measured['bytes']:,}"
    return f"{time_of(measured['mean'])}{reached}"


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
        for row in rows_of("schema_traffic")
    ]
    head = ["schemas", "order of keys", "texts", "failed", "CPU time for a token", "memory after the first tenth"]
    return markdown(head, rows) + provenance(
        "schema_traffic", "cpu", "A vocabulary of 2,000 tokens; memory of the process."
    )


def schema_costs_table() -> str:
    found = rows_of("schema_costs")
    engines = list(found[0]["ready_ms"])
    rows = [
        [
            row["schema"],
            str(row["length"]),
            *(_ready(row["ready_ms"], name) for name in engines),
        ]
        for row in found
    ]
    return markdown(["", "length", *engines], rows) + provenance("schema_costs", "cpu", f"{found[0]['vocabulary']}.")


def jump_forward_table() -> str:
    found = rows_of("jump_forward")
    kinds = list(dict.fromkeys(row["kind"] for row in found))
    by_mode = {
        mode: [row for row in found if row["mode"] == mode] for mode in dict.fromkeys(row["mode"] for row in found)
    }
    num_texts = sum(row["texts"] for row in by_mode["off"])
    rows = []
    for mode, of_mode in by_mode.items():
        sums = {name: sum(row[name] for row in of_mode) for name in ("seconds", "canonical", "same", "nats")}
        speed = sum(row["seconds"] for row in by_mode["off"]) / sums["seconds"]
        passes = [f"{row['passes']} ({1 - row['passes'] / row['tokens']:.0%})" for row in of_mode]
        shares = [f"{sums[name]} of {num_texts}" for name in ("canonical", "same")]
        rows.append([mode, *passes, f"{speed:.2f}×", *shares, f"{sums['nats'] / num_texts:+.1f}"])
    about = (
        "Forward passes, and the share of tokens that took none of their own. Speed: CPU time, with the prompts. "
        f"{num_texts} greedy texts of {found[0]['model']}."
    )
    head = ["", *kinds, "speed", "canonical", "text of off", "nats a text"]
    return markdown(head, rows) + provenance("jump_forward", "cpu", about)


def cases_of(bench: str) -> str:
    row = rows_of(bench)[0]
    return f"Schemas of {row['cases']}, {row['vocabulary']}."


def fsm_table() -> str:
    """The index of each pattern beside outlines_core's."""
    cells = []
    for row in rows_of("fsm")[2:]:
        peer = row.get("outlines_core_ms")
        ratio = "" if peer is None else f"{peer:,.0f} ms ({peer / row['full_ms']:.0f}×)"
        ready, full = f"{row['lazy_ms']:.2f} ms", f"{row['full_ms']:,.1f} ms"
        cells.append([row["pattern"], f"{row['states']:,}", f"{row['masks']:,}", ready, full, ratio])
    head = ["pattern", "states", "masks", "ready", "all masks", "outlines_core"]
    return markdown(head, cells) + provenance("fsm", "cpu", "CPU time of one thread.")


def fsm_steps_table() -> str:
    """What a step costs, in the engine alone and through the manager."""
    engine, manager = rows_of("fsm")[:2]
    cells = [
        ["fill, copied", engine["fill_us_a_row"], *(manager[f"{k} drafts, fill_us_a_row"] for k in (0, 3))],
        ["accept, a token", engine["accept_us_a_token"], *(manager[f"{k} drafts, accept_us_a_token"] for k in (0, 3))],
    ]
    rows = [[name, *(f"{figure:.2f} µs" for figure in figures)] for name, *figures in cells]
    about = "256 requests at places of their own; a manager's step runs with cold caches."
    head = ["a row of a step", "the engine", "the manager", "the manager, 3 drafts"]
    return markdown(head, rows) + provenance("fsm", "cpu", about)


_LEAST_OF_FIVE = "CPU time, the least of five tags, none seen before."


def tags_table() -> str:
    rows = [
        [
            row["case"],
            _milliseconds(row["ready_ms"]),
            _milliseconds(row["beyond_schemas_ms"]),
            str(row["masks"]),
            f"{row['masks_of_schemas']:,}",
        ]
        for row in rows_of("tags")
        if "masks" in row
    ]
    head = ["tools, format", "ready", "of it beyond the schemas", "masks of a call of each", "of their schemas alone"]
    return markdown(head, rows) + provenance("tags", "cpu", f"{_LEAST_OF_FIVE} V = 151,936.")


def triggers_table() -> str:
    rows = [
        [
            row["case"].partition(" ")[0],
            _milliseconds(row["ready_ms"]),
            f"{row['step_us']:.1f} µs",
            f"{row['new_masks']}",
        ]
        for row in rows_of("tags")
        if "step_us" in row
    ]
    head = ["triggers", "ready", "a token of free text: accept and fill", "masks that they add"]
    return markdown(head, rows) + provenance("tags", "cpu", f"{_LEAST_OF_FIVE} V = 151,936.")


def _milliseconds(value: float) -> str:
    return f"{value:.1f} ms"
