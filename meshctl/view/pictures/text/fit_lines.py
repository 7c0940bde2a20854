"""A picture in so many lines: sections with levels of detail, of which the fullest are taken that fit
together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from meshctl.view.pictures.text.styled import Line, ink, line

TIGHT, BARE = 12, 6
"""What a reader misses where no empty lines part the sections, and where no line at the end says what signs
mean."""


@dataclass(frozen=True)
class Level:
    """One way of drawing a section."""

    loss: int
    """How much a reader misses."""
    draw: Callable[[], list[Line]]
    least: int = 0
    """So many lines it surely has: what cannot fit is not drawn."""


@dataclass(frozen=True)
class Section:
    heading: str
    levels: tuple[Level, ...]
    """The fullest first, the shortest last."""
    more: Callable[[int], str]
    """What is said of so many lines that are left out at last."""


def fitted(head: Line, sections: Sequence[Section], foot: Sequence[Line], lines: int) -> list[Line]:
    """Head, sections and foot.

    Of all combinations of levels that fit it is the one that a reader misses least by. Where not even the
    shortest fit, each section has its even share of the lines, or what modest ones leave of theirs.
    """
    room = lines - 1 - len(sections)
    drawn = Drawn(sections, room)
    choices = [range(len(section.levels)) for section in sections]
    for airy, footed, *levels in sorted(
        product((1, 0), (1, 0), *choices), key=lambda way: _missed(sections, way)
    ):
        gaps = airy * (len(sections) + footed * bool(foot))
        if (
            sum(len(drawn[place, level]) for place, level in enumerate(levels)) + gaps + len(foot) * footed
            <= room
        ):
            bodies = [drawn[place, level] for place, level in enumerate(levels)]
            return _whole(head, sections, bodies, foot if footed else (), bool(airy))
    return _whole(head, sections, _cut(sections, drawn, room), (), False)[:lines]


def _missed(sections: Sequence[Section], way: Sequence[int]) -> int:
    airy, footed, *levels = way
    return (
        TIGHT * (1 - airy)
        + BARE * (1 - footed)
        + sum(section.levels[level].loss for section, level in zip(sections, levels, strict=True))
    )


def _cut(sections: Sequence[Section], drawn: Drawn, room: int) -> list[Sequence[Line]]:
    """Each section at the fullest level that its share holds; what is longer at its shortest gets what is
    left, and is cut."""
    bodies = [
        [drawn[place, level] for level in range(len(section.levels))]
        for place, section in enumerate(sections)
    ]
    rooms = shares(
        [len(each[-1]) if len(each[-1]) > room // len(sections) else len(each[0]) for each in bodies], room
    )
    chosen = [
        next((body for body in each if len(body) <= most), each[-1])
        for each, most in zip(bodies, rooms, strict=True)
    ]
    rooms = shares([len(body) for body in chosen], room)
    return [
        shortened(body, most, section.more)
        for body, most, section in zip(chosen, rooms, sections, strict=True)
    ]


class Drawn(dict[tuple[int, int], Sequence[Line]]):
    """(section, level) -> what it looks like, drawn when it is asked for; of what cannot fit, only that it is
    too long."""

    def __init__(self, sections: Sequence[Section], room: int) -> None:
        self._sections, self._room = sections, room

    def __missing__(self, key: tuple[int, int]) -> Sequence[Line]:
        level = self._sections[key[0]].levels[key[1]]
        self[key] = level.draw() if level.least <= self._room else [()] * level.least
        return self[key]


def _whole(
    head: Line,
    sections: Sequence[Section],
    bodies: Sequence[Sequence[Line]],
    foot: Sequence[Line],
    airy: bool,
) -> list[Line]:
    gap = [line()] if airy else []
    made = [head]
    for section, body in zip(sections, bodies, strict=True):
        made += [*gap, line(ink(section.heading, "bold")), *body]
    return [*made, *(gap if foot else []), *foot]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """How much each gets: what it wants, or its even share of what the modest ones leave."""
    rooms, left = [0] * len(wanted), max(0, room)
    for place, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        rooms[index] = min(wanted[index], left // (len(wanted) - place))
        left -= rooms[index]
    return rooms


def shortened(body: Sequence[Line], room: int, more: Callable[[int], str]) -> Sequence[Line]:
    if len(body) <= room:
        return body
    kept = max(0, room - 1)
    return [*body[:kept], line("  ", ink(more(len(body) - kept), "faint"))][:room]
