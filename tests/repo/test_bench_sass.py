"""bench/bench_sass.py on short machine code that is written out here."""

from __future__ import annotations

import sys

import pytest

from support.locations import ROOT


@pytest.fixture
def bench_sass(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import bench_sass

    yield bench_sass
    sys.modules.pop("bench_sass")


def code(*instructions: str) -> dict[int, str]:
    return {16 * i: instruction for i, instruction in enumerate(instructions)}


LOOP = code(
    "MOV R0, RZ",
    "LDG.E R1, [R0.64]",  # 0x10: the head of the loop
    "@P0 BRA 0x60",
    "FADD R2, R2, R1",
    "ATOMS.ADD R3, [R4], R2",
    "FMUL R2, R2, R2",
    "@P1 BRA 0x10",  # 0x60
    "EXIT",
)


def test_shortest_loop_skips_what_no_landmark_asks_for(bench_sass):
    blocks = bench_sass.blocks_of(LOOP)
    assert len(bench_sass.shortest_loop(blocks, ["LDG"])) == 3
    assert len(bench_sass.shortest_loop(blocks, ["LDG", "ATOMS"])) == 6
    assert len(bench_sass.shortest_loop(blocks, ["LDG", "ATOMS", "LDG"])) == 9
    assert bench_sass.shortest_loop(blocks, ["LDG", "BAR"]) == []


def test_shortest_path_goes_round_a_loop_as_often_as_landmarks_ask(bench_sass):
    blocks = bench_sass.blocks_of(LOOP)
    assert len(bench_sass.shortest_path(blocks, 0, ["EXIT"], None)) == 5
    assert len(bench_sass.shortest_path(blocks, 0, ["ATOMS", "ATOMS", "EXIT"], None)) == 14


def test_dependent_loads_counts_first_uses_after_which_later_loads_start(bench_sass):
    chain = ["LDG.E R2, [R0.64]", "LDG.E R6, [R2.64]", "IADD3 R8, R6, R7, RZ"]
    assert bench_sass.dependent_loads(chain) == 2
    at_once = ["LDG.E R2, [R0.64]", "LDG.E.64 R6, [R4.64]", "IADD3 R8, R2, R7, RZ", "IADD3 R9, R6, R7, RZ"]
    assert bench_sass.dependent_loads(at_once) == 1
    assert bench_sass.dependent_loads(at_once[:2]) == 0


def test_sort_exchanges_by_shuffles_within_a_warp_and_by_barriers_between_warps(bench_sass):
    assert bench_sass.sort(32) == [bench_sass.SHUFFLE] * 15
    assert bench_sass.sort(512).count(bench_sass.SHUFFLE) == 35
    assert bench_sass.sort(512).count(bench_sass.BARRIER) == 10
