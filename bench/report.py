"""FairQueue committed results into the tables of README.md and docs/performance.md, and into the plots beside them.

    python bench/report.py           rewrite them
    python bench/report.py --check   fail if they differ from what the results say

A table stands between `<!-- results: NAME -->` and `<!-- end -->`; nothing there is written by hand.
"""

import argparse
import re
import sys
from pathlib import Path

from tables import TABLES

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "performance.md")


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
        from plots import plot_apply_bitmask, plot_masked_sample  # matplotlib is not there where tests run

        plot_apply_bitmask("cpu")
        plot_masked_sample("cpu")
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale)}" if stale else "documents agree with the results")
    return 1 if check and stale else 0


def _filled(match: re.Match[str]) -> str:
    return match[1] + TABLES[match[2]]() + match[3]


if __name__ == "__main__":
    sys.exit(main())
