"""Each hunter for a few seconds: it finds nothing, and it finds what it should."""

from __future__ import annotations

import itertools
import json
import random
import sys

import numpy as np
import pytest

import soak.__main__
from soak import days, draws, masks, mutants, node, parsers, universes
from soak.hunt import HUNTERS, Hunter, Tally, hunted, hunter, short_run
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import BYTES, Vocabulary
from structout.scheduler.compile_pool import CompileCache
from support.builds import CSRC
from support.json_engine import JsonEngine

# No other test compares the engine with the judge of grammars, or all masks of objects.
SECONDS = {"grammars": (1, 30), "nested": (1, 20), "universes": (4, 60)}


LEFT_OUT = ("allocations", "coverage", "parsers", "vllm")  # they need tools, or have tests of their own


@pytest.mark.parametrize("name", [name for name in HUNTERS if name not in LEFT_OUT])
def test_hunter_finds_nothing(name, num_cases, request):
    if name == "nested" and not request.config.getoption("--long"):
        pytest.skip("building the engine takes minutes: make test-all")
    if name == "mutants" and not request.config.getoption("--long"):
        pytest.skip("a mutant is compiled: make test-all")
    if name == "patterns" and not node.is_here():
        pytest.skip("needs node")
    seconds, long_seconds = SECONDS.get(name, (1, 8))
    found = short_run(name, num_cases(seconds, long=long_seconds), first_seed=10**6)  # long runs begin at 0
    assert found.findings == []
    assert found.executions.total() > 0


def test_hunt_of_draws_finds_a_draw_that_the_mask_forbids():
    seed = next(seed for seed in range(100) if not draws.batch(seed).allowed.all(1).any())
    batch, found = draws.batch(seed), Tally()
    ids, *others = draws.drawn(batch)
    row = int((ids >= 0).nonzero()[0])
    ids[row] = int((~batch.allowed[batch.mask_of_row[row]]).nonzero()[0])
    draws.check(batch, (ids, *others), random.Random(0), found)
    assert f"1 illegal draws, first {int(ids[row])} in row {row}" in found.findings


def test_hunt_of_universes_finds_a_keyword_that_is_ignored(monkeypatch):
    compile_schema = JsonEngine.compile
    monkeypatch.setattr(JsonEngine, "compile", lambda self, schema: compile_schema(self, schema["allOf"][0]))
    found = Tally()
    universes.make().hunt(0, found)
    assert any("is accepted, but not valid" in finding for finding in found.findings)


def test_hunt_of_universes_finds_a_token_that_leads_nowhere(monkeypatch):
    tokens_that_follow = universes._tokens_that_follow

    def without_the_first(texts, vocabulary):
        follow = tokens_that_follow(texts, vocabulary)
        follow[b""] -= {min(follow[b""], default=0)}
        return follow

    monkeypatch.setattr(universes, "_tokens_that_follow", without_the_first)
    findings = itertools.chain.from_iterable(hunted(universes.make(), seed).findings for seed in range(50))
    assert any("lead nowhere" in finding for finding in findings)


@pytest.mark.parametrize("target", parsers.TARGETS)
def test_parsers_take_what_is_nearly_a_constraint(target, num_cases):
    """As the hunt with Atheris, whose first inputs these are, without its guidance."""
    read, rng = parsers.reader(target), random.Random(target)
    texts = [text.encode() for text in parsers.inputs(target)]
    for _ in range(num_cases(500, long=10_000)):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.randrange(4)):
            begin = rng.randrange(len(data) + 1)
            other = rng.choice(texts)
            first = rng.randrange(len(other) + 1)
            data[begin : begin + rng.randrange(4)] = other[first : first + rng.choice([1, 2, 20])]
        read(bytes(data))


@pytest.mark.planted
def test_hunt_of_days_finds_a_failure_that_outlives_its_time(monkeypatch):
    monkeypatch.setattr(CompileCache, "_drop_expired", lambda *_: None)
    findings = itertools.chain.from_iterable(hunted(days.make(), seed).findings for seed in range(20))
    assert any("a failure outlives its time" in finding for finding in findings)


def test_exception_of_a_hunter_is_a_finding():
    class Broken(Hunter):
        def hunt(self, seed: int, tally: Tally) -> None:
            tally.executions["tries"] += 1
            raise ValueError(f"at {seed}")

    found = hunted(Broken(), 7)
    assert found.executions == {"tries": 1}
    assert found.findings[0].endswith("ValueError: at 7\n")


def test_soak_writes_a_row_that_tells_where_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["soak", "--only", "distributions", "--seconds", "0", "--results", str(tmp_path)])

    def row_of_a_run():
        assert soak.__main__.main() == 0
        written = json.loads((tmp_path / "soak_distributions_cpu.json").read_text())
        assert written["environment"]["commit"]
        (row,) = written["rows"]
        assert row["findings"] == 0
        return row

    first, second = row_of_a_run(), row_of_a_run()
    assert (first["first_seed"], first["next_seed"], first["executions_before"]) == (0, 1, {})
    assert (second["first_seed"], second["next_seed"]) == (1, 2)
    assert second["executions_before"] == first["executions"]
    assert first["executions"]["draws of fixed distributions"] > 0


def test_hunt_of_masks_finds_a_mask_with_a_bit_too_many():
    vocabulary = Vocabulary((b"a", b"b", b""), stop_token_ids=(2,))
    grammars = [NativeBackend(each).compile_grammar(Kind.REGEX, "a+") for each in (vocabulary, BYTES)]
    walk = masks.Walk(vocabulary, *grammars)
    assert walk.problem(walk.mask()) is None
    assert walk.problem(np.array([True, True, False])) == "the mask says True of b'b' (1), accept says False"
    assert walk.problem_of_drafts([0, 0, 1]) is None


@pytest.mark.skipif(not node.is_here(), reason="needs node")
def test_node_judges_whole_texts_and_parts():
    judge = node.Node()
    assert judge.ask(pattern="^a|b", texts=["a", "xb"]) == {"whole": [True, False], "found": [True, True]}
    assert "timed out" in judge.ask(pattern="(a*)*b", texts=["a" * 40])["error"]
    judge.close()


# Each ended the process, or left a text elsewhere or with another mask, before the
# fixes.
SEEDS_OF_ALLOCATIONS = [0, 2, 4, 6, 8, 13, 15, 17, 20, 45, 48, 77, 91, 2288, 3912]


def test_allocations_that_fail_leave_texts_as_they_were(request):
    if not request.config.getoption("--long"):
        pytest.skip("building the engine takes minutes: make test-all")
    with hunter("allocations") as running:
        found = [hunted(running, seed) for seed in SEEDS_OF_ALLOCATIONS]
    assert [each.findings for each in found] == [[]] * len(found)
    assert sum(each.executions["allocations that failed"] for each in found) > 1_000


def test_mutant_is_the_same_for_a_seed_and_changes_one_line():
    chosen = mutants.mutant(5)
    assert chosen == mutants.mutant(5)
    lines = (CSRC / chosen.file).read_text().splitlines()
    assert lines[chosen.line] == chosen.old != chosen.new
