"""Tables of bench_values.py, bench_decide.py, bench_selection.py,
bench_descriptions.py, bench_tool_calls.py and the benches of limits."""

import harness

from tables.text import NOT_MEASURED, Row, markdown, provenance, rows_of, time_of


def values_table(sampling: str) -> str:
    """What each peer has right in each set. p compares a peer's fields with
    structout's."""
    rows = [row for row in rows_of("values") if row["sampling"] == sampling]
    if not rows:
        return NOT_MEASURED
    cells = [
        [
            row["set"],
            row["peer"],
            f"{row['valid']}",
            f"{row['cut_off']}",
            f"**{row['right_fields'] / row['fields']:.1%}** of {row['fields']}",
            "" if row["peer"] == "structout" else _comparison(row["mcnemar_fields"]),
            f"{row['right_texts']}",
            "" if row["peer"] == "structout" else _comparison(row["mcnemar_texts"]),
            f"{row['tokens_per_text']}",
        ]
        for row in rows
    ]
    beside = "only structout / only peer, p"
    head = ["set", "", "valid", "cut off", "fields right", beside, "texts right", beside, "tokens a text"]
    first = rows[0]
    about = f"{first['texts']} texts of each set, at most {first['max_new_tokens']} tokens, {_model(first)}."
    return markdown(head, cells) + provenance("values", "cpu", about)


def value_costs_table() -> str:
    """What each peer costs in greedy decoding."""
    rows = [row for row in rows_of("values") if row["sampling"] == "greedy"]
    cells = [
        [
            row["set"],
            row["peer"],
            f"{row['tokens_per_second']:.0f}",
            f"{row['passes_per_batch']:.0f}",
            time_of(row["ms_per_step_beside_forward"] * 1e3),
            time_of(row["ready_ms"] * 1e3),
            time_of(row["setup_ms"] * 1e3),
        ]
        for row in rows
    ]
    head = ["set", "", "tokens/s", "forward passes a batch", "a step beside the forward pass", "ready", "set up, once"]
    about = f"CPU seconds, greedy, batches of up to {rows[0]['batch']} texts, {_model(rows[0])}, beside other work."
    return markdown(head, cells) + provenance("values", "cpu", about)


def _comparison(test: Row) -> str:
    return f"{test['only_structout']} / {test['only_peer']}, {test['p']:.2g}"


def _model(row: Row) -> str:
    return f"{row['model'].rsplit('-', 1)[0]} in float32"


def decide_table() -> str:
    """The right answers of each reading, and how well its confidence is calibrated."""
    if not harness.results_path("decide", "cpu").exists():
        return NOT_MEASURED
    rows = rows_of("decide")
    cells = [
        [
            row["naming"],
            row["tokens"],
            row["reading"],
            f"{row['right'] / row['texts']:.1%}",
            f"{row['of_right_answer']:.1%}" if "of_right_answer" in row else "",
            f"{row['calibration_error']:.3f}" if "calibration_error" in row else "",
            f"{row['kept']:.1%}" if "kept" in row else "",
            time_of(row["ms_per_text"] * 1e3) if "ms_per_text" in row else "",
            f"{row['over_forward']:.2f}" if "over_forward" in row else "",
        ]
        for row in rows
    ]
    head = [
        "answers",
        "tokens",
        "reading",
        "right",
        "p of the right one",
        "calibration error",
        "kept",
        "CPU time a text",
        "one prompt, over a plain pass",
    ]
    about = f"{rows[0]['texts']} texts, one of eight topics, three examples, {_model(rows[0])}."
    return markdown(head, cells) + provenance("decide", "cpu", about)


def selection_table() -> str:
    """The right values of several texts, by how they are chosen."""
    if not harness.results_path("selection", "cpu").exists():
        return NOT_MEASURED
    rows = rows_of("selection")
    cells = [
        [
            row["way"],
            f"**{row['right_fields']}%**",
            _range(row["fields_interval"]),
            "" if row["way"] == "plain" else _range(row["more_fields_than_plain"]),
            f"{row['right_texts']}%",
            _range(row["texts_interval"]),
            f"{row['tokens_per_prompt']:.0f}",
        ]
        for row in rows
    ]
    head = ["", "fields right", "95%", "more than plain, 95%", "texts right", "95%", "tokens a prompt"]
    first = rows[0]
    about = f"{first['prompts']} prompts of {first['kinds']} kinds, T = 0.7, four texts a prompt, {_model(first)}."
    return markdown(head, cells) + provenance("selection", "cpu", about)


