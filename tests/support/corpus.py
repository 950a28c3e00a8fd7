"""The corpus of schemas for tests, fuzzers and benches, tests/corpus/schemas.jsonl.

Each line has a "name", a "schema" and the "group" that tells what it is for:

* "verdicts": has "tests" as MaskBench has them, each an instance as "data" and whether
  it is "valid";
* "masks": whose masks are compared with what a judge says of each token;
* "finite": so few values that a walk tries every text;
* "impossible": no value at all.
"""

import json
from typing import Any

from support.locations import CORPUS

LINES: list[dict[str, Any]] = [json.loads(line) for line in (CORPUS / "schemas.jsonl").read_text().splitlines()]
CASES = [line for line in LINES if line["group"] == "verdicts"]


def schemas(group: str) -> dict[str, Any]:
    """Map the names of a group to its schemas."""
    return {line["name"]: line["schema"] for line in LINES if line["group"] == group}
