"""Tables of the manager, of generation, and of the engines around structout."""

import harness

from tables.text import markdown, provenance, rows_of, time_of, with_range


def manager_table() -> str:
    """A step's calls together, beside vLLM's."""
    calls = [row for row in rows_of("manager") if "drafts" in row]
    steps: dict[tuple[str, int, str], dict[str, dict[str, float]]] = {}
    for row in calls:
        steps.setdefault((row["constraint"], row["drafts"], row["steps"]), {})[row["call"]] = row["us"]
    ours = "structout auto"
    others = [name for name in calls[0]["us"] if name.startswith("structout auto,")] + ["vllm", "structout"]
    rows = []
    for (constraint, drafts, phase), us in sorted(steps.items()):
        total = {name: sum(of_call.get(name, 0) for of_call in us.values()) for name in (ours, *others)}
        parts = [time_of(us[call][ours]) for call in ("grammar_bitmask", "accept")]
        beside = [f"{time_of(total[name])} ({total[name] / total[ours]:.1f}×)" for name in others]
        rows.append([constraint, str(drafts), phase, f"**{time_of(total[ours])}**", *parts, *beside])
    about = f"{calls[0]['requests']} requests, V = {calls[0]['vocab']:,}, {calls[0]['tokenizer']}, {calls[0]['vllm']}."
    names = [*others[:-2], "vLLM's manager", "structout over xgrammar"]
    head = ["constraint", "drafts", "steps", ours, "its fill", "its accept", *names]
    return markdown(head, rows) + provenance("manager", "cpu", about)


def busy_thread_table() -> str:
    """A step alone and beside a busy thread."""
    rows = rows_of("busy_thread")
    by_case = {(row["drafts"], row["busy"]): row for row in rows}
    cells = []
    for drafts in sorted({row["drafts"] for row in rows}):
        alone, beside = by_case[drafts, False], by_case[drafts, True]
        for name in ("us", "us_mean"):
            statistic = {"us": "median", "us_mean": "mean"}[name]
            ratio = f"**{beside[name] / alone[name]:.2f}×**"
            cells.append([str(drafts), statistic, time_of(alone[name]), time_of(beside[name]), ratio])
    about = f"{rows[0]['requests']} requests on JSON schemas, {rows[0]['steps']} steps of each case."
    head = ["drafts", "", "alone", "beside a busy thread", ""]
    return markdown(head, cells) + provenance("busy_thread", "cpu", about)


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
                    f"{row['model']}, V = {row['vocab']:,}",
                    str(row["batch"]),
                    place,
                    row["sampling"],
                    *(with_range(case["tokens_per_second"], ",.0f") for case in (free, ours)),
                    f"**{ratio['tokens_per_second']:.2f}×**",
                    *(with_range(case["core_ms"], ".2f") for case in (free, ours)),
                    f"{ratio['core_ms']:.2f}×",
                ]
            )
    figures = ["free tokens/s", "JSON", "", "free, engine core ms a step", "JSON", ""]
    head = ["model", "requests", "states", "sampling", *figures]
    about = (
        f"{rows[0]['vllm_version']}, bfloat16, asynchronous scheduling. Medians of 31 alternating rounds, with the "
        "range."
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


def llama_cpp_table() -> str:
    """Mask and apply beside llama.cpp, for one token."""
    rows = [row for row in rows_of("llama_cpp") if "peer" in row]
    times = ("median", "mean", "p99")
    cells = [[row["peer"], f"{row['schemas']}", *(time_of(row[f"{name}_us"]) for name in times)] for row in rows]
    first = rows[0]
    about = (
        f"Mask and apply for one token: the same tokens for each, {first['tokens']:,} of {first['schemas']} schemas, "
        f"as far as it takes these. V = {first['vocab']:,}, llama-cpp-python 0.3.36."
    )
    return markdown(["", "schemas", *times], cells) + provenance("llama_cpp", "cpu", about)


def llama_cpp_texts_table() -> str:
    """Tokens per second of structured text beside free text."""
    rows = [row for row in rows_of("llama_cpp") if "text" in row]
    rows.sort(key=lambda row: -row["ratio"])
    cells = [[row["text"], f"{row['tokens_per_second']:.1f}", f"{row['ratio']:.3f}"] for row in rows]
    about = (
        f"Medians of {rows[0]['texts']} interleaved texts of JSON. Free text is what llama-cpp-python's own loop "
        "writes, greedily, as many tokens as the structured text has."
    )
    return markdown(["text", "tokens/s", "beside free text"], cells) + provenance("llama_cpp", "cpu", about)
