"""Draws the plots in bench/results."""

import harness
import matplotlib
from tables.ops import apply_bitmask_rows, masked_sample_rows
from tables.text import rows_of

matplotlib.use("Agg")
from matplotlib import pyplot


def plot_apply_bitmask(device: str) -> None:
    rows = [r for r in apply_bitmask_rows(device) if r["vocab"] == 151_936 and r["dtype"] == "float32"]
    densities = {0.001: "0.1% of tokens allowed", 0.5: "50% allowed", 0.968: "96.8% allowed (a JSON string)"}
    series = {"structout": "C0", "xgrammar": "C1", "llguidance": "C2", "masked_fill_": "C4", "fill_": "0.6"}
    figure, axes = pyplot.subplots(1, len(densities), figsize=(12, 3.8), sharey=True)
    for axis, (density, title) in zip(axes, densities.items(), strict=True):
        chosen = [row for row in rows if row["density"] == density]
        for name, color in series.items():
            is_bandwidth = name == "fill_"
            label, style = (f"{name} (memory bandwidth)", "--") if is_bandwidth else (name, "-")
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
    rows = [row for row in masked_sample_rows(device) if row["dtype"] == "float32" and row["batch"] == 64]
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
    axes[0].set_ylabel("µs per row (lower is better)")
    figure.suptitle("masked_sample on the CPU: float32 logits [64, 151,936]")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=len(series), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(harness.RESULTS / f"masked_sample_{device}.png", dpi=130, metadata={"Software": None})


def plot_values(device: str) -> None:
    rows = rows_of("values", device)
    series = {"structout": "C0", "xgrammar": "C1", "llguidance": "C2", "outlines": "C4", "no constraint": "0.6"}
    samplings, sets = list(dict.fromkeys(r["sampling"] for r in rows)), list(dict.fromkeys(r["set"] for r in rows))
    figure, axes = pyplot.subplots(1, len(samplings), figsize=(12, 3.8), sharey=True, squeeze=False)
    for axis, sampling in zip(axes[0], samplings, strict=True):
        for k, (peer, color) in enumerate(series.items()):
            chosen = [row for row in rows if (row["sampling"], row["peer"]) == (sampling, peer)]
            places = [sets.index(row["set"]) + 0.16 * (k - 2) for row in chosen]
            axis.bar(places, [row["right_fields"] / row["fields"] for row in chosen], 0.15, color=color, label=peer)
        axis.set(title=sampling, ylim=(0, 1))
        axis.set_xticks(range(len(sets)), sets)
        axis.yaxis.set_major_formatter("{x:.0%}")
        axis.grid(alpha=0.3, axis="y")
    axes[0][0].set_ylabel("fields with the right value")
    figure.suptitle("SmolLM2-135M-Instruct, 100 texts of each set")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(series), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(harness.RESULTS / f"values_{device}.png", dpi=130, metadata={"Software": None})


def plot_decide(device: str) -> None:
    """Accuracy over confidence, as in Guo et al. (arXiv:1706.04599)."""
    rows = [row for row in rows_of("decide", device) if row["tokens"] == "all" and "bins" in row]
    names = {"whole": "decide: probabilities", "drawn": "a constrained draw"}
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True)
    for axis, naming in zip(axes, ("names", "letters"), strict=True):
        axis.plot([0, 1], [0, 1], "--", color="0.6")
        for row in (row for row in rows if row["naming"] == naming):
            confidences, shares = zip(*row["bins"], strict=True)
            label = f"{names[row['reading']]}, error {row['calibration_error']:.2f}"
            axis.plot(confidences, shares, marker="o", ms=4, label=label)
        axis.set(title=f"answers are {naming}", xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axis.legend(loc="upper left", frameon=False, fontsize=8)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of right answers")
    figure.suptitle("SmolLM2-135M-Instruct: 200 texts, ten bins of twenty")
    figure.tight_layout()
    figure.savefig(harness.RESULTS / f"decide_{device}.png", dpi=130, metadata={"Software": None})
