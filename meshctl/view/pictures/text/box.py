"""Frames in rows, with common borders drawn once.

┌ rollout ──────┬ train ────────┐ ┌ judge ┐
│ AB  AB  AB  AB│ DE  DE  DE  DE│ │ C   C │
├ train ────────┴───────────────┤ └───────┘
│ DE  DE  DE  DE  DE  DE  DE  DE│
└───────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshctl.view.pictures.text.styled import Ink, Line, cut, fit, ink, line, padded, width_of

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
JOINTS = " │││─┘┐┤─└┌├─┴┬┼"
"""Border characters, by the sum of the sides on which the border continues."""


@dataclass(frozen=True)
class Frame:
    width: int
    """Without its borders."""
    title: str
    inside: Line


Block = tuple[Frame, ...]
"""Frames with common borders."""
Row = tuple[Block, ...]


def boxed(rows: Sequence[Row], starts: Sequence[int], borders: bool = True) -> list[Line]:
    """Returns the drawn rows: two lines for each and one more, or one for each without borders."""
    made: list[Line] = []
    for above, below in pairwise([None, *rows, None]):
        if borders:
            made.append(_border(above, below, starts))
        if below is not None:
            made.append(_inside(below, starts))
    return made


def starts_of(rows: Sequence[Row], gaps: Sequence[int]) -> list[int]:
    """Returns the first column of each block, its border included, and the end of the last one. The blocks of
    all rows are aligned."""
    starts, start = list[int](), 0
    for gap, blocks in zip(gaps, zip(*rows, strict=True), strict=True):
        starts.append(start + gap)
        start = starts[-1] + max(sum(frame.width + 1 for frame in block) + bool(block) for block in blocks)
    return [*starts, start]


def _inside(row: Row, columns: Sequence[int]) -> Line:
    made, bar = Line(), ink("│", "faint")
    for block, start in zip(row, columns, strict=False):
        if block:
            made = padded(made, start)
            for frame in block:
                made = line(made, bar, padded(fit(frame.inside, frame.width), frame.width))
            made = line(made, bar)
    return made


def _border(above: Row | None, below: Row | None, columns: Sequence[int]) -> Line:
    sides: dict[int, int] = {}
    for row, vertical in ((above, UP), (below, DOWN)):
        for block, start in zip(row or (), columns, strict=False):
            posts = _posts(block, start)
            for post in posts:
                sides[post] = sides.get(post, 0) | vertical
            for column in range(posts[0], posts[-1]) if posts else ():
                sides[column] = sides.get(column, 0) | RIGHT
                sides[column + 1] = sides.get(column + 1, 0) | LEFT
    drawn = "".join(JOINTS[sides.get(column, 0)] for column in range(max(sides, default=-1) + 1))
    return _titled(
        drawn,
        [
            title
            for block, start in zip(below or (), columns, strict=False)
            for title in _titles(block, start)
        ],
    )


def _posts(block: Block, start: int) -> list[int]:
    posts = [start]
    for frame in block:
        posts.append(posts[-1] + frame.width + 1)
    return posts if block else []


def _titles(block: Block, start: int) -> Iterator[tuple[int, Ink]]:
    """Yields (column, text) of the titles in the upper borders."""
    for frame, post in zip(block, _posts(block, start), strict=False):
        room = frame.width - 2 if frame.width > 4 else frame.width
        text = cut(frame.title, room) if room > 2 or width_of(frame.title) <= room else ""
        if text:
            yield post + 1, ink(f" {text} " if width_of(text) <= frame.width - 2 else text)


def _titled(drawn: str, titles: Sequence[tuple[int, Ink]]) -> Line:
    made, at = Line(), 0
    for column, title in titles:
        made = line(made, ink(drawn[at:column], "faint"), title)
        at = column + width_of(title.text)
    return line(made, ink(drawn[at:], "faint"))
