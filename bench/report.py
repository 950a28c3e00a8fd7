"""Write the committed results into the tables of README.md and of docs, and into the
plots.

    python bench/report.py           rewrite the tables and plots
    python bench/report.py --check   fail if the documents differ from the results

A table stands between ``<!-- results: NAME -->`` and ``<!-- end -->``. Nothing in
between is written by hand. Results of a working tree with uncommitted changes (their
commit ends in "+") are refused: nobody could measure them again.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import harness
from tables import TABLES

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def main() -> int:
    parser = argparse.ArgumentParser(description="write tables and plots from bench/results")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document is out of date")
    check = parser.parse_args().check
    problems = uncommitted_results(harness.RESULTS.glob("*.json"))
    if problems:
        print(*problems, sep="\n")
        return 1
    stale = []
    for document in DOCUMENTS:
        text = document.read_text()
        fresh = re.sub(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", _filled, text, flags=re.DOTALL)
        if fresh != text:
            stale.append(document.name)
            if not check:
                document.write_text(fresh)
    if not check:
        from plots import (
            plot_apply_bitmask,
            plot_decide,
            plot_masked_sample,
            plot_values,
        )  # matplotlib is not installed where tests run

        plot_apply_bitmask("cpu")
        plot_masked_sample("cpu")
        plot_values("cpu")
        plot_decide("cpu")
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale)}" if stale else "documents agree with the results")
    return 1 if check and stale else 0


def uncommitted_results(paths: Iterable[Path]) -> list[str]:
    """Describe each results file that was measured on a tree with uncommitted changes.

    Args:
        paths: results files, named ``BENCH_DEVICE.json``.
    """
    problems = []
    for path in sorted(paths):
        bench, device = path.stem.rsplit("_", 1)
        commit = harness.read_results(bench, device, path.parent)["environment"]["commit"]
        if commit.endswith("+"):
            command = (
                f"make soak ONLY={bench.removeprefix('soak_')}"
                if bench.startswith("soak_")
                else f"bench/bench_{bench}.py"
            )
            problems.append(
                f"{path.name}: measured on commit {commit[:-1]} with uncommitted changes: "
                f"commit them, then run {command} again"
            )
    return problems


def _filled(match: re.Match[str]) -> str:
    return match[1] + TABLES[match[2]]() + match[3]


if __name__ == "__main__":
    sys.exit(main())
