"""Fits a picture into a number of lines by choosing a level of detail for each of its sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product

from meshctl.dataclass import dataclass
from meshctl.view.pictures.text.styled import Line, styled

NOT_SPACED_COST, NO_LEGEND_COST = 12, 6
"""The costs of a picture without empty lines between the sections, and of one without a legend. They are
added to the costs of the levels."""


@dataclass(frozen=True)
class Level:
    """One level of detail of a section."""

    cost: int
    """The value of the details that this level leaves out."""
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

    def level_for(self, space: int) -> Level:
        """Returns the most detailed level that fits, or the shortest one."""
        short = (each for each in self.levels if each.least <= space and len(each.lines) <= space)
        return next(short, self.levels[-1])

    def shortened(self, lines: list[Line], space: int) -> list[Line]:
        if len(lines) <= space:
            return lines
        kept = max(0, space - 1)
        return [*lines[:kept], Line("  ", styled(self.more(len(lines) - kept), "faint"))][:space]


Foot = Callable[[Sequence[Sequence[Line]]], Sequence[Line]]
"""Returns the last lines of a picture, given the lines of its sections."""


def fitted(head: Line, sections: Sequence[Section], foot: Foot, lines: int) -> list[Line]:
    """Returns head, sections and foot in at most `lines` lines.

    Of all combinations of levels that fit, the one with the least cost is chosen. If not even the shortest
    levels fit, each section has an even share of the lines; lines that a short section does not need go to
    the others.
    """
    space = lines - 1 - len(sections)
    levels = product(*([each for each in section.levels if each.least <= space] for section in sections))
    choices = product((True, False), (True, False), levels)
    for is_spaced, has_foot, chosen in sorted(choices, key=_cost):
        bodies = [level.lines for level in chosen]
        foot_lines = foot(bodies) if has_foot else ()
        gaps = is_spaced * (len(sections) + bool(foot_lines))
        if sum(map(len, bodies)) + gaps + len(foot_lines) <= space:
            return _joined(head, sections, bodies, foot_lines, is_spaced)
    bodies = [section.level_for(space // len(sections)).lines for section in sections]
    each = zip(sections, bodies, shares(list(map(len, bodies)), space), strict=True)
    bodies = [section.shortened(body, share) for section, body, share in each]
    return _joined(head, sections, bodies, (), is_spaced=False)[:lines]


def _cost(choice: tuple[bool, bool, tuple[Level, ...]]) -> int:
    is_spaced, has_foot, levels = choice
    loss = NOT_SPACED_COST * (not is_spaced) + NO_LEGEND_COST * (not has_foot)
    return loss + sum(level.cost for level in levels)


def _joined(
    head: Line,
    sections: Sequence[Section],
    bodies: Sequence[Sequence[Line]],
    foot: Sequence[Line],
    is_spaced: bool,
) -> list[Line]:
    gap = [Line()] if is_spaced else []
    made = [head]
    for section, body in zip(sections, bodies, strict=True):
        made += [*gap, Line(styled(section.heading, "bold")), *body]
    return [*made, *(gap if foot else []), *foot]


def shares(wanted: Sequence[int], space: int) -> list[int]:
    """Returns the number of lines for each section, with the sum `space`. A section receives the lines that
    it wants, or else an even share of the lines that shorter sections leave."""
    spaces, left = [0] * len(wanted), max(0, space)
    for place, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        spaces[index] = min(wanted[index], left // (len(wanted) - place))
        left -= spaces[index]
    return spaces
