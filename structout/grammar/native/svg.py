"""Pictures of states as SVG.

States stand in columns, by the number of arrows from the start. So an arrow leads to
the next column, or it is a curve: within its column, or back.
"""

from collections import defaultdict
from html import escape
from typing import NamedTuple

from structout.grammar.native.pictures import Arrow, Picture, shortened

# In pixels.
_RADIUS = 15
_ROW_HEIGHT = 76
_MARGIN = 56
_CHARACTER_WIDTH = 6.6
_ROOM_AROUND_LABEL = 60
_BEND = 34  # of curves

_STYLE = """\
  <style>
    text { font: 11px monospace; text-anchor: middle; fill: #1a1a1a; }
    .label { paint-order: stroke; stroke: #fff; stroke-width: 4px; }
    circle { fill: #fff; stroke: #1a1a1a; }
    .marked { fill: #ffe082; }
    path { fill: none; stroke: #5c6bc0; }
    .head { fill: #5c6bc0; stroke: none; }
  </style>
  <defs>
    <marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path class="head" d="M0 0 8 4 0 8z"/>
    </marker>
  </defs>"""


class _Point(NamedTuple):
    x: float
    y: float

    def toward(self, other: "_Point", distance: float) -> "_Point":
        length = ((other.x - self.x) ** 2 + (other.y - self.y) ** 2) ** 0.5 or 1.0
        return _Point(
            self.x + (other.x - self.x) * distance / length,
            self.y + (other.y - self.y) * distance / length,
        )


def to_svg(picture: Picture, marked: int | None = None) -> str:
    """Draw a picture. A state with a double circle may end a text.

    Args:
        picture: the states and arrows.
        marked: a state that is filled with a colour.
    """
    arrows = _without_parallels(picture.arrows)
    columns = _columns(arrows)
    places = _places(arrows, columns)
    width = max(place.x for place in places.values()) + _MARGIN
    height = max(place.y for place in places.values()) + _MARGIN
    start = places[0]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        _STYLE,
        '  <rect width="100%" height="100%" fill="#fff"/>',
        f'  <path d="M{start.x - _RADIUS - 24:.0f} {start.y:.0f}H{start.x - _RADIUS:.0f}" marker-end="url(#head)"/>',
    ]
    labels = []
    for arrow in arrows:
        line, label_place = _line(arrow, places)
        lines.append(f'  <path d="{line}" marker-end="url(#head)"/>')
        labels.append(_text(label_place, arrow.label, "label"))
    for state in picture.states:
        place = places[state]
        kind = ' class="marked"' if state == marked else ""
        lines.append(f'  <circle{kind} cx="{place.x:.0f}" cy="{place.y:.0f}" r="{_RADIUS}"/>')
        if state in picture.ends:
            lines.append(f'  <circle{kind} cx="{place.x:.0f}" cy="{place.y:.0f}" r="{_RADIUS - 3}"/>')
        lines.append(_text(_Point(place.x, place.y + 4), str(state)))
    return "\n".join([*lines, *labels, "</svg>"]) + "\n"


def _without_parallels(arrows: list[Arrow]) -> list[Arrow]:
    """One arrow between two states, with the labels of all."""
    labels = defaultdict(list)
    for arrow in arrows:
        labels[arrow.source, arrow.target].append(shortened(arrow.label))
    return [Arrow(source, " | ".join(texts), target) for (source, target), texts in labels.items()]


def _columns(arrows: list[Arrow]) -> list[list[int]]:
    """The states by the number of arrows from the start; in each column those with
    neighbours further up come first."""
    targets = defaultdict(list)
    for arrow in arrows:
        targets[arrow.source].append(arrow.target)
    columns, found = [[0]], {0}
    while True:
        rows: dict[int, list[int]] = defaultdict(list)
        for row, source in enumerate(columns[-1]):
            for target in targets[source]:
                if target not in found:
                    rows[target].append(row)
        if not rows:
            return columns
        found.update(rows)
        columns.append(sorted(rows, key=lambda state: (sum(rows[state]) / len(rows[state]), state)))


def _places(arrows: list[Arrow], columns: list[list[int]]) -> dict[int, _Point]:
    column_of = {state: number for number, column in enumerate(columns) for state in column}
    longest = [0] * len(columns)  # label of the arrows to each column
    for arrow in arrows:
        column = column_of[arrow.target]
        if column == column_of[arrow.source] + 1:
            longest[column] = max(longest[column], len(arrow.label))
    middle = _MARGIN + (max(map(len, columns)) - 1) * _ROW_HEIGHT / 2
    places: dict[int, _Point] = {}
    x = float(_MARGIN)
    for number, states in enumerate(columns):
        x += longest[number] * _CHARACTER_WIDTH + _ROOM_AROUND_LABEL if number else 0
        for row, state in enumerate(states):
            places[state] = _Point(x, middle + (row - (len(states) - 1) / 2) * _ROW_HEIGHT)
    return places


def _line(arrow: Arrow, places: dict[int, _Point]) -> tuple[str, _Point]:
    """The path of an arrow, and the middle of its label."""
    source, target = places[arrow.source], places[arrow.target]
    if arrow.source == arrow.target:
        left, right, top = source.x - 8, source.x + 8, source.y - _RADIUS + 2
        path = f"M{left:.0f} {top:.0f}C{left - 12:.0f} {top - 30:.0f} {right + 12:.0f} {top - 30:.0f}"
        return f"{path} {right:.0f} {top:.0f}", _Point(source.x, top - 26)
    middle = _Point((source.x + target.x) / 2, (source.y + target.y) / 2)
    if target.x > source.x:
        begin, end = source.toward(target, _RADIUS), target.toward(source, _RADIUS)
        return f"M{begin.x:.0f} {begin.y:.0f}L{end.x:.0f} {end.y:.0f}", _Point(middle.x, middle.y - 4)
    # On one side of its direction, so that two arrows between two states are apart.
    length = ((target.x - source.x) ** 2 + (target.y - source.y) ** 2) ** 0.5
    bend = _BEND + length / 8
    control = _Point(
        middle.x - (target.y - source.y) / length * bend,
        middle.y + (target.x - source.x) / length * -bend,
    )
    begin, end = source.toward(control, _RADIUS), target.toward(control, _RADIUS)
    path = f"M{begin.x:.0f} {begin.y:.0f}Q{control.x:.0f} {control.y:.0f} {end.x:.0f} {end.y:.0f}"
    return path, _Point((middle.x + control.x) / 2, (middle.y + control.y) / 2 + 4)


def _text(place: _Point, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'  <text{attribute} x="{place.x:.0f}" y="{place.y:.0f}">{escape(text)}</text>'
