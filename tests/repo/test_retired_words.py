"""The engine's sources say configuration, cache, derivative and so on. The nouns that
these replaced do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("base", "bindings/engine", "automata", "token_masks", "language", "grammar", "json")
RETIRED = {
    r"(Schema|Grammar)(Index|States)": "Compiled… and …Cache",
    r"(Work|Over)Allowance|RoomError": "StepBudget, StepBudgetExceeded, CacheFull",
    r"held_\w+": "…_locked",
    r"(Lexer|Text|Other)Places?|PlacePtr|EmbeddedPosition": "…Configuration",
    r"class Machine|Memory(Kind)?": "SchemaAutomaton, Registers, seen_keys",
    r"[Rr]esiduals?": "derivative",
    r"Rivals?|Suspects?|Suspicion": "DuplicateCandidates, DuplicateChecks",
    r"EmbeddedRun|(Above)?Holes?|kHole|Pieces?|Regions?": "EmbeddedParse, unknown context, PartialMask, Summary",
    r"Spot|SureWays|RuleWays|is_(good|safe)": "program point, Completability, is_completable",
}


@pytest.mark.parametrize("retired", RETIRED, ids=lambda retired: RETIRED[retired].partition(",")[0])
def test_retired_word_is_in_no_source_of_the_engine(retired):
    files = [path for room in ROOMS for path in sorted((ROOT / "csrc" / room).rglob("*.*"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(rf"\b({retired})\b", line)
    ]
    assert not found, f"say {RETIRED[retired]} in\n" + "\n".join(found)
