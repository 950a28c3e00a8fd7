"""Without a GPU, Triton kernels run under Triton's interpreter. Every skip is counted and said at the end."""

import os
from collections import Counter

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before any test imports one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--maskbench", metavar="PATH", help="schemas with instances, one JSON object a line")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count} tests: {reason}")
    if not skipped:
        terminalreporter.write_line("skipped no test")
