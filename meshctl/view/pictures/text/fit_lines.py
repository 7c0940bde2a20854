"""Fits a picture into a number of lines by choosing a level of detail for each of its sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from meshctl.dataclass import dataclass
from meshctl.view.pictures.text.styled import Line, styled

GAPS_COST = 30
"""The value of the empty lines between sections."""


@dataclass(frozen=True)
class Level:
    """One level of detail of a section."""

    cost: int
    """The value of the details that this level leaves out, beside those of the level before it."""
    draw: Callable[[], list[Line]]
    least: int = 0
    """A lower bound of the number of its lines. A level whose lower bound does not fit is not drawn."""

    @cached_property
    def lines(self) -> list[Line]:
        return self.draw()


@dataclass(frozen=True)
class Section:
    heading: str
    levels: tuple[Level, ...]
    """From the most detailed to the shortest."""
    more: Callable[[int], str]
    """Returns the text of the last line, given the number of lines that are left out."""

    def shortened(self, lines: list[Line], space: int) -> list[Line]:
        if len(lines) <= space:
            return lines
        kept = max(0, space - 1)
        return [*lines[:kept], Line("  ", styled(self.more(len(lines) - kept), "faint"))][:space]


Foot = Callable[[Sequence[Sequence[Line]]], Sequence[Line]]
"""Returns the last lines of a picture, given the lines of its sections."""


def fitted(head: Line, sections: Sequence[Section], foot: Foot, lines: int) -> list[Line]:
    """Returns head, sections and foot in at most `lines` lines.

    As long as they do not fit, the section whose next level leaves out the least gets that level, or the
    empty lines between sections are left out. If not even the shortest levels fit, each section has an even
    share of the lines; lines that a short section does not need go to the others.
    """
    left = [[each for each in one.levels if each.least <= lines] or [one.levels[-1]] for one in sections]
    gap = [Line()]
    while True:
        bodies = [levels[0].lines for levels in left]
        whole = _joined(head, sections, bodies, foot(bodies), gap)
        if len(whole) <= lines:
            return whole
        further = min((levels for levels in left if len(levels) > 1), key=_next_cost, default=None)
        if gap and (further is None or _next_cost(further) > GAPS_COST):
            gap = []
        elif further is not None:
            del further[0]
        else:
            break
    each = zip(sections, bodies, shares(list(map(len, bodies)), lines - 1 - len(sections)), strict=True)
    return _joined(head, sections, [section.shortened(body, share) for section, body, share in each])[:lines]


def _next_cost(levels: Sequence[Level]) -> int:
    return levels[1].cost


def _joined(
    head: Line,
    sections: Sequence[Section],
    bodies: Sequence[Sequence[Line]],
    foot: Sequence[Line] = (),
    gap: Sequence[Line] = (),
) -> list[Line]:
    made = [head]
    for section, body in zip(sections, bodies, strict=True):
        made += [*gap, Line(styled(section.heading, "bold")), *body]
    return [*made, *(gap if foot else ()), *foot]


def shares(wanted: Sequence[int], space: int) -> list[int]:
    """Returns the number of lines for each section, with the sum `space`. A section receives the lines that
    it wants, or else an even share of the lines that shorter sections leave."""
    spaces, left = [0] * len(wanted), max(0, space)
    for place, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        spaces[index] = min(wanted[index], left // (len(wanted) - place))
        left -= spaces[index]
    return spaces
