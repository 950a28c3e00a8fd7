"""How figures are written, and where they come from."""

from typing import Any

import harness

Row = dict[str, Any]
NOT_MEASURED = "Not measured yet.\n"
INTERLEAVED = "Medians of interleaved runs in one process; ×: how many times the time of structout."


def rows_of(bench: str, device: str = "cpu") -> list[Row]:
    rows: list[Row] = harness.read_results(bench, device)["rows"]
    return rows


def provenance(bench: str, device: str, about: str = INTERLEAVED) -> str:
    results = harness.read_results(bench, device)
    where = results["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if version)
    overheads = [row["call_overhead_us"] for row in results["rows"] if "call_overhead_us" in row]
    overhead = f" A call on the smallest input takes {overheads[0]} µs." if overheads else ""
    driver = f", driver {where['driver']}, CUDA {where['cuda']}" if "driver" in where else ""
    missing = {name: why for row in results["rows"] for name, why in row.get("missing", {}).items()}
    not_measured = "".join(f" Not measured: {name} ({why})." for name, why in missing.items())
    return (
        f"\n{about}{overhead}{not_measured} "
        f"{where['device']}{driver or ', ' + counted(where['threads'], 'thread')}; {versions}; commit "
        f"{where['commit']}, {where['date']}.\n"
    )


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def time_of(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


def precise_time(us: float) -> str:
    return time_of(us) if us >= 10 else f"{us:.2f} µs"


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def with_range(figures: list[float], form: str) -> str:
    median, least, largest = figures
    return f"{median:{form}} ({least:{form}}–{largest:{form}})"
