"""Rows of boxes, with common borders drawn once.

┌ rollout ──────┬ train ────────┐ ┌ judge ┐
│ AB  AB  AB  AB│ DE  DE  DE  DE│ │ C   C │
├ train ────────┴───────────────┤ └───────┘
│ DE  DE  DE  DE  DE  DE  DE  DE│
└───────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from meshctl.dataclass import dataclass
from meshctl.view.pictures.text.styled import Line, Segment, cut, styled, width_of

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
JOINTS = " │││─┘┐┤─└┌├─┴┬┼"
"""Border characters, by the sum of the sides on which the border continues."""


@dataclass(frozen=True)
class Box:
    width: int
    """The width in columns, without the borders."""
    title: str
    inside: Line

    @classmethod
    def titled(cls, title: str, inside: Line) -> Box:
        """Returns a box that is just wide enough for its title and for its inside."""
        return cls(max(inside.width, width_of(title) + 2), title, inside)


@dataclass(frozen=True)
class Placed:
    """A box in a row. A box that starts at its `end` shares the border with it."""

    start: int
    """The column of its left border."""
    box: Box

    @property
    def end(self) -> int:
        """The column of its right border."""
        return self.start + self.box.width + 1


Row = Sequence[Placed]


def side_by_side(boxes: Sequence[Box], start: int = 0) -> list[Placed]:
    """Returns the boxes side by side with common borders, the first one at the column `start`."""
    placed: list[Placed] = []
    for box in boxes:
        placed.append(Placed(placed[-1].end if placed else start, box))
    return placed


def drawn(rows: Sequence[Row]) -> list[Line]:
    """Returns the lines of the rows: for each row the border above it and its inside, then the last
    border."""
    made: list[Line] = []
    for above, below in pairwise([(), *rows, ()]):
        made += [_border(above, below), _inside(below)]
    return made[:-1]


def _inside(row: Row) -> Line:
    made, bar = Line(), styled("│", "faint")
    for number, placed in enumerate(row):
        is_joined = number > 0 and row[number - 1].end == placed.start
        made = made if is_joined else Line(made.padded(placed.start), bar)
        made = Line(made, placed.box.inside.fit(placed.box.width).padded(placed.box.width), bar)
    return made


def _border(above: Row, below: Row) -> Line:
    sides: dict[int, int] = {}
    for row, vertical in ((above, UP), (below, DOWN)):
        for placed in row:
            for post in (placed.start, placed.end):
                sides[post] = sides.get(post, 0) | vertical
            for column in range(placed.start, placed.end):
                sides[column] = sides.get(column, 0) | RIGHT
                sides[column + 1] = sides.get(column + 1, 0) | LEFT
    border = "".join(JOINTS[sides.get(column, 0)] for column in range(max(sides, default=-1) + 1))
    made, at = Line(), 0
    for placed in below:
        title = _title(placed.box)
        made = Line(made, styled(border[at : placed.start + 1], "faint"), title)
        at = placed.start + 1 + width_of(title.text)
    return Line(made, styled(border[at:], "faint"))


def _title(box: Box) -> Segment:
    """Returns the title for the upper border of a box, cut to its width."""
    longest = box.width - 2 if box.width > 4 else box.width
    text = cut(box.title, longest) if longest > 2 or width_of(box.title) <= longest else ""
    return styled(f" {text} " if text and width_of(text) <= box.width - 2 else text)
