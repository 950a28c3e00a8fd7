"""Turns committed results into the tables of README.md and docs/performance.md, and into the plots beside them.

    python bench/report.py           rewrite them
    python bench/report.py --check   fail if they differ from what the results say

A table stands between `<!-- results: NAME -->` and `<!-- end -->`; nothing there is written by hand.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "performance.md")
SMALLEST_OP = "smallest op"
PEERS = ("xgrammar", "xgrammar cuda", "llguidance", "masked_fill_")
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="tables and plots from bench/results")
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for document in DOCUMENTS:
        text = document.read_text()
        fresh = re.sub(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", _filled, text, flags=re.DOTALL)
        if fresh != text:
            stale.append(document.name)
            if not check:
                document.write_text(fresh)
    if not check:
        plot_apply_bitmask("cpu")
        plot_masked_sample("cpu")
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale)}" if stale else "documents agree with the results")
    return 1 if check and stale else 0


def _filled(match: re.Match[str]) -> str:
    return match[1] + TABLES[match[2]]() + match[3]


def apply_bitmask_rows(device: str) -> list[Row]:
    return [row for row in harness.read_results("apply_bitmask", device)["rows"] if "us" in row]


def short_table() -> str:
    rows = [
        row
        for row in apply_bitmask_rows("cpu")
        if row["vocab"] == 151_936 and row["batch"] in (1, 64) and row["density"] in (0.001, 0.5, 0.968)
    ]
    return _table(rows) + _provenance("apply_bitmask", "cpu")


def full_table() -> str:
    return _table(apply_bitmask_rows("cpu")) + _provenance("apply_bitmask", "cpu")


def _table(rows: list[Row]) -> str:
    peers = [peer for peer in PEERS if any(peer in row["us"] for row in rows)]
    head = ["logits", "allowed", "structout", *peers, "`fill_`", "of the floor"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        us = row["us"]
        cells = [
            f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]",
            f"{row['density']:.1%}",
            f"**{_time(us['structout'])}**",
        ]
        cells += [f"{_time(us[peer])} ({us[peer] / us['structout']:.1f}×)" if peer in us else "" for peer in peers]
        lines.append(f"| {' | '.join([*cells, _time(us['fill_']), f'{share_of_floor(row):.0%}'])} |")
    return "\n".join(lines) + "\n"


def masked_sample_short_table() -> str:
    rows = [r for r in _masked_sample_rows() if r["batch"] in (1, 64) and r["dtype"] == "float32"]
    return _masked_sample_table([r for r in rows if r["filters"] in ("none", "top-k 50, top-p 0.9")])


def masked_sample_table() -> str:
    return _masked_sample_table(_masked_sample_rows())


def _masked_sample_rows() -> list[Row]:
    rows: list[Row] = harness.read_results("masked_sample", "cpu")["rows"]
    return rows


def _masked_sample_table(rows: list[Row]) -> str:
    peers = ("torch", "xgrammar + torch", "transformers")
    floor = [SMALLEST_OP] if any(SMALLEST_OP in row["us"] for row in rows) else []
    head = ["logits", "tokens allowed", "filters", "structout, a row", *peers, *(f"{name}, a call" for name in floor)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        us = row["us"]
        shape = f"{row['dtype']} [{row['batch']}, {row['vocab']:,}]"
        cells = [shape, row["allowed"], row["filters"], f"**{_time(us['structout'] / row['batch'])}**"]
        cells += [f"{us[peer] / us['structout']:,.0f}×" if peer in us else "" for peer in peers]
        cells += [_time(us[name]) for name in floor]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + _provenance("masked_sample", "cpu")


def share_of_floor(row: Row) -> float:
    """How near the call is to moving its bytes (mask read, disallowed logits written) as fast as fill_ moves its."""
    bytes_filled = row["batch"] * row["vocab"] * (4 if row["dtype"] == "float32" else 2)
    floor_us: float = row["us"]["fill_"] * row["bytes"] / bytes_filled
    return floor_us / row["us"]["structout"]


def _provenance(bench: str, device: str) -> str:
    results = harness.read_results(bench, device)
    where = results["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if version)
    overheads = [row["call_overhead_us"] for row in results["rows"] if "call_overhead_us" in row]
    overhead = f" One call on the smallest input: {overheads[0]} µs." if overheads else ""
    return (
        f"\nMedians of interleaved runs in one process; in brackets, how many times longer than structout.{overhead} "
        f"{where['device']}, {where['threads']} threads; {versions}; commit "
        f"{where['commit']}, {where['date']}.\n"
    )


def _time(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


def plot_apply_bitmask(device: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in apply_bitmask_rows(device) if r["vocab"] == 151_936 and r["dtype"] == "float32"]
    densities = {0.001: "0.1% of tokens allowed", 0.5: "50% allowed", 0.968: "96.8% allowed (a JSON string)"}
    series = {"structout": "C0", "xgrammar": "C1", "llguidance": "C2", "masked_fill_": "C4", "fill_": "0.6"}
    figure, axes = pyplot.subplots(1, len(densities), figsize=(12, 3.8), sharey=True)
    for axis, (density, title) in zip(axes, densities.items(), strict=True):
        chosen = [row for row in rows if row["density"] == density]
        for name, color in series.items():
            is_floor = name == "fill_"
            label, style = (f"{name} (memory floor)", "--") if is_floor else (name, "-")
            batches, times = [r["batch"] for r in chosen], [r["us"][name] for r in chosen]
            axis.plot(batches, times, style, marker="o", ms=4, color=color, label=label)
        axis.set(xscale="log", yscale="log", title=title, xlabel="batch size")
        axis.set_xticks([r["batch"] for r in chosen], [str(r["batch"]) for r in chosen])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("µs per call (lower is better)")
    figure.suptitle("apply_bitmask on the CPU: float32 logits [batch, 151,936]")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(series), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(harness.RESULTS / f"apply_bitmask_{device}.png", dpi=130, metadata={"Software": None})


def plot_masked_sample(device: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in _masked_sample_rows() if row["dtype"] == "float32" and row["batch"] == 64]
    panels = ("none", "top-p 0.9", "top-k 50, top-p 0.9", "min-p 0.05")
    series = {"structout": "C0", "xgrammar + torch": "C1", "torch": "C2", "transformers": "C4"}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 3.8), sharey=True)
    for axis, filters in zip(axes, panels, strict=True):
        chosen = [row for row in rows if row["filters"] == filters]
        labels = [row["allowed"].replace(" (96.8%)", "") for row in chosen]
        for name, color in series.items():
            shown = [(i, row["us"][name] / row["batch"]) for i, row in enumerate(chosen) if name in row["us"]]
            axis.plot([i for i, _ in shown], [us for _, us in shown], marker="o", ms=4, color=color, label=name)
        axis.set(yscale="log", title=f"filters: {filters}", xlabel="tokens allowed")
        axis.set_xticks(range(len(labels)), labels, fontsize=8)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("µs a row (lower is better)")
    figure.suptitle("masked_sample on the CPU: float32 logits [64, 151,936]")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(series), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(harness.RESULTS / f"masked_sample_{device}.png", dpi=130, metadata={"Software": None})


TABLES: dict[str, Callable[[], str]] = {
    "apply_bitmask_cpu_short": short_table,
    "apply_bitmask_cpu": full_table,
    "masked_sample_cpu_short": masked_sample_short_table,
    "masked_sample_cpu": masked_sample_table,
}


if __name__ == "__main__":
    sys.exit(main())