def descriptions_table() -> str:
    """The right values by what the prompt says of the schema."""
    if not harness.results_path("descriptions", "cpu").exists():
        return NOT_MEASURED
    rows = rows_of("descriptions")
    cells = [
        [row["wording"], f"**{row['right_fields']}%**", _range(row["interval"]), f"{row['tokens']:.0f}"] for row in rows
    ]
    first = rows[0]
    about = f"{first['prompts']} prompts of {first['kinds']} kinds, without examples, greedy, {_model(first)}."
    return markdown(["the prompt tells", "fields right", "95%", "tokens"], cells) + provenance(
        "descriptions", "cpu", about
    )


def called_tools_table() -> str:
    """The calls of one model with and without the constraint."""
    if not harness.results_path("tool_calls", "cpu").exists():
        return NOT_MEASURED
    rows = rows_of("tool_calls")
    cells = [[str(row[name]) for name in ("tool_choice", "valid", "right_tool", "right_call")] for row in rows]
    first = rows[0]
    about = f"{first['requests']} requests, greedy, {_model(first)}."
    return markdown(["`tool_choice`", "valid calls", "right tool", "right arguments, too"], cells) + provenance(
        "tool_calls", "cpu", about
    )


def _range(interval: list[float]) -> str:
    return f"{interval[0]:g} to {interval[1]:g}"


def limits_table() -> str:
    """Whole texts and right fields, summed over the kinds, for each limit. "tight":
    where the limit alone cuts off half of the texts of a kind, or more."""
    if not harness.results_path("limits", "cpu").exists():
        return NOT_MEASURED
    rows = rows_of("limits")
    of_case: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        of_case.setdefault((row["kind"], row["limit"]), {})[row["fit"]] = row
    fits = [*dict.fromkeys(row["fit"] for row in rows)]
    groups = {
        f"{limit} tokens": [case for (_, n), case in of_case.items() if n == limit]
        for limit in sorted({row["limit"] for row in rows})
    }
    groups["tight"] = [case for case in of_case.values() if 2 * case["off"]["whole"] <= case["off"]["texts"]]
    cells = [
        [
            name,
            str(len(cases)),
            *_shares(cases, fits, "whole", "texts"),
            *_shares(cases, fits, "right_fields", "fields"),
        ]
        for name, cases in groups.items()
    ]
    whole, right = [f"whole, {fit}" for fit in fits], [f"fields right, {fit}" for fit in fits]
    about = f"{rows[0]['texts']} texts of each constraint that the limit can hold, T = 0.7, {_model(rows[0])}."
    return markdown(["", "constraints", *whole, *right], cells) + provenance("limits", "cpu", about)


def limits_vllm_table() -> str:
    """The whole texts of vLLM, of all kinds that a limit can hold, at each temperature
    and limit."""
    if not harness.results_path("limits_vllm", "cpu").exists():
        return NOT_MEASURED
    rows = rows_of("limits_vllm")
    limits = sorted({row["limit"] for row in rows})
    cells = []
    for temperature in sorted({row["temperature"] for row in rows}):
        of_limit = [[r for r in rows if (r["temperature"], r["limit"]) == (temperature, limit)] for limit in limits]
        counts = [f"{sum(r['whole'] for r in group):,} of {sum(r['texts'] for r in group):,}" for group in of_limit]
        cells.append([f"T = {temperature:g}", *counts])
    num_kinds = len({row["kind"] for row in rows})
    about = f"Whole and valid texts, {rows[0]['texts']} of each of {num_kinds} kinds, {_model(rows[0])}, "
    about += f"{rows[0]['vllm_version']}."
    head = ["tokens", *map(str, limits)]
    return markdown(head, cells) + provenance("limits_vllm", "cpu", about)


def _shares(cases: list[dict[str, Row]], fits: list[str], part: str, whole: str) -> list[str]:
    """The share of a part in a whole, for each fit."""
    totals = [sum(case[fit][whole] for case in cases) for fit in fits]
    return [
        f"{sum(case[fit][part] for case in cases) / total:.1%}" if total else ""
        for fit, total in zip(fits, totals, strict=True)
    ]
