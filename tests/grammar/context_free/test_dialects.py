"""Grammars with their texts, as structout's own engine reads them and as the engine
whose dialect it is does: llguidance for Lark, xgrammar for GBNF.

Where an engine differs, the case says how, and why.
"""

import json
import re

import pytest

from support.grammar_cases import (
    OwnEngine,
    Refused,
    expected_refusal,
    expected_verdicts,
    read_cases,
    texts_of,
)
from support.locations import CORPUS, ROOT

LARK, GBNF = read_cases("lark_cases.json"), read_cases("gbnf_cases.json")


def named(cases):
    return [pytest.param(case, id=f"{case['topic']}: {case['name']}") for case in cases]


@pytest.fixture(scope="module")
def own():
    return OwnEngine()


def check(engine, case):
    texts, refusal = texts_of(case), expected_refusal(case, engine.name)
    if refusal is None:
        verdicts = list(zip(texts, engine.verdicts(case, texts), strict=True))
        assert verdicts == list(zip(texts, expected_verdicts(case, engine.name), strict=True))
        return
    with pytest.raises(Refused) as refused:
        engine.verdicts(case, texts)
    assert refusal in str(refused.value)


@pytest.mark.parametrize("case", named(LARK + GBNF))
def test_own_engine_reads_case(case, own):
    if not case.get("no_text"):
        check(own, case)
        return
    with pytest.raises(Refused, match=r"^impossible: "):
        own.verdicts(case, texts_of(case))


@pytest.mark.parametrize("case", named([case for case in LARK + GBNF if "captures" in case]))
def test_captures_of_text_are_those_of_the_case(case, own):
    for text, captures in case["captures"]:
        assert own.captures(case, text) == [(name, captured.encode()) for name, captured in captures]


@pytest.mark.parametrize("case", named(LARK))
def test_llguidance_reads_lark_case_as_recorded(case, llguidance):
    check(llguidance, case)


@pytest.mark.parametrize("case", named(GBNF))
def test_xgrammar_reads_gbnf_case_as_recorded(case, xgrammar):
    check(xgrammar, case)


@pytest.mark.parametrize("cases", [LARK, GBNF], ids=["Lark", "GBNF"])
def test_case_lists_no_text_twice_and_explains_each_difference(cases):
    names = [(case["topic"], case["name"]) for case in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        texts = texts_of(case)
        assert not any(text in texts[:i] for i, text in enumerate(texts)), case["name"]
        assert texts or case.get("refused"), case["name"]
        for known in case["differs"].values():
            assert len(known["why"]) > 10, case["name"]
            assert all(text in texts for text, _ in known["verdicts"]), case["name"]


# -- whole programs --------------------------------------------------------------------

PROGRAMS = json.loads((CORPUS / "grammars" / "texts.json").read_text())


def texts_are_read(engine, name):
    texts, others = PROGRAMS[name]["texts"], PROGRAMS[name]["others"]
    verdicts = engine.verdicts({"grammar": (CORPUS / "grammars" / name).read_text()}, texts + others)
    assert [text for text, verdict in zip(texts, verdicts, strict=False) if verdict != "text"] == []
    assert [text for text, verdict in zip(others, verdicts[len(texts) :], strict=True) if verdict == "text"] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_own_engine_reads_programs(name, own):
    texts_are_read(own, name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_engine_of_the_dialect_reads_programs(name, llguidance, xgrammar):
    texts_are_read(llguidance if name.endswith(".lark") else xgrammar, name)


def test_each_grammar_has_programs():
    files = {path.name for path in (CORPUS / "grammars").iterdir() if path.suffix in (".gbnf", ".lark")}
    assert files == set(PROGRAMS)


# -- the table of features -------------------------------------------------------------


def what_works(cases):
    """What docs/grammars.md says of cases that show a feature."""
    known = [case["differs"].get("structout", {}) for case in cases]
    refused = [case.get("refused") and "serves" not in own for case, own in zip(cases, known, strict=True)]
    num_read = sum(not is_refused and "refuses" not in own for is_refused, own in zip(refused, known, strict=True))
    if num_read < len(cases):
        return f"{num_read} of {len(cases)}" if num_read else "no"
    num_different = sum("verdicts" in own and bool(own["verdicts"]) for own in known)
    return "yes" if not num_different else f"yes, differs in {'one case' if num_different == 1 else 'some cases'}"


def test_table_of_features_says_what_the_cases_say():
    sections = (ROOT / "docs" / "grammars.md").read_text().split("\n## ")[1:]
    for section, cases in zip(sections, (LARK, GBNF), strict=True):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| ")][1:]
        said = {row[2].strip(): row[3].strip() for row in rows}
        topics = {case["topic"] for case in cases} - {"malformed"}
        assert said == {topic: what_works([case for case in cases if case["topic"] == topic]) for topic in topics}
