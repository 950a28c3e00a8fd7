"""Draw docs/assets/state_and_mask.svg from a real run: a state of a constraint, and the
tokens of the demo model that its mask allows.

    python docs/pictures.py [FILE]
"""

import re
import sys
from html import escape
from pathlib import Path

from structout import StructuredOutputsParams
from structout.cli.demo_model import load_demo_model
from structout.grammar.checking.checker import Checker
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.pictures import StateGraph, picture_of
from structout.grammar.native.svg import to_svg
from structout.ops.token_bitmask import allocate_token_bitmask, unpack_bitmask

REGEX = "[a-z]+(: [0-9]{1,2}%)?"
TEXT = "north"
COLUMNS, CELL, TOP = 256, 2.5, 140
WIDTH = int(COLUMNS * CELL) + 40


def main(path: Path) -> None:
    _, tokenizer, _ = load_demo_model()
    checker = Checker(StructuredOutputsParams(regex=REGEX), tokenizer)
    grammar, vocabulary = checker.grammar(), checker.vocabulary
    assert all(piece.is_read_by(grammar) for piece in checker.pieces_of(TEXT))
    bitmask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    grammar.fill_bitmask(bitmask, 0)
    allowed = unpack_bitmask(bitmask, vocabulary.size)[0].tolist()

    automaton = Automaton.from_regex(REGEX)
    state = 0
    for byte in TEXT.encode():
        state = next(edge.target for edge in automaton.edges(state) if edge.first <= byte <= edge.last)
    states = to_svg(picture_of(StateGraph.of_automaton(automaton), frozenset({state})), marked=state)

    names = [_name(vocabulary.token_bytes[token]) for token in range(vocabulary.size)]
    num_rows = (len(allowed) + COLUMNS - 1) // COLUMNS
    below = int(TOP + num_rows * CELL) + 24
    examples = {kind: [name for i, name in enumerate(names) if allowed[i] is kind and name] for kind in (True, False)}
    lines = [
        f"The constraint {REGEX} after the text {TEXT}: state {state}.",
        f"Its mask: one cell for each of the {len(allowed):,} tokens, {sum(allowed):,} of them allowed.",
        "allowed: " + ", ".join(examples[True][2::970][:9]),
        "not allowed: " + ", ".join(examples[False][20::2900][:9]),
    ]
    places = [24, TOP - 14, below, below + 20]
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{below + 36}" '
        f'viewBox="0 0 {WIDTH} {below + 36}">\n'
        f'  <rect width="100%" height="100%" fill="#fff"/>\n{_placed(states, y=22)}'
        + "".join(
            f'  <text x="20" y="{y}" style="text-anchor: start">{escape(line)}</text>\n'
            for y, line in zip(places, lines, strict=True)
        )
        + f'  <g transform="translate(20 {TOP}) scale({CELL})">\n'
        f'    <rect width="{COLUMNS}" height="{num_rows}" fill="#e4e4e4"/>\n'
        f'    <path stroke="#5c6bc0" d="{_runs(allowed)}"/>\n  </g>\n</svg>\n',
        encoding="utf-8",
    )


def _placed(picture: str, y: int) -> str:
    """A picture inside of another."""
    height = float(re.search(r'height="(\d+)"', picture)[1])
    return picture.replace("<svg ", f'<svg x="0" y="{y + (106 - height) / 2:.0f}" ', 1)


def _runs(allowed: list[bool]) -> str:
    """The allowed cells of each row as lines of an SVG path."""
    lines = []
    for begin in range(0, len(allowed), COLUMNS):
        row = "".join("01"[is_allowed] for is_allowed in allowed[begin : begin + COLUMNS])
        lines += [f"M{run.start()} {begin // COLUMNS}.5h{len(run[0])}" for run in re.finditer("1+", row)]
    return "".join(lines)


def _name(token: bytes) -> str:
    return token.decode(errors="ignore").replace(" ", "␣") if token.decode(errors="ignore").isprintable() else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "assets" / "state_and_mask.svg")
