"""Pictures of automata and of visited states."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from structout import StructuredOutputsParams
from structout.grammar.checking.checker import Checker
from structout.grammar.checking.visited import visited_states
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.pictures import StateGraph, picture_of, to_dot
from structout.grammar.native.svg import to_svg


def drawn(pattern):
    return picture_of(StateGraph.of_automaton(Automaton.from_regex(pattern)))


@pytest.mark.parametrize(
    ("pattern", "labels"),
    [
        ("[A-Z]{3}-[0-9]{4}", ["[A-Z]{3}-[0-9]{4}"]),
        ("true|false", ["tru", "fals", "e"]),
        (r"\[[ac-e\-]\]", [r"\[[\-ac-e]\]"]),
        ("(?:ab)*", ["ab"]),
        ("a+", ["a", "a"]),
        (r"\n\t", [r"\n\t"]),
    ],
)
def test_arrows_are_labelled_with_regular_expressions(pattern, labels):
    assert sorted(arrow.label for arrow in drawn(pattern).arrows) == sorted(labels)


@pytest.mark.parametrize(
    ("pattern", "alphabet"),
    [
        ("true|tuu|nut", "trune"),
        ("[ab]{2,4}(-[0-9]+)?", "ab-0"),
        ("(a|b)*abb", "ab"),
        (r"[^a]\n ?\.[\]^-]", "a\n .]^-"),
        ("é[^x]", "éx\xa9"),
    ],
)
def test_arrows_spell_the_texts_of_the_automaton(pattern, alphabet):
    automaton = Automaton.from_regex(pattern)
    outgoing = {}
    for arrow in drawn(pattern).arrows:
        label = re.compile(arrow.label.encode("latin-1"), re.DOTALL)
        outgoing.setdefault(arrow.source, []).append((label, arrow.target))

    def is_spelled(text, state=0, start=0):
        if start == len(text):
            return automaton.accepts(state)
        matches = ((label.match(text, start), target) for label, target in outgoing.get(state, ()))
        return any(match and is_spelled(text, target, match.end()) for match, target in matches)

    texts = ["".join(text).encode() for length in range(6) for text in itertools.product(alphabet, repeat=length)]
    assert [text for text in texts if is_spelled(text) != automaton.matches(text)] == []
    assert any(map(automaton.matches, texts))


def test_to_dot_quotes_labels_and_marks_states_that_end_a_text():
    picture = to_dot(drawn(r'"\\"|b c*'))
    assert picture.startswith("digraph {\n")
    assert picture.endswith("}\n")
    assert r'[label="\"\\\\\""]' in picture
    assert '[label="b␣"]' in picture
    assert len(re.findall(r"^  \d+ \[shape=doublecircle\]$", picture, re.MULTILINE)) == 2


def test_picture_keeps_the_states_that_have_to_be_shown():
    graph = StateGraph.of_automaton(Automaton.from_regex("abc"))
    assert [arrow.label for arrow in picture_of(graph).arrows] == ["abc"]
    assert [arrow.label for arrow in picture_of(graph, frozenset({1})).arrows] == ["a", "bc"]


def test_to_svg_draws_every_state_and_arrow_apart_and_inside_of_the_picture():
    picture = drawn("x(a|bb)*(<c d>|e)?|(fg)*")
    root = ElementTree.fromstring(to_svg(picture, marked=0))  # noqa: S314 - made above
    tags = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{tags}circle")
    places = {(circle.get("cx"), circle.get("cy")) for circle in circles}
    assert len(places) == len(picture.states)
    assert len(circles) == len(picture.states) + len(picture.ends)
    pairs = {(arrow.source, arrow.target) for arrow in picture.arrows}
    assert len(pairs) < len(picture.arrows)
    assert len(root.findall(f"{tags}path")) == len(pairs) + 1
    assert len([circle for circle in circles if circle.get("class") == "marked"]) == 1 + (0 in picture.ends)
    texts = [text for element in root.findall(f"{tags}text") for text in element.text.split(" | ")]
    assert sorted(texts) == sorted([*map(str, picture.states), *(a.label.replace(" ", "␣") for a in picture.arrows)])
    assert all(0 < float(x) < float(root.get("width")) and 0 < float(y) < float(root.get("height")) for x, y in places)


def test_visited_states_of_a_recursive_grammar_are_those_of_the_texts():
    checker = Checker(StructuredOutputsParams(grammar='root ::= "(" root ")" | "a"'))
    graph, names = visited_states(checker, ["a", "((a))", "(("])
    assert graph.ends  # a and ((a)) are complete, (( is not
    assert len(names) == len(set(names)) == len(graph.steps)
    walked = {0}
    for byte in b"((a))":
        walked = {target for state in walked for target, taken in graph.steps[state].items() if byte in taken}
    assert walked & graph.ends
