"""The table of what hunts at length have done and found."""

import harness

from tables.text import markdown


def soak_table() -> str:
    """One row for each thing that a hunter did, from its latest committed run."""
    cells = []
    for path in sorted(harness.RESULTS.glob("soak_*_cpu.json")):
        results = harness.read_results(path.stem.removesuffix("_cpu"), "cpu")
        (row,) = results["rows"]
        where = results["environment"]
        run = [
            row["hunter"],
            f"{row['first_seed']:,} to {row['next_seed'] - 1:,}",
            f"{row['seconds']:,} s",
            str(row["findings"]),
            f"{where['commit']}, {where['date']}, {where['device']}",
        ]
        before = row.get("executions_before", {})
        done = []
        for what, count in row["executions"].items():
            in_all = f" ({count + before[what]:,} with the runs before)" if what in before else ""
            done.append(f"{count:,} {what}{in_all}")
        done += [f"{what}: {value:g}" for what, value in row["measures"].items()]
        cells.append([run[0], "<br>".join(done), *run[1:]])
    return markdown(["hunter", "done", "seeds", "time", "findings", "commit, date, machine"], cells)
