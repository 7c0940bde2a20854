"""Who takes from whom, as rails beside a list of stages in run order.

    ╭────  batch          a value is given
    ├─┬──  rollouts       it is taken, and goes on to a later stage; this stage gives a value too
    │ ╰──  judged         it is taken for the last time
    ╰────  metrics

A rail has the color of who gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshctl.view.pictures.text.styled import Ink, Line, ink, line

MOST = 6
"""Rails side by side; where there are more, names have to do."""


@dataclass(frozen=True)
class Rails:
    stages: Mapping[str, Line]
    """What stands before each stage."""
    below: Mapping[str, Line]
    """What goes on below it."""
    width: int


def rails(order: Sequence[str], taken: Sequence[tuple[str, str]], styles: Mapping[str, str]) -> Rails | None:
    """`taken` are pairs (who gives, who takes). None where nothing is taken, or more rails would run side by
    side than people follow."""
    where = {name: place for place, name in enumerate(order)}
    pairs = {(where[source], where[target]) for source, target in taken if where[source] < where[target]}
    last: dict[int, int] = {}
    for source, target in pairs:
        last[source] = max(target, last.get(source, 0))
    lanes: list[int | None] = []
    stages, below = list[list[Ink]](), list[list[Ink]]()
    for place in range(len(order)):
        mine = [lane for lane, holder in enumerate(lanes) if holder is not None and (holder, place) in pairs]
        new = _free(lanes, max(mine, default=-1) + 1) if place in last else None
        if new is not None:
            lanes[new:] = [place, *lanes[new + 1 :]]
        if len(lanes) > MOST:
            return None
        colors = ["" if holder is None else styles[order[holder]] for holder in lanes]
        ends = [holder is not None and last[holder] <= place for holder in lanes]
        joints = zip(_joints(lanes, mine, new, ends), colors, strict=True)
        stages.append(
            [part for joint, color in joints for part in (ink(joint[0], color), ink(joint[1], "faint"))]
        )
        lanes = [None if end else holder for holder, end in zip(lanes, ends, strict=True)]
        below.append(
            [
                ink("  " if holder is None else "│ ", color)
                for holder, color in zip(lanes, colors, strict=True)
            ]
        )
        while lanes and lanes[-1] is None:
            lanes.pop()
    wide = max(map(len, below), default=0)
    return _rails(order, stages, below, wide) if wide else None


def _rails(
    order: Sequence[str], stages: Sequence[Sequence[Ink]], below: Sequence[Sequence[Ink]], wide: int
) -> Rails:
    return Rails(
        {name: line(*_led(each, wide)) for name, each in zip(order, stages, strict=True)},
        {name: line(*each, "  " * (wide - len(each))) for name, each in zip(order, below, strict=True)},
        wide * 2,
    )


def _free(lanes: Sequence[int | None], start: int) -> int:
    """The first lane from `start` on that nobody holds."""
    return next((lane for lane in range(start, len(lanes)) if lanes[lane] is None), max(start, len(lanes)))


def _joints(
    lanes: Sequence[int | None], mine: Sequence[int], new: int | None, ends: Sequence[bool]
) -> list[str]:
    """The row of a stage, two columns a lane: the joint, and what leads on to the name of the stage."""
    first = min([*mine, *([] if new is None else [new])], default=len(lanes))
    made = list[str]()
    for lane, holder in enumerate(lanes):
        led = "─" if lane >= first else " "
        if lane in mine:
            joint = ("╰" if ends[lane] else "├") if lane == first else ("┴" if ends[lane] else "┼")
        elif lane == new:
            joint = "┬" if mine else "╭"
        else:
            joint = led if holder is None else "│"
        made.append(joint + led)
    return made


def _led(row: Sequence[Ink], wide: int) -> list[Ink]:
    """The row, led on to the name of its stage."""
    return [*row, ink(("─" if row and row[-1].text == "─" else " ") * (wide * 2 - len(row)), "faint")]
